"""Draw one metric over nights: its line, interval, failures and event marks.

Built as plain text, since a nightly update draws some ten thousand of them. The text alternative of
a chart says the same in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from perfdash.charts import svg
from perfdash.charts.axes import DAY, Axis, TimeAxis, count_range, day, time_axis, value_range
from perfdash.charts.values import Array, Mark, TrendChart, finite_array

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 190, 46, 58, 30, 22
# The plot is drawn in tenths of a pixel, so that all places are whole numbers.
_FINE = 10
_MOST = 1e9  # a count
_DOTS = 100  # of more points only those without neighbours are drawn, and the last
# Nights further apart than this are not joined: a line would claim numbers that nobody measured. A point for
# older nights stands for a week, or for four.
_APART, _WEEKS_APART = 4.5 * DAY, 36 * DAY
Places = NDArray[np.int64]
Flags = NDArray[np.bool_]


def trend(data: TrendChart, prefix: str) -> Markup:
    """The chart with axes and marks. prefix: of the ids within, unique on the page.

    Raises ValueError where the columns differ in length.
    """
    values, lows, highs = data.columns
    measured = _known(values)
    days = time_axis(*_ends(data))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    members = [finite_array(line, data.ratio) for line in data.members]
    drawn = np.concatenate([measured, *map(_known, members)]) if members else measured
    counts = not (data.unit or data.ratio)
    whole = counts and bool(np.all((measured == np.trunc(measured)) & (np.abs(measured) < _MOST)))
    low, high = (
        count_range(measured) if whole else value_range(drawn, _known(lows), _known(highs), data.ratio)
    )
    if data.unit == "%" and len(measured) and measured.max() <= 100:
        high = min(high, 100.2)  # no axis for what cannot be
    axis = Axis(low, high, (bottom - TOP) * _FINE, 0, data.ratio)
    xs, joined = _joined(data, days, (right - LEFT) * _FINE)
    parts = [_dates(days, LEFT, right, TOP, bottom), _levels(axis, data, right, whole)]
    parts.append(f'<g class="plot" transform="translate({LEFT} {TOP})scale(.1)">')
    parts += [_path("member", _line(xs, axis.places(line), joined)) for line in members]
    parts += _lines(data, values, lows, highs, axis, xs, joined)
    parts.append("</g>")
    if not len(measured):
        parts.append(svg.text((LEFT + right) / 2, (TOP + bottom) / 2, "not measured", "empty", "middle"))
    else:
        place, last = int(np.flatnonzero(~np.isnan(values))[-1]), float(measured[-1])
        words = svg.number(last, data.unit if data.unit in ("x", "%") else "")
        at = axis.at(last) / _FINE + TOP
        parts.append(svg.text(LEFT + int(xs[place]) / _FINE + 6, at + 3.5, words, "last"))
    parts.append(_beyond(lows, highs, axis, data.unit, right))
    parts.append(events(tuple(data.marks), days, LEFT, right, TOP, bottom))
    # For the script: the plot's edges, its times, and where between them they are split.
    time_axis_ends = [days.first, days.last] + (
        [days.split, days.at(days.split)] if days.split is not None else []
    )
    plot = " ".join(f"{edge:.10g}" for edge in (LEFT, right, TOP, bottom, *time_axis_ends))
    summary = summary_of(data, values)
    return Markup(svg.figure("trend", prefix, WIDTH, HEIGHT, data.title, summary, "".join(parts), plot=plot))


def spark(data: TrendChart, prefix: str) -> Markup:
    """The line alone, for a cell of a table."""
    values, _, _ = data.columns
    measured = _known(values)
    days = time_axis(*_ends(data))
    axis = Axis(*value_range(measured, (), (), data.ratio), 280, 20, data.ratio)
    xs, joined = _joined(data, days, 1540)
    ys = axis.places(values)
    parts = [_mark_lines(data, days), _path("line", _line(xs, ys, joined))]
    if len(measured):
        place = np.flatnonzero(~np.isnan(values))[-1]
        parts.append(f'<path class="dots" d="M{xs[place]} {int(ys[place])}h0"/>')
    parts.append(_path("failed", _crosses(xs, data.failed, 270)))
    content = f'<g class="plot" transform="translate(2 1)scale(.1)">{"".join(parts)}</g>'
    return Markup(svg.figure("spark", prefix, 160, 32, data.title, summary_of(data, values, 0), content))


def _ends(data: TrendChart) -> tuple[float, float, float | None]:
    """The first time, the last, and the end of the weeks."""
    if not data.times:
        return 0.0, 0.0, None
    inside = 0 < data.weekly < len(data.times)
    return data.times[0], data.times[-1], data.times[data.weekly] - DAY / 2 if inside else None


def _known(values: Array) -> Array:
    return values[~np.isnan(values)]


def _joined(data: TrendChart, days: TimeAxis, width: int) -> tuple[Places, Flags]:
    """The x of each night, and whether a line joins it to the previous night.

    Nights measured by different methods are never joined: their numbers cannot be compared.
    """
    xs, joined = _places(tuple(data.times), data.weekly, days, width)
    if data.breaks:
        joined = joined & ~np.isin(np.arange(len(joined)), list(data.breaks))
    return xs, joined


@lru_cache(maxsize=64)
def _places(times: tuple[float, ...], weekly: int, days: TimeAxis, width: int) -> tuple[Places, Flags]:
    """The x of each night, and whether it is near the previous night.

    Cached, as all charts of a testbed share their nights.
    """
    xs = [round(days.at(time) * width) for time in times]
    joined = [
        k > 0 and time - times[k - 1] <= (_WEEKS_APART if k <= weekly else _APART)
        for k, time in enumerate(times)
    ]
    if sum(joined) < len(times) / 2 and len(times) > 2:  # measured more seldom than every night
        gaps = sorted(after - before for before, after in pairwise(times))
        apart = 3.5 * gaps[len(gaps) // 2]
        joined = [k > 0 and time - times[k - 1] <= apart for k, time in enumerate(times)]
    return np.array(xs, dtype=np.int64), np.array(joined, dtype=bool)


def _lines(
    data: TrendChart, values: Array, lows: Array, highs: Array, axis: Axis, xs: Places, joined: Flags
) -> list[str]:
    """The band, the line, its points and the crosses."""
    parts = []
    ys = axis.places(values)
    if data.ratio and axis.low < 1 < axis.high:
        parts.append(f'<path class="one" d="M0 {axis.at(1.0)}h{xs.max() if len(xs) else 0}"/>')
    if len(lows):
        tops, floors = axis.places(highs), axis.places(lows)
        weekly = data.weekly
        if weekly:
            parts.append(_path("range", _band(xs[:weekly], tops[:weekly], floors[:weekly], joined)))
        parts.append(_path("band", _band(xs[weekly:], tops[weekly:], floors[weekly:], joined[weekly:])))
    parts.append(_path("line", _line(xs, ys, joined)))
    parts.append(_path("dots", _dots(xs, ys, joined)))
    parts.append(_path("failed", _crosses(xs, data.failed, axis.start - 35)))
    return parts


def _beyond(lows: Array, highs: Array, axis: Axis, unit: str, right: int) -> str:
    """The newest interval in words where an edge cuts the band.

    A cut band must not look narrower than its interval is.
    """
    known = ~(np.isnan(lows) | np.isnan(highs))
    lows, highs = lows[known], highs[known]
    if not len(lows) or (axis.low <= lows.min() and highs.max() <= axis.high):
        return ""
    low, high = float(lows[-1]), float(highs[-1])
    words = f"band cut; last {svg.number(low, unit if unit == 'x' else '')} to {svg.number(high, unit)}"
    return svg.text(right - 3, TOP + 9, words, "beyond", "end")


def _path(classes: str, d: str) -> str:
    return f'<path class="{classes}" d="{d}"/>' if d else ""


def _runs(known: Flags, joined: Flags) -> Iterator[slice]:
    """Each row of neighbouring nights that are known and joined."""
    begins, ends = known.copy(), known.copy()
    linked = known[1:] & known[:-1] & joined[1:]
    begins[1:] &= ~linked
    ends[:-1] &= ~linked
    for begin, end in zip(np.flatnonzero(begins).tolist(), np.flatnonzero(ends).tolist(), strict=True):
        yield slice(begin, end + 1)


def _steps(xs: Places, ys: Array) -> str:
    """A move to the first point, and relative steps to the others."""
    start = f"M{xs[0]} {ys[0]:.0f}"
    if len(xs) == 1:
        return start
    steps = np.empty((len(xs) - 1, 2), dtype=np.int64)
    steps[:, 0], steps[:, 1] = xs[1:] - xs[:-1], ys[1:] - ys[:-1]
    pairs = "%d %d " * len(steps) % tuple(steps.ravel().tolist())
    return f"{start}l{pairs[:-1]}".replace(" -", "-")


def _line(xs: Places, ys: Array, joined: Flags) -> str:
    """The line through all nights; a night that is not measured breaks it."""
    return "".join([_steps(xs[run], ys[run]) for run in _runs(~np.isnan(ys), joined)])


def _band(xs: Places, tops: Array, floors: Array, joined: Flags) -> str:
    """Draw a closed shape for each row of nights with intervals; one night is a bar."""
    known = ~(np.isnan(tops) | np.isnan(floors))
    return "".join([_shape(xs[run], tops[run], floors[run]) for run in _runs(known, joined[: len(xs)])])


def _shape(xs: Places, tops: Array, floors: Array) -> str:
    if len(xs) == 1:
        return f"M{xs[0] - 15} {tops[0]:.0f}h30V{floors[0]:.0f}h-30z"
    there_and_back = np.concatenate([tops, floors[::-1]])
    return f"{_steps(np.concatenate([xs, xs[::-1]]), there_and_back)}z"


def _dots(xs: Places, ys: Array, joined: Flags) -> str:
    """Points: all of a short series, else the last and those that no line reaches."""
    known = ~np.isnan(ys)
    measured = np.flatnonzero(known)
    if len(measured) > _DOTS:
        linked = joined[1:] & known[1:] & known[:-1]  # of each night but the first: to the night before
        lonely = known.copy()
        lonely[1:] &= ~linked
        lonely[:-1] &= ~linked
        lonely[measured[-1]] = True
        measured = np.flatnonzero(lonely)
    return "".join([f"M{xs[k]} {ys[k]:.0f}h0" for k in measured.tolist()])


def _crosses(xs: Places, places: Sequence[int], y: int) -> str:
    return "".join(f"M{xs[k] - 25} {y - 25}l50 50m0-50l-50 50" for k in places if 0 <= k < len(xs))


def _mark_lines(data: TrendChart, days: TimeAxis) -> str:
    """The lines of a spark that mark alerts and new methods."""
    out = []
    for mark in data.marks[-8:]:
        if mark.kind in ("worse", "better", "method") and days.first <= mark.at <= days.last:
            out.append(f'<path class="mark {mark.kind}" d="M{days.at(mark.at) * 1540:.0f} 0v300"/>')
    return "".join(out)


@lru_cache(maxsize=64)
def _dates(days: TimeAxis, left: int, right: int, top: int, bottom: int) -> str:
    """The time axis; cached, as all charts of a testbed share it."""
    width = right - left
    parts = [f'<path class="axis" d="M{left} {bottom}H{right}"/>']
    if days.split is not None:
        x = round(left + width * days.at(days.split), 1)
        parts.append(f'<path class="split" d="M{x} {top - 8}V{bottom + 4}"/>')
        parts.append(
            svg.text(x - 4, top - 2, "weeks", "unit", "end") + svg.text(x + 4, top - 2, "nights", "unit")
        )
    lines, words = "", ""
    end = -100.0
    for at, word in days.ticks(7):
        x = left + days.at(at) * width
        lines += f"M{x:.1f} {bottom}v4"
        if x - end >= 3.3 * len(word) + 4:
            words += svg.text(round(x, 1), bottom + 16, word, "", "middle")
            end = x + 3.3 * len(word)
    parts.append(_path("axis", lines))
    if not words:  # no round date within: the two ends
        first, last = day(days.first), day(days.last)
        words = svg.text(left, bottom + 16, first) + svg.text(right, bottom + 16, last, "", "end")
    return "".join(parts) + words


def _levels(axis: Axis, data: TrendChart, right: int, whole: bool) -> str:
    """The axis of values: thin lines and their words, the unit above them."""
    lines, words = "", ""
    for value, word in axis.ticks(5, 1.0 if whole else 0.0):
        y = axis.at(value) / _FINE + TOP
        lines += f"M{LEFT} {y:g}H{right}"
        words += svg.text(LEFT - 5, round(y + 3.5, 1), word, "", "end")
    unit = svg.text(LEFT - 5, TOP - 14, data.unit, "unit", "end") if data.unit else ""
    return _path("grid", lines) + words + unit


# Letter, shape about (0, 0), and what it means.
KINDS = {
    "worse": ("W", "M0 9L-8.5-6.5H8.5z", "alert: worse"),
    "better": ("B", "M0-9L8.5 6.5H-8.5z", "alert: better"),
    "change": ("C", "M0-7L7 0L0 7L-7 0z", "change of level"),
    "weak": (
        "w",
        "M0-9L6 0L0 9L-6 0z",
        "weak change of level: shown by a window of 50 nights, not by the year",
    ),
    "method": ("M", "M-8 0a8 8 0 1 0 16 0a8 8 0 1 0-16 0z", "another method: not compared across it"),
    "environment": (
        "E",
        "M-5.5-5.5h11v11h-11z",
        "another environment (torch, driver, host ...); ticks where there are many",
    ),
    "excluded": (
        "X",
        "M-3.5-8.5h7l5 5v7l-5 5h-7l-5-5v-7z",
        "night excluded by a person: neither drawn nor judged",
    ),
}
# More than so many other environments are ticks at the edge: with nightly builds there is one each night.
_MOST_ENVIRONMENTS = 8
_MARK_GAP = 17.0
_LETTER_SHIFT = {"worse": 1.5, "better": 4.8}  # where a letter stands within a triangle


@lru_cache(maxsize=64)
def events(marks: tuple[Mark, ...], days: TimeAxis, left: int, right: int, top: int, bottom: int) -> str:
    """All marks at their places, each with its sentence as title and link.

    Cached, as many charts of a testbed have the same.
    """
    placed = [
        (left + days.at(mark.at) * (right - left), mark)
        for mark in marks
        if mark.kind in KINDS and days.first <= mark.at <= days.last
    ]
    placed.sort(key=lambda pair: pair[0])
    parts = []
    ticks = [x for x, mark in placed if mark.kind == "environment"]
    if len(ticks) > _MOST_ENVIRONMENTS:
        parts.append(f'<path class="ticks" d="{"".join(f"M{x:.1f} {top}v4" for x in ticks)}"/>')
        placed = [(x, mark) for x, mark in placed if mark.kind != "environment"]
    rows = [-100.0, -100.0]  # where the last shape of the upper and of the lower row lies
    for x, mark in placed:
        row = 0 if x - rows[0] >= _MARK_GAP or x - rows[1] < _MARK_GAP else 1
        rows[row] = x
        y = 9 + 14 * row
        title = f"<title>{svg.quoted(f'{day(mark.at)}: {mark.text}')}</title>"
        content = f'<path class="at" d="M{x:.1f} {y}V{bottom}"/>{_sign(mark.kind, x, y)}{title}'
        parts.append(f'<g class="mark {mark.kind}">{svg.link(mark.href, content)}</g>')
    return "".join(parts)


def _sign(kind: str, x: float, y: float) -> str:
    letter, shape, _ = KINDS[kind]
    words = svg.text(round(x, 1), y + _LETTER_SHIFT.get(kind, 3), letter, "", "middle")
    return f'<path class="sign" transform="translate({x:.1f} {y:g})" d="{shape}"/>{words}'


def marks_key() -> Markup:
    """The legend of the marks as an HTML list; a page has one."""
    drawn = [
        ('<path class="band" d="M-9-5h18v10h-18z"/><path class="line" d="M-9 0h18"/>', "95 % interval"),
        (
            '<path class="range" d="M-9-5h18v10h-18z"/><path class="line" d="M-9 0h18"/>',
            "weeks: range, median",
        ),
        ('<path class="failed" d="M-4-4l8 8m0-8l-8 8"/>', "failed that night"),
    ] + [(f'<g class="mark {kind}">{_sign(kind, 0, 0)}</g>', words) for kind, (_, _, words) in KINDS.items()]
    start = '<li><svg class="drawn sign-key" viewBox="-9 -9 18 18" aria-hidden="true">'
    items = "".join(f"{start}{drawing}</svg> {words}</li>" for drawing, words in drawn)
    return Markup(f'<ul class="key">{items}</ul>')


def summary_of(data: TrendChart, values: Array, marks: int = 10) -> str:
    """The text alternative: first, last, range, failures, and the latest marks."""
    places = np.flatnonzero(~np.isnan(values))
    if not len(places):
        sentences = f"not measured on any of {_points(data, range(len(values)))}."
    else:
        measured = values[places]
        _, lows, highs = data.columns
        drawn = np.concatenate([measured, _known(lows[: data.weekly]), _known(highs[: data.weekly])])
        first_at, last_at = data.times[int(places[0])], data.times[int(places[-1])]
        first, last, low, high = (
            svg.number(float(value), data.unit)
            for value in (measured[0], measured[-1], drawn.min(), drawn.max())
        )
        sentences = (
            f"{_points(data, places)}, {day(first_at)} to {day(last_at)}: first {first}, last {last}, "
            f"range {low} to {high}."
        )
    if data.failed:
        weeks = sum(place < data.weekly for place in data.failed)
        nights = len(data.failed) - weeks
        sentences += f" Failed on {nights}." if nights else ""
        sentences += f" No night passed in {weeks} of the older points." if weeks else ""
    return sentences + (_latest(tuple(data.marks), marks) if marks else "")


def _points(data: TrendChart, places: Iterable[int]) -> str:
    """The number of nights among some points, and of the older points, each of which is of many nights."""
    of_weeks = [place < data.weekly for place in places]
    nights, weeks = of_weeks.count(False), of_weeks.count(True)
    points = f"{weeks} older point{'s' * (weeks != 1)}"
    older = f" and {points} (weeks; four together where older than a year)" if weeks else ""
    return f"{nights} night{'s' * (nights != 1)}{older}"


@lru_cache(maxsize=64)
def _latest(marks: tuple[Mark, ...], count: int) -> str:
    """The latest marks in words, a sentence each."""
    latest = sorted(marks, key=lambda mark: mark.at)[-count:]
    return "".join([f" {day(mark.at)}: {svg.shortened(mark.text, 120)}." for mark in latest])
