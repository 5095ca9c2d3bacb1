"""Configurations: their settings and name, of cases and summaries.

Runs with --dynamic, and runs whose options equal those of a configuration then, become nights of it. Their
alerts keep the series that their issues name, and the runs are known when they are imported again.
"""

import hashlib
from typing import Any

import sqlalchemy as sa
from alembic import op

from perfdash.files import dumps

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# Options of runs that equalled a shipped configuration when this migration was written.
_EQUAL = (
    ({"inductor_config": {"freezing": True}}, "freezing"),
    ({"inductor_config": {"cpp_wrapper": True}}, "cpp-wrapper"),
    ({"inductor_config": {"triton.cudagraphs": True}}, "cudagraphs"),
)
_OF_THE_RUN = ("allocator", "weights", "side_by_side", "gpus")
_KEY = ("run_id", "suite", "device", "dtype", "threads", "scenario", "backend", "dynamic", "settings")
_CASE = ("suite", "model", "device", "dtype", "batch_size", "threads", "scenario", "backend", "dynamic",
         "amp_dtype", "settings")  # fmt: skip
_DEFAULTS = {"device": "cpu", "dtype": "float32", "batch_size": 1, "threads": 1, "scenario": "inference",
             "backend": "inductor", "dynamic": False, "amp_dtype": None}  # fmt: skip

# The numbers of a result that the content of its run has, in this order.
_NUMBERS = (
    "eager_ms", "backend_ms", "speedup", "speedup_low", "speedup_high", "compilation_s", "wall_s",
)  # fmt: skip

_testbeds = sa.table(
    "testbeds", sa.column("id"), sa.column("digest"), sa.column("host_class"), sa.column("setting", sa.JSON)
)
_cases = sa.table(
    "cases", sa.column("id"), sa.column("digest"), sa.column("configuration"),
    *(sa.column(name, sa.Boolean) if name == "dynamic" else sa.column(name) for name in _CASE),
)  # fmt: skip
_runs = sa.table(
    "runs", sa.column("id"), sa.column("testbed_id"), sa.column("origin"), sa.column("state"),
    sa.column("ended"), sa.column("content"),
)  # fmt: skip
_results = sa.table(
    "results", sa.column("id"), sa.column("run_id"), sa.column("case_id"), sa.column("status"),
    sa.column("started"), *(sa.column(name) for name in _NUMBERS),
)  # fmt: skip
_alerts = sa.table(
    "alerts", sa.column("id"), sa.column("testbed_id"), sa.column("case_id"), sa.column("kind"),
    sa.column("metric"), sa.column("former_testbed"),
)  # fmt: skip
_acts = sa.table("acts", sa.column("id"), sa.column("testbed_id"), sa.column("details", sa.JSON))
_summaries = sa.table("summaries", sa.column("run_id"), sa.column("settings"), sa.column("configuration"))


def upgrade() -> None:
    for table in ("cases", "summaries"):
        op.add_column(table, sa.Column("settings", sa.Text(), nullable=False, server_default=""))
        op.add_column(table, sa.Column("configuration", sa.Text(), nullable=False, server_default="default"))
        op.execute(f"update {table} set configuration = 'dynamic' where dynamic")
    with op.batch_alter_table("summaries") as batch_op:
        batch_op.drop_constraint(op.f("pk_summaries"), type_="primary")
        batch_op.create_primary_key(op.f("pk_summaries"), list(_KEY))
    op.add_column("alerts", sa.Column("former_testbed", sa.String(64)))
    connection = op.get_bind()
    for bed in connection.execute(sa.select(_testbeds)).all():
        options = {name: value for name, value in bed.setting.items() if name not in _OF_THE_RUN}
        name = next((name for equal, name in _EQUAL if equal == options), None)
        origins = connection.execute(sa.select(_runs.c.origin).where(_runs.c.testbed_id == bed.id))
        if name and set(origins.scalars()) == {"perfdash"}:
            _move(connection, bed, options, name)


def _move(connection: sa.Connection, bed: Any, options: dict[str, Any], name: str) -> None:
    """Move the runs of a testbed to the one without the options; their cases get these as settings.

    So do the cases of its alerts, whose results may have been pruned, and those of accepted levels.
    """
    settings = dumps(dict(next(equal for equal, _ in _EQUAL if equal == options)), sort_keys=True,
                          separators=(",", ":"))  # fmt: skip
    setting = {key: value for key, value in bed.setting.items() if key in _OF_THE_RUN}
    digest = _digest([bed.host_class, setting])
    target = connection.execute(sa.select(_testbeds.c.id).where(_testbeds.c.digest == digest)).scalar()
    _keep_series(connection, bed)
    if target is None:
        connection.execute(
            sa.update(_testbeds).where(_testbeds.c.id == bed.id).values(digest=digest, setting=setting)
        )
        target = bed.id
    of_bed = sa.select(_runs.c.id).where(_runs.c.testbed_id == bed.id)
    measured = sa.select(_results.c.case_id).where(_results.c.run_id.in_(of_bed))
    alerted = sa.select(_alerts.c.case_id).where(_alerts.c.testbed_id == bed.id)
    of_cases = sa.select(_cases).where(_cases.c.id.in_(measured) | _cases.c.id.in_(alerted))
    digests = {}
    for case in connection.execute(of_cases).all():
        if case.settings:
            continue
        number, digests[case.digest] = _case_with(connection, case, settings, name)
        connection.execute(
            sa.update(_results)
            .where(_results.c.run_id.in_(of_bed), _results.c.case_id == case.id)
            .values(case_id=number)
        )
        connection.execute(
            sa.update(_alerts)
            .where(_alerts.c.testbed_id == bed.id, _alerts.c.case_id == case.id)
            .values(case_id=number)
        )
    _rename_cases(connection, bed, digests)
    connection.execute(
        sa.update(_summaries)
        .where(_summaries.c.run_id.in_(of_bed))
        .values(settings=settings, configuration=name)
    )
    for act in connection.execute(sa.select(_acts).where(_acts.c.testbed_id == bed.id)).all():
        if (case_digest := act.details.get("case")) in digests:
            details = {**act.details, "case": digests[case_digest]}
            connection.execute(sa.update(_acts).where(_acts.c.id == act.id).values(details=details))
    if target != bed.id:
        for table in (_runs, _alerts, _acts):
            connection.execute(sa.update(table).where(table.c.testbed_id == bed.id).values(testbed_id=target))
        connection.execute(sa.delete(_testbeds).where(_testbeds.c.id == bed.id))


def _keep_series(connection: sa.Connection, bed: Any) -> None:
    """Write into the alerts of a testbed the series that the markers of their issues name.

    Another would close each issue and open a second one.
    """
    query = (
        sa.select(_alerts.c.id, _alerts.c.kind, _alerts.c.metric, _cases.c.digest)
        .join_from(_alerts, _cases, _alerts.c.case_id == _cases.c.id, isouter=True)
        .where(_alerts.c.testbed_id == bed.id)
    )
    for alert in connection.execute(query).all():
        series = _digest([bed.digest, alert.digest, alert.kind, alert.metric])[:20]  # as many as a marker has
        of_alert = sa.update(_alerts).where(_alerts.c.id == alert.id)
        connection.execute(of_alert.values(former_testbed=f"series {series}"))


def _rename_cases(connection: sa.Connection, bed: Any, digests: dict[str, str]) -> None:
    """Compute the contents of a testbed's runs with the new digests of their cases.

    The content of an import has these. A run whose content is not that of its results stays as it is.
    """
    former = {new: old for old, new in digests.items()}
    for run in connection.execute(sa.select(_runs).where(_runs.c.testbed_id == bed.id)).all():
        query = (
            sa.select(_cases.c.digest, *_results.c["status", "started", *_NUMBERS])
            .join_from(_results, _cases, _results.c.case_id == _cases.c.id)
            .where(_results.c.run_id == run.id)
            .order_by(_results.c.id)
        )
        rows = connection.execute(query).all()
        old, new = (
            _digest([run.state, run.ended, [[names.get(case, case), *values, {}] for case, *values in rows]])
            for names in (former, {})
        )
        contents = {old: new, _digest(["pruned", old]): _digest(["pruned", new])}
        if run.content in contents:
            of_run = sa.update(_runs).where(_runs.c.id == run.id)
            connection.execute(of_run.values(content=contents[run.content]))


def _case_with(connection: sa.Connection, case: Any, settings: str, name: str) -> tuple[int, str]:
    """The number and digest of a case with these settings."""
    values = {key: getattr(case, key) for key in _CASE} | {"settings": settings}
    plain = {key: value for key, value in values.items() if value != _DEFAULTS.get(key, ...)}
    digest = _digest(plain)
    query = sa.select(_cases.c.id).where(_cases.c.digest == digest)
    number = connection.execute(query).scalar()
    if number is None:
        connection.execute(sa.insert(_cases).values(digest=digest, configuration=name, **values))
        number = connection.execute(query).scalar_one()
    return int(number), digest


def _digest(value: Any) -> str:
    text = dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
