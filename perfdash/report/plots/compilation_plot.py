"""Compilation time of each model: wall time as a bar, CPU seconds as a mark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdash.history.results import Row
from perfdash.report.plots.drawing import BLACK, Picture, number, shown
from perfdash.report.plots.layout import (
    ModelRow,
    backends_of,
    by_setting,
    colour_of,
    draw_missing,
    heights,
    key,
    legend,
    model_rows_of,
    pages,
    passed,
    summary_of,
    value,
)


def compilation(rows: Iterable[Row]) -> Iterator[Picture]:
    """One plot per setting in which anything was compiled, the slowest first."""
    for setting, group in by_setting(rows).items():
        if not any(value(row, "compilation_s") for row in group):
            continue
        backends = backends_of(group)
        lines = [
            _mean(backend, [row for row in group if row.case.backend == backend]) for backend in backends
        ]
        model_rows = sorted(model_rows_of(group), key=_rank)
        longest = max(
            seconds for row in group for name in ("compilation_s", "compilation_cpu_s")
            if (seconds := value(row, name))
        )  # fmt: skip

        def draw(
            figure: Figure,
            axis: Axes,
            part: Sequence[ModelRow],
            backends: Sequence[str] = backends,
            longest: float = longest,
        ) -> None:
            _draw(figure, axis, part, backends, longest)

        title = f"Compilation time, cold caches: {setting.title}"
        yield from pages(f"compile_{setting.word}", title, lines, model_rows, backends, draw)


def _rank(model_row: ModelRow) -> tuple[float, str]:
    times = [value(row, "compilation_s") for row in model_row.slots.values() if passed(row)]
    return -max((seconds for seconds in times if seconds), default=-math.inf), model_row.label


def _mean(backend: str, rows: Sequence[Row]) -> str:
    summary = summary_of(rows)
    if summary.compilation_s is None:
        return f"{shown(backend)}: no compilation time counts"
    return f"{shown(backend)}: arithmetic mean {summary.compilation_s:.1f} s of what passes"


def _draw(
    figure: Figure, axis: Axes, part: Sequence[ModelRow], backends: Sequence[str], longest: float
) -> None:
    axis.set_xlim(0, longest * 1.05)
    axis.xaxis.set_major_formatter(lambda tick, _: number(tick))
    axis.set_xlabel("seconds that compiling adds to the first call (less is better)")
    drawn, of_cpu = set(), False
    for place, model_row in enumerate(part):
        for backend, y in heights(place, backends).items():
            row = model_row.slots.get(backend)
            seconds = value(row, "compilation_s")
            if row is None or seconds is None or not passed(row):
                continue
            drawn.add((place, backend))
            axis.barh(y, seconds, height=0.62 / len(backends), color=colour_of(backend, backends))
            busy = value(row, "compilation_cpu_s")
            if busy:
                of_cpu = True
                axis.plot([busy], [y], "|", color=BLACK, markersize=6, markeredgewidth=1.4)
    draw_missing(axis, part, backends, "compilation_s", drawn)
    entries = [key(f"{shown(name)}, wall time", colour_of(name, backends), "s") for name in backends]
    if of_cpu:
        entries.append(key("CPU time of all its processes", BLACK, "|", markeredgewidth=1.4))
    legend(figure, entries)
