"""Curate the history: exclude, restore, remove and rename runs. Later nights are judged again.

Each act is one transaction with its entry in history.acts. Judging again means: alerts go back to what they
were before the first affected night, and the nights from it on count as not judged, so that `judge_new` takes
them in order, as it takes nights that were imported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from perfdash.errors import UsageError
from perfdash.files import now
from perfdash.history import acts, alert_store, schema
from perfdash.history.acts import EXCLUDE, REMOVE, RENAME, RESTORE, Act, record, the_run
from perfdash.history.alert_store import ACKNOWLEDGED, CONFIRMED, DISMISSED, FIXED, LIVE, NEW, Alert
from perfdash.history.queries import RunLine, list_runs
from perfdash.history.store import Store

LATEST = 30  # nights of a testbed that are judged; older ones raise no alerts
_A_WORD = re.compile(r"last|id:.*|torch==.*|[0-9a-f]{7,40}|\d{4}(-\d\d(-\d\d)?)?|\d+\.\d[\w.+]*|.*\.\..*")


def exclude(store: Store, name: str, why: str) -> tuple[RunLine, int]:
    """Keep a run but judge nothing by it. Returns the run and the number of nights to judge again.

    Raises UsageError where the name means no single run, or the run is excluded already.
    """
    with store.write() as connection:
        run = the_run(connection, name)
        if run.excluded is not None:
            act = _last_act(connection, run, EXCLUDE)
            by = f" by {act.person} on {act.at}" if act else ""
            raise UsageError(
                f"{run.name} was excluded{by}: {run.excluded}; `perfdash history exclude {run.name} --undo` "
                "brings it back"
            )
        _mark(connection, run, acts.reason(why))
        nights = judge_again_from(connection, run, f"{run.name} was excluded: {why}")
        record(connection, Act(EXCLUDE, run.name, why, run.testbed_id, run.id))
        return run, nights


def restore(store: Store, name: str, why: str | None = None) -> tuple[RunLine, int]:
    """Judge an excluded run again, and the nights after it. Raises UsageError if it is not excluded."""
    with store.write() as connection:
        run = the_run(connection, name)
        if run.excluded is None:
            act = _last_act(connection, run, RESTORE)
            by = f": {act.person} brought it back on {act.at}" if act else ""
            raise UsageError(f"{run.name} is not excluded{by}; `perfdash history runs` shows which runs are")
        _mark(connection, run, None)
        nights = judge_again_from(connection, run, f"{run.name} is no longer excluded")
        record(connection, Act(RESTORE, run.name, why, run.testbed_id, run.id))
        return run, nights


def remove(store: Store, run: RunLine, why: str | None = None) -> int:
    """Remove a run, as `the_run` found it, with its results; returns the nights to judge again.

    Raises UsageError if someone else removed or changed it meanwhile.
    """
    with store.write() as connection:
        present = list_runs(connection, ids=[run.id])
        if not present:
            the_run(connection, run.name)  # raises, and says who removed it
        if replace(present[0], judged=None) != replace(run, judged=None):
            raise UsageError(
                f"{run.name} has changed since it was looked up, so it was not removed; "
                "`perfdash history show` shows it; repeat the command to remove it as it is now"
            )
        _mark(connection, run, "removed")
        nights = judge_again_from(connection, run, f"{run.name} was removed from the history")
        record(connection, Act(REMOVE, run.name, why, run.testbed_id, None, details={"started": run.started}))
        connection.execute(sa.delete(schema.results).where(schema.results.c.run_id == run.id))
        connection.execute(sa.delete(schema.runs).where(schema.runs.c.id == run.id))
        return nights


def rename(store: Store, name: str, new: str, why: str | None = None) -> RunLine:
    """Give a run another name in the history. Raises UsageError for a name that cannot be used."""
    if not re.fullmatch(r"[\w.@+:=-]{1,200}", new) or _A_WORD.fullmatch(new) or new.startswith("-"):
        raise UsageError(
            f"history rename: {new!r} cannot be the name of a run; use letters, digits and . _ - + @, and no "
            "date, version or commit alone, because those select runs"
        )
    with store.write() as connection:
        run = the_run(connection, name)
        taken = list_runs(connection, name=new)
        if taken:
            raise UsageError(
                f"history rename: {new!r} is the name of the run that started {taken[0].started} on "
                f"{taken[0].host}; give another name"
            )
        runs, nightlies = schema.runs, schema.nightlies
        connection.execute(sa.update(runs).where(runs.c.id == run.id).values(name=new))
        for row in connection.execute(sa.select(nightlies.c.id, nightlies.c.runs)).all():
            if run.name in row.runs and not list_runs(connection, name=run.name):
                names = [new if old == run.name else old for old in row.runs]
                connection.execute(sa.update(nightlies).where(nightlies.c.id == row.id).values(runs=names))
        details = {"name": new, "started": run.started}
        record(connection, Act(RENAME, run.name, why, run.testbed_id, run.id, details=details))
        return run


def judge_again_from(connection: sa.Connection, run: RunLine, why: str) -> int:
    """Undo what the nights from `run` on told, so that they are judged again; return their number.

    Only the latest nights are judged, and so only they are undone. What people decided stays.
    """
    nights = list_runs(connection, testbed_id=run.testbed_id, with_excluded=False)
    places = {line.id: (line.started, line.id) for line in list_runs(connection, testbed_id=run.testbed_id)}
    latest = nights[-LATEST:]
    since = max(_place(run), _place(latest[0])) if latest else _place(run)
    again = [line for line in latest if _place(line) >= since and line.results]
    runs = schema.runs
    connection.execute(sa.update(runs).where(runs.c.id.in_([line.id for line in again])).values(judged=None))
    before = [line.id for line in nights if _place(line) < since]
    at, until = now(), (again[-1] if again else run).started
    for alert in alert_store.load(connection, testbed_id=run.testbed_id, states=_UNDONE):
        earlier = _rolled_back(connection, alert, places, since, before[-1] if before else None, until, at)
        if earlier is not None:
            alert_store.save(connection, earlier, f"{_AGAIN} {why}")
    return len(again)


_AGAIN = "judged again:"
# What people decided about an alert (invalid, accepted) is not undone.
_UNDONE = (*LIVE, FIXED, DISMISSED, alert_store.SUPERSEDED)


def _rolled_back(
    connection: sa.Connection,
    alert: Alert,
    places: dict[int, tuple[str, int]],
    since: tuple[str, int],
    last_before: int | None,
    until: str,
    at: str,
) -> Alert | None:
    """An alert as it was before the night `since`; None if no later night changed it.

    An alert that later nights raised is dismissed, and can be raised again under its number.
    """
    events = alert_store.events_with_runs(connection, alert.id or 0)
    seen = places.get(alert.seen_run_id or -1)
    if seen is None or seen < since:
        return None
    earlier = [
        (event, run_id)
        for event, run_id in events
        if places.get(run_id or -1, ("", 0)) < since
        and not (run_id is None and (event.note or "").startswith(_AGAIN))
    ]
    details = dict(alert.details)
    is_acknowledged = alert.state == ACKNOWLEDGED
    if not earlier:
        if alert.state == DISMISSED and "withdrawn" in details:
            return None
        details["withdrawn"] = {"until": until, "state": alert.state}
        return replace(alert, state=DISMISSED, changed=at, seen_run_id=None, details=details)
    event, run_id = earlier[-1]
    state = ACKNOWLEDGED if is_acknowledged else event.state
    if state == NEW and "remeasured" in details and alert.state != DISMISSED:
        state = CONFIRMED
    for name in ("fixed_run_id", "superseded"):
        details.pop(name, None)
    if state == FIXED:
        details["fixed_run_id"] = run_id
    return replace(alert, state=state, changed=at, seen_run_id=last_before or run_id, details=details)


def raised_again(connection: sa.Connection, alert: Alert, run: RunLine) -> Alert:
    """A new alert under the number of the one that was withdrawn for judging again, if there was one."""
    for old in alert_store.load(connection, testbed_id=alert.testbed_id, states=[DISMISSED]):
        withdrawn = old.details.get("withdrawn")
        if not withdrawn or run.started > withdrawn["until"]:
            continue
        if old.series == alert.series and old.direction == alert.direction:
            kept = {name: old.details[name] for name in _KEPT if name in old.details}
            state = alert.state
            if withdrawn["state"] == ACKNOWLEDGED:
                state = ACKNOWLEDGED
            elif "remeasured" in kept and withdrawn["state"] != DISMISSED:
                state = CONFIRMED
            details = {**alert.details, **kept}
            return replace(alert, id=old.id, opened=old.opened, state=state, details=details)
    return alert


_KEPT = ("remeasured", "bisected", "act")  # not found by judging a night


def _mark(connection: sa.Connection, run: RunLine, excluded: str | None) -> None:
    runs = schema.runs
    connection.execute(sa.update(runs).where(runs.c.id == run.id).values(excluded=excluded, judged=None))


def _place(run: RunLine) -> tuple[str, int]:
    return run.started, run.id


def _last_act(connection: sa.Connection, run: RunLine, act: str) -> Act | None:
    made: Sequence[Act] = acts.load(connection, act=act, run_id=run.id)
    return made[-1] if made else None
