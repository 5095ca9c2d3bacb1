"""What happened when, beside a line: change points, alerts, other environments; by letter and by shape.

And the text alternative of a trend, in which the same is said in words.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from perfdash.site.charts import svg
from perfdash.site.charts.scales import day
from perfdash.site.charts.values import Mark, Number, Trend

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
}
# More than so many other environments are ticks at the edge: with nightly builds there is one each night.
_MANY = 8
_APART = 17.0
_DOWN = {"worse": 1.5, "better": 4.8}  # where a letter stands within a triangle


def events(marks: Sequence[tuple[float, Mark]], top: int, bottom: int) -> str:
    """All marks at their places, each with its sentence as title and link."""
    placed = sorted(((x, mark) for x, mark in marks if mark.kind in KINDS), key=lambda one: one[0])
    parts = []
    ticks = [x for x, mark in placed if mark.kind == "environment"]
    if len(ticks) > _MANY:
        parts.append(f'<path class="ticks" d="{"".join(f"M{x:.1f} {top}v4" for x in ticks)}"/>')
        placed = [(x, mark) for x, mark in placed if mark.kind != "environment"]
    rows = [-100.0, -100.0]  # where the last shape of the upper and of the lower row lies
    for x, mark in placed:
        row = 0 if x - rows[0] >= _APART or x - rows[1] < _APART else 1
        rows[row] = x
        y = 9 + 14 * row
        title = f"<title>{svg.quoted(f'{day(mark.at)}: {mark.text}')}</title>"
        content = f'<path class="at" d="M{x:.1f} {y}V{bottom}"/>{_sign(mark.kind, x, y)}{title}'
        parts.append(f'<g class="mark {mark.kind}">{svg.link(mark.href, content)}</g>')
    return "".join(parts)


def _sign(kind: str, x: float, y: float) -> str:
    letter, shape, _ = KINDS[kind]
    words = svg.text(round(x, 1), y + _DOWN.get(kind, 3), letter, "", "middle")
    return f'<path class="sign" transform="translate({x:.1f} {y:g})" d="{shape}"/>{words}'


def marks_key() -> Markup:
    """What the marks mean, as an HTML list: once a page."""
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


def summary_of(data: Trend, values: Sequence[Number], marks: int = 10) -> str:
    """The text alternative: first, last, range, failures, and the latest marks."""
    known = [(at, value) for at, value in zip(data.times, values, strict=True) if value is not None]
    if not known:
        said = f"not measured on any of {len(values)} nights."
    else:
        (first_at, first), (last_at, last) = known[0], known[-1]
        only = [value for _, value in known]
        said = (
            f"{len(known)} nights, {day(first_at)} to {day(last_at)}: first {svg.number(first, data.unit)}, "
            f"last {svg.number(last, data.unit)}, range {svg.number(min(only), data.unit)} to "
            f"{svg.number(max(only), data.unit)}."
        )
    if data.failed:
        said += f" Failed on {len(data.failed)}."
    latest = sorted(data.marks, key=lambda mark: mark.at)[-marks:] if marks else []
    for mark in latest:
        said += f" {day(mark.at)}: {svg.shortened(mark.text, 120)}."
    return said
