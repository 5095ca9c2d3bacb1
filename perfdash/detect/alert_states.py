"""The states of an alert: how each night changes open alerts and adds new ones. Pure.

suspected -> new: a change that is not certain yet becomes an alert on a later night, or is dismissed.
new -> confirmed (later nights show the change too, or a re-measurement reproduced it) -> open (one night
later). Each of these can become acknowledged (by a person) or fixed (back at the level before); a fixed alert
whose change returns is reopened. A new alert that later nights do not show is dismissed. An alert is
superseded once another method measures its metric, because numbers of two methods are never compared. A
person may call an alert invalid (no real change) or accept its level; then it is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfdash.detect.change_dates import date_change
from perfdash.detect.environment_changes import changed_with
from perfdash.detect.findings import (
    FURTHER,
    PARTS_OF,
    WORSE,
    Finding,
    Key,
    Levels,
    NetLogs,
    level_machine,
    metric_logs,
)
from perfdash.detect.later_nights import (
    AGAIN,
    BACK,
    NOT_MEASURED,
    UNKNOWN,
    WITHOUT_NOISE,
    AlertLevels,
    alert_levels,
    is_its_repair,
    is_left_out,
    is_of_its_machine,
    is_shown_beside,
    later_nights,
    nearer_runs,
    observed,
    shows_status,
)
from perfdash.detect.nights import has_enough_cases
from perfdash.history.alert_store import (
    ACKNOWLEDGED,
    CONFIRMED,
    DISMISSED,
    FIXED,
    LIVE,
    NEW,
    OPEN,
    REOPENED,
    SUPERSEDED,
    SUSPECTED,
    Alert,
)
from perfdash.history.queries import Panel, RunLine
from perfdash.methods import changes, numbers
from perfdash.stats.nightly_test import WINDOWS

_LATER_P = 0.002  # chance that unchanged later nights show a suspected change, below which it is an alert
_ALL_P = 1e-5  # the same for these nights and the one that was suspected
_MODE_RETURNS = 2  # times that a fixed change came back after which its series jumps between two levels
_SPELLS = 10  # times that a change was fixed whose nights are kept
_NOISY = ("metric", "drift")  # the kinds of changes of which a test of noise may be uncertain
_LEVELS = ("good_run_id", "bad_run_id", "before", "after", "change", "p", "details")  # of an alert
_JUMPS = "the series jumps between two levels: only a re-measurement makes an alert of it"
_DATED_FOR = 15  # nights after a change during which its date and size are updated


def certain_steps(alerts: Iterable[Alert]) -> list[Alert]:
    """The alerts of metrics whose change later nights, a re-measurement or a person confirmed."""
    return [
        alert for alert in alerts if alert.kind == "metric" and alert.state in LIVE and alert.state != NEW
    ]


def first_nights(panel: Panel, alerts: Iterable[Alert]) -> dict[Key, int]:
    """The first night that counts for each series: the night of its last confirmed change."""
    place = {run.id: index for index, run in enumerate(panel.runs)}
    start: dict[Key, int] = {}
    for alert in certain_steps(alerts):
        if alert.case_id and alert.metric and alert.bad_run_id in place:
            for name in (alert.metric, *PARTS_OF.get(alert.metric, ())):
                key = alert.case_id, name
                start[key] = max(start.get(key, 0), place[alert.bad_run_id])
    return start


def without_fixed(panel: Panel, alerts: Iterable[Alert]) -> Panel:
    """The panel without the nights of fixed changes, which do not describe the present level."""
    place = {run.id: index for index, run in enumerate(panel.runs)}
    row = {number: index for index, number in enumerate(panel.case_ids)}
    values = {name: array.copy() for name, array in panel.values.items()}
    for alert in alerts:
        if alert.kind not in ("metric", "host") or alert.metric not in values:
            continue
        for bad_run, fixed_run in alert.spells[-_SPELLS:]:
            bad, fixed = place.get(bad_run, 0), place.get(fixed_run)
            if alert.kind == "host" and not is_left_out(place.get(bad_run), fixed):
                continue  # most nights before the repair are at its level: the repair is a shift of theirs
            for name in (alert.metric, *PARTS_OF.get(alert.metric, ())):
                if fixed is not None and alert.kind == "host":
                    values[name][:, bad:fixed] = np.nan
                elif fixed is not None and alert.case_id in row:
                    values[name][row[alert.case_id], bad:fixed] = np.nan
    return replace(panel, values=values)


def advance(
    panel: Panel,
    alerts: Sequence[Alert],
    findings: Sequence[Finding],
    at: str,
    net: NetLogs,
    machines: Levels | None = None,
    later: Sequence[RunLine] = (),
) -> list[tuple[Alert, str | None]]:
    """The alerts that a panel's last night changes or adds, with notes for their events.

    `alerts`: the testbed's live and fixed alerts, and those last seen on this night. `findings`: the night's.
    `net`: of the panel without the steps of the open `alerts`. `machines`: the levels of the panel's
    machines, as `on_one_machine` gives them. `later`: runs of other machines that were judged before.
    """
    tonight = panel.runs[-1]
    changed: list[tuple[Alert, str | None]] = []
    matched: set[int] = set()
    for alert in alerts:
        of_series = [index for index, finding in enumerate(findings) if _is_of(finding, alert, panel)]
        same = [index for index in of_series if findings[index].direction == alert.direction]
        opposite = [index for index in of_series if findings[index].direction != alert.direction]
        if alert.seen_run_id == tonight.id:  # this night was judged before
            matched.update(of_series)
            continue
        if method_changes := other_method(alert, panel):
            changed += _by_another_method(alert, panel, method_changes, at)
            continue
        if alert.state == FIXED:
            matched.update(index for index in opposite if is_its_repair(findings[index], alert, panel))
            reappeared = [
                index
                for index in same
                if (findings[index].alarm or findings[index].suspect) and index not in matched
            ]
            if reappeared and _is_same_change(alert, findings[reappeared[0]]):
                matched.update(reappeared)
                if is_refuted(alert, panel.runs[findings[reappeared[0]].bad], tonight):
                    continue
                changed.append(_returned(alert, findings[reappeared[0]], panel, at))
            continue
        levels = alert_levels(alert, panel, net, machines or {})
        if alert.state == SUSPECTED and alert.kind in _NOISY:
            matched.update(same)
            of_alert = [findings[index] for index in same]
            if (decided := _suspect_after(alert, of_alert, panel, net, levels, at)) is not None:
                changed.append(decided)
            continue
        observation = observed(alert, panel, net, levels, bool(same))
        if any(_undoes(findings[index], alert, panel, net, levels) for index in opposite):
            observation = BACK
        if observation == BACK and alert.kind in WITHOUT_NOISE and is_shown_beside(alert, panel, later):
            matched.update(opposite)  # each machine shows what it showed the night before
            observation = UNKNOWN
        elif observation == BACK and (alert.direction == WORSE or alert.state == NEW):
            matched.update(opposite)  # a repair is no alert of its own; the loss of an improvement is
        note = None
        if alert.kind == "count" and observation == AGAIN and of_series:
            if findings[of_series[0]].after != alert.after:
                alert = replace(alert, after=findings[of_series[0]].after)
                note = f"now {alert.after:g}"
            matched.update(of_series)
        if alert.kind == "drift" and observation == AGAIN and same:
            alert = _drifted_on(alert, new_alert(findings[same[0]], panel, at), panel, net, levels)
            note = f"now {math.expm1(alert.change or 0.0):+.1%}"
        if same and alert.bad_run_id in {run.id for run in later}:  # it begins with the earlier run
            first = new_alert(findings[same[0]], panel, at)
            details = {**alert.details, **first.details}
            alert = replace(
                alert, good_run_id=first.good_run_id, bad_run_id=first.bad_run_id, details=details
            )
        if alert.state == NEW or alert.kind != "metric":
            matched.update(same)  # the same change; for a confirmed metric it would be a further step
        moved = _moved(alert, observation, tonight, at)
        if moved is not None:
            changed.append((moved, note))
    stepped = {(a.case_id, a.metric, a.direction) for a in alerts if a.kind == "metric" and a.state == NEW}
    # A suspected way back of an open alert is decided by the alert itself.
    undone = {(*alert.series, -alert.direction) for alert in alerts if alert.state in LIVE}
    for index, finding in enumerate(findings):
        if index in matched:
            continue
        # A series that has just stepped differs from its first nights too, which is no drift.
        if finding.kind == "drift" and (finding.case_id, finding.metric, finding.direction) in stepped:
            continue
        series = (finding.kind, finding.case_id, finding.metric, finding.direction)
        if finding.alarm:
            changed.append((new_alert(finding, panel, at), None))
        elif finding.suspect and series not in undone:
            changed.append((new_alert(finding, panel, at, SUSPECTED), None))
    return changed


def _is_of(finding: Finding, alert: Alert, panel: Panel) -> bool:
    """Whether a finding is of an alert's series; of a host that shifted in several steps, of its step."""
    if (finding.kind, finding.case_id, finding.metric) != alert.series:
        return False
    if alert.kind != "host" or finding.direction != alert.direction:
        return True
    if FURTHER not in finding.details and FURTHER not in alert.details:
        return True
    bad = next((place for place, run in enumerate(panel.runs) if run.id == alert.bad_run_id), None)
    return bad is not None and abs(bad - finding.bad) <= 2


def _drifted_on(alert: Alert, latest: Alert, panel: Panel, net: NetLogs, levels: AlertLevels) -> Alert:
    """The alert of a drift after its latest test; it begins where it did, at the level of then.

    The test's own first nights may be later ones, which had a part of the drift. `levels`: the alert's.
    """
    row = panel.case_ids.index(alert.case_id or 0)
    before = levels.before + float(net.state(str(alert.metric))[row, -1])  # with the host as in `latest`
    begun: dict[str, Any] = {
        name: alert.details[name] for name in ("born_run_id", "changed") if name in alert.details
    }
    details = {name: value for name, value in alert.details.items() if name != "machine"}
    details |= {**latest.details, **begun}
    change = math.log(latest.after or 1.0) - before
    return replace(
        alert, before=math.exp(before), after=latest.after, change=change, p=latest.p, details=details
    )


def _returned(alert: Alert, finding: Finding, panel: Panel, at: str) -> tuple[Alert, str | None]:
    """A fixed alert whose change came back: reopened, or suspected until that is certain."""
    fresh = new_alert(finding, panel, at)
    details = {
        **fresh.details,
        "returns": int(alert.details.get("returns", 0)) + 1,
        "spells": alert.spells[-_SPELLS:],
        "fixed_states": _fixed_states(alert),
    }
    returned = replace(fresh, id=alert.id, opened=alert.opened, details=details)
    if _jumps(returned):
        return replace(returned, state=SUSPECTED), _JUMPS
    return replace(returned, state=REOPENED if finding.alarm else SUSPECTED), None


def _fixed_states(alert: Alert) -> list[dict[str, Any]]:
    """The levels and details of a fixed alert, after those of the times that it was fixed before."""
    details = {name: value for name, value in alert.details.items() if name != "fixed_states"}
    levels = {name: getattr(alert, name) for name in _LEVELS}
    return [*alert.details.get("fixed_states", []), {**levels, "details": details}][-_SPELLS:]


def as_fixed(alert: Alert, number: int) -> Alert:
    """An alert with the levels and details of one of its `fixed_states`; its state stays."""
    states = alert.details["fixed_states"]
    earlier = {"fixed_states": states[:number]} if number else {}
    return replace(alert, **{**states[number], "details": {**states[number]["details"], **earlier}})


def _fixed_again(alert: Alert, run_id: int | None, at: str) -> Alert:
    """The alert of a fixed change whose return did not last; without a certain return it is as it was."""
    fixed = replace(alert, state=FIXED, changed=at, seen_run_id=run_id)
    number = len(alert.details.get("fixed_states", []))
    if _jumps(alert) or not number:
        return replace(fixed, details={**alert.details, "fixed_run_id": run_id})
    return as_fixed(fixed, number - 1)


def lasts(repeat: float, heavy_p: float, nights: int) -> bool:
    """Whether so many later nights, each with half of a suspected change or more, make it certain.

    `repeat`, `heavy_p`: of the night that was suspected (NightTest).
    """
    chance = repeat**nights
    return chance <= _LATER_P or chance * heavy_p <= _ALL_P


def _jumps(alert: Alert) -> bool:
    """Whether a series went to the alert's level and back so often that it jumps between the two.

    Statuses, counts, shifts of the host and missing models do not: they have no noise, so that each return is
    a change, and nothing but the next nights could decide a suspected one.
    """
    return alert.kind in _NOISY and int(alert.details.get("returns", 0)) >= _MODE_RETURNS


def _suspect_after(
    alert: Alert, findings: Sequence[Finding], panel: Panel, net: NetLogs, levels: AlertLevels, at: str
) -> tuple[Alert, str | None] | None:
    """A suspected change after one more night, with a note; None if tonight says nothing.

    `findings`: those of its series and direction. It becomes an alert when the test is certain, or when each
    night after the first shows it and so many would not by chance. A series that jumps between two levels
    becomes an alert by re-measurement only.
    """
    tonight = panel.runs[-1]
    later = later_nights(alert, panel, net, levels)
    if not len(later) or not math.isfinite(later[-1]) or not levels.are_known:
        return None
    nights = later[np.isfinite(later)]
    details = alert.details
    if (nights[-1] - levels.before) / (levels.after - levels.before) <= 0.5:
        if "returns" in details:
            return _fixed_again(alert, tonight.id, at), None
        ended = replace(alert, state=DISMISSED, changed=at, seen_run_id=tonight.id)
        return ended, "the night after does not show it"
    is_certain = any(finding.alarm for finding in findings)
    is_certain |= lasts(details.get("repeat", 1.0), details.get("heavy_p", 1.0), len(nights))
    if _jumps(alert) or not is_certain:
        return replace(alert, seen_run_id=tonight.id), None
    keeps_date = not findings or is_of_its_machine(alert, panel, net, levels)  # tonight's is of other nights
    raised = replace(alert, changed=at) if keeps_date else new_alert(findings[0], panel, at)
    first: dict[str, Any] = {
        name: details[name]
        for name in ("born_run_id", "returns", "spells", "fixed_states")
        if name in details
    }
    return replace(
        raised,
        id=alert.id,
        state=REOPENED if "returns" in details else NEW,
        opened=alert.opened,
        seen_run_id=tonight.id,
        details={**raised.details, **first, "raised_run_id": tonight.id},
    ), None


def other_method(alert: Alert, panel: Panel) -> list[str]:
    """The methods that differ between an alert's runs and a panel's last one: `latency 1 -> 2`."""
    own_threads = alert.case_id in panel.own_threads
    return changes(alert.details.get("method", {}), panel.runs[-1].method, alert.metric or "", own_threads)


def _by_another_method(
    alert: Alert, panel: Panel, method_changes: Sequence[str], at: str
) -> list[tuple[Alert, str | None]]:
    """Update an alert after a night that was measured by another method.

    A case that still fails keeps its alert, because it fails by both methods; other alerts are superseded.
    """
    tonight = panel.runs[-1]
    row = panel.case_ids.index(alert.case_id) if alert.case_id in panel.case_ids else None
    if alert.case_id is None:
        measured = _has_cases_of(alert, panel)
    else:
        measured = row is not None and panel.statuses[row, -1] not in NOT_MEASURED
    if alert.state == FIXED or not measured:
        return []
    note = f"{', '.join(method_changes)}: {tonight.name} was measured by another method"
    if alert.kind == "status" and shows_status(alert, panel) == AGAIN:
        details = {**alert.details, "method": numbers(tonight.method, "status")}
        return [(replace(alert, seen_run_id=tonight.id, details=details), note)]
    details = {**alert.details, "superseded": list(method_changes), "superseded_run_id": tonight.id}
    return [(replace(alert, state=SUPERSEDED, changed=at, details=details), note)]


def _has_cases_of(alert: Alert, panel: Panel) -> bool:
    """Whether the last run has half of the cases of the alert's last run.

    The run of another job does not concern the alert. True if the run of the alert was pruned.
    """
    night = next((place for place, run in enumerate(panel.runs) if run.id == alert.seen_run_id), None)
    if night is None:
        return True
    measured = panel.statuses != ""
    shared = measured[:, night] & measured[:, -1]
    return bool(has_enough_cases(shared.sum(), measured[:, night].sum()))


def dated(alert: Alert, panel: Panel, net: NetLogs, machines: Levels | None = None) -> Alert:
    """Update an alert's date, levels and builds from later nights. `net`, `machines`: as in `advance`."""
    has_no_noise = alert.kind in ("status", "count")
    states = (CONFIRMED, OPEN, ACKNOWLEDGED, *((FIXED,) if has_no_noise else ()))
    if alert.state not in states or not alert.case_id:
        return alert
    place = {run.id: index for index, run in enumerate(panel.runs)}
    if len(panel.runs) - place.get(alert.bad_run_id or -1, 0) > _DATED_FOR:
        return alert
    if has_no_noise and (runs := nearer_runs(alert, panel)):
        details = {**alert.details, **changed_with(alert.kind, panel, alert.case_id, *runs)}
        return replace(alert, good_run_id=runs[0].id, bad_run_id=runs[1].id, details=details)
    if alert.kind != "metric":
        return alert
    if is_of_its_machine(alert, panel, net, alert_levels(alert, panel, net, machines or {})):
        return alert  # the nights of the others would halve it
    metric = str(alert.metric)
    newer_date = date_change(panel, net, alert.case_id, metric, alert.bad_run_id, alert.direction)
    if newer_date is None:
        return alert
    row, bad = panel.case_ids.index(alert.case_id), place[newer_date.first.id]
    measured = np.flatnonzero(np.isfinite(metric_logs(panel, metric, [row])[0, :bad]))
    last_good = measured[-1] if len(measured) else max(0, bad - 1)
    good, host = panel.runs[last_good], math.exp(net.state(metric)[row, last_good])
    details = {name: value for name, value in alert.details.items() if name != "machine"}
    details |= level_machine(panel, (machines or {}).get(metric), row)
    return replace(
        alert,
        good_run_id=good.id,
        bad_run_id=newer_date.first.id,
        before=newer_date.change.before * host,
        after=newer_date.change.after * host,
        change=math.log1p(newer_date.change.change),
        details={
            **details,
            **changed_with(alert.kind, panel, alert.case_id, good, newer_date.first),
            "level_night": good.started,
        },
    )


def _moved(alert: Alert, observation: str, tonight: RunLine, at: str) -> Alert | None:
    """The alert after a night; None if it did not change."""
    if observation == UNKNOWN:
        return None
    if observation == BACK:
        state = DISMISSED if alert.state == NEW else FIXED
        details = {**alert.details, "fixed_run_id": tonight.id}
        return replace(alert, state=state, changed=at, seen_run_id=tonight.id, details=details)
    # An older perfdash left changes without noise suspected when they returned twice.
    following = {SUSPECTED: REOPENED, NEW: CONFIRMED, CONFIRMED: OPEN, REOPENED: OPEN}
    state = following.get(alert.state, alert.state)
    return replace(
        alert, state=state, changed=at if state != alert.state else alert.changed, seen_run_id=tonight.id
    )


def _undoes(finding: Finding, alert: Alert, panel: Panel, net: NetLogs, levels: AlertLevels) -> bool:
    """Whether a certain change in the other direction returns to the level before the alert.

    Where that level is not known on tonight's machines, or of a shift of the host is not read any more:
    whether it is more than half as large.
    """
    if alert.state == NEW or not finding.alarm:
        return False
    is_half = bool(alert.change and finding.change and -finding.change / alert.change > 0.5)
    if alert.kind == "host":  # `observed` compares with the level before while that is read
        return is_half and alert.good_run_id not in {run.id for run in panel.runs}
    if alert.kind != "metric" or not (finding.after and alert.before and alert.after):
        return False
    if not levels.are_known:
        return is_half
    after = math.log(finding.after)
    if finding.good is not None and finding.case_id is not None:  # without the host, as `levels` are
        after -= float(net.state(str(alert.metric))[panel.case_ids.index(finding.case_id), finding.good])
    return abs(after - levels.before) < abs(after - levels.after)


def confirmed(alert: Alert, at: str) -> Alert:
    """Confirm an alert or a suspected change after a re-measurement reproduced it."""
    return replace(alert, state=CONFIRMED if alert.state in (SUSPECTED, NEW) else alert.state, changed=at)


def dismissed(alert: Alert, at: str) -> Alert:
    """Dismiss a suspected or new change after a re-measurement refuted it; a confirmed alert stays.

    What was suspected to be the return of a fixed change leaves that alert fixed, by the run that fixed it.
    """
    if alert.state == SUSPECTED and "returns" in alert.details:
        spells = alert.spells[-_SPELLS:]
        fixed_run = spells[-1][1] if spells else alert.seen_run_id
        return replace(_fixed_again(alert, fixed_run, at), seen_run_id=alert.seen_run_id)
    return replace(alert, state=DISMISSED, changed=at) if alert.state in (SUSPECTED, NEW) else alert


def is_refuted(alert: Alert, bad: RunLine, tonight: RunLine) -> bool:
    """Whether a re-measurement refuted an alert's change that begins with the run `bad` and is seen tonight.

    It holds where the nights up to the re-measured one are judged again, not for later ones.
    """
    refuted = alert.details.get("refuted")
    return bool(refuted and bad.started >= refuted["since"] and tonight.started <= refuted["night"])


def acknowledged(alert: Alert, at: str) -> Alert:
    """Acknowledge an alert that a person has seen."""
    before = alert.details.get("before_acknowledged") if alert.state == ACKNOWLEDGED else alert.state
    details = {**alert.details, "before_acknowledged": before}
    return replace(alert, state=ACKNOWLEDGED, changed=at, details=details)


def unacknowledged(alert: Alert, today: str, at: str) -> Alert | None:
    """The alert when the day is over until which it was acknowledged; None if it is not."""
    until = (alert.details.get("act") or {}).get("until")
    if alert.state != ACKNOWLEDGED or until is None or today <= until:
        return None
    was_new = alert.details.get("before_acknowledged") == NEW
    return replace(alert, state=NEW if was_new else OPEN, changed=at)


def new_alert(finding: Finding, panel: Panel, at: str, state: str = NEW) -> Alert:
    """The new alert of a finding of the last night."""
    bad = panel.runs[finding.bad]
    good = panel.runs[finding.good] if finding.good is not None else None
    details = {**finding.details, "born_run_id": panel.runs[-1].id}
    if finding.kind in ("metric", "drift"):  # the night whose state of the host is in `before` and `after`
        details["level_night"] = (bad if good is None or finding.kind == "drift" else good).started
    if finding.sd is not None:
        details["sd"] = finding.sd
    column, own_threads = finding.metric or "", finding.case_id in panel.own_threads
    if changes({}, method := panel.runs[-1].method, column, own_threads):
        details["method"] = numbers(method, column, own_threads)
    if good is not None:
        details |= changed_with(finding.kind, panel, finding.case_id, good, bad)
    return Alert(
        kind=finding.kind,
        testbed_id=bad.testbed_id,
        case_id=finding.case_id,
        metric=finding.metric,
        state=state,
        direction=finding.direction,
        good_run_id=good.id if good else None,
        bad_run_id=bad.id,
        seen_run_id=panel.runs[-1].id,
        opened=at,
        changed=at,
        before=finding.before,
        after=finding.after,
        change=finding.change,
        p=finding.p,
        details=details,
    )


def without_invalid(
    runs: Sequence[RunLine],
    findings: Sequence[Finding],
    invalid: Sequence[Alert],
    later: Sequence[RunLine] = (),
) -> list[Finding]:
    """The findings without those that repeat an alert that a person called invalid.

    One of the same series, direction and size on other nights carries the alert's number: the level that was
    called invalid may have stayed, and look like a later change or a drift. `runs`: those of the findings'
    panel. `later`: the nights after it, with which an alert may begin where the nights before it are judged
    again.
    """
    places = {run.id: place for place, run in enumerate([*runs, *later])}
    last = len(runs) - 1
    kept = []
    for finding in findings:
        alike = [alert for alert in invalid if alert.direction == finding.direction]
        if not any(_repeats(finding, alert, places, last) for alert in alike):
            numbers = [alert.id for alert in alike if _is_its_level(alert, finding)]
            like = {"like_invalid": numbers[-1]} if numbers else {}
            kept.append(replace(finding, details={**finding.details, **like}))
    return kept


def _is_its_level(alert: Alert, finding: Finding) -> bool:
    """Whether a finding may be of the level of an alert that was called invalid: its series and size."""
    of_numbers = {alert.kind, finding.kind} <= {"metric", "drift"}
    is_series = (alert.case_id, alert.metric) == (finding.case_id, finding.metric)
    return of_numbers and is_series and _is_same_change(alert, finding)


def _repeats(finding: Finding, alert: Alert, places: Mapping[int, int], last: int) -> bool:
    """Whether a finding of an alert's direction is of its series, size, and of about the same night.

    A drift is also that of an alert whose night is among those of the test. `places`: of the runs, by id, as
    `finding.bad` counts them. `last`: that of the judged run.
    """
    if (finding.kind, finding.case_id, finding.metric) != alert.series:
        return False
    bad = places.get(alert.bad_run_id or -1)
    if bad is None:
        return False
    if alert.kind == "drift":
        return (finding.good or 0) <= bad and _is_same_change(alert, finding)
    good = places.get(alert.good_run_id or -1, bad - 1)
    is_between = good < finding.bad <= bad  # a night between them may count again
    if alert.kind not in ("metric", "host"):
        return is_between
    # What later nights raised may be a further step, of the same size, of a series that had changed before.
    born = places.get(alert.details.get("born_run_id") or -1, bad)
    is_near = abs(finding.bad - bad) <= WINDOWS and (is_between or min(born, bad) <= last)
    return is_near and _is_same_change(alert, finding)


def _is_same_change(fixed: Alert, finding: Finding) -> bool:
    """Whether a finding repeats the change of a fixed alert: about the same size."""
    if fixed.change is None or finding.change is None:
        return True
    return 0.5 < finding.change / fixed.change < 2
