"""A picture with a rung a model, back ends side by side in it; who has no mark gets its status as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from perfdash.report.plots.drawing import BLACK, COLOURS, GREY, MARKERS, WIDTH, Picture, heading, shown
from perfdash.report.plots.grouping import Rung, why_not

PER_PAGE = 80  # rungs: a picture beyond it is no longer looked at as one
_SLOT = 0.16  # inches a back end


def pages(
    name: str,
    title: str,
    lines: Sequence[str],
    rungs: Sequence[Rung],
    backends: Sequence[str],
    draw: Callable[[Figure, Axes, Sequence[Rung]], None],
) -> Iterator[Picture]:
    """The rungs from top to bottom over as many pictures as it takes; `draw` puts the marks in."""
    count = -(-len(rungs) // PER_PAGE)
    for page in range(count):
        part = rungs[page * PER_PAGE : (page + 1) * PER_PAGE]
        rest = f" ({page + 1} of {count})" if count > 1 else ""
        height = 1.5 + 0.17 * len(lines) + len(part) * max(0.2, _SLOT * len(backends))
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axis = figure.add_subplot()
        axis.set_ylim(len(part) - 0.5, -0.5)
        axis.set_yticks(range(len(part)), labels=[rung.label for rung in part])
        axis.tick_params(axis="y", length=0)
        axis.grid(visible=False, axis="y")
        for place in range(0, len(part), 2):  # bands: a name is followed to its marks
            axis.axhspan(place - 0.5, place + 0.5, color="#F6F6F6", zorder=0)
        draw(figure, axis, part)
        heading(figure, title + rest, lines)
        yield Picture(f"{name}-{page + 1}" if count > 1 else name, title + rest, figure)


def heights(place: int, backends: Sequence[str]) -> dict[str, float]:
    """Where in a rung each back end lies."""
    room = 0.76 / len(backends)
    return {
        backend: place + (index - (len(backends) - 1) / 2) * room for index, backend in enumerate(backends)
    }


def told(axis: Axes, y: float, text: str, *, failed: bool = True) -> None:
    """Text at the left edge, in place of a mark."""
    axis.text(
        0.008, y, text, transform=axis.get_yaxis_transform(), va="center", fontsize=6.5,
        color=BLACK if failed else GREY, style="italic", clip_on=True,
    )  # fmt: skip


def tell_missing(
    axis: Axes, rungs: Sequence[Rung], backends: Sequence[str], name: str, drawn: set[tuple[int, str]]
) -> None:
    """The status of each result that has no mark: (place of the rung, back end) are those `drawn`."""
    for place, rung in enumerate(rungs):
        for backend, y in heights(place, backends).items():
            row = rung.slots.get(backend)
            if (place, backend) in drawn:
                continue
            who = f"{shown(backend, 20)}: " if len(backends) > 1 else ""
            if row is not None:
                skipped = row.status in ("skipped", "pass_due_to_skip")
                told(axis, y, who + why_not(row, name), failed=not skipped)
            elif len(rung.slots) < len(backends):
                told(axis, y, f"{who}no such case", failed=False)


def colour_of(backend: str, backends: Sequence[str]) -> str:
    return COLOURS[backends.index(backend) % len(COLOURS)]


def marker_of(backend: str, backends: Sequence[str]) -> str:
    return MARKERS[backends.index(backend) % len(MARKERS)]


def legend(figure: Figure, entries: Sequence[Line2D]) -> None:
    """Below the picture, where it hides nothing."""
    if entries:
        figure.legend(handles=list(entries), loc="outside lower left", ncols=4, fontsize=7.5)


def key(label: str, colour: str, marker: str, **style: object) -> Line2D:
    """An entry of the legend: a mark without a line."""
    return Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=5, label=label, **style)  # type: ignore[arg-type]
