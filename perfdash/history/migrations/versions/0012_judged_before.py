"""What earlier versions noted of nights that were judged, as it is read since then."""

from itertools import groupby

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_REFUTED, _AGAIN = "dismissed by a re-measurement", "judged again:"  # notes of events
_runs = sa.table("runs", sa.column("id"), sa.column("started"), sa.column("imported", sa.JSON))
_alerts = sa.table(
    "alerts", sa.column("id"), sa.column("state"), sa.column("bad_run_id"), sa.column("details", sa.JSON)
)
_events = sa.table(
    "alert_events", sa.column("id"), sa.column("alert_id"), sa.column("run_id"), sa.column("note")
)


def upgrade() -> None:
    connection = op.get_bind()
    _list_judged_as(connection)
    _note_refuted(connection)


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


def _note_refuted(connection: sa.Connection) -> None:
    """An alert says from when and up to which night a re-measurement refuted it; only its events did."""
    starts = {row.id: row.started for row in connection.execute(sa.select(_runs.c.id, _runs.c.started))}
    refuted = sa.select(_events.c.alert_id).where(_events.c.note == _REFUTED)
    query = sa.select(_alerts).where(_alerts.c.id.in_(refuted), _alerts.c.state.in_(["dismissed", "fixed"]))
    alerts = {row.id: row for row in connection.execute(query)}
    query = (
        sa.select(_events).where(_events.c.alert_id.in_(refuted)).order_by(_events.c.alert_id, _events.c.id)
    )
    for number, events in groupby(connection.execute(query).all(), key=lambda row: row.alert_id):
        alert = alerts.get(number)
        if alert is None or "refuted" in alert.details:
            continue
        own = [event for event in events if not (event.note or "").startswith(_AGAIN)]
        last = max(place for place, event in enumerate(own) if event.note == _REFUTED)
        if last < len(own) - 1 and not alert.details.get("withdrawn", {}).get("refuted"):
            continue  # raised again since then
        # What only seemed to return is as it was when it was fixed.
        first = alert.bad_run_id if alert.state == "dismissed" else alert.details.get("fixed_run_id")
        since, night = starts.get(first), starts.get(own[last].run_id)
        if since and night:
            details = {**alert.details, "refuted": {"since": since, "night": night}}
            of_alert = sa.update(_alerts).where(_alerts.c.id == number)
            connection.execute(of_alert.values(details=details))
