"""Gather the evidence of an alert: its case, the builds before and after, the speedup."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa
from scipy import special

from perfdash.detect.environment_changes import environment_changes
from perfdash.detect.findings import WORSE, has_several_machines, metric_logs, on_one_machine
from perfdash.detect.nights import first_latest_day
from perfdash.history import alert_store, schema
from perfdash.history.alert_store import FIXED, NOT_REAL, STATES, Alert
from perfdash.history.queries import Panel, RunLine, cases_by_id, in_chunks, list_runs, of_method, panel
from perfdash.methods import alike
from perfdash.metrics import JUDGED
from perfdash.records import NOT_MEASURED, Case, Status
from perfdash.stats.common_dates import IMPOSSIBLE, NIGHTS_BEFORE, date_logs, date_range
from perfdash.stats.intervals import CONFIDENCE
from perfdash.stats.nightly_test import FLOOR

_DATED_IN = 800  # days with runs, the latest, in which a change is dated
_BASELINE = 20  # nights in the level before a change, at most
_SPEEDUPS = 5  # nights before a change whose median speedup is shown, at least
_OTHERS = 100  # cases that show the levels of several machines, at most
REAL = [state for state in STATES if state not in NOT_REAL]
_AT_ONCE = 50  # runs read in one query
_NOT_MEASURED = [str(status) for status in NOT_MEASURED]
# Statuses that do not say in which phase a case failed.
_OF_ANY_PHASE = (str(Status.CRASH), str(Status.TIMEOUT))
_TAIL_DF = 4.0  # of Student's t for one night, as in comparison.py: its noise has heavy tails


class RemeasuredChange(NamedTuple):
    """The log of new / old by re-measurement, with its 95 % interval."""

    ratio: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class AlertEvidence:
    """An alert with its case and runs.

    `good`: the run before the change. `bad`: the first run with it. `seen`: the last run with it. Pruned
    runs are None. `speedup`: medians before and after the change. `before`: the number of runs of the case
    before the change that date it; `nights`: the days since then that measured it. `dates`: the runs with
    which it may have come, oldest first, each with its log likelihood, after one run with which it cannot
    have come. `range`: the runs around its cause, where that is known. `failed_phase`: of a crash or timeout,
    the phase that failed.
    """

    alert: Alert
    case: Case | None
    good: RunLine | None
    bad: RunLine | None
    seen: RunLine | None
    speedup: tuple[float, float] | None = None
    before: int = _BASELINE
    nights: int = 1
    dates: tuple[tuple[RunLine, float], ...] = ()
    range: tuple[RunLine | None, RunLine | None] | None = None
    failed_phase: str | None = None

    @property
    def remeasured(self) -> RemeasuredChange | None:
        """The change by re-measurement in pairs; None without one."""
        return remeasured_change(self.alert)

    @property
    def seen_again(self) -> tuple[str, str] | None:
        """The re-measured status or count of the old and the new build; None without one."""
        remeasurement = self.alert.details.get("remeasured") or {}
        if not {"old", "new"} <= remeasurement.keys():
            return None
        return str(remeasurement["old"]), str(remeasurement["new"])

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the alert's change, log(after / before); None if unknown.

        Taken from the re-measurement if there was one. Otherwise Student's t over the nights that raised the
        alert and the nights before, with few degrees of freedom because nights have heavy tails. A host
        shift and a drift have no standard deviation of a night: their width follows from p.
        """
        alert = self.alert
        if self.remeasured:
            return self.remeasured.low, self.remeasured.high
        sd, nights = alert.details.get("sd"), int(alert.details.get("nights") or 1)
        if alert.change is None:
            return None
        if not sd:
            if not alert.p or alert.kind not in ("host", "drift"):
                return None
            half = 1.96 * abs(alert.change) / max(-float(special.ndtri(alert.p / 2)), 1e-3)
            return (alert.change - half, alert.change + half) if math.isfinite(half) else None
        before = max(2, min(self.before, _BASELINE))
        error = float(sd) * math.sqrt(1 / nights + 1 / before)
        freedom = min(_TAIL_DF * nights, before - 1)
        reach = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
        return alert.change - reach, alert.change + reach

    @property
    def between(self) -> tuple[RunLine | None, RunLine | None]:
        """The runs around the change: those of its cause, or of 95 % probability by its own nights."""
        if self.range is not None:
            return self.range
        if len(self.dates) < 2:
            return self.good, self.bad
        low, _, high = date_range(np.array([log for _, log in self.dates]))
        return self.dates[max(0, low - 1)][0], self.dates[high][0]

    @property
    def dating_runs(self) -> set[int]:
        """The ids of the runs without which the change would lose its date, its range or its speedup.

        Those around it, by its alert and by its cause, with some nights before and those that raised the
        alert.
        """
        good, bad = self.between
        ids = {run.id for run in (self.good, self.bad, good, bad) if run is not None}
        if good is None or bad is None:
            return ids
        runs = [run for run, _ in self.dates]
        first = sum(_time(run) <= _time(good) for run in runs) - _SPEEDUPS
        end = sum(_time(run) < _time(bad) for run in runs) + int(self.alert.details.get("nights") or 1)
        return ids | {run.id for run in runs[max(0, first) : end]}

    @property
    def changed(self) -> list[str]:
        """What changed between the two nights, `name: old | new`: of the machine first, then of the packages.

        Of a host's shift also its noise, of a status the method of checking: as the alert has it.
        """
        good, bad = self.between
        if good is None or bad is None or self.alert.kind in ("host", "status"):
            return [str(line) for line in self.alert.details.get("changed") or []]
        return environment_changes(good, bad, self.hosts)

    @property
    def hosts(self) -> list[str]:
        """The machines that measured the case around the change; none: unknown, or all runs are of one."""
        return list(self.alert.details.get("hosts") or ())


def remeasured_change(alert: Alert) -> RemeasuredChange | None:
    """The change of an alert by re-measurement in pairs; None without one."""
    remeasurement = alert.details.get("remeasured") or {}
    ratios = [float(remeasurement.get(name) or 0) for name in ("ratio", "low", "high")]
    if not all(0 < value < math.inf for value in ratios):
        return None
    ratio, low, high = map(math.log, ratios)
    return RemeasuredChange(ratio, low, high, int(remeasurement.get("pairs") or 0))


def gather(connection: sa.Connection, alerts: Sequence[Alert]) -> list[AlertEvidence]:
    """The evidence of some alerts, in their order."""
    cases = cases_by_id(connection, (alert.case_id for alert in alerts if alert.case_id is not None))
    run_ids = {
        run_id
        for alert in alerts
        for run_id in (alert.good_run_id, alert.bad_run_id, alert.seen_run_id)
        if run_id is not None
    }
    runs = {run.id: run for chunk in in_chunks(sorted(run_ids)) for run in list_runs(connection, ids=chunk)}
    first_days = {
        bed: first_latest_day(connection, bed, _DATED_IN) for bed in {alert.testbed_id for alert in alerts}
    }
    dated = [_is_dated(alert, runs, first_days[alert.testbed_id]) for alert in alerts]
    to_date: dict[int, list[Alert]] = {}
    for alert in compress(alerts, dated):
        to_date.setdefault(alert.testbed_id, []).append(alert)
    panels = {bed: _panel(connection, bed, of_bed, runs, first_days[bed]) for bed, of_bed in to_date.items()}
    steps = {bed: _steps(connection, bed, past, to_date[bed]) for bed, past in panels.items()}
    undated = [alert for alert, is_dated in zip(alerts, dated, strict=True) if not is_dated]
    nights = _nights_of_undated(connection, undated, runs)
    phases = _failed_phases(connection, alerts)
    evidence = [
        evidence_of(
            alert,
            cases,
            runs,
            panels[alert.testbed_id] if is_dated else None,
            steps.get(alert.testbed_id, ()),
            nights.get(alert.id, 1),
        )
        for alert, is_dated in zip(alerts, dated, strict=True)
    ]
    return [replace(item, failed_phase=phases.get(_failing_result(item.alert))) for item in evidence]


def failing_status(alert: Alert) -> str | None:
    """The status of a model that fails, or failed before it works again; None for other alerts."""
    if alert.kind != "status":
        return None
    return str(alert.details.get("after" if alert.direction == WORSE else "before"))


def _failing_result(alert: Alert) -> tuple[int | None, int | None]:
    """The run and the case of the failure that an alert is of."""
    return alert.bad_run_id if alert.direction == WORSE else alert.good_run_id, alert.case_id


def _failed_phases(
    connection: sa.Connection, alerts: Sequence[Alert]
) -> dict[tuple[int | None, int | None], str | None]:
    """The phases of crashes and of cases that ran out of time, by run and case."""
    cases_of_runs: dict[int, set[int]] = {}
    for run_id, case_id in (_failing_result(a) for a in alerts if failing_status(a) in _OF_ANY_PHASE):
        if run_id is not None and case_id is not None:
            cases_of_runs.setdefault(run_id, set()).add(case_id)
    results, more = schema.results, schema.result_details
    query = sa.select(results.c.case_id, more.c.details).join(more, more.c.result_id == results.c.id)
    phases: dict[tuple[int | None, int | None], str | None] = {}
    for run_id, case_ids in cases_of_runs.items():
        for chunk in in_chunks(sorted(case_ids)):
            of_run = query.where(results.c.run_id == run_id, results.c.case_id.in_(chunk))
            for case_id, details in connection.execute(of_run):
                phases[run_id, case_id] = details.get("failed_phase")
    return phases


def evidence_of(
    alert: Alert,
    cases: Mapping[int, Case],
    runs: Mapping[int, RunLine],
    past: Panel | None,
    steps: Sequence[Alert],
    nights: int,
) -> AlertEvidence:
    """The evidence of an alert.

    `cases`, `runs`: by their ids; `past`: the nights of its testbed; `steps`: the testbed's alerts, those of
    its series at least. Of an alert that is not dated `nights` instead of `past`.
    """
    good, bad, seen = (
        runs.get(run_id or -1) for run_id in (alert.good_run_id, alert.bad_run_id, alert.seen_run_id)
    )
    case = cases.get(alert.case_id or -1)
    of_case = _measured(past, alert.case_id) if past is not None else None
    if past is None or of_case is None or bad is None or alert.case_id is None or alert.metric is None:
        return AlertEvidence(alert, case, good, bad, seen, nights=nights, dates=_between(good, bad))
    of_case = of_method(of_case, bad.method)
    metric = alert.metric
    known = sum(_time(run) < _time(bad) and alike(run.method, bad.method, metric) for run in of_case.runs)
    before = known or _BASELINE  # which were longer ago than is read, or pruned
    fixed_run = alert.details.get("fixed_run_id") if alert.state == FIXED else None
    end = next((place for place, run in enumerate(of_case.runs) if run.id == fixed_run), None)
    nights = len({run.started[:10] for run in of_case.runs[:end] if _time(run) >= _time(bad)})
    at_one_level = _at_one_level(past, of_case, alert, bad, steps)
    dates = _dates(at_one_level, alert, metric, bad, steps) or _between(good, bad)
    speedup = _speedups(of_case, alert, bad)
    return AlertEvidence(alert, case, good, bad, seen, speedup, before, nights, dates)


def _nights_of_undated(
    connection: sa.Connection, alerts: Sequence[Alert], runs: Mapping[int, RunLine]
) -> dict[int | None, int]:
    """The days from the first run to the last with each alert, which is not dated, by the alert's number.

    Those that measured its case; of a host or a case that vanished, all days of its testbed. Of an alert
    whose first run was pruned, those that are left. `runs`: those of the alerts, by their ids.
    """
    ranges: dict[tuple[int, str, str], list[Alert]] = {}
    for alert in alerts:
        bad, seen = runs.get(alert.bad_run_id or -1), runs.get(alert.seen_run_id or -1)
        if seen is not None:
            first = bad.started if bad else ""
            ranges.setdefault((alert.testbed_id, first, seen.started), []).append(alert)
    table, results = schema.runs, schema.results
    days = sa.func.count(sa.func.substr(table.c.started, 1, 10).distinct())
    nights: dict[int | None, int] = {}
    for (bed, first, last), of_range in ranges.items():
        is_between = (
            table.c.testbed_id == bed, table.c.excluded.is_(None), table.c.started.between(first, last)
        )  # fmt: skip
        of_testbed = connection.execute(sa.select(days).where(*is_between)).scalar_one()
        of_cases = {alert.case_id for alert in of_range if alert.case_id is not None}
        measured: dict[int | None, int] = {}
        for chunk in in_chunks(sorted(of_cases)):
            query = (
                sa.select(results.c.case_id, days)
                .join_from(results, table, results.c.run_id == table.c.id)
                .where(*is_between, results.c.case_id.in_(chunk), results.c.status.not_in(_NOT_MEASURED))
                .group_by(results.c.case_id)
            )
            for case_id, number in connection.execute(query):
                measured[case_id] = number
        nights |= {alert.id: measured.get(alert.case_id, of_testbed) for alert in of_range}
    return nights


def _time(run: RunLine) -> tuple[str, int]:
    return run.started, run.id


def _between(good: RunLine | None, bad: RunLine | None) -> tuple[tuple[RunLine, float], ...]:
    """The dates of a change that nothing narrows down."""
    return ((good, IMPOSSIBLE), (bad, 0.0)) if good and bad else ()


def _at_one_level(past: Panel, of_case: Panel, alert: Alert, bad: RunLine, steps: Sequence[Alert]) -> Panel:
    """The nights of a case that date its alert, on machines of different levels as on one."""
    if not has_several_machines(of_case.runs):
        return of_case
    metric = str(alert.metric)
    nights = [of_case.runs[night] for night in np.flatnonzero(np.isfinite(metric_logs(of_case, metric)[0]))]
    first = sum(_time(run) < _time(bad) for run in nights)
    dating = nights[max(0, first - NIGHTS_BEFORE) : first + NIGHTS_BEFORE]
    if not dating:
        return of_case
    ids = [run.id for run in past.runs]
    period = range(ids.index(dating[0].id), ids.index(dating[-1].id) + 1)
    around = of_method(_part(past, range(len(past.case_ids)), period), bad.method)
    level, _ = on_one_machine(around, steps=steps, metrics=[metric])
    return _part(level, [level.case_ids.index(of_case.case_ids[0])], range(len(period)))


def _dates(
    of_case: Panel, alert: Alert, metric: str, bad: RunLine, steps: Sequence[Alert]
) -> tuple[tuple[RunLine, float], ...]:
    """The log likelihood of each night around an alert to be the first with its change.

    Only nights between the step before and the next one count: those beyond are at another level.
    """
    values = metric_logs(of_case, metric)[0]
    start, end = _between_steps(of_case.runs, alert, bad, steps)
    nights = start + np.flatnonzero(np.isfinite(values[start:end]))
    runs = [of_case.runs[night] for night in nights]
    first = next((place for place, run in enumerate(runs) if _time(run) >= _time(bad)), None)
    if not first:
        return ()
    sd = max(float(alert.details.get("sd") or JUDGED[metric].threshold), FLOOR)
    logs = date_logs(values[nights], first, sd)
    possible = np.flatnonzero(logs > IMPOSSIBLE)
    return tuple((runs[place], float(logs[place])) for place in range(possible[0] - 1, possible[-1] + 1))


def _between_steps(
    runs: Sequence[RunLine], alert: Alert, bad: RunLine, steps: Sequence[Alert]
) -> tuple[int, int]:
    """The nights around an alert's first one, `bad`, that are at the levels before and after its change.

    The places of the first, and behind the last: a level ends where another change of the series begins or is
    over, this one's own return among them.
    """
    place = {run.id: number for number, run in enumerate(runs)}
    of_series = [alert, *(step for step in steps if step.series == alert.series and step.id != alert.id)]
    ends = {step.bad_run_id for step in of_series}
    ends |= {run_id for step in of_series for spell in step.spells for run_id in spell}
    known = [place[run_id] for run_id in ends if run_id in place]
    first = sum(_time(run) < _time(bad) for run in runs)
    start = max((number for number in known if number < first), default=0)
    return start, min((number for number in known if number > first), default=len(runs))


def _is_dated(alert: Alert, runs: Mapping[int, RunLine], first_day: str) -> bool:
    """Whether the nights around an alert's change date it: a change of a number, from `first_day` on."""
    bad = runs.get(alert.bad_run_id or -1)
    of_number = alert.kind == "metric" and alert.metric in JUDGED and alert.case_id is not None
    return of_number and bad is not None and bad.started >= first_day


def _steps(
    connection: sa.Connection, testbed_id: int, past: Panel, alerts: Sequence[Alert]
) -> Sequence[Alert]:
    """The real alerts of a testbed: those of the cases of some alerts; all, for several machines' levels."""
    has_several = has_several_machines(past.runs)
    case_ids = None if has_several else {alert.case_id for alert in alerts if alert.case_id is not None}
    return alert_store.load(connection, testbed_id=testbed_id, states=REAL, case_ids=case_ids)


def _panel(
    connection: sa.Connection,
    testbed_id: int,
    alerts: Sequence[Alert],
    runs: Mapping[int, RunLine],
    first_day: str,
) -> Panel:
    """The metrics of some alerts' cases over a testbed's nights, read once for all alerts.

    The newest nights are read first, and of each case only as many as date its alerts: most alerts are young,
    and nights are many. Where several machines measured them, other runs and cases are read too, which show
    the machines' levels. `runs`: those of the alerts, by their ids. `first_day`: the first that is read.
    """
    others: list[int] = []
    if _has_several_machines(connection, testbed_id, first_day):
        newest = list_runs(connection, testbed_id=testbed_id, latest=_AT_ONCE, with_excluded=False)
        others = some_cases(connection, newest)
    undated = {
        (alert.case_id or 0, alert.metric or "", _time(runs[alert.bad_run_id or -1])) for alert in alerts
    }
    nights_before: Counter[tuple[int, str, tuple[str, int]]] = Counter()
    parts: list[Panel] = []
    end: RunLine | None = None
    while undated:
        case_ids = sorted({case_id for case_id, _, _ in undated})
        some = _runs_of_cases(connection, testbed_id, case_ids, first_day, end)
        if not some:
            break
        if others:
            some = _runs_between(connection, testbed_id, some[0], end)
        end = some[0]
        part = panel(connection, some, [*JUDGED, "speedup"], case_ids=sorted({*others, *case_ids}))
        parts.insert(0, part)
        metrics = {metric for _, metric, _ in undated}
        is_known = {metric: np.isfinite(metric_logs(part, metric)) for metric in metrics}
        times = [_time(run) for run in some]
        row = {case_id: place for place, case_id in enumerate(part.case_ids)}
        for series in undated:
            case_id, metric, bad_time = series
            if case_id in row:
                before = is_known[metric][row[case_id], : bisect_left(times, bad_time)]
                nights_before[series] += int(before.sum())
        undated = {series for series in undated if nights_before[series] < NIGHTS_BEFORE}
    return _joined(parts)


def _has_several_machines(connection: sa.Connection, testbed_id: int, since: str) -> bool:
    """Whether several machines measured a testbed's runs since a day, alone or together."""
    runs, hosts = schema.runs, schema.hosts
    query = (
        sa.select(hosts.c.name)
        .join_from(runs, hosts, runs.c.host_id == hosts.c.id)
        .where(runs.c.testbed_id == testbed_id, runs.c.started >= since, runs.c.excluded.is_(None))
        .distinct()
    )
    names = list(connection.execute(query).scalars())
    return len(names) > 1 or any("+" in name for name in names)


def _runs_of_cases(
    connection: sa.Connection, testbed_id: int, case_ids: Sequence[int], since: str, end: RunLine | None
) -> list[RunLine]:
    """The newest _AT_ONCE runs of a testbed before the run `end` that measured any of some cases."""
    runs, results = schema.runs, schema.results
    measured = sa.select(results.c.id).where(results.c.run_id == runs.c.id, results.c.case_id.in_(case_ids))
    query = sa.select(runs.c.id).where(
        runs.c.testbed_id == testbed_id,
        runs.c.started >= since,
        runs.c.excluded.is_(None),
        measured.exists(),
    )
    if end is not None:
        is_earlier = sa.and_(runs.c.started == end.started, runs.c.id < end.id)
        query = query.where(sa.or_(runs.c.started < end.started, is_earlier))
    newest = query.order_by(runs.c.started.desc(), runs.c.id.desc()).limit(_AT_ONCE)
    return list_runs(connection, ids=connection.execute(newest).scalars().all())


def _runs_between(
    connection: sa.Connection, testbed_id: int, first: RunLine, end: RunLine | None
) -> list[RunLine]:
    """The runs of a testbed from `first` on and before `end`."""
    until = end.started if end else None
    runs = list_runs(connection, testbed_id=testbed_id, since=first.started, until=until, with_excluded=False)
    return [run for run in runs if _time(first) <= _time(run) and (end is None or _time(run) < _time(end))]


def some_cases(connection: sa.Connection, runs: Sequence[RunLine]) -> list[int]:
    """Up to _OTHERS cases of some runs, evenly chosen."""
    results = schema.results
    query = sa.select(results.c.case_id).where(results.c.run_id.in_([run.id for run in runs])).distinct()
    case_ids = sorted(connection.execute(query).scalars())
    return case_ids[:: max(1, math.ceil(len(case_ids) / _OTHERS))]


def _joined(parts: Sequence[Panel]) -> Panel:
    """Panels of earlier and later nights as one."""
    runs = [run for part in parts for run in part.runs]
    case_ids = sorted({case_id for part in parts for case_id in part.case_ids})
    shape = len(case_ids), len(runs)
    statuses, hosts = np.full(shape, "", dtype=object), np.empty(shape, dtype=object)
    values = {name: np.full(shape, np.nan) for part in parts for name in part.values}
    start = 0
    for part in parts:
        rows, end = np.searchsorted(case_ids, part.case_ids), start + len(part.runs)
        statuses[rows, start:end] = part.statuses
        hosts[:, start:end] = [run.host for run in part.runs]
        hosts[rows, start:end] = part.machines
        for name, column in part.values.items():
            values[name][rows, start:end] = column
        start = end
    return Panel(runs, case_ids, values, statuses, hosts)


def _measured(past: Panel, case_id: int | None) -> Panel | None:
    """The panel of one case, over the nights that measured it."""
    if case_id not in past.case_ids:
        return None
    row = past.case_ids.index(case_id)
    return _part(past, [row], np.flatnonzero(past.statuses[row] != "").tolist())


def _part(panel: Panel, rows: Sequence[int], nights: Sequence[int]) -> Panel:
    """Some rows and nights of a panel."""
    at = np.ix_(rows, nights)
    return Panel(
        [panel.runs[night] for night in nights],
        [panel.case_ids[row] for row in rows],
        {name: values[at] for name, values in panel.values.items()},
        panel.statuses[at],
        panel.machines[at],
    )


def _speedups(of_case: Panel, alert: Alert, bad: RunLine) -> tuple[float, float] | None:
    """The median speedup of the last nights before a latency's change, and of those that raised its alert.

    All on the machine of the first of these. Later nights may have further changes. None where a side is not
    known.
    """
    if alert.metric not in ("eager_ms", "backend_ms"):
        return None
    machines, values = of_case.machines[0], of_case.values["speedup"][0]
    first = next((place for place, run in enumerate(of_case.runs) if _time(run) >= _time(bad)), len(values))
    if first == len(values):
        return None
    is_known = (machines == machines[first]) & (values > 0)
    before, after = values[:first][is_known[:first]], values[first:][is_known[first:]]
    nights = int(alert.details.get("nights") or 1)
    if not (len(before) and len(after)):
        return None
    return float(np.median(before[-max(nights, _SPEEDUPS) :])), float(np.median(after[:nights]))
