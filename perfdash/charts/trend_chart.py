"""Draw one metric over nights: its line, interval, failures and event marks.

Built as plain text, since a nightly update draws some ten thousand of them. The text alternative of
a chart says the same in words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from markupsafe import Markup

from perfdash.charts import svg
from perfdash.charts.axes import DAY, Axis, TimeAxis, count_range, day, time_axis, value_range
from perfdash.charts.values import Mark, Number, TrendChart, finite

LEFT, RIGHT, TOP, BOTTOM = 46, 58, 30, 22
# The plot is drawn in tenths of a pixel, so that all places are whole numbers.
_FINE = 10
_MOST = 1e9  # a count
_DOTS = 100  # of more points only those without neighbours are drawn, and the last
# Nights further apart than this are not joined: a line would claim numbers that nobody measured. A point for
# older nights stands for a week, or for four.
_APART, _WEEKS_APART = 4.5 * DAY, 36 * DAY


def trend(data: TrendChart, prefix: str, *, width: int = 560, height: int = 190) -> Markup:
    """The chart with axes and marks. prefix: of the ids within, unique on the page.

    Raises ValueError where the columns differ in length.
    """
    values, lows, highs = data.columns
    measured = [value for value in values if value is not None]
    days = time_axis(*_ends(data))
    right, bottom = width - RIGHT, height - BOTTOM
    members = [finite(line, data.ratio) for line in data.members]
    drawn = measured + [value for line in members for value in line if value is not None]
    counts = not (data.unit or data.ratio)
    whole = counts and all(value == int(value) and abs(value) < _MOST for value in measured)
    low, high = (
        count_range(measured) if whole else value_range(drawn, _known(lows), _known(highs), data.ratio)
    )
    if data.unit == "%" and measured and max(measured) <= 100:
        high = min(high, 100.2)  # no axis for what cannot be
    axis = Axis(low, high, (bottom - TOP) * _FINE, 0, data.ratio)
    xs, joined = _joined(data, days, (right - LEFT) * _FINE)
    parts = [_dates(days, LEFT, right, TOP, bottom), _levels(axis, data, right, whole)]
    parts.append(f'<g class="plot" transform="translate({LEFT} {TOP})scale(.1)">')
    parts += [_path("member", _line(xs, axis.places(line), joined)) for line in members]
    parts += _lines(data, values, lows, highs, axis, xs, joined)
    parts.append("</g>")
    if not measured:
        parts.append(svg.text((LEFT + right) / 2, (TOP + bottom) / 2, "not measured", "empty", "middle"))
    else:
        place = max(k for k, value in enumerate(values) if value is not None)
        at = axis.at(measured[-1]) / _FINE + TOP
        words = svg.number(measured[-1], data.unit if data.unit in ("x", "%") else "")
        parts.append(svg.text(LEFT + xs[place] / _FINE + 6, at + 3.5, words, "last"))
    parts.append(_beyond(lows, highs, axis, data.unit, right))
    marks = [
        (LEFT + days.at(mark.at) * (right - LEFT), mark)
        for mark in data.marks
        if days.first <= mark.at <= days.last
    ]
    parts.append(events(marks, TOP, bottom))
    # For the script: the plot's edges, its times, and where between them they are split.
    time_axis_ends = [days.first, days.last] + (
        [days.split, days.at(days.split)] if days.split is not None else []
    )
    plot = " ".join(f"{edge:.10g}" for edge in (LEFT, right, TOP, bottom, *time_axis_ends))
    summary = summary_of(data, values)
    return Markup(svg.figure("trend", prefix, width, height, data.title, summary, "".join(parts), plot=plot))


def spark(data: TrendChart, prefix: str) -> Markup:
    """The line alone, for a cell of a table."""
    values, _, _ = data.columns
    measured = _known(values)
    days = time_axis(*_ends(data))
    axis = Axis(*value_range(measured, (), (), data.ratio), 280, 20, data.ratio)
    xs, joined = _joined(data, days, 1540)
    ys = axis.places(values)
    parts = [_mark_lines(data, days), _path("line", _line(xs, ys, joined))]
    if measured:
        place = max(k for k, value in enumerate(values) if value is not None)
        parts.append(f'<path class="dots" d="M{xs[place]} {ys[place]}h0"/>')
    parts.append(_path("failed", _crosses(xs, data.failed, 270)))
    content = f'<g class="plot" transform="translate(2 1)scale(.1)">{"".join(parts)}</g>'
    return Markup(svg.figure("spark", prefix, 160, 32, data.title, summary_of(data, values, 0), content))


def _ends(data: TrendChart) -> tuple[float, float, float | None]:
    """The first time, the last, and the end of the weeks."""
    if not data.times:
        return 0.0, 0.0, None
    inside = 0 < data.weekly < len(data.times)
    return data.times[0], data.times[-1], data.times[data.weekly] - DAY / 2 if inside else None


def _known(values: Sequence[Number]) -> list[float]:
    return [value for value in values if value is not None]


def _joined(data: TrendChart, days: TimeAxis, width: int) -> tuple[list[int], list[bool]]:
    """The x of each night, and whether a line joins it to the previous night.

    Nights measured by different methods are never joined: their numbers cannot be compared.
    """
    xs, joined = _places(tuple(data.times), data.weekly, days, width)
    if data.breaks:
        apart = set(data.breaks)
        joined = [join and k not in apart for k, join in enumerate(joined)]
    return xs, joined


@lru_cache(maxsize=64)
def _places(
    times: tuple[float, ...], weekly: int, days: TimeAxis, width: int
) -> tuple[list[int], list[bool]]:
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
    return xs, joined


def _lines(
    data: TrendChart, values: list[Number], lows: list[Number], highs: list[Number],
    axis: Axis, xs: list[int], joined: list[bool],
) -> list[str]:  # fmt: skip
    """The band, the line, its points and the crosses."""
    parts = []
    ys = axis.places(values)
    if data.ratio and axis.low < 1 < axis.high:
        parts.append(f'<path class="one" d="M0 {axis.at(1.0)}h{max(xs, default=0)}"/>')
    if lows:
        tops, floors = axis.places(highs), axis.places(lows)
        weekly = data.weekly
        if weekly:
            parts.append(_path("range", _band(xs[:weekly], tops[:weekly], floors[:weekly], joined)))
        parts.append(_path("band", _band(xs[weekly:], tops[weekly:], floors[weekly:], joined[weekly:])))
    parts.append(_path("line", _line(xs, ys, joined)))
    parts.append(_path("dots", _dots(xs, ys, joined)))
    parts.append(_path("failed", _crosses(xs, data.failed, axis.start - 35)))
    return parts


def _beyond(lows: list[Number], highs: list[Number], axis: Axis, unit: str, right: int) -> str:
    """The newest interval in words where an edge cuts the band.

    A cut band must not look narrower than its interval is.
    """
    ends = [
        (low, high) for low, high in zip(lows, highs, strict=True) if low is not None and high is not None
    ]
    if all(axis.low <= low and high <= axis.high for low, high in ends):
        return ""
    low, high = ends[-1]
    words = f"band cut; last {svg.number(low, unit if unit == 'x' else '')} to {svg.number(high, unit)}"
    return svg.text(right - 3, TOP + 9, words, "beyond", "end")


def _path(classes: str, d: str) -> str:
    return f'<path class="{classes}" d="{d}"/>' if d else ""


def _line(xs: list[int], ys: Sequence[int | None], joined: list[bool]) -> str:
    """Moves and relative steps; a night that is not measured breaks the line."""
    out: list[str] = []
    before: int | None = None
    was = 0
    for x, y, join in zip(xs, ys, joined, strict=True):
        if y is None:
            before = None
            continue
        out.append(f"M{x} {y}l" if before is None or not join else f"{x - was} {y - before} ")
        before, was = y, x
    return "".join(out).replace(" -", "-").replace(" M", "M").rstrip(" ").replace("lM", "M").rstrip("l")


def _band(xs: list[int], tops: Sequence[int | None], floors: Sequence[int | None], joined: list[bool]) -> str:
    """Draw a closed shape for each row of nights with intervals; one night is a bar."""
    out: list[str] = []
    begin: int | None = None
    for k in range(len(xs) + 1):
        has_interval = k < len(xs) and tops[k] is not None and floors[k] is not None
        if begin is not None and not (has_interval and joined[k]):
            out.append(_shape(xs[begin:k], tops[begin:k], floors[begin:k]))
            begin = None
        if has_interval and begin is None:
            begin = k
    return "".join(out)


def _shape(xs: list[int], tops: Sequence[int | None], floors: Sequence[int | None]) -> str:
    if len(xs) == 1:
        return f"M{xs[0] - 15} {tops[0]}h30V{floors[0]}h-30z"
    backwards = list(zip(reversed(xs), reversed(floors), strict=True))
    corners = [*zip(xs, tops, strict=True), *backwards]
    x, y = was_x, was_y = corners[0]
    steps = []
    for x, y in corners[1:]:
        steps.append(f"{x - was_x} {y - was_y}")  # type: ignore[operator]
        was_x, was_y = x, y
    return f"M{corners[0][0]} {corners[0][1]}l{' '.join(steps)}z".replace(" -", "-")


def _dots(xs: list[int], ys: Sequence[int | None], joined: list[bool]) -> str:
    """Points: all of a short series, else the last and those that no line reaches."""
    measured = [k for k, y in enumerate(ys) if y is not None]
    if len(measured) > _DOTS:
        linked = {k for k in measured if joined[k] and ys[k - 1] is not None}
        measured = [k for k in measured if k == measured[-1] or (k not in linked and k + 1 not in linked)]
    return "".join(f"M{xs[k]} {ys[k]}h0" for k in measured)


def _crosses(xs: list[int], places: Sequence[int], y: int) -> str:
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


def events(marks: Sequence[tuple[float, Mark]], top: int, bottom: int) -> str:
    """All marks at their places, each with its sentence as title and link."""
    placed = sorted(((x, mark) for x, mark in marks if mark.kind in KINDS), key=lambda pair: pair[0])
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


def summary_of(data: TrendChart, values: Sequence[Number], marks: int = 10) -> str:
    """The text alternative: first, last, range, failures, and the latest marks."""
    measured = [(at, value) for at, value in zip(data.times, values, strict=True) if value is not None]
    if not measured:
        sentences = f"not measured on any of {len(values)} nights."
    else:
        (first_at, first), (last_at, last) = measured[0], measured[-1]
        only = [value for _, value in measured]
        sentences = (
            f"{len(measured)} nights, {day(first_at)} to {day(last_at)}: first {svg.number(first, data.unit)}"
            f", last {svg.number(last, data.unit)}, range {svg.number(min(only), data.unit)} to "
            f"{svg.number(max(only), data.unit)}."
        )
    if data.failed:
        sentences += f" Failed on {len(data.failed)}."
    latest = sorted(data.marks, key=lambda mark: mark.at)[-marks:] if marks else []
    for mark in latest:
        sentences += f" {day(mark.at)}: {svg.shortened(mark.text, 120)}."
    return sentences
