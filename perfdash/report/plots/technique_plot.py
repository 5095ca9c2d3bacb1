"""Latency and throughput of all techniques of a model, by batch size."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator

from perfdash.history.results import Row
from perfdash.records import Status, variation, variation_in_words
from perfdash.report.plots.drawing import (
    BLACK,
    COLOURS,
    GREY,
    MARKERS,
    Picture,
    file_word,
    heading,
    log_scale,
    number,
    shown,
)
from perfdash.report.plots.layout import passed, value, why_not
from perfdash.report.step_sizes import samples_of_step
from perfdash.report.step_tables import new_tokens
from perfdash.report.techniques.technique_results import Group, Technique, groups, ordered

_WIDTH = 10.0  # inches: names stand beside the marks
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)))
_SPREAD = 0.62  # of the room of a batch size, over which its marks lie side by side
_LINE = 0.055  # of the height of the axes: a name
_CAPTION = 150  # characters a line
_NARROWEST = 2.5  # the highest tick of the axis over the lowest, at least
_TOLD = 14  # reasons in the caption


@dataclass(frozen=True)
class _Style:
    colour: str
    marker: str
    dashes: object
    hollow: bool


@dataclass(frozen=True)
class _Point:
    place: float
    middle: float
    low: float | None
    high: float | None


def latency_comparison(rows: Iterable[Row]) -> Iterator[Picture]:
    """Plot milliseconds per batch for each model that has several techniques."""
    return _pictures(rows, throughput=False)


def throughput_comparison(rows: Iterable[Row]) -> Iterator[Picture]:
    """Plot samples per second for each model that has several techniques."""
    return _pictures(rows, throughput=True)


def _pictures(rows: Iterable[Row], *, throughput: bool) -> Iterator[Picture]:
    sized = [row for row in rows if row.case.batch_size > 0]  # other tools write 0 for a model that failed
    word, what = ("throughput", "Throughput") if throughput else ("latency", "Latency")
    styles = _styles(ordered(sized))
    for group in groups(sized):
        techniques = [
            technique for technique in styles if any(Technique.of(row) == technique for row in group.rows)
        ]
        if not _worth(group):
            continue
        title = f"{what} of each way to run {shown(group.model)}: {_setting(group)}"
        figure = _figure(group, techniques, styles, throughput, title)
        yield Picture(f"{word}_comparison_{_word(group)}", title, figure)


def _rows_of(group: Group, technique: Technique) -> list[Row]:
    return [row for row in group.rows if Technique.of(row) == technique]


def _worth(group: Group) -> bool:
    """Whether there is something to compare: several back ends, or eager in several dtypes."""
    techniques = {Technique.of(row) for row in group.rows if _measured(row)}
    backends = {technique.backend for technique in techniques}
    return len(backends) > 1 or (backends == {"eager"} and len(techniques) > 1)


def _measured(row: Row) -> bool:
    drawn = passed(row) or _is_alone(row) or _is_unchecked(row)
    return drawn and value(row, "backend_ms") is not None


def _is_alone(row: Row) -> bool:
    """Whether the back end was measured without eager, which was out of memory."""
    return row.status == Status.EAGER_OOM and value(row, "backend_ms") is not None


def _is_unchecked(row: Row) -> bool:
    """Whether its outputs were not checked."""
    return row.status == Status.PASS_DUE_TO_SKIP


def _unit(group: Group) -> str:
    return "new tokens" if any(new_tokens(row) for row in group.rows) else "samples"


def _setting(group: Group) -> str:
    threads = "1 thread" if group.threads == 1 else f"{group.threads} threads"
    words = [shown(group.suite), shown(group.device), threads, shown(group.scenario)]
    words += [f"steps of {group.step}"] if group.step else []
    return ", ".join([*words, *map(shown, variation_in_words(group.configuration, group.dynamic))])


def _word(group: Group) -> str:
    words = [group.model, group.suite, group.device, f"t{group.threads}", group.scenario]
    words += [word for word in [variation(group.configuration, group.dynamic)] if word]
    return "_".join(map(file_word, words))


def _styles(techniques: Sequence[Technique]) -> dict[Technique, _Style]:
    """A style for each technique: colours and markers first, then dashes and hollow marks.

    The first technique, the baseline, is black.
    """
    styles = {}
    for place, technique in enumerate(techniques):
        if place == 0:
            styles[technique] = _Style(BLACK, "o", "-", hollow=False)
            continue
        turn, index = divmod(place - 1, len(COLOURS))
        styles[technique] = _Style(
            COLOURS[index],
            MARKERS[(index + turn + 1) % len(MARKERS)],
            _DASHES[turn % len(_DASHES)],
            turn % 2 == 1,
        )
    return styles


def _figure(
    group: Group,
    techniques: Sequence[Technique],
    styles: dict[Technique, _Style],
    throughput: bool,
    title: str,
) -> Figure:
    caption = _caption(group, techniques)
    names = sum(
        any(_measured(row) for row in group.rows if Technique.of(row) == technique)
        for technique in techniques
    )
    height = max(4.2, 0.24 * names + 1.2) + 0.14 * len(caption)
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axis = figure.add_subplot()
    sizes = group.sizes
    room = _SPREAD / max(1, len(techniques) - 1)
    lines: dict[Technique, list[_Point]] = {}
    for index, technique in enumerate(techniques):
        shift = (index - (len(techniques) - 1) / 2) * room
        points = [
            _point(row, sizes.index(row.case.batch_size) + shift, throughput)
            for row in sorted(_rows_of(group, technique), key=lambda row: row.case.batch_size)
            if _measured(row)
        ]
        if points:
            lines[technique] = points
            _draw(axis, points, styles[technique])
    heights = [
        end
        for points in lines.values()
        for point in points
        for end in (point.middle, point.low, point.high)
        if end
    ]
    least, most = min(heights), max(heights)
    # Ticks need some room: ways that are nearly alike look so.
    margin = max(1.1, (most / least) ** 0.05, (_NARROWEST / (most / least)) ** 0.5)
    log_scale(axis, "y", least / margin, most * margin)
    work = "step" if group.step else "batch"
    axis.set_ylabel(
        f"{_unit(group)} a second (more is better)"
        if throughput
        else f"milliseconds a {work} (less is better)"
    )
    axis.set_xlim(-0.5, len(sizes) - 0.5)
    axis.xaxis.set_major_locator(FixedLocator(range(len(sizes))))
    axis.xaxis.set_major_formatter(FixedFormatter(_ticks(group)))
    axis.grid(visible=False, axis="x")
    axis.tick_params(axis="x", length=0)
    for place in range(0, len(sizes), 2):
        axis.axvspan(place - 0.5, place + 0.5, color="#F6F6F6", zorder=0)
    _label(axis, lines, styles)
    axis.set_xlabel("\n".join(["batch size", *caption]), fontsize=7, loc="left", color=GREY)
    heading(figure, title, ["logarithmic; upright bars: 95 % intervals, where they are longer than the mark"])
    return figure


def _ticks(group: Group) -> list[str]:
    """The batch sizes; of a step that runs several, these."""
    return [group.step if group.is_over_batches else number(size) for size in group.sizes]


def _point(row: Row, place: float, throughput: bool) -> _Point:
    middle = value(row, "backend_ms") or 0.0
    low, high = value(row, "backend_ms_low"), value(row, "backend_ms_high")
    if not throughput:
        return _Point(place, middle, low, high)
    scale = samples_of_step(row) * (new_tokens(row) or 1) * 1e3
    return _Point(place, scale / middle, high and scale / high, low and scale / low)


def _draw(axis: Axes, points: Sequence[_Point], style: _Style) -> None:
    if len(points) > 1:
        axis.plot(
            [point.place for point in points], [point.middle for point in points], color=style.colour,
            linestyle=style.dashes, linewidth=0.7, alpha=0.55, zorder=2,
        )  # fmt: skip
    for point in points:
        if point.low and point.high:
            axis.plot([point.place] * 2, [point.low, point.high], color=style.colour, linewidth=1.6, zorder=3)
        axis.plot(
            [point.place], [point.middle], style.marker, color=style.colour, markersize=5, zorder=4,
            markerfacecolor="white" if style.hollow else style.colour,
        )  # fmt: skip


def _label(axis: Axes, lines: dict[Technique, list[_Point]], styles: dict[Technique, _Style]) -> None:
    """Write the name of each technique beside its last mark, moved apart where names overlap."""
    to_axes = (axis.transScale + axis.transLimits).transform
    ends = [
        (technique, *to_axes((points[-1].place, points[-1].middle)).tolist())
        for technique, points in lines.items()
    ]
    ends.sort(key=lambda end: end[2])
    for (technique, x, y), at in zip(ends, _apart([end[2] for end in ends]), strict=True):
        style = styles[technique]
        axis.plot(
            [x, 1.005, 1.03], [y, y, at], ":", color=GREY, linewidth=0.6, alpha=0.8,
            transform=axis.transAxes, clip_on=False, zorder=1,
        )  # fmt: skip
        axis.plot(
            [1.042], [at], style.marker, color=style.colour, markersize=5, transform=axis.transAxes,
            clip_on=False, markerfacecolor="white" if style.hollow else style.colour,
        )  # fmt: skip
        axis.text(1.06, at, shown(technique.label), transform=axis.transAxes, va="center", fontsize=7.5)


def _apart(heights: Sequence[float]) -> list[float]:
    """Move rising heights (0 to 1) apart, as little as possible, until no names overlap."""
    step = min(_LINE, 1.0 / max(1, len(heights)))
    places = list(heights)
    for _ in range(300):
        for place in range(1, len(places)):
            short = step - (places[place] - places[place - 1])
            if short > 1e-6:
                places[place - 1] -= short / 2
                places[place] += short / 2
        # None leaves the axes: those below (above) it make room in turn.
        places = [min(max(at, step * n), 1 - step * (len(places) - 1 - n)) for n, at in enumerate(places)]
    return places


def _caption(group: Group, techniques: Sequence[Technique]) -> list[str]:
    """List the techniques and batch sizes without a mark, and the reason."""
    alike: dict[tuple[Technique, str], list[int]] = {}
    for technique in techniques:
        for row in sorted(_rows_of(group, technique), key=lambda row: row.case.batch_size):
            if not _measured(row):
                alike.setdefault((technique, why_not(row, "backend_ms")), []).append(row.case.batch_size)
    reasons = [
        f"{shown(technique.label)} at {_places(group, sizes)}: {why}"
        for (technique, why), sizes in alike.items()
    ]
    lines = []
    if reasons:
        rest = [f"and {len(reasons) - _TOLD} more"] if len(reasons) > _TOLD else []
        lines = textwrap.wrap("Not drawn: " + "; ".join([*reasons[:_TOLD], *rest]), _CAPTION)
    alone = sorted({row.case.batch_size for row in group.rows if _is_alone(row)})
    if alone:
        lines += textwrap.wrap(
            f"At {_places(group, alone)} eager was out of memory: what is drawn was measured without it.",
            _CAPTION,
        )
    unchecked = sorted({row.case.batch_size for row in group.rows if _is_unchecked(row) and _measured(row)})
    if unchecked:
        lines += textwrap.wrap(
            f"The outputs of some ways were not checked at {_places(group, unchecked)}.", _CAPTION
        )
    return lines


def _places(group: Group, sizes: Sequence[int]) -> str:
    return f"steps of {group.step}" if group.is_over_batches else f"batch size {', '.join(map(str, sizes))}"
