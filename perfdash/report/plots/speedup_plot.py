"""The speedup of each model with its interval, the fastest first; failures with their status."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdash.history.results import Row
from perfdash.report.plots.drawing import (
    BLACK,
    BLUE,
    GREY,
    PURPLE,
    VERMILLION,
    Picture,
    log_scale,
    shown,
)
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

# Colour and shape of each verdict: either is enough to tell them apart.
_VERDICTS = {
    "faster": (BLUE, "o"),
    "slower": (VERMILLION, "v"),
    "equivalent": (BLACK, "s"),
    "inconclusive": (PURPLE, "D"),
    None: (GREY, "x"),
}


def speedup(rows: Iterable[Row]) -> Iterator[Picture]:
    """One plot per setting; none without rows."""
    for setting, group in by_setting(rows).items():
        backends = backends_of(group)
        lines = [
            _mean(backend, [row for row in group if row.case.backend == backend]) for backend in backends
        ]
        model_rows = sorted(model_rows_of(group), key=lambda model_row: _rank(model_row, backends))
        reach = _limits([row for row in group if _counts(row)])

        def draw(
            figure: Figure,
            axis: Axes,
            part: Sequence[ModelRow],
            backends: Sequence[str] = backends,
            reach: tuple[float, float] = reach,
        ) -> None:
            _draw(figure, axis, part, backends, reach)

        yield from pages(
            f"speedup_{setting.word}", f"Speedup: {setting.title}", lines, model_rows, backends, draw
        )


def _counts(row: Row) -> bool:
    return passed(row) and value(row, "speedup") is not None


def _rank(model_row: ModelRow, backends: Sequence[str]) -> tuple[float, str]:
    """Sort rows by their first known speedup; rows without one last, by name."""
    candidates = (
        model_row.slots[name]
        for name in backends
        if name in model_row.slots and _counts(model_row.slots[name])
    )
    best = next(candidates, None)
    return (-(value(best, "speedup") or 0.0) if best else math.inf), model_row.label


def _mean(backend: str, rows: Sequence[Row]) -> str:
    """The mean speedup of a back end, in the words of docs/method.md."""
    summary = summary_of(rows)
    name = shown(backend)
    missing = len(rows) - summary.measured
    rest = f"; {missing} of {len(rows)} cases do not count" if missing else ""
    if summary.speedup is None or summary.speedup_clipped is None:
        return f"{name}: no speedup counts{rest}"
    text = f"{name}: geometric mean {summary.speedup:.3f}x"
    if summary.speedup_low is not None and summary.speedup_high is not None:
        text += f" (95 %: {summary.speedup_low:.3f} to {summary.speedup_high:.3f})"
    return f"{text} over {summary.measured}; clipped at 1 from below: {summary.speedup_clipped:.3f}x{rest}"


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """The range of the axis: all speedups, 1, and intervals that are not too wide."""
    values = [number for row in rows if (number := value(row, "speedup"))] + [1.0]
    least, most = min(values), max(values)
    ends = [
        number for row in rows for name in ("speedup_low", "speedup_high") if (number := value(row, name))
    ]
    low = min([least, *(end for end in ends if end > least / 2)])
    high = max([most, *(end for end in ends if end < most * 2)])
    room = max(1.04, (high / low) ** 0.05)
    return low / room, high * room


def _draw(
    figure: Figure, axis: Axes, part: Sequence[ModelRow], backends: Sequence[str], reach: tuple[float, float]
) -> None:
    log_scale(axis, "x", *reach)
    axis.axvline(1.0, color=BLACK, linewidth=1.0, zorder=1)
    axis.set_xlabel("eager latency / compiled latency (more is better; logarithmic), 95 % interval")
    drawn, verdicts, bare = set(), set(), False
    for place, model_row in enumerate(part):
        for backend, y in heights(place, backends).items():
            row = model_row.slots.get(backend)
            ratio = value(row, "speedup")
            if row is None or ratio is None or not passed(row):
                continue
            drawn.add((place, backend))
            verdict = row.verdict if row.verdict in _VERDICTS else None
            verdicts.add(verdict)
            colour, marker = _VERDICTS[verdict]
            if len(backends) > 1:
                colour = colour_of(backend, backends)
            low, high = value(row, "speedup_low"), value(row, "speedup_high")
            if low and high and low <= high:
                axis.plot([low, high], [y, y], color=colour, linewidth=1.4, solid_capstyle="butt")
            else:
                bare = True
            face = colour if low and high else "white"
            axis.plot([ratio], [y], marker, color=colour, markerfacecolor=face, markersize=4.2)
    draw_missing(axis, part, backends, "speedup", drawn)
    several = len(backends) > 1
    entries = [key(shown(name), colour_of(name, backends), "_", markeredgewidth=4) for name in backends]
    entries = entries if several else []
    for name, (colour, marker) in _VERDICTS.items():
        if name in verdicts:
            word = {None: "no verdict", "inconclusive": "inconclusive (cannot tell)"}.get(name, str(name))
            entries.append(key(word, GREY if several else colour, marker))
    if bare:
        entries.append(key("hollow: no interval known", GREY, "o", markerfacecolor="white"))
    legend(figure, entries)
