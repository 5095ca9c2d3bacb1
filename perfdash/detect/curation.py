"""What people decide: exclude, restore, remove and rename runs; end alerts, accept levels.

Each act is one transaction with its entry in history.acts. Judging again means: alerts go back to what they
were before the first affected night, and the nights from it on count as not judged, so that `judge_new` takes
them in order, as it takes nights that were imported.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from typing import Any

import sqlalchemy as sa

from perfdash.detect import alert_states
from perfdash.detect.findings import READ, NetLogs, on_one_machine
from perfdash.detect.later_nights import with_levels_of
from perfdash.detect.nights import begins_in_the_future, has_enough_cases, latest_days
from perfdash.detect.selected_series import AcceptedLevel
from perfdash.errors import UsageError
from perfdash.files import now
from perfdash.history import acts, alert_store, generated_code, nightlies, schema
from perfdash.history.acts import (
    ACKNOWLEDGE,
    BASELINE,
    EXCLUDE,
    INVALID,
    REMOVE,
    RENAME,
    RESTORE,
    Act,
    record,
    the_run,
)
from perfdash.history.alert_store import (
    ACCEPTED,
    ACKNOWLEDGED,
    CONFIRMED,
    DISMISSED,
    FIXED,
    LIVE,
    NEW,
    SUPERSEDED,
    Alert,
)
from perfdash.history.ingest import forget_replaced, replaced_since_judged
from perfdash.history.queries import (
    Panel,
    RunLine,
    cases_by_id,
    list_runs,
    of_method,
    panel,
    settings_of_run,
    shared_cases,
)
from perfdash.history.results import case_digest
from perfdash.history.store import Store
from perfdash.series_rules import SERIES, STATUS, check_metric
from perfdash.stats.nightly_test import REFERENCE, WINDOWS

LATEST = 30  # days of a testbed with runs that are judged; older ones raise no alerts
_A_WORD = re.compile(r"last|id:.*|torch==.*|[0-9a-f]{7,40}|\d{4}(-\d\d(-\d\d)?)?|\d+\.\d[\w.+]*|.*\.\..*")


def exclude(store: Store, name: str, why: str) -> tuple[RunLine, int]:
    """Keep a run but judge nothing by it. Returns the run and the number of nights to judge again.

    Raises UsageError where the name means no single run, or the run is excluded already.
    """
    why = str(acts.reason(why))
    with store.write() as connection:
        run = the_run(connection, name)
        if run.excluded is not None:
            act = _last_act(connection, run, EXCLUDE)
            by = f" by {act.person} on {act.at}" if act else ""
            raise UsageError(
                f"{run.name} was excluded{by}: {run.excluded}; "
                f"`perfdash history exclude {shlex.quote(run.name)} --undo` brings it back"
            )
        _mark(connection, run, why)
        nights = judge_again_from(connection, run, f"{run.name} was excluded: {why}")
        _move_alerts(connection, run)
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
        undo_replaced(connection)  # its mark would be removed with it
        _mark(connection, run, "removed")
        nights = judge_again_from(connection, run, f"{run.name} was removed from the history")
        _move_alerts(connection, run)
        record(connection, Act(REMOVE, run.name, why, run.testbed_id, None, details={"started": run.started}))
        connection.execute(sa.delete(schema.results).where(schema.results.c.run_id == run.id))
        connection.execute(sa.delete(schema.runs).where(schema.runs.c.id == run.id))
        generated_code.drop_unused(connection)
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
        connection.execute(sa.update(schema.runs).where(schema.runs.c.id == run.id).values(name=new))
        nightlies.rename_run(connection, run.name, new)
        details = {"name": new, "started": run.started}
        record(connection, Act(RENAME, run.name, why, run.testbed_id, run.id, details=details))
        return run


def judge_again_from(connection: sa.Connection, run: RunLine, why: str) -> int:
    """Undo what the nights from `run` on told, so that they are judged again; return their number.

    Only the nights of the latest days are judged, and so only they are undone. What people decided stays.
    """
    nights = list_runs(connection, testbed_id=run.testbed_id, with_excluded=False)
    runs = schema.runs
    # Also of runs that have moved to another testbed since alerts of this one were seen in them.
    starts = connection.execute(sa.select(runs.c.id, runs.c.started))
    places = {run_id: (started, run_id) for run_id, started in starts}
    latest = latest_days(nights, LATEST)
    since = max(_place(run), _place(latest[0])) if latest else _place(run)
    again = [line for line in latest if _place(line) >= since and line.results]
    connection.execute(sa.update(runs).where(runs.c.id.in_([line.id for line in again])).values(judged=None))
    before = [line.id for line in nights if _place(line) < since]
    real = [line for line in again if not begins_in_the_future(line)]
    at = now()
    until = min((real[-1] if real else run).started, at)
    for alert in alert_store.load(connection, testbed_id=run.testbed_id, states=_UNDONE):
        earlier = _rolled_back(connection, alert, places, since, before, until, at)
        if earlier is not None:
            alert_store.save(connection, earlier, f"{alert_store.JUDGED_AGAIN} {why}")
    return len(again)


def undo_replaced(connection: sa.Connection) -> None:
    """Undo what nights changed that were replaced after they were judged, and all nights after them."""
    judged_as = replaced_since_judged(connection)
    beds: dict[int, list[RunLine]] = {}
    moved = []
    for run in list_runs(connection, ids=list(judged_as)):
        for testbed_id, started in judged_as[run.id]:
            # A night that begins earlier than before is before other nights now.
            then = replace(run, testbed_id=testbed_id, started=min(started, run.started))
            beds.setdefault(testbed_id, []).append(then)
            if testbed_id != run.testbed_id:
                moved.append(then)
    for runs in beds.values():
        first = min(runs, key=_place)
        judge_again_from(connection, first, f"{first.name} was resumed or corrected")
    for run in moved:
        _move_alerts(connection, run)
        # The others, which ended, name no night instead, as after `remove`.
        ended = set(alert_store.STATES) - set(_MOVED)
        for alert in alert_store.load(connection, testbed_id=run.testbed_id, states=ended):
            if run.id in (alert.good_run_id, alert.bad_run_id, alert.seen_run_id):
                alert_store.save(connection, Alert(**_beside(vars(alert), run.id, None, None)))
    forget_replaced(connection)


# What people decided about an alert (invalid, accepted) is not undone.
_UNDONE = (*alert_store.SHOWN, FIXED, DISMISSED, SUPERSEDED)
_OF_SUPERSEDING = {"superseded", "superseded_run_id"}  # the details that a night of another method adds


def _rolled_back(
    connection: sa.Connection,
    alert: Alert,
    places: dict[int, tuple[str, int]],
    since: tuple[str, int],
    before: Sequence[int],
    until: str,
    at: str,
) -> Alert | None:
    """An alert as it was before the night `since`; None if no later night changed it.

    `before`: the runs before `since`, oldest first.
    An alert that later nights raised is dismissed, and can be raised again under its number.
    """
    changed_by = (alert.seen_run_id, alert.details.get("superseded_run_id"))
    if not any(run_id in places and places[run_id] >= since for run_id in changed_by):
        return None
    events = alert_store.events_with_runs(connection, alert.id or 0)
    # What was before the alert was withdrawn says nothing of the nights that were judged again.
    withdrawn = [
        place
        for place, (event, run_id) in enumerate(events)
        if event.state == DISMISSED
        and run_id is None
        and (event.note or "").startswith(alert_store.JUDGED_AGAIN)
    ]
    since_then = events[withdrawn[-1] + 1 :] if withdrawn else events
    earlier = [pair for pair in since_then if places.get(pair[1] or -1, ("", 0)) < since]
    alert = replace(
        alert, details={name: alert.details[name] for name in alert.details.keys() - _OF_SUPERSEDING}
    )
    # An acknowledgement ends when the alert is reopened, not when it is fixed on a night that is undone.
    states = [event.state for event, _ in events]
    last_known = max((place for place, state in enumerate(states) if state == ACKNOWLEDGED), default=None)
    is_acknowledged = last_known is not None and alert_store.REOPENED not in states[last_known:]
    is_over = alert_states.unacknowledged(replace(alert, state=ACKNOWLEDGED), at[:10], at) is not None
    is_acknowledged = is_acknowledged and not is_over
    refuted = alert.details.get("refuted") if alert.state == DISMISSED else None
    if refuted or not earlier:
        # What nights after the re-measured one raised has a number of its own.
        until = min(until, refuted["night"]) if refuted else until
        withdrawn_state = {"until": until, "state": alert.state, "acknowledged": is_acknowledged}
        details = {**alert.details, "withdrawn": withdrawn_state}
        return replace(alert, state=DISMISSED, changed=at, seen_run_id=None, details=details)
    event, run_id = earlier[-1]
    state = ACKNOWLEDGED if is_acknowledged and event.state in LIVE else event.state
    if state == NEW and "remeasured" in alert.details and alert.state != DISMISSED:
        state = CONFIRMED
    alert = _before_its_returns(alert, state, places, since)
    reopened = alert_states.unacknowledged(replace(alert, state=state), at[:10], at)
    state = reopened.state if reopened else state
    details = dict(alert.details)
    fixed_run = details.pop("fixed_run_id", None)
    if state == FIXED:
        details["fixed_run_id"] = fixed_run if _is_before(fixed_run, places, since) else run_id
    seen = _last_seen(connection, alert, before) or run_id
    return replace(alert, state=state, changed=at, seen_run_id=seen, details=details)


def _last_seen(connection: sa.Connection, alert: Alert, runs: Sequence[int]) -> int | None:
    """The last of some runs that could show an alert; None if it is long ago.

    It has half of the cases of the run that the alert was seen in, and the alert's case unless that vanished.
    """
    if alert.seen_run_id is None:
        return None
    measured = None if alert.kind == "vanished" else _runs_of_case(connection, alert.case_id)
    latest = [run_id for run_id in runs if measured is None or run_id in measured][-REFERENCE:]
    shared = shared_cases(connection, alert.seen_run_id, [alert.seen_run_id, *latest])
    cases = shared.get(alert.seen_run_id, 0)
    alike = [run_id for run_id in latest if has_enough_cases(shared.get(run_id, 0), cases)]
    return alike[-1] if alike else None


def _before_its_returns(
    alert: Alert, state: str, places: dict[int, tuple[str, int]], since: tuple[str, int]
) -> Alert:
    """An alert with its levels and details before the night `since`, when its state was `state`.

    Each return of a fixed change has nights and levels of its own.
    """
    fixed_states = alert.details.get("fixed_states", [])
    fixed_runs = [fixed["details"].get("fixed_run_id") for fixed in fixed_states]
    fixed_runs.append(alert.details.get("fixed_run_id"))
    number = sum(_is_before(run_id, places, since) for run_id in fixed_runs) - (state == FIXED)
    if not 0 <= number < len(fixed_states):
        return alert
    kept = {name: alert.details[name] for name in _KEPT if name in alert.details}
    earlier = alert_states.as_fixed(alert, number)
    return replace(earlier, details={**kept, **earlier.details})


def _is_before(run_id: int | None, places: dict[int, tuple[str, int]], since: tuple[str, int]) -> bool:
    return run_id is not None and places.get(run_id, ("", 0)) < since


def _move_alerts(connection: sa.Connection, run: RunLine) -> None:
    """Let alerts begin and end with the nights beside `run`, which is not judged any more.

    Their levels are those with the host as on the night before, if they were as on `run`.
    """
    stored = alert_store.load(connection, testbed_id=run.testbed_id, states=_MOVED)
    alerts = [
        alert
        for alert in stored
        if _beside(vars(alert), run.id, None, None) != vars(alert)
        or alert.details.get("level_night") == run.started
    ]
    if not alerts:
        return
    settings = settings_of_run(connection, run.id)
    runs = list_runs(connection, testbed_id=run.testbed_id, with_excluded=False, settings=settings)
    nights = [night for night in runs if night.origin == run.origin]
    earlier = [night for night in nights if _place(night) < _place(run)]
    later = [night for night in nights if _place(night) > _place(run)]
    around = panel(connection, [*earlier[-REFERENCE:], run, *later[:WINDOWS]], READ)
    around, _ = on_one_machine(of_method(around, run.method))
    net = NetLogs(around, [alert for alert in stored if alert.state in alert_store.SHOWN])
    for alert in alerts:
        measured = None if alert.kind == "vanished" else _runs_of_case(connection, alert.case_id)
        before = [night for night in earlier if measured is None or night.id in measured]
        after = [night for night in later if measured is None or night.id in measured]
        previous = before[-1] if before else None
        if previous is not None:
            alert = with_levels_of(alert, around, net, run, previous)
        following = after[0] if after else previous
        ids = (night.id if night else None for night in (previous, following))
        alert_store.save(connection, Alert(**_beside(vars(alert), run.id, *ids)))


_MOVED = (*alert_store.SHOWN, FIXED, SUPERSEDED, alert_store.INVALID)
# The runs of an alert: those after which something happened, and those with which something happened.
_LAST = ("good_run_id", "seen_run_id", "born_run_id", "raised_run_id")
_FIRST = ("bad_run_id", "fixed_run_id", "superseded_run_id")


def _beside(
    values: Mapping[str, Any], run_id: int, previous: int | None, following: int | None
) -> dict[str, Any]:
    """The columns or details of an alert with the runs beside one instead of it."""
    moved = dict(values)
    for name, value in values.items():
        if name in _LAST and value == run_id:
            moved[name] = previous
        elif name in _FIRST and value == run_id:
            moved[name] = following
        elif name == "spells":
            moved[name] = [[following if end == run_id else end for end in spell] for spell in value]
        elif name == "fixed_states":
            moved[name] = [_beside(fixed, run_id, previous, following) for fixed in value]
        elif name == "details":
            moved[name] = _beside(value, run_id, previous, following)
    return moved


def _runs_of_case(connection: sa.Connection, case_id: int | None) -> set[int] | None:
    """The runs with a result of a case; None without a case."""
    results = schema.results
    query = sa.select(results.c.run_id).where(results.c.case_id == case_id)
    return None if case_id is None else set(connection.execute(query).scalars())


def withdrawn_alerts(connection: sa.Connection, run: RunLine) -> list[Alert]:
    """The alerts that were withdrawn so that a run, among others, is judged again."""
    dismissed = alert_store.load(connection, testbed_id=run.testbed_id, states=[DISMISSED])
    return [
        alert for alert in dismissed if run.started <= alert.details.get("withdrawn", {}).get("until", "")
    ]


def raised_again(alert: Alert, withdrawn_before: Sequence[Alert], night: Panel) -> Alert:
    """A new alert under the number of the one that was withdrawn for judging again, if there was one.

    `night`: its last run raised the alert. What a re-measurement refuted stays withdrawn.
    """
    for old in withdrawn_before:
        if old.series == alert.series and old.direction == alert.direction:
            withdrawn = old.details["withdrawn"]
            kept = {name: old.details[name] for name in _KEPT if name in old.details}
            state = alert.state
            bad = next(run for run in night.runs if run.id == alert.bad_run_id)
            if alert_states.is_refuted(old, bad, night.runs[-1]):
                state = DISMISSED
                kept |= {name: old.details[name] for name in ("refuted", "withdrawn")}
            elif withdrawn["acknowledged"]:
                state = ACKNOWLEDGED
            elif "remeasured" in kept and withdrawn["state"] != DISMISSED:
                state = CONFIRMED
            details = {**alert.details, **kept}
            return replace(alert, id=old.id, opened=old.opened, state=state, details=details)
    return alert


_KEPT = ("remeasured", "bisected", "act", "before_acknowledged")  # not found by judging a night


def _mark(connection: sa.Connection, run: RunLine, excluded: str | None) -> None:
    runs = schema.runs
    connection.execute(sa.update(runs).where(runs.c.id == run.id).values(excluded=excluded, judged=None))


def _place(run: RunLine) -> tuple[str, int]:
    return run.started, run.id


def _last_act(connection: sa.Connection, run: RunLine, act: str) -> Act | None:
    made: Sequence[Act] = acts.load(connection, act=act, run_id=run.id)
    return made[-1] if made else None


def acknowledge(store: Store, number: int, why: str | None = None, until: str | None = None) -> Alert:
    """Acknowledge an alert, so that it fails no gate; `until`: the last day of it. Returns it as it was.

    Raises UsageError for an unknown or ended alert.
    """
    with store.write() as connection:
        alert = _open_alert(connection, number, _ACKNOWLEDGE)
        act = Act(ACKNOWLEDGE, f"alert {number}", why, details={"until": until} if until else {})
        _decide(connection, alert_states.acknowledged(alert, now()), act)
        return alert


def invalidate(store: Store, number: int, why: str) -> None:
    """End an alert as no real change; the same finding raises no other alert.

    Raises UsageError for an unknown or ended alert.
    """
    with store.write() as connection:
        alert = _open_alert(connection, number, "call invalid")
        _decide(
            connection,
            replace(alert, state=alert_store.INVALID, changed=now()),
            Act(INVALID, f"alert {number}", why),
        )


@dataclass(frozen=True)
class LevelSelection:
    """The series whose level a person accepts: by patterns, or those of an alert."""

    suite: str | None = None
    model: str | None = None
    metric: str | None = None
    alert: int | None = None


def accept_level(
    store: Store, name: str, why: str, selection: LevelSelection
) -> tuple[RunLine, int, list[int], int]:
    """Accept the level of some series from a run on; nights before it are no baseline for them.

    Their open alerts that began by then end as accepted. Returns the run, the number of cases, the alerts
    that ended, and the number of nights to judge again. Raises UsageError for a run that is missing or
    excluded, for a selection without any series, and for a level that was accepted before.
    """
    why = str(acts.reason(why))
    with store.write() as connection:
        run = the_run(connection, name)
        if run.excluded is not None:
            raise UsageError(
                f"{run.name} is excluded from judging ({run.excluded}), so its level cannot be accepted; "
                "give a later run, or bring it back with `perfdash history exclude RUN --undo`"
            )
        details = _level_details(connection, run, selection)
        level = AcceptedLevel.of(details)
        # A case that vanished is not in the run, but its alert can be accepted.
        is_open = alert_store.load(connection, testbed_id=run.testbed_id, states=alert_store.SHOWN)
        of_alerts = (alert.case_id for alert in is_open if alert.case_id is not None)
        cases = cases_by_id(connection, [*panel(connection, [run], []).case_ids, *of_alerts])
        count = sum(any(level.selects(case, metric) for metric in SERIES) for case in cases.values())
        if not count:
            models = ", ".join(sorted({case.model for case in cases.values()})[:10]) or "none"
            raise UsageError(
                f"--baseline-from {run.name}: --suite, --model and --metric select none of its series; "
                f"models of it: {models}; metrics: {', '.join(SERIES)}"
            )
        for act in acts.load(connection, act=BASELINE, run_id=run.id):
            if act.details == details:
                raise UsageError(
                    f"--baseline-from {run.name}: {act.person} accepted this level of the same series on "
                    f"{act.at}: {act.why}; `perfdash history acts` lists it"
                )
        act = Act(BASELINE, run.name, why, run.testbed_id, run.id, details=details)
        ended = _accepted(connection, run, level, act)
        nights = judge_again_from(connection, run, f"the level from {run.name} on was accepted: {why}")
        return run, count, ended, nights


def _level_details(connection: sa.Connection, run: RunLine, selection: LevelSelection) -> dict[str, str]:
    """The details of the act: the first night, and the patterns or the case of the series."""
    patterns = {name: getattr(selection, name) for name in ("suite", "model", "metric")}
    details = {"started": run.started, **{name: value for name, value in patterns.items() if value}}
    if selection.metric:
        check_metric(selection.metric, "--metric")
    if selection.alert is None:
        return details
    if any(patterns.values()):
        raise UsageError(
            f"--baseline-from {run.name}: give alert {selection.alert}, or --suite, --model and --metric"
        )
    alert = alert_store.find(connection, selection.alert)
    if alert.testbed_id != run.testbed_id:
        raise UsageError(
            f"--baseline-from {run.name}: alert {selection.alert} is of another machine or another way of "
            "measuring than this run; give a run on which the alert was seen"
        )
    details["metric"] = alert.metric or STATUS
    if alert.case_id is not None:
        case = cases_by_id(connection, [alert.case_id])[alert.case_id]
        details |= {"suite": escape(case.suite), "model": escape(case.model), "case": case_digest(case)}
    return details


def _accepted(connection: sa.Connection, run: RunLine, level: AcceptedLevel, act: Act) -> list[int]:
    """End the open alerts of the series that began with the run or before; return their numbers."""
    alerts = alert_store.load(connection, testbed_id=run.testbed_id, states=alert_store.SHOWN)
    cases = cases_by_id(connection, (alert.case_id for alert in alerts if alert.case_id is not None))
    places = {line.id: _place(line) for line in list_runs(connection, testbed_id=run.testbed_id)}
    act = record(connection, act)
    ended = []
    for alert in alerts:
        case = cases.get(alert.case_id or -1)
        metric = alert.metric or STATUS
        selected = (
            level.selects(case, metric) if case else level.case is None and level.rule.selects("", "", metric)
        )
        if selected and places.get(alert.bad_run_id or -1, ("", 0)) <= _place(run):
            over = replace(
                alert, state=ACCEPTED, changed=now(), details={**alert.details, "act": _as_detail(act)}
            )
            alert_store.save(connection, over, _note(act))
            ended.append(alert.id or 0)
    return ended


_ACKNOWLEDGE = "acknowledge"


def _open_alert(connection: sa.Connection, number: int, verb: str) -> Alert:
    """Find an open alert. Raises UsageError, which says who ended it."""
    alert = alert_store.find(connection, number)
    if alert.state not in alert_store.SHOWN:
        act = alert.details.get("act") or {}
        by = f" ({act['who']} on {act['at']}: {act['why']})" if act.get("act") in (INVALID, BASELINE) else ""
        raise UsageError(
            f"alert {number} is {alert.state}{by}: there is nothing to {verb}; `perfdash regressions` lists "
            "the open alerts"
        )
    if alert.state == alert_store.SUSPECTED and verb == _ACKNOWLEDGE:
        raise UsageError(
            f"alert {number} is only suspected, and fails no gate: the next nights or `perfdash confirm` "
            f"decide it; `perfdash regressions --invalid {number}` ends it"
        )
    return alert


def _decide(connection: sa.Connection, alert: Alert, act: Act) -> None:
    """Store what a person decided about an alert, and the act."""
    act = record(connection, replace(act, alert_id=alert.id, testbed_id=alert.testbed_id))
    details = {**alert.details, "act": _as_detail(act)}
    alert_store.save(connection, replace(alert, details=details), _note(act))


def _as_detail(act: Act) -> dict[str, str | None]:
    """The act as the alert's details keep it."""
    return {
        "act": act.act,
        "who": act.person,
        "at": act.at,
        "why": act.why,
        "until": act.details.get("until"),
    }


def _note(act: Act) -> str:
    until = f" until {act.details['until']}" if act.details.get("until") else ""
    return f"by {act.person}{until}" + (f": {act.why}" if act.why else "")
