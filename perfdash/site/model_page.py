"""The page of a case: every metric over time, and its newest result."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import sqlalchemy as sa

from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.causes import gather_in_causes
from perfdash.detect.findings import NOTHING_CAPTURED, WORSE
from perfdash.history import alert_store, schema
from perfdash.history.alert_store import Alert
from perfdash.history.queries import RunLine, case_numbers, rows_of
from perfdash.history.results import TITLES_OF_SIZES, Row
from perfdash.metrics import CHARTS, JUDGED
from perfdash.records import DISTURBED, PASSING, Case
from perfdash.report.alert_text import what
from perfdash.report.changes import RunChange, of_alert
from perfdash.report.number_format import percent_change, with_unit
from perfdash.report.reproduce import command_of_run
from perfdash.report.site_links import alert_link, model_page
from perfdash.report.step_tables import new_tokens, parts_of, per_token, tokens_per_second
from perfdash.site.chart_points import CasePoints, ChartPoints
from perfdash.site.regressions_page import TestbedAlerts, alerts_of_testbed, standing_alerts
from perfdash.site.suite_page import SuiteSetting, SuiteTrend, TrendLine, read_trends, status_word
from perfdash.site.testbed_history import Testbed, TestbedHistory, epoch, read_history
from perfdash.site.timeline import ChartEvent, build_words, case_changes, machine_changes, method_changes

_UP = "../../../"  # from the page to the top of the site


@dataclass(frozen=True)
class NewestResult:
    """The newest result of a case: `tonight`, whether its suite has no later night."""

    run: RunLine
    row: Row
    tonight: bool


@dataclass(frozen=True)
class SiblingCase:
    """Another case of the same model on this testbed, with its newest speedup or status."""

    title: str
    page: str
    text: str


@dataclass(frozen=True)
class OpenAlert:
    """A change that is open: `word` against the nights before, and `text` how much since when.

    `badge`: how the word is marked, worse, better or fail.
    """

    badge: str
    word: str
    text: str
    href: str


@dataclass(frozen=True)
class ModelView:
    """`times`, `names` and `builds` are one a point; the first `weekly` are weeks. `failed` are places.

    `badge`: how the status is marked, "" for a plain pass. `open`: what changed, the worst first. `steady`:
    lines that need no chart, as nothing ever happened in them.
    """

    bed: Testbed
    case: Case
    page: str
    suite_href: str
    times: list[float]
    names: list[str]
    builds: list[str]
    weekly: int
    lines: list[TrendLine]
    steady: list[TrendLine]
    failed: list[int]
    events: list[ChartEvent]
    last: NewestResult | None
    siblings: list[SiblingCase]
    command: str
    status: str
    badge: str
    open: list[OpenAlert]

    @property
    def mood(self) -> str:
        """The colour of the verdict: that of the worst change that is open."""
        badges = [one.badge for one in self.open] + [self.badge]
        return "worse" if {"worse", "fail"} & set(badges) else "better" if "better" in badges else "same"

    @property
    def of_tokens(self) -> list[tuple[str, float]]:
        """The token rates of the newest result, for a generation."""
        row = self.last.row if self.last else None
        if row is None:
            return []
        rates = {
            "Tokens per second": tokens_per_second(row),
            "ms per output token": per_token(parts_of(row), new_tokens(row)),
        }
        return [(title, value) for title, value in rates.items() if value]


@dataclass(frozen=True)
class ModelContext:
    """What the pages of all of a testbed's cases share, gathered once."""

    history: TestbedHistory
    alerts: Mapping[int, list[Alert]]  # by case
    standing: Mapping[int, AlertEvidence]  # of those that are open, by the alert's number
    listed: Collection[int]  # the alerts that the page of regressions has
    host_alerts: list[Alert]
    events: list[ChartEvent]  # of the machine and of the methods
    by_model: Mapping[tuple[str, str], list[int]]
    shown: Mapping[int, SiblingCase]
    runs: Mapping[int, RunLine]
    points: ChartPoints
    other_metrics: OtherMetrics


def model_context(
    connection: sa.Connection, history: TestbedHistory, alerts_page: TestbedAlerts | None = None
) -> ModelContext:
    """Gather the data that the pages of a testbed's cases share.

    `history` has all cases, or those of one model; `alerts_page`: the alerts if they were read already.
    """
    alerts: dict[int, list[Alert]] = {}
    of_host = []
    states = [state for state in alert_store.STATES if state not in alert_store.NOT_REAL]
    for alert in alert_store.load(connection, testbed_id=history.bed.id, states=states):
        if alert.case_id is None:
            of_host.append(alert)
        else:
            alerts.setdefault(alert.case_id, []).append(alert)
    if alerts_page is None and (of_host or not alerts.keys().isdisjoint(history.row)):
        standing = standing_alerts(connection, history.bed, history.runs)
        in_causes = gather_in_causes(connection, [item.alert for item in standing.evidence])
        standing = replace(standing, evidence=in_causes)
        alerts_page = alerts_of_testbed(connection, history.bed, history.runs, standing)
    evidence = alerts_page.standing.evidence if alerts_page else ()
    by_model: dict[tuple[str, str], list[int]] = {}
    for number, case in sorted(history.cases.items(), key=lambda pair: pair[1].name):
        by_model.setdefault((case.suite, case.model), []).append(number)
    return ModelContext(
        history,
        alerts,
        {item.alert.id or 0: item for item in evidence if item.alert.state in alert_store.SHOWN},
        {listed.alert.id or 0 for listed in alerts_page.histories} if alerts_page else set(),
        of_host,
        _shared_events(history),
        by_model,
        {number: _shown_as(history, number) for number in history.row},
        {run.id: run for run in history.runs},
        ChartPoints(history),
        read_other_metrics(connection, history),
    )


def newest_results(
    connection: sa.Connection, history: TestbedHistory, case_ids: Sequence[int], trends: Sequence[SuiteTrend]
) -> dict[int, NewestResult]:
    """The newest result of each case, with samples and details; `trends` those of their settings."""
    newest = {trend.setting: trend.last[0].started for trend in trends}
    by_run: dict[int, list[int]] = {}
    for number in case_ids:
        run_id = _last_run(connection, history, number)
        if run_id is not None:
            by_run.setdefault(run_id, []).append(number)
    runs = {run.id: run for run in history.runs}
    newest_by_case = {}
    for run_id, numbers in by_run.items():
        rows = {row.case: row for row in rows_of(connection, run_id, whole=True)}
        for number in numbers:
            row = rows.get(history.cases[number])
            if row is not None:
                tonight = runs[run_id].started >= newest.get(SuiteSetting.of(row.case), "")
                newest_by_case[number] = NewestResult(runs[run_id], row, tonight)
    return newest_by_case


def _last_run(connection: sa.Connection, history: TestbedHistory, number: int) -> int | None:
    nights = np.flatnonzero(history.statuses[history.row[number]] != "")
    if len(nights):
        return history.recent[int(nights[-1])].id
    results, runs = schema.results, schema.runs
    query = (
        sa.select(results.c.run_id)
        .join_from(results, runs, results.c.run_id == runs.c.id)
        .where(results.c.case_id == number, runs.c.testbed_id == history.bed.id)
        .where(runs.c.excluded.is_(None))
        .order_by(runs.c.started.desc(), runs.c.id.desc())
        .limit(1)
    )
    run_id: int | None = connection.execute(query).scalar()
    return run_id


def model_view(
    context: ModelContext, number: int, last: NewestResult | None, changes: Sequence[ChartEvent]
) -> ModelView:
    """The page of a case; `changes` are its change points."""
    history = context.history
    case, row = history.cases[number], history.row[number]
    bed = history.bed
    points = context.points.of(row)
    weekly = len(points.weeks)
    lines = points.lines + other_metric_lines(context.other_metrics.get(number, {}), weekly, points.nights)
    events = _events(context, number, points.times, changes)
    is_drawn = [_is_drawn(line, points, events) for line in lines]
    siblings = context.by_model.get((case.suite, case.model), [])
    status, badge = status_word(last.row) if last else ("", "")
    return ModelView(
        bed=bed,
        case=case,
        page=context.shown[number].page,
        suite_href=SuiteSetting.of(case).page(bed.digest),
        times=points.times,
        names=points.names,
        builds=points.builds,
        weekly=weekly,
        lines=[line for line, drawn in zip(lines, is_drawn, strict=True) if drawn],
        steady=[line for line, drawn in zip(lines, is_drawn, strict=True) if not drawn],
        failed=points.failed,
        events=events,
        last=last,
        siblings=[context.shown[other] for other in siblings if other != number],
        command=command_of_run(case, last.run if last else None),
        status=status,
        badge=badge,
        open=_open_alerts(context, number),
    )


# What a reader came for is drawn however steady it is.
_ALWAYS_DRAWN = ("speedup", "backend_ms", "eager_ms")


def _is_drawn(line: TrendLine, points: CasePoints, events: Sequence[ChartEvent]) -> bool:
    """Whether a line needs a chart: it moved, or something is marked on it."""
    return (
        line.name not in points.steady
        or line.name in _ALWAYS_DRAWN
        or bool(line.breaks)
        or any(event.metric == line.name for event in events)
    )


def _open_alerts(context: ModelContext, number: int) -> list[OpenAlert]:
    alerts = [*context.alerts.get(number, []), *context.host_alerts]
    shown = [alert for alert in alerts if alert.state in alert_store.SHOWN]
    changes = [(alert, of_alert(_evidence(context, alert), -1)) for alert in shown]
    changes.sort(key=lambda of: (-of[0].direction, of[0].kind == "metric", -abs(of[1].change or 0.0)))
    return [_open_alert(context, alert, change) for alert, change in changes]


def _evidence(context: ModelContext, alert: Alert) -> AlertEvidence:
    """An alert as all pages show it; of one that ended, the change that it reported."""
    ended = AlertEvidence(alert, None, None, context.runs.get(alert.bad_run_id or -1), None)
    return context.standing.get(alert.id or 0, ended)


def _open_alert(context: ModelContext, alert: Alert, change: RunChange) -> OpenAlert:
    is_worse = alert.direction == WORSE
    badge = "worse" if is_worse else "better"
    word = f"{badge} than before"
    if alert.direction == 0:
        badge, word = "info", "changed"
    elif alert.kind in ("status", "vanished"):
        bad_word = "failing" if alert.kind == "status" else "vanished"
        badge, word = ("fail", bad_word) if is_worse else ("better", "passes again")
    elif alert.metric in JUDGED and JUDGED[alert.metric].unit in ("ms", "s"):
        word = "slower than before" if is_worse else "faster than before"
    size = f" {percent_change(change.change)}" if change.change is not None else ""
    since = f" since {change.bad.started[:10]}" if change.bad else ""
    whose = "most models of the host, " if alert.case_id is None else ""
    href = _UP + alert_link(alert.id or 0) if alert.id in context.listed else ""
    return OpenAlert(badge, word, f"{whose}{what(alert)}{size}{since}, {alert.state}", href)


def _events(
    context: ModelContext, number: int, times: Sequence[float], changes: Sequence[ChartEvent]
) -> list[ChartEvent]:
    """The marks on a case's charts, oldest first."""
    first = times[0] if times else math.inf
    events = [*changes, *context.events]
    for alert in [*context.alerts.get(number, []), *context.host_alerts]:
        evidence = _evidence(context, alert)
        _, bad = evidence.between
        if bad is None:
            continue
        kind = "worse" if alert.direction == WORSE else "better"
        size = of_alert(evidence, -1).change
        change = f" {percent_change(size)}" if size is not None else ""
        whose = "most models of the host: " if alert.case_id is None else ""
        text = f"alert {alert.id} ({alert.state}): {whose}{what(alert)}{change}, {build_words(bad)}"
        metric = alert.metric if alert.metric in CHARTS else None
        href = _UP + alert_link(alert.id or 0) if alert.id in context.listed else ""
        events.append(ChartEvent(epoch(bad.started), kind, text, metric, href, bad.name))
    return sorted((event for event in events if event.at >= first), key=lambda event: (event.at, event.text))


def _shared_events(history: TestbedHistory) -> list[ChartEvent]:
    """The marks on the charts of all cases: new methods, changes of the machine, excluded nights."""
    events = method_changes(history.runs)
    for run, lines in machine_changes(history.recent):
        text = "; ".join(lines[:3]) + (f"; {len(lines) - 3} more" if len(lines) > 3 else "")
        events.append(ChartEvent(epoch(run.started), "environment", text, run=run.name))
    for run in history.excluded:
        events.append(ChartEvent(epoch(run.started), "excluded", f"excluded: {run.excluded}", run=run.name))
    return events


def _shown_as(history: TestbedHistory, number: int) -> SiblingCase:
    """How other pages show a case."""
    case, row = history.cases[number], history.row[number]
    size = f", batch size {case.batch_size}" if case.batch_size else ""
    nights = np.flatnonzero(history.statuses[row] != "")
    text = "not lately"
    if len(nights):
        night = int(nights[-1])
        value = float(history.values["speedup"][row, night])
        good = bool(history.passed[row, night]) and math.isfinite(value)
        word = str(history.statuses[row, night])
        uncaptured = word in PASSING and not history.passed[row, night]
        word = DISTURBED if history.disturbed[row, night] else NOTHING_CAPTURED if uncaptured else word
        text = with_unit("speedup", value) if good else word
    return SiblingCase(SuiteSetting.of(case).title + size, model_page(history.bed.digest, case), text)


def read_model_view(connection: sa.Connection, bed: Testbed, number: int) -> ModelView | None:
    """Read the page of a single case; None where no run of the testbed measured it."""
    cases = {n: case for case, n in case_numbers(connection, bed.id).items()}
    case_of_page = cases.get(number)
    if case_of_page is None:
        return None
    siblings = [
        n for n, case in cases.items() if (case.suite, case.model) == (case_of_page.suite, case_of_page.model)
    ]
    history = read_history(connection, bed, case_ids=siblings)
    trends = read_trends(connection, bed, history.runs, SuiteSetting.of(case_of_page))
    last = newest_results(connection, history, [number], trends).get(number)
    return model_view(model_context(connection, history), number, last, case_changes(history, number))


MOST_METRICS = 8  # metrics of a case that are drawn; the newest values of all stand in a table
_CHUNK = 100  # runs in one query

OtherMetrics = Mapping[
    int, Mapping[str, Mapping[int, float]]
]  # by case, name and place among the recent nights


def read_other_metrics(connection: sa.Connection, history: TestbedHistory) -> OtherMetrics:
    """Read the metrics of other programs, and of single sizes, for the nights drawn one by one.

    One cheap query answers for the usual store, which has none.
    """
    table, results = schema.other_metrics, schema.results
    if connection.execute(sa.select(table.c.result_id).limit(1)).first() is None:
        return {}
    place = {history.recent[night].id: night for night in range(history.daily, len(history.recent))}
    columns = results.c.case_id, results.c.run_id, table.c.name, table.c.value
    metrics: dict[int, dict[str, dict[int, float]]] = {}
    for start in range(0, len(place), _CHUNK):
        run_ids = list(place)[start : start + _CHUNK]
        query = sa.select(*columns).join_from(table, results, table.c.result_id == results.c.id)
        for case_id, run_id, name, value in connection.execute(query.where(results.c.run_id.in_(run_ids))):
            metrics.setdefault(case_id, {}).setdefault(name, {})[place[run_id]] = value
    return metrics


def other_metric_lines(
    values: Mapping[str, Mapping[int, float]], weekly: int, nights: Sequence[int]
) -> list[TrendLine]:
    """The lines of the first MOST_METRICS other metrics, by name.

    Each has `weekly` empty points, then a point per night.
    """
    lines: list[TrendLine] = []
    for name in sorted(values)[:MOST_METRICS]:
        measured = [values[name].get(night, math.nan) for night in nights]
        empty = [math.nan] * (weekly + len(nights))
        line: list[float | None] = [*empty[:weekly], *measured]
        is_of_size = name.endswith(tuple(TITLES_OF_SIZES.values()))
        hint = "of this size, by the scenario sizes" if is_of_size else "as the other program has it"
        lines.append(TrendLine(f"other-{len(lines) + 1}", name, hint, line, list(empty), list(empty)))
    return lines
