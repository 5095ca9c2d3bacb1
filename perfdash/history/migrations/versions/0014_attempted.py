"""A case that failed because of the machine is not attempted: it counts in no pass rate.

The counts of earlier runs follow, else a pass rate would jump in its trend where perfdash was upgraded.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# As history.pass_rates_and_means had it when this migration was written.
_NOT_ATTEMPTED = {"skipped", "not_tonight", "infra_error", "pass_due_to_skip", "no_finite_output"}
_KEY = (
    "run_id", "suite", "device", "dtype", "threads", "scenario", "backend", "dynamic", "settings",
)  # fmt: skip
_summaries = sa.table(
    "summaries", *(sa.column(name) for name in _KEY), sa.column("attempted"), sa.column("statuses", sa.JSON)
)


def upgrade() -> None:
    connection = op.get_bind()
    lost = sa.select(_summaries).where(_summaries.c.statuses.cast(sa.Text).contains('"infra_error"'))
    for summary in connection.execute(lost).all():
        attempted = sum(count for status, count in summary.statuses.items() if status not in _NOT_ATTEMPTED)
        is_summary = (_summaries.c[name] == getattr(summary, name) for name in _KEY)
        connection.execute(sa.update(_summaries).where(*is_summary).values(attempted=attempted))
