"""What earlier versions noted of nights that were judged, as it is read since then."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_runs = sa.table("runs", sa.column("id"), sa.column("imported", sa.JSON))


def upgrade() -> None:
    _list_judged_as(op.get_bind())


def _list_judged_as(connection: sa.Connection) -> None:
    """A run that was replaced after it was judged may have had several testbeds and starts."""
    query = sa.select(_runs.c.id, _runs.c.imported)
    marked = query.where(_runs.c.imported.cast(sa.Text).contains('"judged_as"'))
    for run_id, imported in connection.execute(marked).all():
        mark = imported.get("judged_as")
        if isinstance(mark, dict):
            changed = {**imported, "judged_as": [[mark["testbed_id"], mark["started"]]]}
            of_run = sa.update(_runs).where(_runs.c.id == run_id)
            connection.execute(of_run.values(imported=changed))
