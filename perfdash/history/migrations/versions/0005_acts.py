"""What people did to the history and its alerts, and which runs they excluded from judging.

The stored intervals of mean speedups become those that later versions compute of the same results.
"""

import math
from collections import Counter
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# By how much the models of a fork parent err together (the standard deviation of a log): as 0.1.0 took it for
# the mean of both parents, and as measured since then for each.
_FORMER_SD, _SHARED_SD = 0.002, 0.008
_CASES_OF_A_PARENT = 40
_NORMAL = 1.959964  # the 97.5 % quantile of the normal distribution
_KEY = ("run_id", "suite", "device", "dtype", "threads", "scenario", "backend", "dynamic")

_runs = sa.table("runs", sa.column("id"), sa.column("perfdash"))
_cases = sa.table("cases", sa.column("id"), sa.column("amp_dtype"), *(sa.column(name) for name in _KEY[1:]))
_results = sa.table(
    "results", sa.column("id"), sa.column("run_id"), sa.column("case_id"), sa.column("status"),
    sa.column("verdict"), sa.column("basis"), sa.column("speedup"), sa.column("calls_captured"),
    sa.column("graphs"),
)  # fmt: skip
_details = sa.table("result_details", sa.column("result_id"), sa.column("details", sa.JSON))
_summaries = sa.table(
    "summaries", *(sa.column(name) for name in _KEY), sa.column("measured"), sa.column("speedup_low"),
    sa.column("speedup_high"),
)  # fmt: skip


def upgrade() -> None:
    op.add_column("runs", sa.Column("excluded", sa.Text(), nullable=True))
    op.create_table(
        "acts",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("at", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("testbed_id", sa.Integer(), nullable=True),
        sa.Column("run_id", sa.Integer(), nullable=True),
        sa.Column("alert_id", sa.Integer(), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_acts"),
        sa.ForeignKeyConstraint(["testbed_id"], ["testbeds.id"], name="fk_acts_testbed_id"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_acts_run_id", ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["alert_id"], ["alerts.id"], name="fk_acts_alert_id", ondelete="SET NULL"),
    )
    op.create_index("ix_acts_run_id", "acts", ["run_id"])
    op.create_index("ix_acts_alert_id", "acts", ["alert_id"])
    _widen_intervals(op.get_bind())


def _widen_intervals(connection: sa.Connection) -> None:
    """Compute the intervals of means of several models as history.pass_rates_and_means does since 0.2.0."""
    query = (
        sa.select(_summaries)
        .join_from(_summaries, _runs, _summaries.c.run_id == _runs.c.id)
        .where(_runs.c.perfdash.like("0.1.%"), _summaries.c.measured > 1, _summaries.c.speedup_low > 0)
    )
    means = connection.execute(query).all()
    in_one_process: Counter[tuple[Any, ...]] = Counter()
    for run_id in {mean.run_id for mean in means}:
        in_one_process.update(_in_one_process(connection, run_id))
    for mean in means:
        key = tuple(getattr(mean, name) for name in _KEY)
        middle = math.log(mean.speedup_low * mean.speedup_high) / 2
        stored = math.log(mean.speedup_high / mean.speedup_low) / 2 / _NORMAL
        second = (1 - in_one_process[key] / mean.measured) / 2  # the second parent's part in the mean
        shared = _SHARED_SD**2 * ((1 - second) ** 2 + second**2)
        shared /= max(1.0, mean.measured / _CASES_OF_A_PARENT)
        reach = _NORMAL * math.sqrt(max(0.0, stored**2 - _FORMER_SD**2) + shared)
        values = {"speedup_low": math.exp(middle - reach), "speedup_high": math.exp(middle + reach)}
        is_mean = (_summaries.c[name] == value for name, value in zip(_KEY, key, strict=True))
        connection.execute(sa.update(_summaries).where(*is_mean).values(values))


def _in_one_process(connection: sa.Connection, run_id: int) -> Counter[tuple[Any, ...]]:
    """How many results in each mean of a run were sampled in one process, under the first parent alone."""
    captured = sa.func.coalesce(_results.c.calls_captured, 1) * sa.func.coalesce(_results.c.graphs, 1) > 0
    query = (
        sa.select(_cases, _details.c.details)
        .join_from(_results, _cases, _results.c.case_id == _cases.c.id)
        .join(_details, _details.c.result_id == _results.c.id, isouter=True)
        .where(
            _results.c.run_id == run_id,
            _results.c.basis == "pooled",
            _results.c.status == "pass",
            _results.c.speedup > 0,
            _results.c.verdict != "disturbed",
            captured | (_cases.c.backend == "eager"),
        )
    )
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in connection.execute(query):
        if not (row.details or {}).get("recompile_limit"):
            dtype = f"amp-{row.amp_dtype}" if row.amp_dtype else row.dtype
            setting = {**row._mapping, "run_id": run_id, "dtype": dtype}
            counts[tuple(setting[name] for name in _KEY)] += 1
    return counts
