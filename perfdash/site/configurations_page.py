"""The configurations of a testbed beside each other: suites, then models on which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfdash.history.pass_rates_and_means import is_compiled, is_counted
from perfdash.history.results import Row
from perfdash.records import DEFAULT_CONFIGURATION, PASSING, Status
from perfdash.report.dashboard_tables import compilers
from perfdash.report.site_links import configurations_page, model_page
from perfdash.site.overview_page import SettingNight, TestbedView
from perfdash.site.testbed_history import Testbed

MOST = 300  # models that are listed
_PASS = "pass"


@dataclass(frozen=True)
class SettingColumn:
    """A column: how cases are run. `name`: what differs between the columns, in words.

    The first column is what the others are compared with. `setting`: of SuiteSetting, without the suite.
    """

    name: str
    setting: tuple[object, ...]


@dataclass(frozen=True)
class ModelCell:
    """A model under one configuration. `ratio`: its latency / that of the baseline, None where not known.

    `badge`: of a cell that differs from the baseline, by another outcome or a latency ratio beyond both
    intervals: better, worse, or info where both fail. Empty for others.
    """

    row: Row
    href: str
    ratio: float | None
    badge: str

    @property
    def word(self) -> str:
        """What became of the case."""
        outcome = _outcome(self.row)
        return str(self.row.status if outcome == _PASS else outcome).replace("_", " ")


@dataclass(frozen=True)
class ModelLine:
    """A model with a cell for each way, None where it was not measured."""

    suite: str
    model: str
    batch_size: int
    cells: list[ModelCell | None]

    @property
    def differing(self) -> int:
        return sum(cell is not None and bool(cell.badge) for cell in self.cells)

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
class ConfigurationsView:
    """The page of a testbed. `suites`: (suite, a SettingNight for each way); `lines`: where they differ.

    `not_tonight`: cases that the last nights left out for want of hours; `same`: models without difference.
    """

    bed: Testbed
    page: str
    columns: list[SettingColumn]
    suites: list[tuple[str, list[SettingNight | None]]]
    lines: list[ModelLine]
    left_out: int
    same: int
    not_tonight: int


def configurations_view(
    bed: Testbed, overview: TestbedView, rows: Mapping[int, Sequence[Row]]
) -> ConfigurationsView | None:
    """The page of a testbed; None where all its cases run under one configuration and back end.

    `rows`: the results of the last night of each setting, by run id.
    """
    settings = [night.trend.setting for night in overview.settings]
    if not overview.has_configurations:
        return None
    keys = list(dict.fromkeys(tuple(setting)[1:] for setting in settings))
    keys.sort(key=lambda key: (key[-1] != DEFAULT_CONFIGURATION, key[4] != "inductor", str(key)))
    columns = [SettingColumn(name, key) for name, key in zip(compilers(keys), keys, strict=True)]
    by_setting = {tuple(night.trend.setting): night for night in overview.settings}
    suites = [
        (suite, [by_setting.get((suite, *column.setting)) for column in columns])
        for suite in dict.fromkeys(setting.suite for setting in settings)
    ]
    of_last: list[dict[tuple[str, str, int], Row]] = [{} for _ in columns]
    not_tonight = 0
    for place in range(len(columns)):
        for suite, nights in suites:
            night = nights[place]
            if night is None:
                continue
            for row in rows.get(night.trend.last[0].id, ()):
                if not night.trend.setting.includes(row.case):
                    continue
                not_tonight += row.status == Status.NOT_TONIGHT
                of_last[place][suite, row.case.model, row.case.batch_size] = row
    models = dict.fromkeys(model for of_way in of_last for model in of_way)
    lines = [_line(bed, model, [of_way.get(model) for of_way in of_last]) for model in models]
    different = [line for line in lines if line.differing]
    different.sort(key=lambda line: (-line.other_outcomes, -line.spread, line.model))
    return ConfigurationsView(
        bed, configurations_page(bed.digest), columns, suites, different[:MOST],
        max(0, len(different) - MOST), len(lines) - len(different), not_tonight,
    )  # fmt: skip


def _line(bed: Testbed, key: tuple[str, str, int], rows: Sequence[Row | None]) -> ModelLine:
    suite, model, batch_size = key
    baseline = next((row for row in rows if row is not None), None)
    cells: list[ModelCell | None] = []
    for row in rows:
        if row is None or baseline is None:
            cells.append(None)
            continue
        page = model_page(bed.digest, row.case)
        cells.append(ModelCell(row, page, _ratio(row, baseline), _badge(row, baseline)))
    return ModelLine(suite, model, batch_size, cells)


def _ratio(row: Row, baseline: Row) -> float | None:
    """The latency of a row over the baseline's, where both were measured of what was compiled."""
    if not (is_counted(row) and is_counted(baseline)):
        return None
    mine, other = row.values.get("backend_ms", 0.0), baseline.values.get("backend_ms", 0.0)
    return mine / other if mine > 0 and other > 0 else None


def _badge(row: Row, baseline: Row) -> str:
    """The badge of a row that differs from the baseline; empty where it does not, or one was not run."""
    if {row.status, baseline.status} & {Status.SKIPPED, Status.NOT_TONIGHT}:
        return ""
    outcome, other = _outcome(row), _outcome(baseline)
    if outcome != other:
        return {outcome: "better", other: "worse"}.get(_PASS, "info")
    if _apart(row, baseline):
        return "better" if (_ratio(row, baseline) or 1.0) < 1 else "worse"
    return ""


def _outcome(row: Row) -> str:
    """What a row says of the model: passing and compiled, passing as eager, or its status."""
    if row.status in PASSING:
        return _PASS if is_compiled(row) else "nothing captured"
    return str(row.status)


def _apart(row: Row, baseline: Row) -> bool:
    """Whether two intervals have nothing in common; without intervals nobody can say.

    They are those of the speedups, and of the latencies where eager runs in other dtypes.
    """
    if _ratio(row, baseline) is None:
        return False
    name = "speedup" if row.case.dtype == baseline.case.dtype else "backend_ms"
    ends = [of.values.get(f"{name}_{end}") for of in (row, baseline) for end in ("low", "high")]
    if any(end is None for end in ends):
        return False
    low, high, other_low, other_high = (end or 0.0 for end in ends)
    return low > other_high or high < other_low
