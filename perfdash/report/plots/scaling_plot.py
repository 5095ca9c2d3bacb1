"""Latency and throughput by batch size, one panel per model that has several batch sizes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator

from perfdash.history.results import Row
from perfdash.report.plots.drawing import BLACK, GREY, WIDTH, Picture, heading, log_scale, number, shown
from perfdash.report.plots.layout import (
    backends_of,
    by_setting,
    colour_of,
    eager_label,
    marker_of,
    passed,
    value,
    why_not,
)
from perfdash.report.step_sizes import has_own_batch_sizes, samples_of_step

PER_PAGE = 24  # panels
_COLUMNS = 3

# (latency in ms or samples a second, low, high) by batch size; low and high may be unknown.
Line = dict[int, tuple[float, float | None, float | None]]


def latency(rows: Iterable[Row]) -> Iterator[Picture]:
    """Plot milliseconds per call or step; none where no model has several batch sizes."""
    return _pictures(rows, "Latency", throughput=False)


def throughput(rows: Iterable[Row]) -> Iterator[Picture]:
    """Plot samples per second."""
    return _pictures(rows, "Throughput", throughput=True)


def _pictures(rows: Iterable[Row], what: str, *, throughput: bool) -> Iterator[Picture]:
    rows = [row for row in rows if not has_own_batch_sizes(row)]  # such a step is the same at any batch size
    for setting, group in by_setting(rows).items():
        work = "step" if setting.scenario == "sizes" else "call"
        unit = (
            "samples a second (more is better)" if throughput else f"milliseconds a {work} (less is better)"
        )
        of_model: dict[str, list[Row]] = {}
        for row in group:
            of_model.setdefault(row.case.model, []).append(row)
        names = sorted(name for name, model_results in of_model.items() if _worth(model_results))
        backends = backends_of(group)
        count = -(-len(names) // PER_PAGE)
        for page in range(count):
            part = names[page * PER_PAGE : (page + 1) * PER_PAGE]
            figure = Figure(figsize=(WIDTH, 1.1 + 2.2 * -(-len(part) // _COLUMNS)), layout="constrained")
            for place, name in enumerate(part):
                axis = figure.add_subplot(-(-len(part) // _COLUMNS), min(_COLUMNS, len(part)), place + 1)
                _panel(axis, name, of_model[name], backends, throughput)
            rest = f" ({page + 1} of {count})" if count > 1 else ""
            title = f"{what} by batch size: {setting.title}{rest}"
            heading(figure, title, [f"{unit}, both axes logarithmic; bars: 95 % intervals"])
            marks = [
                (eager_label(group), BLACK, "o"),
                *((b, colour_of(b, backends), marker_of(b, backends)) for b in backends),
            ]
            entries = [
                Line2D([], [], color=colour, marker=marker, markersize=4.5, label=shown(label),
                       markerfacecolor="white" if colour == BLACK else colour)
                for label, colour, marker in marks
            ]  # fmt: skip
            figure.legend(handles=entries, loc="outside lower left", ncols=5, fontsize=7.5)
            number_of = f"-{page + 1}" if count > 1 else ""
            yield Picture(f"{what.lower()}_{setting.word}{number_of}", title, figure)


def _worth(rows: Sequence[Row]) -> bool:
    """Whether a model has latencies at two or more batch sizes."""
    measured = [row for row in _sized(rows) if value(row, "eager_ms") or _compiled(row)]
    return len({row.case.batch_size for row in measured}) > 1


def _sized(rows: Sequence[Row]) -> list[Row]:
    """The rows with a batch size: other tools write 0 for a model that failed."""
    return [row for row in rows if row.case.batch_size > 0]


def _compiled(row: Row) -> float | None:
    return value(row, "backend_ms") if passed(row) else None


def _panel(axis: Axes, name: str, rows: Sequence[Row], backends: Sequence[str], throughput: bool) -> None:
    sized = _sized(rows)
    sizes = sorted({row.case.batch_size for row in sized})
    lines: list[tuple[Line, str, str]] = [(_eager(sized, throughput), BLACK, "o")]
    lines += [
        (_of(sized, backend, throughput), colour_of(backend, backends), marker_of(backend, backends))
        for backend in backends
    ]
    heights: list[float] = []
    for line, colour, marker in lines:
        points = dict(sorted(line.items()))
        heights += [point[0] for point in points.values()]
        face = "white" if colour == BLACK else colour
        axis.plot(list(points), [point[0] for point in points.values()], color=colour, marker=marker,
                  markersize=4, markerfacecolor=face)  # fmt: skip
        for size, (_, low, high) in points.items():
            if low and high:
                axis.plot([size, size], [low, high], color=colour, linewidth=2.2, alpha=0.5)
    low, high = min(heights), max(heights)
    room = max(1.1, (high / low) ** 0.08)
    log_scale(axis, "y", low / room, high * room)
    axis.set_xscale("log")
    axis.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    axis.xaxis.set_minor_locator(FixedLocator([]))
    marked = _apart(sizes)
    axis.xaxis.set_major_locator(FixedLocator(marked))
    axis.xaxis.set_major_formatter(FixedFormatter([number(size) for size in marked]))
    axis.set_title(shown(name, 34))
    missing = [row for row in rows if _compiled(row) is None]
    if missing:
        several = len(backends) > 1
        reasons = [
            f"bs {row.case.batch_size or '?'}{' ' + shown(row.case.backend, 16) if several else ''}: "
            f"{why_not(row, 'backend_ms')}"
            for row in sorted(missing, key=lambda row: (row.case.batch_size, row.case.backend))
        ]
        more = [f"and {len(reasons) - 3} more"] if len(reasons) > 4 else []
        axis.set_xlabel(
            "\n".join((reasons[:3] if more else reasons) + more), fontsize=6, loc="left", color=GREY
        )


def _apart(sizes: Sequence[int]) -> list[int]:
    """The batch sizes whose labels do not overlap on a logarithmic axis."""
    least = (sizes[-1] / sizes[0]) ** (1 / 8) if len(sizes) > 1 else 1.0
    marked = [sizes[0]]
    for size in sizes[1:]:
        if size >= marked[-1] * least:
            marked.append(size)
    return marked


def _of(rows: Sequence[Row], backend: str, throughput: bool) -> Line:
    return {
        row.case.batch_size: _point(
            row, latency, value(row, "backend_ms_low"), value(row, "backend_ms_high"), throughput
        )
        for row in rows
        if row.case.backend == backend and (latency := _compiled(row))
    }


def _eager(rows: Sequence[Row], throughput: bool) -> Line:
    """Eager's latency or throughput by batch size, of the median over back ends.

    It has an interval only if a single back end measured it.
    """
    by_size: dict[int, list[Row]] = {}
    for row in rows:
        if value(row, "eager_ms"):
            by_size.setdefault(row.case.batch_size, []).append(row)
    line: Line = {}
    for size, beside in by_size.items():
        middle = statistics.median(latency for row in beside if (latency := value(row, "eager_ms")))
        single = beside[0] if len(beside) == 1 else None
        low, high = value(single, "eager_ms_low"), value(single, "eager_ms_high")
        line[size] = _point(beside[0], middle, low, high, throughput)
    return line


def _point(
    row: Row, middle: float, low: float | None, high: float | None, throughput: bool
) -> tuple[float, float | None, float | None]:
    """A latency with its interval, or the throughput of the row's steps at that latency."""
    if not throughput:
        return middle, low, high
    scale = samples_of_step(row) * 1e3
    return scale / middle, high and scale / high, low and scale / low
