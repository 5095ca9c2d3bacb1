"""The layout of plots by setting: a row per model, back ends side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from perfdash.history.pass_rates_and_means import Summary, is_counted, summarize
from perfdash.history.results import Row, digest
from perfdash.records import DEFAULT_CONFIGURATION, variation, variation_in_words
from perfdash.report.dashboard_tables import status
from perfdash.report.plots.drawing import (
    BLACK,
    COLOURS,
    GREY,
    MARKERS,
    WIDTH,
    Picture,
    file_word,
    heading,
    shown,
)
from perfdash.report.techniques.technique_results import baseline_of

_SMALLEST, _LARGEST = 1e-12, 1e15  # what an axis can hold; what lies beyond is written out
_CONFIGURATION = 100  # characters of a configuration with its settings


@dataclass(frozen=True, order=True)
class PlotSetting:
    """What the cases of one plot have in common; `dtype` is amp-bfloat16 under autocast."""

    suite: str
    device: str
    dtype: str
    threads: int
    scenario: str
    dynamic: bool
    settings: str = ""
    configuration: str = DEFAULT_CONFIGURATION

    @property
    def title(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        words = map(shown, [self.suite, self.device, self.dtype, threads, self.scenario])
        variations = variation_in_words(self.configuration, self.dynamic, self.settings)
        return ", ".join([*words, *(shown(text, _CONFIGURATION) for text in variations)])

    @property
    def word(self) -> str:
        """The setting as part of a file name; a digest separates two configurations of one name."""
        words = [self.suite, self.device, self.dtype, f"t{self.threads}", self.scenario]
        words += [word for word in [variation(self.configuration, self.dynamic)] if word]
        words += [digest(self.settings)[:8]] if self.settings else []
        return "_".join(map(file_word, words))


def by_setting(rows: Iterable[Row]) -> dict[PlotSetting, list[Row]]:
    """Group results by setting, sorted by its name."""
    groups: dict[PlotSetting, list[Row]] = {}
    for row in rows:
        case = row.case
        dtype = f"amp-{case.amp_dtype}" if case.amp_dtype else case.dtype
        setting = PlotSetting(
            case.suite, case.device, dtype, case.threads, case.scenario, case.dynamic, case.settings,
            case.configuration,
        )  # fmt: skip
        groups.setdefault(setting, []).append(row)
    return dict(sorted(groups.items()))


def backends_of(rows: Iterable[Row]) -> list[str]:
    """The back ends of the rows: inductor first, then by name."""
    return sorted({row.case.backend for row in rows}, key=lambda name: (name != "inductor", name))


def eager_label(rows: Sequence[Row]) -> str:
    """Name the eager side in the legend of one setting's plot.

    The name has the dtype if that is not the setting's, or if eager is one of the back ends too.
    """
    baselines = {baseline_of(row): row for row in rows}
    has_own_dtype = all(
        (baseline.dtype, baseline.amp_dtype) == (row.case.dtype, row.case.amp_dtype)
        for baseline, row in baselines.items()
    )
    if has_own_dtype and "eager" not in backends_of(rows):
        return "eager"
    return ", ".join(sorted(baseline.label for baseline in baselines))


@dataclass(frozen=True)
class ModelRow:
    """A model at one batch size, with its result for each back end."""

    label: str
    slots: dict[str, Row]


def model_rows_of(rows: Sequence[Row]) -> list[ModelRow]:
    """The rows of a plot by name: per model, or per model and batch size."""
    sizes: dict[str, set[int]] = {}
    slots_of: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        case = row.case
        sizes.setdefault(case.model, set()).add(case.batch_size)
        slots_of.setdefault((case.model, case.batch_size), {})[case.backend] = row
    return [
        ModelRow(shown(model) + (f"  bs {size}" if len(sizes[model]) > 1 else ""), slots)
        for (model, size), slots in sorted(slots_of.items())
    ]


def value(row: Row | None, name: str) -> float | None:
    """A metric that an axis can show; None unless it is finite and above 0."""
    number = row.values.get(name) if row else None
    return number if number is not None and _fits(number) else None


def _fits(number: float) -> bool:
    return _SMALLEST < number < _LARGEST


def summary_of(rows: Iterable[Row]) -> Summary:
    """The means of the values that an axis can show, as docs/method.md defines them."""
    return summarize(
        [
            replace(row, values={name: v for name, v in row.values.items() if v == 0 or _fits(v)})
            for row in rows
        ]
    )


def passed(row: Row) -> bool:
    """Whether its numbers are of the compiled model, so that they count in the means."""
    return is_counted(row)


def why_not(row: Row, name: str) -> str:
    """The reason why a result has no mark in the plot of a metric."""
    if not passed(row):
        return shown(status(row))
    odd = row.values.get(name)
    if odd is not None and math.isfinite(odd):
        return f"{shown(row.status)}, but {odd:.3g}"
    return f"{shown(row.status)}, but not measured"


PER_PAGE = 80  # rungs: a picture beyond it is no longer looked at as one
_SLOT = 0.16  # inches a back end


def pages(
    name: str,
    title: str,
    lines: Sequence[str],
    model_rows: Sequence[ModelRow],
    backends: Sequence[str],
    draw: Callable[[Figure, Axes, Sequence[ModelRow]], None],
) -> Iterator[Picture]:
    """Split the rows over as many plots as needed; `draw` adds the marks."""
    count = -(-len(model_rows) // PER_PAGE)
    for page in range(count):
        part = model_rows[page * PER_PAGE : (page + 1) * PER_PAGE]
        rest = f" ({page + 1} of {count})" if count > 1 else ""
        height = 1.5 + 0.17 * len(lines) + len(part) * max(0.2, _SLOT * len(backends))
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axis = figure.add_subplot()
        axis.set_ylim(len(part) - 0.5, -0.5)
        axis.set_yticks(range(len(part)), labels=[model_row.label for model_row in part])
        axis.tick_params(axis="y", length=0)
        axis.grid(visible=False, axis="y")
        for place in range(0, len(part), 2):  # bands: a name is followed to its marks
            axis.axhspan(place - 0.5, place + 0.5, color="#F6F6F6", zorder=0)
        draw(figure, axis, part)
        heading(figure, title + rest, lines)
        yield Picture(f"{name}-{page + 1}" if count > 1 else name, title + rest, figure)


def heights(place: int, backends: Sequence[str]) -> dict[str, float]:
    """The y position of each back end within a row."""
    room = 0.76 / len(backends)
    return {
        backend: place + (index - (len(backends) - 1) / 2) * room for index, backend in enumerate(backends)
    }


def draw_text(axis: Axes, y: float, text: str, *, failed: bool = True) -> None:
    """Write text at the left edge in place of a mark."""
    axis.text(
        0.008, y, text, transform=axis.get_yaxis_transform(), va="center", fontsize=6.5,
        color=BLACK if failed else GREY, style="italic", clip_on=True,
    )  # fmt: skip


def draw_missing(
    axis: Axes,
    model_rows: Sequence[ModelRow],
    backends: Sequence[str],
    name: str,
    drawn: set[tuple[int, str]],
) -> None:
    """Write the status of each result without a mark; `drawn`: (row, back end) with one."""
    for place, model_row in enumerate(model_rows):
        for backend, y in heights(place, backends).items():
            row = model_row.slots.get(backend)
            if (place, backend) in drawn:
                continue
            who = f"{shown(backend, 20)}: " if len(backends) > 1 else ""
            if row is not None:
                skipped = row.status in ("skipped", "not_tonight", "pass_due_to_skip")
                draw_text(axis, y, who + why_not(row, name), failed=not skipped)
            elif len(model_row.slots) < len(backends):
                draw_text(axis, y, f"{who}no such case", failed=False)


def colour_of(backend: str, backends: Sequence[str]) -> str:
    return COLOURS[backends.index(backend) % len(COLOURS)]


def marker_of(backend: str, backends: Sequence[str]) -> str:
    return MARKERS[backends.index(backend) % len(MARKERS)]


def legend(figure: Figure, entries: Sequence[Line2D]) -> None:
    """Add a legend below the plot, where it hides nothing."""
    if entries:
        figure.legend(handles=list(entries), loc="outside lower left", ncols=4, fontsize=7.5)


def key(label: str, colour: str, marker: str, **style: object) -> Line2D:
    """An entry of the legend: a mark without a line."""
    return Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=5, label=label, **style)  # type: ignore[arg-type]
