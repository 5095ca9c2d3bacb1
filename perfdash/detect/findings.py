"""Judge a night against earlier nights: changed series, cases, or the whole host. Pure.

Speedup is not judged: it changes because the eager or the compiled latency did, and both are judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdash.detect.nights import comparable, has_enough_cases, were_nights
from perfdash.history.alert_store import FIXED, LIVE, NEW, Alert
from perfdash.history.queries import Panel, RunLine
from perfdash.methods import alike
from perfdash.metrics import JUDGED, JUDGED_COUNTS, PARTS, Metric
from perfdash.records import FAILED_TO_RUN, PASSING, Status
from perfdash.stats import nightly_test
from perfdash.stats.drift import drift
from perfdash.stats.host_shift import HostShift, Shift, host_shift
from perfdash.stats.intervals import Array
from perfdash.stats.machine_levels import MachineLevels, machine_levels

READ = (*JUDGED, *JUDGED_COUNTS, "eager_ms_low", "eager_ms_high", "backend_ms_low", "backend_ms_high")
NIGHTS = 200  # that the drift test uses, on the first night of a week
DRIFTING = ("eager_ms", "backend_ms", "compilation_cpu_s")
# The parts that add up to a latency. They explain its change and raise no second alert.
PARTS_OF = {"backend_ms": tuple(PARTS)}

WORSE, BETTER, OTHER = 1, -1, 0
# Statuses that describe the machine, not the model.
_UNKNOWN = {"", str(Status.INFRA_ERROR), str(Status.NOT_TONIGHT)}
_PASSING = {str(status) for status in PASSING}
_FAILED_TO_RUN = {str(status) for status in FAILED_TO_RUN}
NO_STATUS = _UNKNOWN | {str(Status.SKIPPED)}
NOTHING_CAPTURED = "nothing captured"
FURTHER = "further"  # of a shift of the host: it is a step of a host that had shifted before


def is_pass(status: str, calls_captured: float | None = None) -> bool:
    """Whether a case passed with its compiled side compiled; unknown counts as compiled."""
    return status in _PASSING and calls_captured != 0


def stops_running(before: str, after: str) -> bool:
    """Whether a case passed before and now fails to run."""
    return before in _PASSING and after in _FAILED_TO_RUN


@dataclass(frozen=True)
class Finding:
    """A change that a night shows, between the runs `good` and `bad`.

    kind: metric (of a case), drift, count, status, vanished, host. good, bad: indices in the panel's runs of
    the last run before the change and the first run with it. case_id: None for the host. alarm: certain
    enough for an alert. suspect: reported as suspected. Neither: only worth re-measuring. before, after: the
    levels, of a number with the host as it was on the night `good`, of a drift as it was on `bad`. change:
    log of after / before. sd, df: standard deviation of one night's log and its degrees of freedom, for the
    re-measurement.
    """

    kind: str
    case_id: int | None
    metric: str | None
    direction: int
    good: int | None
    bad: int
    alarm: bool = True
    suspect: bool = False
    before: float | None = None
    after: float | None = None
    change: float | None = None
    p: float | None = None
    sd: float | None = None
    df: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


Key = tuple[int, str]  # of a series: case id, metric


Levels = Mapping[str, MachineLevels]  # by metric; none where all nights are of one machine


def has_several_machines(runs: Iterable[RunLine]) -> bool:
    """Whether several machines of a class measured the runs; they have unlike levels."""
    return len({host for run in runs for host in run.hosts}) > 1


def on_one_machine(
    panel: Panel,
    start: Mapping[Key, int] | None = None,
    *,
    steps: Iterable[Alert] = (),
    metrics: Iterable[str] = JUDGED,
) -> tuple[Panel, Levels]:
    """The panel with every machine at the level of the one with most nights, and these levels.

    Values of a machine whose level is not known yet are left out. `steps`: alerts whose changes are no part
    of a machine's level. `start`: as in `judge`; of parts only the nights from then on show a machine's
    level, because their share of a change of the whole is not known.
    """
    if not has_several_machines(panel.runs):
        return panel, {}
    values, levels = dict(panel.values), {}
    steps = list(steps)
    for name in metrics:
        of_part = start if start and JUDGED[name].part_of else {}
        first = np.array([of_part.get((case_id, name), 0) for case_id in panel.case_ids], dtype=np.int64)
        levels[name] = machine_levels(_without_steps(panel, name, steps), panel.machines, first)
        values[name] = values[name] * np.exp(-levels[name].offset)
    return replace(panel, values=values), levels


def judge(
    panel: Panel,
    start: Mapping[Key, int] | None = None,
    least: Mapping[Key, float] | None = None,
    machines: Levels | None = None,
) -> list[Finding]:
    """Find all changes on the last night of a panel.

    `start`: the index of the first night that counts for a series, after its last known change. `least`: the
    minimum change of a series, where it is not its metric's. `machines`: as `on_one_machine` gives it. The
    numbers of a case that did not pass are ignored, because they do not describe the compiled model.
    """
    findings = [
        finding
        for metric in JUDGED.values()
        for finding in _of_metric(
            panel, metric, start or {}, least or {}, (machines or {}).get(metric.column)
        )
    ]
    # A manual run of a few models raises no alert, so what it shows must not count as known.
    nights = were_nights(panel)
    findings += [finding for count in JUDGED_COUNTS for finding in _of_count(panel, count, nights)]
    return findings + _of_status(panel, nights) + _vanished(panel, nights)


def drifts(
    panel: Panel, start: Mapping[Key, int] | None = None, machines: Levels | None = None
) -> list[Finding]:
    """Findings for series that drift slowly away from their first nights.

    A test once a week is often enough (benchmarks/alarm.py). `start`, `machines`: as in `judge`.
    """
    findings = []
    for name in DRIFTING:
        values = metric_logs(panel, name)
        rows, first = _measured(panel, name, values, start or {})
        if not len(rows):
            continue
        test = drift(values[rows], start=first)
        for place in np.flatnonzero(test.drifting).tolist():
            row = int(rows[place])
            nights = np.flatnonzero(np.isfinite(values[row]))
            nights = nights[nights >= first[place]]
            change = float(test.change[place])
            reference = float(test.reference[place]) + float(test.host[place])
            findings.append(
                Finding(
                    "drift",
                    panel.case_ids[row],
                    name,
                    WORSE if change > 0 else BETTER,
                    int(nights[0]),
                    len(panel.runs) - 1,
                    alarm=not test.together[place],
                    suspect=bool(test.together[place]),
                    before=math.exp(reference),
                    after=math.exp(reference + change),
                    change=change,
                    p=float(test.p[place]),
                    details={"nights": len(nights), **level_machine(panel, (machines or {}).get(name), row)},
                )
            )
    return findings


def level_machine(panel: Panel, levels: MachineLevels | None, row: int) -> dict[str, str]:
    """The entry `machine` of a finding's or alert's details: the machine that its levels are those of.

    `levels`: None where all nights of the panel are of one machine. No entry where the names of machines
    change every night, so that all nights count as of one machine.
    """
    machine = panel.runs[-1].host if levels is None else levels.reference_of(row)
    return {} if machine is None else {"machine": machine}


def _measured(
    panel: Panel, metric: str, values: Array, start: Mapping[Key, int]
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """The rows with any value, and the first night that counts for each."""
    rows = np.flatnonzero(np.isfinite(values).any(axis=1))
    first = [start.get((panel.case_ids[row], metric), 0) for row in rows]
    return rows, np.array(first, dtype=np.int64)


def metric_logs(panel: Panel, metric: str, rows: Sequence[int] | slice = slice(None)) -> Array:
    """Logs of a metric, cases x nights, of all cases or some rows; NaN where not measured or not passed."""
    values = panel.values[metric][rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(panel.passed[rows] & (values > 0), np.log(values), np.nan)


def _without_steps(panel: Panel, metric: str, alerts: Iterable[Alert]) -> Array:
    """The logs of a metric (cases, nights) without the changes of alerts, each from its first night on."""
    logs = metric_logs(panel, metric)
    place = {run.id: index for index, run in enumerate(panel.runs)}
    row = {case_id: index for index, case_id in enumerate(panel.case_ids)}
    for alert in alerts:
        if alert.kind == "metric" and alert.metric == metric and alert.change and alert.case_id in row:
            end = place.get(alert.details.get("fixed_run_id", -1)) if alert.state == FIXED else None
            logs[row[alert.case_id], place.get(alert.bad_run_id or -1, 0) : end] -= alert.change
    return logs


class NetLogs:
    """Logs of a panel's metrics without the shifts that each series made with most others.

    `alerts`: those whose steps are no part of such a shift. Shifts are relative to the usual night of the
    panel, which is another night in another panel: a level that is kept is that of one night (`state`).
    """

    def __init__(self, panel: Panel, alerts: Iterable[Alert]) -> None:
        self._panel = panel
        self._steps = list(alerts)
        self._of_metric: dict[str, Array] = {}
        self._shifts: dict[str, HostShift] = {}

    def of(self, metric: str) -> Array:
        """The logs of a metric (cases, nights); NaN where not measured or not passed."""
        if metric not in self._of_metric:
            self._of_metric[metric] = metric_logs(self._panel, metric) - self._shift(metric).own
        return self._of_metric[metric]

    def state(self, metric: str) -> Array:
        """The state of the host for a metric (cases, nights), as in HostShift.

        The level of a series on a night is its level without the host's shifts plus the state.
        """
        return self._shift(metric).state

    def _shift(self, metric: str) -> HostShift:
        metric = JUDGED[metric].part_of or metric
        if metric not in self._shifts:
            # Without its own step a series that stayed is not taken for one that moved with the host.
            logs = _without_steps(self._panel, metric, self._steps)
            self._shifts[metric] = host_shift(logs, np.isfinite(logs), nightly_test.FLOOR)
        return self._shifts[metric]


def _within(panel: Panel, metric: str) -> Array | None:
    """The variance of a log latency within its night, from its 95 % interval."""
    if f"{metric}_low" not in panel.values:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        width = np.log(panel.values[f"{metric}_high"]) - np.log(panel.values[f"{metric}_low"])
    variance = (width / (2 * 1.96)) ** 2
    return np.where(np.isfinite(variance), variance, np.nan)


def _host_steps(shift: Shift, least: float) -> list[tuple[float, float, int, bool]]:
    """(log change, p, nights, whether it is a further step) of a host's shift, and of its last step.

    A shift that began with a further step is that step alone: the nights before it have the rest.
    """
    if not shift.nights or abs(shift.change) < least:
        return []
    step = shift.further
    if step is None or min(abs(step.before), abs(step.change)) < least:
        return [(shift.change, shift.p, shift.nights, False)]
    steps = [(step.change, step.p, step.nights, True)]
    return (
        steps if shift.nights <= step.nights + 1 else [(shift.change, shift.p, shift.nights, False), *steps]
    )


def _of_metric(
    panel: Panel,
    metric: Metric,
    start: Mapping[Key, int],
    least: Mapping[Key, float],
    machines: MachineLevels | None = None,
) -> list[Finding]:
    values = metric_logs(panel, metric.column)
    rows, first = _measured(panel, metric.column, values, start)
    if not len(rows):
        return []
    raw, host = values, np.zeros_like(values)
    if metric.part_of:  # too few cases have parts to estimate the host's shift from them
        whole_step = metric_logs(panel, metric.part_of)
        shift = host_shift(whole_step, np.isfinite(whole_step), nightly_test.FLOOR)
        values, host = values - shift.own, shift.state.copy()
    within = _within(panel, metric.column)
    night = nightly_test.judge(
        values[rows],
        start=first,
        within=None if within is None else within[rows],
        machines=None if machines is None else machines.variance[rows],
        minimum_change=np.array(
            [least.get((panel.case_ids[row], metric.column), metric.threshold) for row in rows.tolist()]
        ),
    )
    host[rows, -night.host.shape[1] :] += night.host
    findings = []
    last = len(panel.runs) - 1
    if not metric.part_of:
        moved = {"cases": int(night.judged.sum()), "moved": int(night.with_host.sum())}
        for step, p, age, further in _host_steps(night.shift, math.log1p(metric.threshold)):
            bad = max(0, last - age + 1)
            findings.append(
                Finding(
                    "host",
                    None,
                    metric.column,
                    WORSE if step > 0 else BETTER,
                    bad - 1 if bad else None,
                    bad,
                    change=step,
                    p=p,
                    details={**moved, **({FURTHER: True} if further else {})},
                )
            )
    for place in np.flatnonzero(night.candidate):
        row = int(rows[place])
        nights = np.flatnonzero(np.isfinite(values[row]))
        nights = nights[nights >= first[place]]
        baseline = float(night.baseline[place])
        recent = values[row, nights[-int(night.window[place]) :]] - baseline
        window, change = _begun(recent, float(night.change[place]))
        own = least.get((panel.case_ids[row], metric.column))
        if metric.part_of and not _moved(raw[row, nights], window, change, own or metric.threshold):
            continue
        bad, before = int(nights[-window]), nights[:-window]
        good = int(before[-1]) if len(before) else None
        level = baseline + (float(host[row, good]) if good is not None else 0.0)
        findings.append(
            Finding(
                "metric",
                panel.case_ids[row],
                metric.column,
                WORSE if change > 0 else BETTER,
                good,
                bad,
                alarm=bool(night.alarm[place]),
                suspect=bool(night.suspect[place]),
                before=math.exp(level),
                after=math.exp(level + change),
                change=change,
                p=float(night.p[place]),
                sd=float(night.sd[place]),
                df=float(night.df[place]),
                details={
                    "nights": window,
                    "score": round(float(night.score[place]), 2),
                    "repeat": float(night.repeat[place]),
                    "heavy_p": float(night.heavy_p[place]),
                    **({"minimum_change": own} if own else {}),
                    **level_machine(panel, machines, row),
                },
            )
        )
    return findings


def _moved(raw: Array, window: int, change: float, minimum: float) -> bool:
    """Whether a series moved also without the correction for the host's shift.

    A series that stood still while the host shifted did not change. `raw`: its logs since the last accepted
    change, because older nights show another level.
    """
    if window >= len(raw):
        return True
    step = float(np.median(raw[-window:]) - np.median(raw[:-window]))
    return step * math.copysign(1.0, change) >= math.log1p(minimum)


def _begun(recent: Array, change: float) -> tuple[int, float]:
    """The number of nights since a step within the alarm's window, and its log change.

    `recent`: logs of the window over the baseline; `change`: their median without the host's shift. The
    most likely first night of a step to an unknown level maximises the squared mean of the nights from it
    on, times their number (e.g. Hinkley 1970, Biometrika 57, 1). The window itself is only the one with the
    smallest p.
    """
    net = recent - (float(np.median(recent)) - change)
    sums = np.cumsum(net[::-1]) * math.copysign(1.0, change)
    gain = np.where(sums > 0, sums, 0.0) ** 2 / np.arange(1, len(net) + 1)
    nights = int(np.argmax(gain)) + 1
    level = float(np.median(net[-nights:]))
    return (nights, level) if level * change > 0 else (len(net), change)


def _of_count(panel: Panel, name: str, nights: NDArray[np.bool_]) -> list[Finding]:
    """Findings for cases whose count differs from that of their last night before. `nights`: were_nights."""
    # Captured calls are read by every method, for statuses.
    same = np.array([alike(run.method, panel.runs[-1].method, name) for run in panel.runs])
    values = np.where(panel.passed & same, panel.values[name], np.nan)
    more_is_worse = JUDGED_COUNTS[name].more_is_worse
    findings = []
    for row, good in _last_before(np.isfinite(values), nights):
        before, after = float(values[row, good]), float(values[row, -1])
        if before != after:
            findings.append(
                Finding(
                    "count",
                    panel.case_ids[row],
                    name,
                    WORSE if (after > before) == more_is_worse else BETTER,
                    good,
                    len(panel.runs) - 1,
                    before=before,
                    after=after,
                )
            )
    return findings


def _of_status(panel: Panel, nights: NDArray[np.bool_]) -> list[Finding]:
    """Findings for cases that changed between pass and failure. `nights`: were_nights.

    Only nights whose accuracy was checked by the last night's method count, unless the case fails to run on
    the last night: then all nights count, because no method of checking is involved.
    """
    words = panel.statuses.astype(str).astype(object)
    empty = np.isin(words.astype(str), list(_PASSING)) & (panel.values["calls_captured"] == 0)
    words[empty] = NOTHING_CAPTURED
    findings = []
    same = np.array([alike(run.method, panel.runs[-1].method, "status") for run in panel.runs])
    failed_to_run = np.isin(words[:, -1:].astype(str), list(_FAILED_TO_RUN))
    known = ~np.isin(words.astype(str), list(_UNKNOWN)) & (same | failed_to_run)
    for row, good in _last_before(known, nights):
        before, after = str(words[row, good]), str(words[row, -1])
        if (before in _PASSING) == (after in _PASSING):
            continue
        findings.append(
            Finding(
                "status",
                panel.case_ids[row],
                "status",
                WORSE if before in _PASSING else BETTER,
                good,
                len(panel.runs) - 1,
                details={"before": before, "after": after},
            )
        )
    return findings


def _vanished(panel: Panel, nights: NDArray[np.bool_]) -> list[Finding]:
    """Findings for cases of the last complete night, or of runs after it, that a complete run misses.

    `nights`: were_nights. Repeated manual runs of a few models are among these, so the complete night is the
    last one with half of the cases of the largest; but a model that returned in such a run can vanish again.
    """
    last = len(panel.runs) - 1
    measured = panel.statuses != ""
    whole = np.array([is_whole(run) for run in panel.runs])
    compared = np.flatnonzero(whole[:-1] & nights & comparable(panel))
    if not len(compared) or not whole[-1]:
        return []
    counts = measured[:, compared].sum(axis=0)
    since = compared[np.flatnonzero(has_enough_cases(counts, counts.max()))[-1] :]
    return [
        Finding("vanished", panel.case_ids[row], None, WORSE, int(since[measured[row, since]][-1]), last)
        for row in np.flatnonzero(~measured[:, -1] & measured[:, since].any(axis=1)).tolist()
    ]


def is_whole(run: RunLine) -> bool:
    """Whether a run finished with a result for every planned case."""
    return run.state == "done" and (run.expected is None or run.results >= run.expected)


def _last_before(present: NDArray[np.bool_], nights: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Rows with a value in the last run, each with its previous night (`nights`) with one."""
    pairs = []
    for row in np.flatnonzero(present[:, -1]).tolist():
        before = np.flatnonzero(present[row, :-1] & nights)
        if len(before):
            pairs.append((row, int(before[-1])))
    return pairs


def with_parts(findings: Sequence[Finding], alerts: Iterable[Alert] = ()) -> list[Finding]:
    """Attach the changes of parts to the change of their step (`parts`: log changes).

    A part stays a finding of its own if the step did not change, or if the part's change is certain and the
    step's is not. It is dropped if it repeats a new alert of its step, or the repair of one (`alerts`).
    """
    changed_parts: dict[int | None, dict[str, float | None]] = {}
    for finding in findings:
        if finding.kind == "metric" and finding.metric in PARTS:
            changed_parts.setdefault(finding.case_id, {})[finding.metric] = finding.change
    steps = {
        finding.case_id: finding
        for finding in findings
        if finding.kind == "metric" and finding.metric in PARTS_OF
    }
    young, directions = set(), {}
    for alert in alerts:
        if alert.kind == "metric" and alert.metric in PARTS_OF and alert.state in LIVE:
            directions[alert.case_id] = alert.direction
            young |= {alert.case_id} if alert.state == NEW else set()
    chosen = []
    for finding in findings:
        if finding.kind == "metric" and finding.metric in PARTS_OF and finding.case_id in changed_parts:
            finding = replace(finding, details={**finding.details, "parts": changed_parts[finding.case_id]})
        elif finding.kind == "metric" and finding.metric in PARTS:
            step = steps.get(finding.case_id)
            if step is not None and (step.alarm or not finding.alarm):
                continue
            if finding.case_id in young or directions.get(finding.case_id) == -finding.direction:
                continue
        chosen.append(finding)
    return chosen
