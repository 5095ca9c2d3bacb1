"""The page of a suite in one setting: trends, heat map, the last night's results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from perfdash.detect.findings import NOTHING_CAPTURED
from perfdash.history.pass_rates_and_means import Summary, gave_up, is_compiled, is_counted, setting_of
from perfdash.history.queries import RunLine, case_numbers, rows_of
from perfdash.history.results import Row
from perfdash.metrics import PARTS
from perfdash.records import PASSING, Case, Status
from perfdash.report.site_links import model_page
from perfdash.report.source_sums import Published, of_suite, why
from perfdash.site.suite_setting import SuiteSetting
from perfdash.site.suite_trends import Drawn, SuiteTrend, drawn, read_trends
from perfdash.site.testbed_history import Testbed, TestbedHistory, as_logs, epoch, failed, read_history
from perfdash.stats.intervals import Array

COLUMNS = 90  # nights of the heat map
_UP = "../../../"  # from the page to the top of the site
_BADGES = {str(Status.PASS): "", str(Status.SKIPPED): "info"}


@dataclass(frozen=True)
class CaseRow:
    """A case on the last night. `passed`: it enters the means; `badge`: how its word is marked if not."""

    row: Row
    href: str
    word: str
    passed: bool
    badge: str = "fail"

    @property
    def case(self) -> Case:
        return self.row.case

    def number(self, name: str) -> float | None:
        value = self.row.values.get(name)
        return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class HeatLine:
    """A case over nights: times better than its own median of them, None where not measured."""

    label: str
    href: str
    ratios: list[float | None]
    failed: list[int]


@dataclass(frozen=True)
class SuiteView:
    """`heat_times` one a column; `gone` are cases of those nights that the last one has not.

    `published`: the sums that the source of an imported last night publishes itself; `why`: why they differ
    from perfdash's.
    """

    bed: Testbed
    trend: SuiteTrend
    page: str
    run: RunLine
    summary: Summary
    drawn: Drawn
    rows: list[CaseRow]
    heat_times: list[float]
    heat: list[HeatLine]
    heat_of: str
    gone: list[tuple[Case, str, str]]  # case, href, last night with it
    several_sizes: bool
    published: list[Published]
    why: str

    @property
    def parts(self) -> list[str]:
        """The metrics of the parts of a step that any case has."""
        return [name for name in PARTS if any(one.number(name) is not None for one in self.rows)]


def suite_view(
    history: TestbedHistory, trend: SuiteTrend, last_rows: Sequence[Row], *, up: str = "../../../"
) -> SuiteView:
    """`last_rows`: the results of the trend's last night, of any setting."""
    bed, setting = history.bed, trend.setting
    run, summary = trend.last
    of_setting = [row for row in last_rows if setting_of(row) == setting]
    rows = [_model_row(bed, row) for row in of_setting]
    published = of_suite(run.facts, setting.section, setting.suite, setting.backend, of_setting)
    numbers = [number for number, case in history.cases.items() if SuiteSetting.of(case) == setting]
    numbers.sort(key=lambda number: (history.cases[number].model.lower(), history.cases[number].name))
    start = _columns(history, numbers)
    tonight = {one.case for one in rows}
    sizes = [history.cases[number].model for number in numbers]
    several = len(set(sizes)) < len(sizes)
    heat, measure = _heat(history, numbers, start, several)
    first_daily = history.recent[history.daily].started if history.daily < len(history.recent) else "~"
    return SuiteView(
        bed,
        trend,
        setting.page(bed.digest),
        run,
        summary,
        drawn(trend, first_daily),
        sorted(rows, key=_rank),
        [epoch(history.recent[night].started) for night in start],
        heat,
        measure,
        _gone(history, numbers, tonight),
        several,
        published,
        why(of_setting) if published else "",
    )


def _model_row(bed: Testbed, row: Row) -> CaseRow:
    word, badge = said(row)
    return CaseRow(row, _UP + model_page(bed.digest, row.case), word, is_counted(row), badge)


def said(row: Row) -> tuple[str, str]:
    """How a row ended: its word, and how that is marked; "" for a plain pass."""
    if row.status in PASSING and not is_compiled(row):
        return NOTHING_CAPTURED, "fail"
    if row.status in PASSING and gave_up(row):
        return "recompile limit", "unknown"
    if row.status == Status.PASS_DUE_TO_SKIP:
        return "not checked", "unknown"
    return str(row.status), _BADGES.get(row.status, "fail")


def _rank(one: CaseRow) -> tuple[bool, bool, float, str]:
    return not one.passed, not is_compiled(one.row), -(one.number("speedup") or 0.0), one.case.name


def _columns(history: TestbedHistory, numbers: Sequence[int]) -> list[int]:
    """The last nights that have any of some cases."""
    rows = [history.row[number] for number in numbers]
    if not rows:
        return []
    known = (history.statuses[rows] != "").any(axis=0)
    return [int(night) for night in np.flatnonzero(known)[-COLUMNS:]]


def _heat(
    history: TestbedHistory, numbers: Sequence[int], nights: Sequence[int], several: bool
) -> tuple[list[HeatLine], str]:
    """Compiled latency against each case's own median of those nights (of one method); speedup where that is
    all there is."""
    rows = [history.row[number] for number in numbers]
    at = np.ix_(rows, nights)
    passed = history.passed[at]
    logs = -as_logs(history.values["backend_ms"][at], passed)
    measure, column = "compiled latency against the row's median", "backend_ms"
    if not np.isfinite(logs).any():
        logs = as_logs(history.values["speedup"][at], passed)
        measure, column = "speedup against the row's median", "speedup"
    crosses = failed(history.statuses[at])
    methods = history.codes_of(column, nights)
    lines = []
    for place, number in enumerate(numbers):
        case, values = history.cases[number], logs[place]
        middles = _medians(values, methods)
        label = f"{case.model} ({case.batch_size})" if several else case.model
        ratios = [
            float(f"{math.exp(value - middle):.4g}") if math.isfinite(value) else None
            for value, middle in zip(values.tolist(), middles.tolist(), strict=True)
        ]
        there = np.flatnonzero(crosses[place]).tolist()
        lines.append(HeatLine(label, _UP + model_page(history.bed.digest, case), ratios, there))
    return lines, measure


def _medians(values: Array, methods: NDArray[np.int32]) -> Array:
    """For each night the median of the nights that were measured by its method; 0 where there is none."""
    middles = np.zeros(len(values))
    for method in np.unique(methods).tolist():
        known = values[(methods == method) & np.isfinite(values)]
        middles[methods == method] = float(np.median(known)) if len(known) else 0.0
    return middles


def _gone(history: TestbedHistory, numbers: Sequence[int], tonight: set[Case]) -> list[tuple[Case, str, str]]:
    found = []
    for number in numbers:
        case = history.cases[number]
        if case in tonight:
            continue
        nights = np.flatnonzero(history.statuses[history.row[number]] != "")
        last = history.recent[int(nights[-1])].started[:10] if len(nights) else "long ago"
        found.append((case, _UP + model_page(history.bed.digest, case), last))
    return found


def one_suite(connection: sa.Connection, bed: Testbed, setting: SuiteSetting) -> SuiteView:
    """A single suite's page, read by itself. Raises KeyError where the testbed has no such suite."""
    numbers = [n for case, n in case_numbers(connection, bed.id).items() if SuiteSetting.of(case) == setting]
    history = read_history(connection, bed, case_ids=numbers)
    found = read_trends(connection, bed, history.runs, setting)
    if not found:
        raise KeyError(setting)
    (trend,) = found
    return suite_view(history, trend, rows_of(connection, trend.last[0].id, details=True))
