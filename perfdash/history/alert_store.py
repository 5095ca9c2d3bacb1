"""Read and write alerts, their events, and bisections in the store. No judgement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import sqlalchemy as sa

from perfdash.errors import UsageError
from perfdash.history import schema

SUSPECTED = "suspected"  # not certain enough for an alert: a later night or a re-measurement decides
NEW, CONFIRMED, OPEN, REOPENED = "new", "confirmed", "open", "reopened"
ACKNOWLEDGED, FIXED, DISMISSED = "acknowledged", "fixed", "dismissed"
SUPERSEDED = "superseded"  # its metric has been measured by another method since then
INVALID, ACCEPTED = "invalid", "accepted"  # a person said: it is no real change; it is the new level
LIVE = (NEW, CONFIRMED, OPEN, REOPENED, ACKNOWLEDGED)
SHOWN = (*LIVE, SUSPECTED)  # in lists of what is open
NOT_REAL = (DISMISSED, INVALID)
STATES = (*LIVE, SUSPECTED, FIXED, DISMISSED, SUPERSEDED, INVALID, ACCEPTED)
_DECIDED = (ACKNOWLEDGED, INVALID, ACCEPTED)  # by a person
# In the notes of other events that no night showed.
JUDGED_AGAIN, REMEASURED, ACKNOWLEDGED_UNTIL, BISECTED, NOT_JUDGED = (
    "judged again:",
    "by a re-measurement",
    "it was acknowledged until",
    "bisected:",
    "a rule in [[thresholds]] of perfdash.toml: not judged",
)


@dataclass(frozen=True)
class Alert:
    """A row of `alerts`, which refers to runs and cases by their ids."""

    kind: str
    testbed_id: int
    case_id: int | None
    metric: str | None
    state: str
    direction: int
    good_run_id: int | None
    bad_run_id: int | None
    seen_run_id: int | None
    opened: str
    changed: str
    before: float | None = None
    after: float | None = None
    change: float | None = None
    p: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    id: int | None = None

    @property
    def series(self) -> tuple[str, int | None, str | None]:
        return self.kind, self.case_id, self.metric

    @property
    def spells(self) -> list[tuple[int, int]]:
        """The runs with which its change began and was over, each time that it was fixed, oldest first."""
        spells = [(bad, fixed) for bad, fixed in self.details.get("spells", [])]
        if self.state == FIXED:
            spells.append((self.bad_run_id or -1, self.details.get("fixed_run_id", -1)))
        return spells


@dataclass(frozen=True)
class AlertEvent:
    """A change of an alert's state. `run` is the present name of its run, which began at `started`."""

    at: str
    state: str
    run: str | None
    note: str | None
    started: str | None = None

    @property
    def day(self) -> str:
        """The day of the night that showed it; for any other event, the day on which it happened.

        Nights are judged later than they run, above all those that are imported. A person decides, a
        re-measurement or bisection ends, an acknowledgement is over and a rule ends an alert after the night
        that the event names.
        """
        notes = (JUDGED_AGAIN, REMEASURED, ACKNOWLEDGED_UNTIL, BISECTED, NOT_JUDGED)
        is_later = self.state in _DECIDED or any(note in (self.note or "") for note in notes)
        return (self.at if is_later else self.started or self.at)[:10]


def load(
    connection: sa.Connection,
    *,
    testbed_id: int | None = None,
    states: Iterable[str] = LIVE,
    or_seen_in: int | None = None,
    case_ids: Iterable[int] | None = None,
) -> list[Alert]:
    """Alerts in some states, or last seen in a run, oldest first; of some cases, or all."""
    table = schema.alerts
    in_run = sa.false() if or_seen_in is None else table.c.seen_run_id == or_seen_in
    query = sa.select(*table.c[_NAMES]).where(table.c.state.in_(list(states)) | in_run).order_by(table.c.id)
    if testbed_id is not None:
        query = query.where(table.c.testbed_id == testbed_id)
    if case_ids is not None:
        query = query.where(table.c.case_id.in_(list(case_ids)))
    return [Alert(**row._mapping) for row in connection.execute(query)]


def find(connection: sa.Connection, number: int) -> Alert:
    """Find an alert by its number. Raises UsageError if it does not exist."""
    table = schema.alerts
    row = connection.execute(sa.select(*table.c[_NAMES]).where(table.c.id == number)).first()
    if row is None:
        raise UsageError(f"there is no alert {number}; `perfdash regressions --all` lists them")
    return Alert(**row._mapping)


def save(connection: sa.Connection, alert: Alert, note: str | None = None) -> int:
    """Insert or update an alert, with an event if its state changed; return its number."""
    table = schema.alerts
    values = {name: getattr(alert, name) for name in _NAMES if name != "id"}
    before = None
    if alert.id is None:
        number = int(connection.execute(sa.insert(table).returning(table.c.id), values).scalar_one())
    else:
        number = alert.id
        before = connection.execute(sa.select(table.c.state).where(table.c.id == number)).scalar_one()
        connection.execute(sa.update(table).where(table.c.id == number), values)
    if before != alert.state or note:
        # A night of another method supersedes an alert without having seen it.
        superseded_run = alert.details.get("superseded_run_id") if alert.state == SUPERSEDED else None
        event = {
            "alert_id": number,
            "at": alert.changed,
            "state": alert.state,
            "run_id": superseded_run or alert.seen_run_id,
            "note": note,
        }
        connection.execute(sa.insert(schema.alert_events), event)
    return number


def events(connection: sa.Connection, number: int) -> list[AlertEvent]:
    """The events of an alert, oldest first."""
    table, runs = schema.alert_events, schema.runs
    query = (
        sa.select(table.c.at, table.c.state, runs.c.name, table.c.note, runs.c.started)
        .join_from(table, runs, table.c.run_id == runs.c.id, isouter=True)
        .where(table.c.alert_id == number)
        .order_by(table.c.id)
    )
    return [AlertEvent(*row) for row in connection.execute(query)]


def first_runs(connection: sa.Connection) -> dict[int, str]:
    """The present names of the runs on which the alerts were born, by alert; without those of pruned runs."""
    table, runs = schema.alert_events, schema.runs
    first = sa.select(sa.func.min(table.c.id)).group_by(table.c.alert_id)
    query = (
        sa.select(table.c.alert_id, runs.c.name)
        .join_from(table, runs, table.c.run_id == runs.c.id)
        .where(table.c.id.in_(first))
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def events_with_runs(connection: sa.Connection, number: int) -> list[tuple[AlertEvent, int | None]]:
    """The events of an alert with the numbers of their runs, oldest first."""
    table = schema.alert_events
    query = sa.select(table.c.run_id).where(table.c.alert_id == number).order_by(table.c.id)
    return list(zip(events(connection, number), connection.execute(query).scalars(), strict=True))


def set_judged(connection: sa.Connection, run_ids: Iterable[int], at: str) -> None:
    """Mark runs as judged."""
    table = schema.runs
    for run_id in run_ids:
        connection.execute(sa.update(table).where(table.c.id == run_id).values(judged=at))


_NAMES = tuple(column.name for column in fields(Alert))


@dataclass(frozen=True)
class BisectionRow:
    """A row of `bisections`; `culprit` is the full name of the culprit revision."""

    name: str
    started: str
    state: str
    good: str
    bad: str
    alert_id: int | None = None
    ended: str | None = None
    culprit: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


def save_bisection(connection: sa.Connection, bisection: BisectionRow) -> None:
    """Insert a bisection, or replace the one of the same name."""
    table = schema.bisections
    values = {name: getattr(bisection, name) for name in _BISECTION_COLUMNS}
    number = connection.execute(sa.select(table.c.id).where(table.c.name == bisection.name)).scalar()
    if number is None:
        connection.execute(sa.insert(table).values(values))
    else:
        connection.execute(sa.update(table).where(table.c.id == number).values(values))


_BISECTION_COLUMNS = tuple(column.name for column in fields(BisectionRow))
