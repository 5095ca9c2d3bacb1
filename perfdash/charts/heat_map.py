"""Draw models by nights: one path per bucket, so that thousands of cells stay small.

A cell is coloured by how far it lies from the row's usual in spreads of the row: 5 % is news in a quiet
model, and none in a noisy one. Worse is orange, better is blue; strongly worse has a line through it, a
failure is a cross, and what has no number is a dotted line: nothing is shown by colour alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from markupsafe import Markup

from perfdash.charts import svg
from perfdash.charts.axes import day, time_ticks
from perfdash.charts.values import HeatMap, HeatRow, Number, finite

LEFT, TOP, ROW, LEGEND = 174, 20, 13, 50
# From much worse to much better; the middle one is "the same".
BUCKETS = ("w3", "w2", "w1", "same", "b1", "b2", "b3")
_SIGMA = "\N{GREEK SMALL LETTER SIGMA}"
_SIGNS = {"worse": "▼", "better": "▲", "fail": "✕"}  # as the page's badges have them


def heat_map(data: HeatMap, prefix: str) -> Markup:
    """Draw the map: models' names as links, dates above, a legend below."""
    count = len(data.times)
    cell = max(3, min(14, 660 // max(1, count)))
    right = LEFT + max(cell * count, 610)
    bottom = TOP + ROW * len(data.rows)
    paths = dict.fromkeys((*BUCKETS, "missing", "fail"), "")
    labels, numbers = [], []
    for place, row in enumerate(data.rows):
        if len(row.ratios) != count:
            raise ValueError(f"{row.label}: {len(row.ratios)} cells for {count} nights")
        y = TOP + ROW * place + ROW // 2
        ratios = finite(row.ratios, positive=True)
        classes = _classes(ratios, row, data.edges)
        for name, d in _runs(classes, y, cell).items():
            paths[name] += d
        sign = _SIGNS.get(row.open, "")
        label = svg.text(LEFT - 8, y + 3.5, f"{sign} {svg.shortened(row.label, 20)}".strip(), row.open, "end")
        title = f"{row.label}{f' (open alert: {row.open})' if sign else ''}"
        labels.append(svg.link(row.href, f"{label[:-7]}<title>{svg.quoted(title)}</title></text>"))
        numbers.append(",".join("x" if c == "fail" else "" if r is None else f"{r:.3g}"
                                for r, c in zip(ratios, classes, strict=True)))  # fmt: skip
    parts = [f'<g class="rows">{"".join(labels)}</g>', _dates(data.times, cell, bottom)]
    parts += [f'<path class="{name}" d="{d}"/>' for name, d in paths.items() if d and name != "fail"]
    parts += [f'<path class="through" d="{paths[name]}"/>' for name in ("w3", "w2") if paths[name]]
    if paths["fail"]:
        parts.append(f'<path class="failed" d="{paths["fail"]}"/>')
    if not (data.rows and count):
        parts.append(svg.text(LEFT, TOP + 12, "nothing measured", "empty"))
    parts.append(_legend(data, bottom + 16))
    return Markup(
        svg.figure(
            "heat", prefix, right + 8, bottom + LEGEND, data.title, _summary(data), "".join(parts),
            cells=f"{LEFT} {TOP} {cell} {ROW} {count} {len(data.rows)}",
            nights=",".join(str(day(at)) for at in data.times), ratios=";".join(numbers),
            spreads=";".join(f"{row.spread:.3g}" for row in data.rows),
        )
    )  # fmt: skip


def bucket(ratio: float, spread: float, edges: tuple[float, float, float]) -> str:
    """The name of a ratio's bucket by its distance from 1 in spreads.

    A bound belongs to the bucket further out. Raises ValueError for a spread that is not above 0.
    """
    if not spread > 0:
        raise ValueError(f"a spread of {spread} is none")
    away = math.log(ratio) / spread
    steps = sum(abs(away) >= edge for edge in edges)
    return BUCKETS[3 + steps if away >= 0 else 3 - steps]


def _classes(ratios: Sequence[Number], row: HeatRow, edges: tuple[float, float, float]) -> list[str]:
    crossed = set(row.failed)
    return [
        "fail" if k in crossed else "missing" if ratio is None else bucket(ratio, row.spread, edges)
        for k, ratio in enumerate(ratios)
    ]


def _runs(classes: Sequence[str], y: int, cell: int) -> dict[str, str]:
    """The row's part of each path: equal neighbours are one stroke."""
    paths: dict[str, str] = {}
    ends: dict[str, int] = {}
    begin = 0
    for name, cells in groupby(classes):
        count = len(list(cells))
        x, width = LEFT + begin * cell, count * cell
        if name == "fail":
            paths[name] = paths.get(name, "") + "".join(_cross(x + k * cell, y, cell) for k in range(count))
        else:
            step = f"m{x - ends[name]} 0h{width}" if name in paths else f"M{x} {y}h{width}"
            paths[name] = paths.get(name, "") + step
            ends[name] = x + width
        begin += count
    return paths


def _cross(x: int, y: int, cell: int) -> str:
    size = min(cell - 1, 7)
    left = x + (cell - size) / 2
    return f"M{left:g} {y - size / 2:g}l{size} {size}m0-{size}l-{size} {size}"


def _dates(times: Sequence[float], cell: int, bottom: int) -> str:
    """Dates above the columns that they begin in."""
    if not times:
        return ""
    parts, end = [], -100.0
    begins = [day(at) for at in times]
    for at, word in time_ticks(times[0], max(times[-1], times[0] + 1), 9) or ((times[0], str(begins[0])),):
        place = next((k for k, begin in enumerate(begins) if begin >= day(at)), len(times) - 1)
        x = LEFT + place * cell
        if x >= end:
            parts.append(svg.text(x, TOP - 6, word) + f'<path class="axis" d="M{x} {TOP - 4}V{bottom}"/>')
            end = x + 6.2 * len(word) + 6
    return "".join(parts)


def _legend(data: HeatMap, y: int) -> str:
    edges = [f"{edge:g}{_SIGMA}" for edge in data.edges]
    words = [f"{edges[2]} worse", edges[1], edges[0], "as usual", edges[0], edges[1], f"{edges[2]} better"]
    meaning = f"{svg.shortened(data.measure, 60)}; {_SIGMA}: the model's own spread from night to night"
    parts = [svg.text(LEFT, y + 21, meaning)]
    x = float(LEFT)
    for name, word in zip(BUCKETS, words, strict=True):
        parts.append(f'<path class="{name}" d="M{x:g} {y}h14"/>')
        if name in ("w3", "w2"):
            parts.append(f'<path class="through" d="M{x:g} {y}h14"/>')
        parts.append(svg.text(x + 18, y + 3.5, word))
        x += 26 + 6.2 * len(word)
    parts += [
        f'<path class="failed" d="M{x + 3:g} {y - 4}l8 8m0-8l-8 8"/>{svg.text(x + 16, y + 3.5, "failed")}',
        f'<path class="missing" d="M{x + 56:g} {y}h14"/>{svg.text(x + 74, y + 3.5, "no number")}',
    ]
    return f'<g class="legend">{"".join(parts)}</g>'


def _summary(data: HeatMap) -> str:
    """The last night in words; every number is in the page's table."""
    if not (data.rows and data.times):
        return "Nothing measured."
    last = len(data.times) - 1
    states = [_last(row, last, data.edges) for row in data.rows]
    outcomes = ("better", "the same", "worse", "failed", "without a number")
    counts = {word: states.count(word) for word in outcomes}
    counts_text = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return (
        f"{len(data.rows)} models by {len(data.times)} nights, {day(data.times[0])} to "
        f"{day(data.times[-1])}; {data.measure}; on the last night {counts_text}."
    )


def _last(row: HeatRow, last: int, edges: tuple[float, float, float]) -> str:
    if last in row.failed:
        return "failed"
    ratio = finite(row.ratios[last:], positive=True)[0]
    if ratio is None:
        return "without a number"
    name = bucket(ratio, row.spread, edges)
    return {"w": "worse", "b": "better", "s": "the same"}[name[0]]
