"""Peak memory of eager and of each back end, model by model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdash.history.results import Row
from perfdash.report.plots.drawing import BLACK, GREY, Picture, log_scale, shown
from perfdash.report.plots.layout import (
    ModelRow,
    backends_of,
    by_setting,
    colour_of,
    draw_missing,
    eager_label,
    heights,
    key,
    legend,
    marker_of,
    model_rows_of,
    pages,
    passed,
    summary_of,
    value,
)

_MB = 1e6
_PEAKS = ("eager_peak_bytes", "backend_peak_bytes")


def memory(rows: Iterable[Row]) -> Iterator[Picture]:
    """One plot per setting with any measured peak, the largest first."""
    for setting, group in by_setting(rows).items():
        if not any(value(row, name) for row in group for name in _PEAKS):
            continue
        backends = backends_of(group)
        lines = [
            _mean(backend, [row for row in group if row.case.backend == backend]) for backend in backends
        ]
        model_rows = sorted(model_rows_of(group), key=_rank)
        peaks = [peak / _MB for row in group for name in _PEAKS if (peak := value(row, name))]

        def draw(
            figure: Figure,
            axis: Axes,
            part: Sequence[ModelRow],
            backends: Sequence[str] = backends,
            reach: tuple[float, float] = (min(peaks) / 1.2, max(peaks) * 1.2),
            eager_name: str = eager_label(group),
        ) -> None:
            _draw(figure, axis, part, backends, reach, eager_name)

        title = f"Peak memory: {setting.title}"
        yield from pages(f"memory_{setting.word}", title, lines, model_rows, backends, draw)


def _rank(model_row: ModelRow) -> tuple[float, str]:
    peaks = [value(row, name) for row in model_row.slots.values() for name in _PEAKS]
    return -max((peak for peak in peaks if peak), default=-math.inf), model_row.label


def _mean(backend: str, rows: Sequence[Row]) -> str:
    summary = summary_of(rows)
    if summary.compression_ratio is None or summary.compression_ratio_arithmetic is None:
        return f"{shown(backend)}: no compression ratio counts"
    return (
        f"{shown(backend)}: compression (eager / compiled) {summary.compression_ratio:.3f} geometric mean, "
        f"{summary.compression_ratio_arithmetic:.3f} arithmetic"
    )


def _draw(
    figure: Figure,
    axis: Axes,
    part: Sequence[ModelRow],
    backends: Sequence[str],
    reach: tuple[float, float],
    eager_name: str,
) -> None:
    log_scale(axis, "x", *reach)
    axis.set_xlabel("peak memory, MB (less is better; logarithmic)")
    drawn = set()
    for place, model_row in enumerate(part):
        for backend, y in heights(place, backends).items():
            row = model_row.slots.get(backend)
            if row is None:
                continue
            eager, compiled = (value(row, name) for name in _PEAKS)
            if eager:
                axis.plot([eager / _MB], [y], "o", color=BLACK, markerfacecolor="white", markersize=4.6)
            if compiled and passed(row):
                drawn.add((place, backend))
                colour, marker = colour_of(backend, backends), marker_of(backend, backends)
                if eager:
                    axis.plot([eager / _MB, compiled / _MB], [y, y], color=GREY, linewidth=1.0, zorder=1.5)
                axis.plot([compiled / _MB], [y], marker, color=colour, markersize=4.2)
    draw_missing(axis, part, backends, "backend_peak_bytes", drawn)
    legend(
        figure,
        [
            key(shown(eager_name), BLACK, "o", markerfacecolor="white"),
            *(key(shown(name), colour_of(name, backends), marker_of(name, backends)) for name in backends),
        ],
    )
