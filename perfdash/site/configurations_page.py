"""The configurations of a testbed beside each other: suites, then models on which they differ.

Only settings of one device, scenario and number of threads are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perfdash.detect.nights import LATELY, days_between, has_enough_cases, other_machine
from perfdash.history.pass_rates_and_means import is_compiled, is_counted
from perfdash.history.queries import RunLine
from perfdash.history.results import Row
from perfdash.methods import alike, has_own_threads
from perfdash.records import DEFAULT_CONFIGURATION, PASSING, Status
from perfdash.report.dashboard_tables import compilers
from perfdash.report.site_links import configurations_page, model_page
from perfdash.site.overview_page import SettingNight, TestbedView
from perfdash.site.suite_page import SuiteTrend
from perfdash.site.testbed_history import Testbed

MOST = 300  # models that a table lists
_PASS = "pass"

Setting = tuple[object, ...]  # of SuiteSetting, without the suite
Model = tuple[str, str, int]  # suite, name, batch size


class MeasuredRow(NamedTuple):
    """A result with its run."""

    row: Row
    run: RunLine

    @property
    def day(self) -> str:
        return self.run.started[:10]


@dataclass(frozen=True)
class SettingColumn:
    """A column: how cases are run. `name`: what differs between the columns, in words.

    `day`: of its results, where all are of one night that is not the newest; else empty.
    """

    name: str
    setting: Setting
    day: str = ""


@dataclass(frozen=True)
class ModelCell:
    """A model under one configuration. `ratio`: its latency / that of the baseline, None where not known.

    `badge`: of a cell that differs from the baseline, by another outcome or a latency ratio beyond both
    intervals: better, worse, or info where both fail. Empty for others. `day`: of a night that is not the
    newest, where the column does not name it. `machines`: both, where the baseline is of another one.
    `is_compared`: see _is_compared.
    """

    row: Row
    href: str
    ratio: float | None
    badge: str
    day: str
    machines: str
    is_compared: bool

    @property
    def word(self) -> str:
        """What became of the case."""
        outcome = _outcome(self.row)
        return str(self.row.status if outcome == _PASS else outcome).replace("_", " ")

    @property
    def is_uncertain(self) -> bool:
        """Whether it has numbers that are not marked, because the baseline's are of another machine."""
        return bool(self.machines) and not self.badge and is_counted(self.row)

    @property
    def speedup(self) -> float | None:
        """Its speedup over eager; None where the outcome is shown instead."""
        return self.row.values.get("speedup") if self.ratio is not None or self.is_uncertain else None


@dataclass(frozen=True)
class ModelLine:
    """A model that the first column has, with a cell for each column, None where it was not measured."""

    suite: str
    model: str
    batch_size: int
    cells: list[ModelCell | None]

    @property
    def differing(self) -> int:
        return sum(cell is not None and bool(cell.badge) for cell in self.cells)

    @property
    def is_compared(self) -> bool:
        """Whether any configuration has a result that can be compared with the first column's."""
        return any(cell is not None and cell.is_compared for cell in self.cells[1:])

    @property
    def is_uncertain(self) -> bool:
        """Whether no cell is marked, and some have numbers of another machine than the first column."""
        return not self.differing and any(cell is not None and cell.is_uncertain for cell in self.cells)

    @property
    def other_outcomes(self) -> int:
        """Under how many configurations it ends in another way than under the first."""
        return sum(cell is not None and bool(cell.badge) and cell.ratio is None for cell in self.cells)

    @property
    def spread(self) -> float:
        """How far the configurations lie apart: the largest latency ratio over the smallest."""
        ratios = [cell.ratio for cell in self.cells if cell and cell.ratio]
        return max(ratios) / min(ratios) if ratios else 1.0


@dataclass(frozen=True)
class ModelsTable:
    """Settings of one device, scenario and number of threads; `lines`: the models on which they differ.

    The first column is what the others are compared with. `same`: models without difference; `uncertain`:
    models that are not marked and that pass on several machines; `without_numbers`: those that were measured
    under several configurations without two results that can be compared; `not_compared`: those that are not
    in the first column.
    """

    title: str
    columns: list[SettingColumn]
    lines: list[ModelLine]
    left_out: int
    same: int
    uncertain: int
    without_numbers: int
    not_compared: int


@dataclass(frozen=True)
class ConfigurationsView:
    """The page of a testbed. `suites`: (suite, a SettingNight for each column).

    `newest`: the day of the testbed's newest night; `not_tonight`: cases that the last nights left out for
    want of hours.
    """

    bed: Testbed
    page: str
    columns: list[SettingColumn]
    suites: list[tuple[str, list[SettingNight | None]]]
    tables: list[ModelsTable]
    newest: str
    not_tonight: int


def configurations_view(
    bed: Testbed, overview: TestbedView, rows: Mapping[int, Sequence[Row]]
) -> ConfigurationsView | None:
    """The page of a testbed; None where all its cases run under one configuration and back end.

    `rows`: the results of the last night of each setting, by run id.
    """
    if not overview.has_configurations:
        return None
    nights: dict[Setting, SettingNight] = {night.trend.setting: night for night in overview.settings}
    settings = list(dict.fromkeys(setting[1:] for setting in nights))
    measured: dict[Setting, dict[Model, MeasuredRow]] = {setting: {} for setting in settings}
    for setting, night in nights.items():
        run = night.trend.last[0]
        for row in rows.get(run.id, ()):
            if night.trend.setting.includes(row.case):
                model = row.case.suite, row.case.model, row.case.batch_size
                measured[setting[1:]][model] = MeasuredRow(row, run)
    settings = _baseline_first(settings, measured, [night.trend for night in overview.settings])
    suites = [
        (suite, [nights.get((suite, *setting)) for setting in settings])
        for suite in dict.fromkeys(night.trend.setting.suite for night in overview.settings)
    ]
    newest = max(night.trend.last[0].started for night in overview.settings)[:10]
    every = [one.row.status for by_model in measured.values() for one in by_model.values()]
    return ConfigurationsView(
        bed,
        configurations_page(bed.digest),
        [SettingColumn(name, key) for name, key in zip(compilers(settings), settings, strict=True)],
        suites,
        [_table(bed, title, of_one, measured, newest) for title, of_one in _comparable(settings)],
        newest,
        sum(status == Status.NOT_TONIGHT for status in every),
    )


def _baseline_first(
    settings: Sequence[Setting],
    measured: Mapping[Setting, Mapping[Model, MeasuredRow]],
    trends: Sequence[SuiteTrend],
) -> list[Setting]:
    """The settings in the order of their columns: the one that the others are compared with comes first.

    It is the default configuration of inductor, in float32 or else in the dtype with the most models. Last
    are settings that are no longer measured, and those with less than half of the models of another one of
    their device, number of threads and scenario: a few models run by hand are no baseline for the others.
    """
    last: dict[Setting, RunLine] = {}
    for trend in trends:
        setting, run = trend.setting[1:], trend.last[0]
        last[setting] = max(last.get(setting, run), run, key=lambda line: line.started)

    def has_few(setting: Setting) -> bool:
        device, _, threads, scenario, *_ = setting
        beside = (len(measured[of]) for of in settings if (of[0], *of[2:4]) == (device, threads, scenario))
        return not has_enough_cases(len(measured[setting]), max(beside))

    few = {setting for setting in settings if has_few(setting)}
    newest = max((last[setting] for setting in settings if setting not in few), key=lambda line: line.started)

    def rank(setting: Setting) -> tuple[object, ...]:
        is_old = days_between(last[setting], newest) > LATELY.days
        is_default = setting[-1] == DEFAULT_CONFIGURATION
        return (
            setting in few or is_old, not is_default, setting[4] != "inductor", setting[1] != "float32",
            -len(measured[setting]), str(setting),
        )  # fmt: skip

    return sorted(settings, key=rank)


def _comparable(settings: Sequence[Setting]) -> list[tuple[str, list[Setting]]]:
    """The groups of several settings that may be compared, each with its title.

    They share device, scenario and number of threads, except where the threads belong to the configuration:
    no case without a configuration has as many.
    """
    usual: dict[Setting, list[object]] = {}
    for setting in settings:
        device, _, threads, scenario, *_ = setting
        if setting[-1] == DEFAULT_CONFIGURATION:
            usual.setdefault((device, scenario), []).append(threads)
    groups: dict[Setting, list[Setting]] = {}
    for setting in settings:
        device, _, threads, scenario, *_ = setting
        known = usual.get((device, scenario), [threads])
        shared = threads if threads in known else known[0]
        groups.setdefault((device, scenario, shared), []).append(setting)
    return [
        (f"{device}, {scenario}, {threads} thread{'' if threads == 1 else 's'}", group)
        for (device, scenario, threads), group in groups.items()
        if len(group) > 1
    ]


def _table(
    bed: Testbed,
    title: str,
    settings: Sequence[Setting],
    measured: Mapping[Setting, Mapping[Model, MeasuredRow]],
    newest: str,
) -> ModelsTable:
    columns = []
    for name, setting in zip(compilers(settings), settings, strict=True):
        days = {one.day for one in measured[setting].values()}
        day = days.pop() if len(days) == 1 and newest not in days else ""
        columns.append(SettingColumn(name, setting, day))
    by_model = [measured[setting] for setting in settings]
    models = dict.fromkeys(model for of_setting in by_model for model in of_setting)
    lines = [
        _line(bed, model, baseline, [of_setting.get(model) for of_setting in by_model], columns, newest)
        for model in models
        if (baseline := by_model[0].get(model)) is not None
    ]
    several = [line for line in lines if sum(cell is not None for cell in line.cells) > 1]
    different = [line for line in several if line.differing]
    uncertain = sum(line.is_uncertain for line in several)
    same = sum(line.is_compared and not (line.differing or line.is_uncertain) for line in several)
    different.sort(key=lambda line: (-line.other_outcomes, -line.spread, line.model))
    return ModelsTable(
        title, columns, different[:MOST], max(0, len(different) - MOST),
        same, uncertain, len(several) - len(different) - uncertain - same, len(models) - len(lines),
    )  # fmt: skip


def _line(
    bed: Testbed,
    model: Model,
    baseline: MeasuredRow,
    measured: Sequence[MeasuredRow | None],
    columns: Sequence[SettingColumn],
    newest: str,
) -> ModelLine:
    cells: list[ModelCell | None] = []
    for one, column in zip(measured, columns, strict=True):
        if one is None:
            cells.append(None)
            continue
        page = model_page(bed.digest, one.row.case)
        day = "" if one.day in (newest, column.day) else one.day
        machines = other_machine(baseline.run, one.run)
        ratio, badge = _ratio(one, baseline), _badge(one, baseline)
        cells.append(ModelCell(one.row, page, ratio, badge, day, machines, _is_compared(one, baseline)))
    return ModelLine(*model, cells)


def _ratio(one: MeasuredRow, baseline: MeasuredRow) -> float | None:
    """The latency of a row over the baseline's, where both were measured of what was compiled.

    By speedups where eager is the same on both sides: then what disturbed one case slowed its eager, too.
    Latencies of two machines are not compared.
    """
    name = _compared(one, baseline)
    if not (is_counted(one.row) and is_counted(baseline.row)) or not _alike(one, baseline, name):
        return None
    if name != "speedup" and other_machine(baseline.run, one.run):
        return None
    mine, other = (of.row.values.get(name, 0.0) for of in (one, baseline))
    if not (mine > 0 and other > 0):
        return None
    return other / mine if name == "speedup" else mine / other


def _compared(one: MeasuredRow, baseline: MeasuredRow) -> str:
    """What two rows are compared by: speedups, or latencies where eager is not the same."""
    of_eager = [(of.row.case.dtype, of.row.case.amp_dtype, of.row.case.threads) for of in (one, baseline)]
    return "speedup" if of_eager[0] == of_eager[1] else "backend_ms"


def _alike(one: MeasuredRow, baseline: MeasuredRow, column: str) -> bool:
    """Whether one method measured a column of both."""
    own_threads = has_own_threads(one.row.case) or has_own_threads(baseline.row.case)
    return alike(one.run.method, baseline.run.method, column, own_threads)


def _is_compared(one: MeasuredRow, baseline: MeasuredRow) -> bool:
    """Whether two rows can be compared: by numbers that count on both sides, or by their outcomes."""
    if {one.row.status, baseline.row.status} & {Status.SKIPPED, Status.NOT_TONIGHT}:
        return False
    outcome, other = _outcome(one.row), _outcome(baseline.row)
    if outcome != other:
        return _alike(one, baseline, "status")
    return outcome != _PASS or _ratio(one, baseline) is not None


def _badge(one: MeasuredRow, baseline: MeasuredRow) -> str:
    """The badge of a row that differs from the baseline; empty where it does not, or is not compared."""
    if not _is_compared(one, baseline):
        return ""
    outcome, other = _outcome(one.row), _outcome(baseline.row)
    if outcome != other:
        return {outcome: "better", other: "worse"}.get(_PASS, "info")
    if _apart(one, baseline):
        return "better" if (_ratio(one, baseline) or 1.0) < 1 else "worse"
    return ""


def _outcome(row: Row) -> str:
    """What a row says of the model: passing and compiled, passing as eager, or its status."""
    if row.status in PASSING:
        return _PASS if is_compiled(row) else "nothing captured"
    return str(row.status)


def _apart(one: MeasuredRow, baseline: MeasuredRow) -> bool:
    """Whether the intervals of what is compared have nothing in common.

    False without intervals, and of two machines, which may differ without any change.
    """
    name = _compared(one, baseline)
    if _ratio(one, baseline) is None or other_machine(baseline.run, one.run):
        return False
    ends = [of.row.values.get(f"{name}_{end}") for of in (one, baseline) for end in ("low", "high")]
    if any(end is None for end in ends):
        return False
    low, high, other_low, other_high = (end or 0.0 for end in ends)
    return low > other_high or high < other_low
