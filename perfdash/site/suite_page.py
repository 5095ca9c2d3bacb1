"""The page of a suite in one setting: trends, heat map, the last night's results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from perfdash.detect.findings import NOTHING_CAPTURED
from perfdash.detect.nights import is_complete_beside
from perfdash.history import alert_store, schema
from perfdash.history.alert_store import SHOWN, Alert
from perfdash.history.pass_rates_and_means import (
    Summary,
    gave_up,
    is_compiled,
    is_counted,
    is_disturbed,
    setting_of_case,
    was_measured,
)
from perfdash.history.queries import RunLine, case_numbers, rows_of
from perfdash.history.results import Row
from perfdash.methods import alike, changes
from perfdash.metrics import PARTS
from perfdash.records import DEFAULT_CONFIGURATION, PASSING, Case, Status, variation, variation_in_words
from perfdash.report import dashboard_tables
from perfdash.report.published_totals import Published, of_suite, why
from perfdash.report.site_links import model_page, suite_page
from perfdash.site.suite_heat_map import HeatLine, heat_lines, heat_nights
from perfdash.site.testbed_history import (
    Testbed,
    TestbedHistory,
    epoch,
    means_over_same_models,
    period_of,
    read_history,
)
from perfdash.stats.intervals import Array


class SuiteSetting(NamedTuple):
    """The setting of a suite page, in the words of the store's summaries.

    dtype is `amp-bfloat16` where autocast has a dtype.
    """

    suite: str
    device: str
    dtype: str
    threads: int
    scenario: str
    backend: str
    dynamic: bool
    settings: str = ""
    configuration: str = DEFAULT_CONFIGURATION

    @classmethod
    def of(cls, case: Case) -> SuiteSetting:
        dtype = f"amp-{case.amp_dtype}" if case.amp_dtype else case.dtype
        return cls(
            case.suite, case.device, dtype, case.threads, case.scenario, case.backend, bool(case.dynamic),
            case.settings, case.configuration,
        )  # fmt: skip

    def includes(self, case: Case) -> bool:
        """Whether a case is of this setting, whatever its configuration is called."""
        return setting_of_case(case) == self[:-1]

    @property
    def words(self) -> list[str]:
        """The setting without the suite."""
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        words = [self.device, self.dtype, threads, self.scenario, self.backend]
        return words + variation_in_words(self.configuration, self.dynamic, self.settings)

    @property
    def title(self) -> str:
        """The setting without the suite, in a few words."""
        return ", ".join(self.words)

    @property
    def section(self) -> dashboard_tables.DashboardSetting:
        """The section of a comment or imported dashboard that holds this setting's tables."""
        amp = self.dtype.removeprefix("amp-")
        dtype = self.dtype if amp == self.dtype else f"amp ({amp})"
        return dashboard_tables.DashboardSetting(
            self.device,
            dtype,
            self.threads,
            self.scenario,
            self.dynamic,
            configuration=self.configuration,
            settings=self.settings,
        )

    def page(self, testbed_digest: str) -> str:
        """The path of its page, relative to the site's root."""
        amp = self.dtype.removeprefix("amp-") if self.dtype.startswith("amp-") else None
        case = Case(
            self.suite,
            "",
            self.device,
            "amp" if amp else self.dtype,
            threads=self.threads,
            scenario=self.scenario,
            backend=self.backend,
            dynamic=self.dynamic,
            amp_dtype=amp,
            settings=self.settings,
            configuration=self.configuration,
        )
        return suite_page(testbed_digest, case)


def case_words(case: Case) -> str:
    """A case's suite and setting in few words, without the defaults.

    The defaults are cpu, inductor and inference.
    """
    setting = SuiteSetting.of(case)
    usual = {"cpu", "inductor", "inference"}
    unusual = [word for word in (setting.device, setting.scenario, setting.backend) if word not in usual]
    words = [
        setting.suite,
        setting.dtype,
        f"{setting.threads} thread{'' if setting.threads == 1 else 's'}",
        *unusual,
    ]
    words += [word for word in [variation(setting.configuration, setting.dynamic)] if word]
    return ", ".join(words + ([f"bs {case.batch_size}"] if case.batch_size else []))


def case_title(case: Case) -> str:
    """A case's setting and batch size in words.

    An imported file may lack the batch size.
    """
    size = f"batch size {case.batch_size}" if case.batch_size else "batch size not known"
    return f"{SuiteSetting.of(case).title}, {size}"


_NEAR = 5  # runs on either side, beside which a night is seen to be one
_NUMBERS = (
    "cases", "attempted", "passed", "measured", "speedup", "speedup_low", "speedup_high", "speedup_clipped",
    "compilation_s", "compression_ratio", "compression_ratio_arithmetic",
)  # fmt: skip


@dataclass(frozen=True)
class TrendLine:
    """One metric over nights, NaN or None where it was not measured.

    `lows` and `highs` are an interval, or of the first `weekly` points the range. `breaks`: the points from
    which on another method measures, with what it is called.
    """

    name: str
    title: str
    hint: str
    values: list[float | None]
    lows: list[float | None]
    highs: list[float | None]
    unit: str = ""
    ratio: bool = False
    breaks: Mapping[int, str] = field(default_factory=dict)

    @property
    def column(self) -> str:
        """The column whose method decides what may be compared."""
        return "status" if self.name == "pass_rate" else self.name


@dataclass(frozen=True)
class SuiteTrend:
    """A setting's complete nights, oldest first; `partial` counts the dropped ones.

    Only the summary of the last night has its statuses: to read those of all takes long.
    """

    setting: SuiteSetting
    nights: list[tuple[RunLine, Summary]]
    partial: int = 0

    @property
    def last(self) -> tuple[RunLine, Summary]:
        return self.nights[-1]

    def lines(self, nights: Sequence[tuple[RunLine, Summary]]) -> list[TrendLine]:
        """The charts of some of its nights, a point each."""
        summaries = [summary for _, summary in nights]
        empty: list[float | None] = [None] * len(summaries)

        def column(name: str) -> list[float | None]:
            return [getattr(summary, name) for summary in summaries]

        rates = [100 * s.passed / s.attempted if s.attempted else None for s in summaries]
        lines = [
            TrendLine("pass_rate", "Pass rate", "passed / attempted", rates, empty, empty, "%"),
            TrendLine(
                "speedup", "Geometric mean speedup", "not clipped; band: 95 %",
                column("speedup"), column("speedup_low"), column("speedup_high"), "x", True,
            ),
            TrendLine(
                "compilation_s", "Mean compilation", "cold caches",
                column("compilation_s"), empty, empty, "s",
            ),
            TrendLine(
                "compression_ratio", "Memory compression", "geometric mean; higher is better",
                column("compression_ratio"), empty, empty, "x", True,
            ),
        ]  # fmt: skip
        methods = [run.method for run, _ in nights]
        return [replace(line, breaks=method_breaks(methods, line.column)) for line in lines]


def read_trends(
    connection: sa.Connection, bed: Testbed, runs: Sequence[RunLine], setting: SuiteSetting | None = None
) -> list[SuiteTrend]:
    """Read the trend of each setting in a testbed's runs, or of one setting."""
    table = schema.summaries
    by_id = {run.id: run for run in runs}
    keys = table.c["run_id", *SuiteSetting._fields]
    query = sa.select(*keys, *table.c[_NUMBERS]).join_from(
        table, schema.runs, table.c.run_id == schema.runs.c.id
    )
    if runs:
        query = query.where(schema.runs.c.started >= runs[0].started)
    if setting is not None:
        query = query.where(*(table.c[name] == value for name, value in setting._asdict().items()))
    nights_by_setting: dict[SuiteSetting, list[tuple[RunLine, Summary]]] = {}
    width = len(keys)
    for row in connection.execute(query.where(schema.runs.c.testbed_id == bed.id)).all():
        run = by_id.get(row[0])
        if run is not None:
            summary = Summary(*(*row[width:], {}))
            nights_by_setting.setdefault(SuiteSetting(*row[1:width]), []).append((run, summary))
    trends = [_whole(setting, nights_by_setting[setting]) for setting in sorted(nights_by_setting)]
    of_last = sa.select(*keys, table.c.statuses).where(
        table.c.run_id.in_({trend.last[0].id for trend in trends})
    )
    statuses = {tuple(row[:width]): row[width] for row in connection.execute(of_last)}
    for trend in trends:
        run, summary = trend.last
        trend.nights[-1] = run, replace(summary, statuses=statuses[run.id, *trend.setting])
    return trends


def _whole(setting: SuiteSetting, nights: list[tuple[RunLine, Summary]]) -> SuiteTrend:
    """Drop partial runs: fewer than half the median case count of nearby runs.

    Their means are over other models, so a point of theirs would look like a change.
    """
    nights = sorted(nights, key=lambda pair: (pair[0].started, pair[0].id))
    counts = [summary.cases for _, summary in nights]
    whole_nights = [
        pair
        for place, pair in enumerate(nights)
        if is_complete_beside(counts[place], counts[max(0, place - _NEAR) : place + _NEAR + 1])
    ]
    return SuiteTrend(setting, whole_nights, len(nights) - len(whole_nights))


def method_breaks(methods: Sequence[Mapping[str, int]], column: str) -> dict[int, str]:
    """The nights at which a column's method changes, with the new method's name."""
    pairs = enumerate(pairwise(methods), start=1)
    return {
        k: ", ".join(other) for k, (old, new) in pairs if old != new and (other := changes(old, new, column))
    }


@dataclass(frozen=True)
class Drawn:
    """A trend as charts draw it; all lines share `times`, the first `weekly` are weeks."""

    times: list[float]
    names: list[str]
    weekly: int
    lines: list[TrendLine]


_MEANS = {"speedup": True, "compilation_s": False, "compression_ratio": True}  # whether geometric


def drawn(trend: SuiteTrend, history: TestbedHistory, counted: Mapping[str, Sequence[int]]) -> Drawn:
    """Summarize nights before the daily ones by week (median, range); keep later ones single.

    A week counts only the nights measured by the method of its last night. `counted`: by metric, the cases
    that are in its mean of the last night. All its means are over these; without any, each over its night's.
    """
    first_daily = history.recent[history.daily].started if history.daily < len(history.recent) else "~"
    old = [pair for pair in trend.nights if pair[0].started < first_daily]
    new = trend.nights[len(old) :]
    newest = history.runs[-1].started
    period_of_night = [period_of(run.started, newest) for run, _ in old]
    weeks = [list(group) for _, group in groupby(range(len(old)), key=period_of_night.__getitem__)]
    methods = [old[week[-1]][0].method for week in weeks] + [run.method for run, _ in new]
    periods, run_ids = [period_of_night[week[0]] for week in weeks], [run.id for run, _ in new]
    lines = []
    for line, old_line in zip(trend.lines(new), trend.lines(old), strict=True):
        spans = [_span(_of_last(old, week, old_line)) for week in weeks]
        whole = replace(
            line,
            values=[span[0] for span in spans] + line.values,
            lows=[span[1] for span in spans] + line.lows,
            highs=[span[2] for span in spans] + line.highs,
            breaks=method_breaks(methods, line.column),
        )
        if line.name in _MEANS and (case_ids := counted.get(line.name)):
            means = means_over_same_models(
                history, case_ids, line.name, periods, run_ids, geometric=_MEANS[line.name]
            )
            whole = _with_means(whole, means)
        lines.append(whole)
    return Drawn(
        [period.middle for period in periods] + [epoch(run.started) for run, _ in new],
        [period.words for period in periods] + [run.name for run, _ in new],
        len(weeks),
        lines,
    )


def _with_means(line: TrendLine, means: Array) -> TrendLine:
    """The line with other means, and its intervals as wide about them as they were."""
    triples: list[tuple[float | None, float | None, float | None]] = []
    for value, low, high, mean in zip(line.values, line.lows, line.highs, means.tolist(), strict=True):
        if value is None or not math.isfinite(mean):  # of other models only
            triples.append((None, None, None))
            continue
        factor = mean / value
        triples.append((mean, low and low * factor, high and high * factor))
    values, lows, highs = (list(column) for column in zip(*triples, strict=True)) if triples else ([], [], [])
    return replace(line, values=values, lows=lows, highs=highs)


def _of_last(
    nights: Sequence[tuple[RunLine, Summary]], week: Sequence[int], line: TrendLine
) -> list[float | None]:
    """The values of a week's nights that were measured by the method of its last one."""
    last = nights[week[-1]][0].method
    return [line.values[night] for night in week if alike(nights[night][0].method, last, line.column)]


def _span(values: Sequence[float | None]) -> tuple[Any, Any, Any]:
    measured = [value for value in values if value is not None]
    return (statistics.median(measured), min(measured), max(measured)) if measured else (None, None, None)


_UP = "../../../"  # from the page to the top of the site
_BADGES = {str(Status.PASS): "", str(Status.SKIPPED): "info", str(Status.NOT_TONIGHT): "info"}


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
class OpenChange:
    """The worst open alert of a case. `word`: fail, worse or better; `size`: of the log change."""

    word: str
    size: float

    @property
    def rank(self) -> tuple[int, float]:
        """What sorts the worst first."""
        return ("fail", "worse", "better").index(self.word), -self.size


def open_changes(alerts: Iterable[Alert]) -> dict[int, OpenChange]:
    """The worst open alert of each case, by the case's number; `alerts` in any state."""
    worst: dict[int, OpenChange] = {}
    for alert in alerts:
        if alert.case_id is None or alert.state not in SHOWN:
            continue
        word = "fail" if alert.kind in ("status", "vanished") else "worse"
        word = "better" if alert.direction < 0 else word
        change = OpenChange(word, abs(alert.change or 0.0))
        worst[alert.case_id] = min(worst.get(alert.case_id, change), change, key=lambda one: one.rank)
    return worst


@dataclass(frozen=True)
class SuiteView:
    """The page of a suite.

    `heat_times` has a time per column of the heat map; `gone` are cases of those nights that the last night
    lacks. `published`: the totals that the source of an imported night published; `why` they differ from
    perfdash's.
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

    @cached_property
    def parts(self) -> list[str]:
        """The metrics of the parts of a step that any case has."""
        return [name for name in PARTS if any(row.number(name) is not None for row in self.rows)]


def suite_view(
    history: TestbedHistory, trend: SuiteTrend, last_rows: Sequence[Row], changes: Mapping[int, OpenChange]
) -> SuiteView:
    """Make the page of a trend.

    `last_rows` are its last night's results, of any setting; `changes`: what is open, by case.
    """
    bed, setting = history.bed, trend.setting
    run, summary = trend.last
    of_setting = [row for row in last_rows if setting.includes(row.case)]
    rows = [_model_row(bed, row) for row in of_setting]
    published = of_suite(run.facts, setting.section, setting.suite, setting.backend, of_setting)
    numbers = [number for number, case in history.cases.items() if setting.includes(case)]
    numbers.sort(key=lambda number: (history.cases[number].model.lower(), history.cases[number].name))
    numbers.sort(key=lambda number: changes[number].rank if number in changes else (9, 0.0))
    start = heat_nights(history, numbers)
    tonight = {row.case for row in rows}
    sizes = [history.cases[number].model for number in numbers]
    several = len(set(sizes)) < len(sizes)
    open_words = {number: change.word for number, change in changes.items()}
    heat, measure = heat_lines(history, numbers, start, several, open_words)
    # A passing case may lack a metric, as a compression ratio where it needs too little memory.
    counting = [row for row in of_setting if is_counted(row)]
    with_value = {name: {row.case for row in counting if was_measured(row, name)} for name in _MEANS}
    counted = {
        name: [number for number in numbers if history.cases[number] in cases]
        for name, cases in with_value.items()
    }
    return SuiteView(
        bed,
        trend,
        setting.page(bed.digest),
        run,
        summary,
        drawn(trend, history, counted),
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
    word, badge = status_word(row)
    return CaseRow(row, _UP + model_page(bed.digest, row.case), word, is_counted(row), badge)


def status_word(row: Row) -> tuple[str, str]:
    """The word for a row's status, and its badge (empty for a pass)."""
    if row.status in PASSING and not is_compiled(row):
        return NOTHING_CAPTURED, "fail"
    if row.status in PASSING and gave_up(row):
        return "recompile limit", "unknown"
    if row.status in PASSING and is_disturbed(row):
        return "disturbed", "unknown"
    if row.status == Status.PASS_DUE_TO_SKIP:
        return "not checked", "unknown"
    return str(row.status), _BADGES.get(row.status, "fail")


def _rank(row: CaseRow) -> tuple[bool, bool, float, str]:
    return not row.passed, not is_compiled(row.row), -(row.number("speedup") or 0.0), row.case.name


def _gone(history: TestbedHistory, numbers: Sequence[int], tonight: set[Case]) -> list[tuple[Case, str, str]]:
    gone = []
    for number in numbers:
        case = history.cases[number]
        if case in tonight:
            continue
        nights = np.flatnonzero(history.statuses[history.row[number]] != "")
        last = history.recent[int(nights[-1])].started[:10] if len(nights) else "long ago"
        gone.append((case, _UP + model_page(history.bed.digest, case), last))
    return gone


def read_suite_view(connection: sa.Connection, bed: Testbed, setting: SuiteSetting) -> SuiteView | None:
    """Read the page of one suite; None where no run of the testbed measured it."""
    numbers = [n for case, n in case_numbers(connection, bed.id).items() if setting.includes(case)]
    history = read_history(connection, bed, case_ids=numbers)
    trends = read_trends(connection, bed, history.runs, setting)
    if not trends:
        return None
    (trend,) = trends
    changes = open_changes(alert_store.load(connection, testbed_id=bed.id, states=SHOWN))
    return suite_view(history, trend, rows_of(connection, trend.last[0].id, details=True), changes)
