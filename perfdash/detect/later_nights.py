"""What the nights after an alert show of its change: its levels, and whether it lasts. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfdash.detect.findings import FURTHER, WORSE, Finding, Levels, NetLogs, is_pass, is_whole, metric_logs
from perfdash.detect.nights import JUDGED_NIGHTS, comparable, were_nights
from perfdash.history.alert_store import NEW, SHOWN, Alert
from perfdash.history.queries import Panel, RunLine
from perfdash.methods import alike
from perfdash.metrics import JUDGED
from perfdash.records import Status
from perfdash.stats.intervals import Array
from perfdash.stats.machine_levels import MachineLevels
from perfdash.stats.nightly_test import REFERENCE
from perfdash.stats.noise_level import row_medians

AGAIN, BACK, UNKNOWN = "again", "back", "unknown"
WITHOUT_NOISE = ("status", "count", "vanished")  # the kinds of changes that one night decides
NOT_MEASURED = ("", str(Status.INFRA_ERROR), str(Status.NOT_TONIGHT))
# Standard errors from the changed level at which the mean of the last nights counts as fixed.
_SURE = 5.0
_LOOKED_BACK = 10
_DAYS_OF_A_TURN = 3  # with results, of each machine's last two runs, if two machines measure in turn
# Standard errors that confirm or dismiss a new alert, and the nights after which it is decided anyway.
_ENOUGH, _DECIDED_BY = 2.5, 5
_IN_TURN = 2  # nights of so many that a machine measured, if others measure in turn with it
# Nights up to the last good one that show the level of a host before it moved, or moved further.
_HOST_NIGHTS, _FURTHER_NIGHTS = 30, 5
_SETTLED = 40  # nights ago: no act of a person has them judged again


@dataclass(frozen=True)
class AlertLevels:
    """The log levels of an alert on the machines of a panel; NaN if they are not known there.

    sd: standard deviation of a night's log. variance: of what is known of the machines' levels, squared logs.
    """

    before: float
    after: float
    sd: float
    variance: float

    @property
    def are_known(self) -> bool:
        return math.isfinite(self.before)

    def spread(self, nights: int) -> float:
        """The error of the mean of so many nights, times the root of their number."""
        return math.hypot(self.sd, math.sqrt(nights * self.variance))


def alert_levels(alert: Alert, panel: Panel, net: NetLogs, machines: Levels) -> AlertLevels:
    """The levels of an alert among the `net` logs of a panel.

    The alert has them at the level of its machine, with the host as it was on its `level_night`.
    """
    offset, variance = _machine_offset(alert, panel, machines.get(str(alert.metric)))
    if _has_levels(alert, panel):
        row, night = panel.case_ids.index(alert.case_id or 0), _level_place(alert, panel)
        offset += math.nan if night is None else float(net.state(str(alert.metric))[row, night])
    metric = JUDGED.get(str(alert.metric))
    sd = float(alert.details.get("sd") or (metric.threshold if metric else 0.0))
    before, after = (math.log(level) if level and level > 0 else 0.0 for level in (alert.before, alert.after))
    return AlertLevels(before - offset, after - offset, sd, variance)


def _has_levels(alert: Alert, panel: Panel) -> bool:
    """Whether an alert is of the levels of a series that the panel has."""
    return alert.kind in ("metric", "drift") and alert.metric in JUDGED and alert.case_id in panel.case_ids


def _level_place(alert: Alert, panel: Panel) -> int | None:
    """The night of the panel that had the host as in an alert's levels; None if none is known to have.

    The first night, if that one is not read, but one that showed the alert: it was pruned, or an older
    perfdash did not name it.
    """
    started = alert.details.get("level_night")
    if started is None:
        place = next((place for place, run in enumerate(panel.runs) if run.id == alert.good_run_id), -1)
    else:
        place = bisect_right([run.started for run in panel.runs], started) - 1
    if place >= 0:
        return place
    return 0 if any(run.id == alert.seen_run_id for run in panel.runs) else None


def with_recent_levels(alert: Alert, panel: Panel, net: NetLogs) -> Alert:
    """An open alert with its levels as the host was on a later night, if its own will soon not be read."""
    if alert.state not in SHOWN or not _has_levels(alert, panel):
        return alert
    night, latest = _level_place(alert, panel), len(panel.runs) - 1
    if night is None or latest - night < REFERENCE:
        return alert
    # A night of a shift that ended is left out only while the shift's first night is read.
    metric = str(alert.metric)
    logs = metric_logs(panel, JUDGED[metric].part_of or metric)[:, latest - _SETTLED :]
    later = np.flatnonzero(np.isfinite(logs).any(axis=0))
    new = latest - _SETTLED + (int(later[0]) if len(later) else 0)
    return _with_levels_of(alert, panel, net, night, new)


def with_levels_before(alert: Alert, shift: Alert, panel: Panel, net: NetLogs) -> Alert:
    """An open alert with its levels as the host was before a `shift` that ends tonight.

    If they are those of a night with the shift: from the next night on its nights are left out, and do not
    show any more how far it went.
    """
    places = {run.id: place for place, run in enumerate(panel.runs)}
    good, bad = places.get(shift.good_run_id or -1), places.get(shift.bad_run_id or -1)
    if good is None or bad is None or not is_left_out(bad, len(panel.runs) - 1):
        return alert
    if alert.state not in SHOWN or not _has_levels(alert, panel):
        return alert
    metric, night = str(alert.metric), _level_place(alert, panel)
    if (JUDGED[metric].part_of or metric) != shift.metric or night is None or night < bad:
        return alert
    return _with_levels_of(alert, panel, net, night, good)


def with_levels_of(alert: Alert, panel: Panel, net: NetLogs, old: RunLine, new: RunLine) -> Alert:
    """An alert with its levels as the host was on another night, if it has them as on the night `old`."""
    places = {run.id: place for place, run in enumerate(panel.runs)}
    if not _has_levels(alert, panel) or new.id not in places or _level_place(alert, panel) != places[old.id]:
        return alert
    return _with_levels_of(alert, panel, net, places[old.id], places[new.id])


def _with_levels_of(alert: Alert, panel: Panel, net: NetLogs, old: int, new: int) -> Alert:
    state = net.state(str(alert.metric))[panel.case_ids.index(alert.case_id or 0)]
    factor = math.exp(state[new] - state[old])
    before, after = (level * factor if level else level for level in (alert.before, alert.after))
    details = {**alert.details, "level_night": panel.runs[new].started}
    return replace(alert, before=before, after=after, details=details)


def _machine_offset(alert: Alert, panel: Panel, levels: MachineLevels | None) -> tuple[float, float]:
    """The log level of an alert's machine over the panel's, and its variance; NaN if it is not known.

    An older perfdash took several machines of a night for one, `a+b`. Without `machine` in its details the
    alert is of such nights, of one machine, or of names that changed every night: it counts at the mean level
    of its nights.
    """
    machine = alert.details.get("machine")
    if levels is None:  # all nights are of one machine, or no metric
        hosts = {host for run in panel.runs for host in run.hosts}
        return (0.0, 0.0) if machine is None or machine in hosts else (math.nan, math.nan)
    if not levels.machines:
        return 0.0, 0.0
    if alert.case_id not in panel.case_ids:
        return math.nan, math.nan
    row = panel.case_ids.index(alert.case_id)
    if machine is None or "+" in machine:
        born = next(
            (place for place, run in enumerate(panel.runs) if run.id == alert.details.get("born_run_id")), -1
        )
        measured = panel.statuses[row, : born + 1] != ""
        offset, variance = _mean_level(levels, row, panel.machines[row, : born + 1][measured])
    else:
        offset, variance = levels.level_of(row, machine)
    return offset, variance + float(levels.variance[row])


def _mean_level(levels: MachineLevels, row: int, machines: Iterable[str]) -> tuple[float, float]:
    """The mean offset of the nights of some machines in a series, and the variance of a night's about it."""
    of_nights = np.array([levels.level_of(row, machine) for machine in machines]).reshape(-1, 2)
    offsets, variances = of_nights[np.isfinite(of_nights).all(axis=1)].T
    if not len(offsets):
        return math.nan, math.nan
    return float(offsets.mean()), float(variances.mean() + offsets.var())


def observed(alert: Alert, panel: Panel, net: NetLogs, levels: AlertLevels, found_again: bool) -> str:
    """Whether the last night still shows the alert's change."""
    if alert.kind == "host":
        return _host_observed(alert, panel, found_again)
    if alert.kind in WITHOUT_NOISE:
        return shown(alert, panel)
    if not math.isfinite(_last_value(alert, panel)):
        return UNKNOWN
    places = {run.id: place for place, run in enumerate(panel.runs)}
    if alert.state == NEW and alert.kind == "metric":
        later = later_nights(alert, panel, net, levels)
        return _new_observed(levels, later) if len(later) and math.isfinite(later[-1]) else UNKNOWN
    values = net.of(str(alert.metric))[panel.case_ids.index(alert.case_id or 0)]
    deciding = _deciding(alert, panel, levels, values[places.get(alert.bad_run_id or -1, -1) + 1 :])
    if len(deciding) and not math.isfinite(deciding[-1]):
        return UNKNOWN
    observation = _level_observed(levels, deciding)
    if alert.state == NEW and alert.kind == "drift" and observation == AGAIN and not found_again:
        return UNKNOWN  # the drift test runs once a week
    return observation


def shown(alert: Alert, panel: Panel) -> str:
    """Whether the last night shows the change of an alert without noise."""
    row = panel.case_ids.index(alert.case_id) if alert.case_id in panel.case_ids else None
    status = "" if row is None else str(panel.statuses[row, -1])
    if alert.kind == "vanished":
        return BACK if status else _still_vanished(alert, panel, row)
    if row is None or status in NOT_MEASURED:
        return UNKNOWN
    if alert.kind == "status":
        return shows_status(alert, panel)
    value = _last_value(alert, panel)
    if not math.isfinite(value):
        return UNKNOWN
    before, after = alert.before or 0.0, alert.after or 0.0
    return BACK if (value - before) * (after - before) <= 0 else AGAIN


def _last_value(alert: Alert, panel: Panel) -> float:
    """The last night's value of an alert's metric; NaN where not measured or not passed."""
    if alert.case_id not in panel.case_ids or alert.metric not in panel.values:
        return math.nan
    row = panel.case_ids.index(alert.case_id)
    passed = is_pass(str(panel.statuses[row, -1]), panel.values["calls_captured"][row, -1])
    return float(panel.values[alert.metric][row, -1]) if passed else math.nan


def nearer_runs(alert: Alert, panel: Panel) -> tuple[RunLine, RunLine] | None:
    """The last good and first bad run of a status or count, if they are nearer than the alert's own.

    Nights between these were stored after the alert was raised.
    """
    places = {run.id: place for place, run in enumerate(panel.runs)}
    own = good, bad = places.get(alert.good_run_id or -1), places.get(alert.bad_run_id or -1)
    if good is None or bad is None or alert.case_id not in panel.case_ids:
        return None
    between = panel.statuses[panel.case_ids.index(alert.case_id), good + 1 : bad] != ""
    if not between.any():  # the runs between are of other cases, as of unmerged shards
        return None
    nights, method = were_nights(panel), panel.runs[bad].method
    for place in range(bad - 1, good, -1):
        if nights[place] and alike(panel.runs[place].method, method, str(alert.metric)):
            observation = shown(alert, _first_nights(panel, place + 1))
            if observation == BACK:
                good = place
                break
            bad = place if observation == AGAIN else bad
    return (panel.runs[good], panel.runs[bad]) if (good, bad) != own else None


def is_shown_beside(alert: Alert, panel: Panel, later: Sequence[RunLine] = ()) -> bool:
    """Whether only another machine shows the change of an alert without noise, as before the last night.

    The last night's machine did not show it on its previous night either, but another machine did on its
    last night. That one may have been away for a night. A turn is over after three days: since then a failure
    of torch may have begun and ended. Of the runs `later`, as in `alert_states.advance`, the alert says only
    which one showed it last: without that, only its own machine's change counts.
    """
    if alert.seen_run_id in {run.id for run in later}:
        return True
    machines = _machines_of(alert, panel)
    days = {panel.runs[-1].started[:10]}
    has_own_night = False
    beside: dict[frozenset[str], str] = {}
    for nights in range(len(panel.runs) - 1, 0, -1):
        observation = shown(alert, _first_nights(panel, nights))
        if observation == UNKNOWN:
            continue
        days.add(panel.runs[nights - 1].started[:10])
        if len(days) > _DAYS_OF_A_TURN and (has_own_night or len(beside) > 1):
            break
        machine = machines[nights - 1]
        if not machine & machines[-1]:
            beside.setdefault(machine, observation)
        elif observation == AGAIN:
            return False
        else:
            has_own_night = True
        if has_own_night and (later or AGAIN in beside.values()):
            return True
    return bool(later)


def _machines_of(alert: Alert, panel: Panel) -> list[frozenset[str]]:
    """The machine that measured an alert's case on each night; all of the run where a case may be missing."""
    if alert.kind == "vanished" or alert.case_id not in panel.case_ids:
        return [frozenset(run.hosts) for run in panel.runs]
    return [frozenset(host.split("+")) for host in panel.machines[panel.case_ids.index(alert.case_id)]]


def _first_nights(panel: Panel, nights: int) -> Panel:
    values = {name: array[:, :nights] for name, array in panel.values.items()}
    hosts = None if panel.hosts is None else panel.hosts[:, :nights]
    return Panel(panel.runs[:nights], panel.case_ids, values, panel.statuses[:, :nights], hosts)


def _still_vanished(alert: Alert, panel: Panel, row: int | None) -> str:
    """Whether the last run, of the same kind as those that measured a vanished case, does not have it either.

    It must have half of the cases of a run that measured the case. If none of these is read any more, of the
    run that last showed the alert.
    """
    nights = [] if row is None else np.flatnonzero(panel.statuses[row] != "").tolist()
    if not nights:
        nights = [place for place, run in enumerate(panel.runs[:-1]) if run.id == alert.seen_run_id]
    return AGAIN if is_whole(panel.runs[-1]) and comparable(panel)[nights].any() else UNKNOWN


def shows_status(alert: Alert, panel: Panel) -> str:
    """Whether the last night still has the alert's kind of status: a failure, or a pass."""
    row = panel.case_ids.index(alert.case_id or -1)
    passed = is_pass(str(panel.statuses[row, -1]), panel.values["calls_captured"][row, -1])
    return AGAIN if passed == (alert.direction != WORSE) else BACK


def later_nights(alert: Alert, panel: Panel, net: NetLogs, levels: AlertLevels) -> Array:
    """The logs of an alert's metric on the nights after the one that raised it; NaN where they do not count.

    It was not measured then, or another machine measured it, as `_deciding` says.
    """
    if alert.case_id not in panel.case_ids or str(alert.metric) not in panel.values:
        return np.empty(0)
    values = net.of(str(alert.metric))[panel.case_ids.index(alert.case_id)]
    born = [place for place, run in enumerate(panel.runs) if run.id == alert.details.get("born_run_id")]
    # So long ago that it is not read: of the nights before tonight it is not known which are later.
    return _deciding(alert, panel, levels, values[born[0] + 1 :] if born else values[-1:])


def is_of_its_machine(alert: Alert, panel: Panel, net: NetLogs, levels: AlertLevels) -> bool:
    """Whether other machines measured a changed series in turn, too, and do not show the change."""
    born = [place for place, run in enumerate(panel.runs) if run.id == alert.details.get("born_run_id")]
    if not born or alert.case_id not in panel.case_ids:
        return False
    values = net.of(str(alert.metric))[panel.case_ids.index(alert.case_id), born[0] :]
    return bool((np.isfinite(values) & ~np.isfinite(_deciding(alert, panel, levels, values))).any())


def _deciding(alert: Alert, panel: Panel, levels: AlertLevels, values: Array) -> Array:
    """The logs of the last nights; NaN for those of other machines, where these do not show the change.

    A change that only the alert's machine shows is of that machine. `values`: of the nights since the change.
    """
    machines = _machines_of(alert, panel)
    born = [place for place, run in enumerate(panel.runs) if run.id == alert.details.get("born_run_id")]
    if not born or not levels.are_known:
        return np.asarray(values)
    is_own = np.array([bool(machine & machines[born[0]]) for machine in machines])
    of_values = is_own[len(is_own) - len(values) :]
    others = values[~of_values & np.isfinite(values)]
    middle = (levels.before + levels.after) / 2
    is_shown = len(others) and (float(np.mean(others)) - middle) * (levels.after - levels.before) > 0
    if is_shown or is_own[-1 - _LOOKED_BACK :].sum() < _IN_TURN:
        return np.asarray(values)
    return np.where(of_values, values, np.nan)


def _new_observed(levels: AlertLevels, values: Array) -> str:
    """Whether the nights after the alert began show the change."""
    before, after = levels.before, levels.after
    finite = values[np.isfinite(values)]
    if not len(finite) or before == after or not levels.are_known:
        return UNKNOWN
    error = levels.spread(len(finite)) / math.sqrt(len(finite))
    way = (float(np.mean(finite)) - before) / (after - before)
    if way > 0.5 and way * abs(after - before) / error >= _ENOUGH:
        return AGAIN
    lasts = len(finite) < _DECIDED_BY and (1 - way) * abs(after - before) / error < _ENOUGH
    return UNKNOWN if lasts or way > 0.5 else BACK


def _level_observed(levels: AlertLevels, values: Array) -> str:
    """Whether the last nights of a series returned to the level before the change."""
    if not levels.are_known:
        return UNKNOWN
    before, after = levels.before, levels.after
    finite = values[np.isfinite(values)]
    for nights in range(1, min(_LOOKED_BACK, len(finite)) + 1):
        way = (float(np.mean(finite[-nights:])) - after) / (before - after) if before != after else 0.0
        if way > 0.5 and way * abs(before - after) * math.sqrt(nights) / levels.spread(nights) >= _SURE:
            return BACK
    return AGAIN


def _host_observed(alert: Alert, panel: Panel, found_again: bool) -> str:
    """Whether the host still has half of its shift, compared with the nights before it moved."""
    places = {run.id: index for index, run in enumerate(panel.runs)}
    good = places.get(alert.good_run_id or -1)
    if good is None or alert.change is None:  # so long ago that the new level is the host's normal one
        return AGAIN if found_again else UNKNOWN
    if not found_again and _is_turn_of_another(alert, panel):
        return UNKNOWN
    values = metric_logs(panel, str(alert.metric))
    nights = _FURTHER_NIGHTS if FURTHER in alert.details else _HOST_NIGHTS
    away = values[:, -1] - row_medians(values[:, max(0, good - nights + 1) : good + 1])
    if not np.isfinite(away).any():
        return UNKNOWN
    return AGAIN if float(np.nanmedian(away)) / alert.change > 0.5 else BACK


def _is_turn_of_another(alert: Alert, panel: Panel) -> bool:
    """Whether tonight's machine is none of those that showed a shift, of which one measured lately."""
    born = next((run for run in panel.runs if run.id == alert.details.get("born_run_id")), None)
    if born is None:
        return False
    shifted, tonight = set(born.hosts), set(panel.runs[-1].hosts)
    lately = [bool(shifted & set(run.hosts)) for run in panel.runs[-1 - _LOOKED_BACK :]]
    return not shifted & tonight and sum(lately) >= _IN_TURN


def is_left_out(bad: int | None, fixed: int | None) -> bool:
    """Whether the nights of a shift of the host that ended are left out; the places of its runs in a panel.

    Only if these are so few that each night which reads the first of them has seen how the shift ended.
    """
    return bad is not None and fixed is not None and fixed - bad < JUDGED_NIGHTS


def is_its_repair(finding: Finding, alert: Alert, panel: Panel) -> bool:
    """Whether a shift of the host is the one that fixed an alert whose nights are not left out.

    The nights before that shift stay in the panel then, so that it is found again until it is the usual
    level.
    """
    if alert.kind != "host" or alert.direction != WORSE:
        return False
    places = {run.id: place for place, run in enumerate(panel.runs)}
    fixed = places.get(alert.details.get("fixed_run_id", -1))
    return (
        fixed is not None
        and not is_left_out(places.get(alert.bad_run_id or -1), fixed)
        and finding.bad <= fixed
    )
