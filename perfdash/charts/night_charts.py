"""Draw one night: a suite's speedup bars, and the samples of one case.

The bars are sorted by speedup about a line at 1.0. The samples of eager and compiled share an axis, with
medians and their intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from perfdash.charts import svg
from perfdash.charts.axes import Axis, linear_ticks, value_range
from perfdash.charts.values import SampleSide, SampleStrip, SpeedupBar, finite

BARS_WIDTH, BARS_LEFT, BARS_RIGHT, BARS_TOP, BARS_ROW = 760, 190, 232, 22, 17
_MOST_TIMES = 40.0  # a speedup above 40x or below 1/40 is drawn at the edge, with its number beside it
# The verdict's class and shape about (0, 0).
_SHAPES = {
    "faster": ("ahead", "M0-5L5 4H-5z"),
    "slower": ("behind", "M0 5L5-4H-5z"),
    "equivalent": ("even", "M-4-4h8v8h-8z"),
    "inconclusive": ("unknown", "M0-5L5 0L0 5L-5 0z"),
}
_PLAIN = ("plain", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z")


def bars(rows: Sequence[SpeedupBar], prefix: str) -> Markup:
    """Draw a row per model: verdict as a shape, interval, number. Models without a speedup come last."""
    measured = [(value, row) for row in rows if (value := finite([row.value], positive=True)[0]) is not None]
    measured.sort(key=lambda pair: -pair[0])
    without = [row for row in rows if finite([row.value], positive=True)[0] is None]
    near = [min(max(value, 1 / _MOST_TIMES), _MOST_TIMES) for value, _ in measured]
    low, high = value_range([1.0, *near], (), (), log=True)
    right, bottom = BARS_WIDTH - BARS_RIGHT, BARS_TOP + BARS_ROW * len(rows)
    axis = Axis(low, high, BARS_LEFT * 10, right * 10, log=True)
    parts = [_bar_levels(axis, bottom)]
    for place, (value, row) in enumerate(measured):
        parts.append(_bar(row, value, BARS_TOP + BARS_ROW * place + BARS_ROW // 2, axis, right))
    for place, row in enumerate(without, len(measured)):
        y = BARS_TOP + BARS_ROW * place + BARS_ROW // 2
        note = svg.shortened(row.note or "not measured", 60)
        kind, shape = ("failed", f"{y - 4}l8 8m0-8l-8 8") if row.failed else ("missing", f"{y}h8")
        parts.append(f'{_label(row, y)}<path class="{kind}" d="M{BARS_LEFT + 6} {shape}"/>')
        parts.append(svg.text(BARS_LEFT + 22, y + 3.5, note))
    content = "".join(parts)
    return Markup(
        svg.figure(
            "bars", prefix, BARS_WIDTH, bottom + 24, "Speedup", _bars_summary(measured, without), content
        )
    )


def _bar(row: SpeedupBar, value: float, y: int, axis: Axis, right: int) -> str:
    kind, shape = _SHAPES.get(row.verdict, _PLAIN)
    x = axis.at(value) / 10
    low, high = finite((row.low, row.high), positive=True)
    interval = ""
    parts, words = [_label(row, y)], f"{value:.3f}x" if value < 1e4 else f"{value:.3g}x"
    parts.append(f'<path class="stem" d="M{axis.at(1.0) / 10:g} {y}H{x:g}"/>')
    if low is not None and high is not None:
        parts.append(f'<path class="whisker" d="M{axis.at(low) / 10:g} {y}H{axis.at(high) / 10:g}"/>')
        interval = f"{low:.3f} to {high:.3f}" if high < 1e4 else f"{low:.3g} to {high:.3g}"
    title = f"{row.label}: {words} {interval} {row.verdict} {row.note}".strip()
    parts.append(
        f'<g class="{kind}"><path class="dot" transform="translate({x:g} {y})" d="{shape}"/>'
        f"<title>{svg.quoted(title)}</title></g>"
    )
    parts.append(svg.text(right + 56, y + 3.5, words, "value", "end"))
    parts.append(svg.text(right + 64, y + 3.5, svg.shortened(f"{interval} {row.note}", 28), "interval"))
    return "".join(parts)


def _label(row: SpeedupBar, y: int) -> str:
    label = svg.text(BARS_LEFT - 10, y + 3.5, svg.shortened(row.label, 27), "", "end")
    return svg.link(row.href, f"{label[:-7]}<title>{svg.quoted(row.label)}</title></text>")


def _bar_levels(axis: Axis, bottom: int) -> str:
    lines, words = "", ""
    for value, word in axis.ticks(6):
        x = axis.at(value) / 10
        lines += f"M{x:g} {BARS_TOP}V{bottom}"
        words += svg.text(x, BARS_TOP - 6, f"{word}x", "", "middle")
        words += svg.text(x, bottom + 15, f"{word}x", "", "middle")
    x_of_one = axis.at(1.0) / 10
    return f'<path class="grid" d="{lines}"/>{words}<path class="one" d="M{x_of_one:g} {BARS_TOP}V{bottom}"/>'


def _bars_summary(measured: list[tuple[float, SpeedupBar]], without: list[SpeedupBar]) -> str:
    if not measured:
        return f"No speedup; {len(without)} models without one."
    (highest, first), (lowest, last) = measured[0], measured[-1]
    counts = {name: sum(row.verdict == name for _, row in measured) for name in _SHAPES}
    counted = "".join(f", {count} {name}" for name, count in counts.items() if count)
    return (
        f"{len(measured)} models{counted}; from {svg.number(highest, 'x')} "
        f"({svg.shortened(first.label, 60)}) to {svg.number(lowest, 'x')} "
        f"({svg.shortened(last.label, 60)}); {len(without)} without a speedup."
    )


STRIP_WIDTH, STRIP_LEFT, STRIP_RIGHT, STRIP_TOP, STRIP_ROW = 560, 84, 20, 14, 44
# One late sample must not press all others into a line: samples further than this many interquartile
# ranges beyond the quartiles are counted at the edge instead of drawn.
_FAR_OUT = 8.0


def strip(data: SampleStrip, prefix: str) -> Markup:
    """Draw each side's samples as a row of points, with outliers counted at the edge."""
    sides = [(side, sorted(v for v in finite(side.samples) if v is not None)) for side in data.sides]
    on_axis = [value for side, samples in sides for value in _on_axis(side, samples)]
    low, high = (min(on_axis), max(on_axis)) if on_axis else (0.0, 1.0)
    room = 0.03 * (high - low) or 0.03 * abs(high) or 0.5
    low, high = low - room, high + room
    right = STRIP_WIDTH - STRIP_RIGHT
    axis = Axis(low, high, STRIP_LEFT * 10, right * 10)
    bottom = STRIP_TOP + STRIP_ROW * len(sides)
    parts = [_strip_levels(low, high, axis, bottom, right, data.unit)]
    for row, (side, samples) in enumerate(sides):
        y = STRIP_TOP + STRIP_ROW * row + STRIP_ROW / 2
        parts.append(_side(side, samples, y, axis, row, right))
    summary = "; ".join(_side_words(side, samples, data.unit) for side, samples in sides) or "no samples"
    return Markup(
        svg.figure("strip", prefix, STRIP_WIDTH, bottom + 22, data.title, f"{summary}.", "".join(parts))
    )


def _on_axis(side: SampleSide, samples: list[float]) -> list[float]:
    """The values that the axis must include: samples without outliers, median and interval.

    An outlier lies more than _FAR_OUT interquartile ranges beyond the quartiles.
    """
    estimates = [v for v in finite((side.median, side.low, side.high)) if v is not None]
    if not samples:
        return estimates
    quarter = len(samples) // 4
    first, last = samples[quarter], samples[-1 - quarter]
    reach = _FAR_OUT * (last - first) or 0.02 * abs(last)
    return [v for v in samples if first - reach <= v <= last + reach] + estimates


def _side(side: SampleSide, samples: list[float], y: float, axis: Axis, row: int, right: int) -> str:
    values = np.array(samples, dtype=float)
    below, above = int((values < axis.low).sum()), int((values > axis.high).sum())
    numbers = np.arange(below, len(values) - above)  # the samples are sorted
    parts = []
    if len(numbers):
        dots = np.empty((len(numbers), 2))
        dots[:, 0] = axis.places(values[numbers]) / 10
        # Spread over the height by the golden section: even, and the same at each build.
        dots[:, 1] = y - 9 + 18 * (numbers * 0.618034 % 1)
        path = "M%g %.0fh0" * len(dots) % tuple(dots.ravel().tolist())
        parts.append(f'<path class="samples s{row % 2}" d="{path}"/>')
    median, low, high = finite((side.median, side.low, side.high))
    if low is not None and high is not None:
        first, last = axis.at(low) / 10, axis.at(high) / 10
        parts.append(f'<path class="whisker" d="M{first:g} {y - 5:g}v10m0-5H{last:g}m0-5v10"/>')
    if median is not None:
        parts.append(f'<path class="median" d="M{axis.at(median) / 10:g} {y - 14:g}v28"/>')
    parts.append(svg.text(STRIP_LEFT - 10, y + 3.5, svg.shortened(side.name, 13), "", "end"))
    if below:
        parts.append(svg.text(STRIP_LEFT, y + 19, f"◂ {below} below"))
    if above:
        parts.append(svg.text(right, y + 19, f"{above} above ▸", "", "end"))
    if not samples and median is None:
        parts.append(svg.text(STRIP_LEFT + 6, y + 3.5, "no samples", "empty"))
    return "".join(parts)


def _strip_levels(low: float, high: float, axis: Axis, bottom: int, right: int, unit: str) -> str:
    lines, words = "", ""
    for value, word in linear_ticks(low, high, 6):
        x = axis.at(value) / 10
        lines += f"M{x:g} {STRIP_TOP}V{bottom}"
        words += svg.text(x, bottom + 15, word, "", "middle")
    grid = f'<path class="grid" d="{lines}"/>' if lines else ""
    return f"{grid}{words}{svg.text(STRIP_LEFT - 10, bottom + 15, unit, 'unit', 'end')}" \
           f'<path class="axis" d="M{STRIP_LEFT} {bottom}H{right}"/>'  # fmt: skip


def _side_words(side: SampleSide, samples: list[float], unit: str) -> str:
    median, low, high = finite((side.median, side.low, side.high))
    sentence = f"{side.name}: {len(samples)} samples, median {svg.number(median, unit)}"
    if low is not None and high is not None:
        sentence += f", 95 % interval {svg.number(low)} to {svg.number(high, unit)}"
    return sentence
