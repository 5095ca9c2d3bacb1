"""The samples of the last night, eager and compiled on one axis, with medians and their intervals."""

from __future__ import annotations

from markupsafe import Markup

from perfdash.site.charts import svg
from perfdash.site.charts.scales import Axis, linear_ticks
from perfdash.site.charts.values import Side, Strip, finite

LEFT, RIGHT, TOP, ROW = 84, 20, 14, 44
# One late sample must not press all others into a line: beyond so many times the spread they are counted.
_FAR = 8.0


def strip(data: Strip, prefix: str, *, width: int = 560) -> Markup:
    """A row of points a side; those beyond the axis are counted at its edge."""
    sides = [(side, sorted(v for v in finite(side.samples) if v is not None)) for side in data.sides]
    shown = [value for side, samples in sides for value in _shown(side, samples)]
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    room = 0.03 * (high - low) or 0.03 * abs(high) or 0.5
    low, high = low - room, high + room
    axis = Axis(low, high, LEFT * 10, (width - RIGHT) * 10)
    bottom = TOP + ROW * len(sides)
    parts = [_levels(low, high, axis, bottom, width - RIGHT, data.unit)]
    for row, (side, samples) in enumerate(sides):
        parts.append(_side(side, samples, TOP + ROW * row + ROW / 2, axis, row, width - RIGHT))
    summary = "; ".join(_words(side, samples, data.unit) for side, samples in sides) or "no samples"
    return Markup(svg.figure("strip", prefix, width, bottom + 22, data.title, f"{summary}.", "".join(parts)))


def _shown(side: Side, samples: list[float]) -> list[float]:
    """What the axis must reach: samples but those far out, median and interval."""
    known = [v for v in finite((side.median, side.low, side.high)) if v is not None]
    if not samples:
        return known
    quarter = len(samples) // 4
    first, last = samples[quarter], samples[-1 - quarter]
    reach = _FAR * (last - first) or 0.02 * abs(last)
    return [v for v in samples if first - reach <= v <= last + reach] + known


def _side(side: Side, samples: list[float], y: float, axis: Axis, row: int, right: int) -> str:
    dots, below, above = [], 0, 0
    for k, value in enumerate(samples):
        if value < axis.low:
            below += 1
        elif value > axis.high:
            above += 1
        else:
            # Spread over the height by the golden section: even, and the same at each build.
            dots.append(f"M{axis.at(value) / 10:g} {y - 9 + 18 * (k * 0.618034 % 1):.0f}h0")
    parts = [f'<path class="samples s{row % 2}" d="{"".join(dots)}"/>'] if dots else []
    median, low, high = finite((side.median, side.low, side.high))
    if low is not None and high is not None:
        first, last = axis.at(low) / 10, axis.at(high) / 10
        parts.append(f'<path class="whisker" d="M{first:g} {y - 5:g}v10m0-5H{last:g}m0-5v10"/>')
    if median is not None:
        parts.append(f'<path class="median" d="M{axis.at(median) / 10:g} {y - 14:g}v28"/>')
    parts.append(svg.text(LEFT - 10, y + 3.5, svg.shortened(side.name, 13), "", "end"))
    if below:
        parts.append(svg.text(LEFT, y + 19, f"◂ {below} below"))
    if above:
        parts.append(svg.text(right, y + 19, f"{above} above ▸", "", "end"))
    if not samples and median is None:
        parts.append(svg.text(LEFT + 6, y + 3.5, "no samples", "empty"))
    return "".join(parts)


def _levels(low: float, high: float, axis: Axis, bottom: int, right: int, unit: str) -> str:
    lines, words = "", ""
    for value, word in linear_ticks(low, high, 6):
        x = axis.at(value) / 10
        lines += f"M{x:g} {TOP}V{bottom}"
        words += svg.text(x, bottom + 15, word, "", "middle")
    grid = f'<path class="grid" d="{lines}"/>' if lines else ""
    return f"{grid}{words}{svg.text(LEFT - 10, bottom + 15, unit, 'unit', 'end')}" \
           f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>'  # fmt: skip


def _words(side: Side, samples: list[float], unit: str) -> str:
    median, low, high = finite((side.median, side.low, side.high))
    said = f"{side.name}: {len(samples)} samples, median {svg.number(median, unit)}"
    if low is not None and high is not None:
        said += f", 95 % interval {svg.number(low)} to {svg.number(high, unit)}"
    return said
