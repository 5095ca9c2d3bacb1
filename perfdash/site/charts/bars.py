"""The speedup of every model of a suite with its interval, the fastest first, about a line at 1.0."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from perfdash.site.charts import svg
from perfdash.site.charts.scales import Axis, value_range
from perfdash.site.charts.values import Bar, finite

LEFT, RIGHT, TOP, ROW = 190, 232, 22, 17
_MOST = 40.0  # times 1.0 or less of it; what lies further is put on the edge, its number beside it
# The verdict's class and shape about (0, 0).
_SHAPES = {
    "faster": ("better", "M0-5L5 4H-5z"),
    "slower": ("worse", "M0 5L5-4H-5z"),
    "equivalent": ("same", "M-4-4h8v8h-8z"),
    "inconclusive": ("unknown", "M0-5L5 0L0 5L-5 0z"),
}
_PLAIN = ("plain", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z")


def bars(rows: Sequence[Bar], prefix: str, title: str = "Speedup", *, width: int = 760) -> Markup:
    """One row a model: a shape of its verdict, its interval, its number; those without one below."""
    known = [(value, row) for row in rows if (value := finite([row.value], positive=True)[0]) is not None]
    known.sort(key=lambda one: -one[0])
    without = [row for row in rows if finite([row.value], positive=True)[0] is None]
    near = [min(max(value, 1 / _MOST), _MOST) for value, _ in known]
    low, high = value_range([1.0, *near], (), (), log=True)
    right, bottom = width - RIGHT, TOP + ROW * len(rows)
    axis = Axis(low, high, LEFT * 10, right * 10, log=True)
    parts = [_levels(axis, bottom)]
    for place, (value, row) in enumerate(known):
        parts.append(_row(row, value, TOP + ROW * place + ROW // 2, axis, right))
    for place, row in enumerate(without, len(known)):
        y = TOP + ROW * place + ROW // 2
        note = svg.shortened(row.note or "not measured", 60)
        parts.append(f'{_label(row, y)}<path class="failed" d="M{LEFT + 6} {y - 4}l8 8m0-8l-8 8"/>')
        parts.append(svg.text(LEFT + 22, y + 3.5, note))
    content = "".join(parts)
    return Markup(svg.figure("bars", prefix, width, bottom + 24, title, _summary(known, without), content))


def _row(row: Bar, value: float, y: int, axis: Axis, right: int) -> str:
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


def _label(row: Bar, y: int) -> str:
    shown = svg.text(LEFT - 10, y + 3.5, svg.shortened(row.label, 30), "", "end")
    return svg.link(row.href, f"{shown[:-7]}<title>{svg.quoted(row.label)}</title></text>")


def _levels(axis: Axis, bottom: int) -> str:
    lines, words = "", ""
    for value, word in axis.ticks(6):
        x = axis.at(value) / 10
        lines += f"M{x:g} {TOP}V{bottom}"
        words += svg.text(x, TOP - 6, f"{word}x", "", "middle")
        words += svg.text(x, bottom + 15, f"{word}x", "", "middle")
    one = axis.at(1.0) / 10
    return f'<path class="grid" d="{lines}"/>{words}<path class="one" d="M{one:g} {TOP}V{bottom}"/>'


def _summary(known: list[tuple[float, Bar]], without: list[Bar]) -> str:
    if not known:
        return f"No speedup; {len(without)} models without one."
    (most, first), (least, last) = known[0], known[-1]
    counts = {name: sum(row.verdict == name for _, row in known) for name in _SHAPES}
    told = "".join(f", {count} {name}" for name, count in counts.items() if count)
    return (
        f"{len(known)} models{told}; from {svg.number(most, 'x')} ({svg.shortened(first.label, 60)}) to "
        f"{svg.number(least, 'x')} ({svg.shortened(last.label, 60)}); {len(without)} without a speedup."
    )
