"""Charts of a bisection: the tested revisions and their measurements, as text and as SVG."""

from __future__ import annotations

import math
import unicodedata
from html import escape

from perfdash.bisection.result import BisectionResult, StageResult, TestedRevision
from perfdash.report.markdown import plain
from perfdash.report.number_format import with_unit

# Okabe and Ito 2008: distinct for every colour vision; the shape says the same.
_COLOURS = {"good": "#0072B2", "bad": "#D55E00"}
_GREY = "#767676"
_WIDTH, _HEIGHT = 760, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 16, 16, 34
_TEXT_WIDTH = 24  # characters of a text chart's axis
_LABEL = 24


def text_chart(result: BisectionResult, stage: StageResult) -> str:
    """Draw a line for each tested revision: its level, the number of measurements, its side."""
    levels = [t.level for t in stage.tested if t.level is not None]
    low, high = (min(levels), max(levels)) if levels else (0.0, 0.0)
    labels = {t.place: plain(t.label, _LABEL) for t in stage.tested}
    width = max(map(_columns, labels.values()))
    texts = {t.place: _level_or_words(result, t) for t in stage.tested}
    wide = max(map(len, texts.values()))
    lines = []
    for t in stage.tested:
        bar = ""
        if t.level is not None:
            at = round((t.level - low) / (high - low) * (_TEXT_WIDTH - 1)) if high > low else 0
            bar = "  |" + "·" * at + "o" + " " * (_TEXT_WIDTH - 1 - at) + "|"
        side = f"marked {t.mark}" if t.mark else t.shown_side
        pad = " " * (width - _columns(labels[t.place]))
        lines.append(f"{labels[t.place]}{pad}  {texts[t.place]:>{wide}}{bar}  {t.count}x {side}".rstrip())
    return "\n".join(lines)


def _level_or_words(result: BisectionResult, t: TestedRevision) -> str:
    if t.level is not None:
        return with_unit(result.column, t.level) if result.column else f"{t.level:.5g}"
    return plain(", ".join(f"{word} {n}" if len(t.said) > 1 else word for word, n in t.said.items()), 60)


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def svg(result: BisectionResult, stage: StageResult) -> str:
    """Draw every measurement over its revision. It has no empty line, which would end HTML in Markdown."""
    ticks, points = _numbers(result, stage) if any(t.values for t in stage.tested) else _words(stage)
    parts = [
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" '
        f'aria-label="{escape(plain(result.title))} over the tested revisions" '
        'font-size="11" fill="currentColor">'
    ]
    right = _WIDTH - _RIGHT
    for y, text in ticks:
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8884"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    parts += _culprits(result, stage)
    parts += [_mark(stage, t, y) for t, y in points]
    for t, anchor in ((stage.good, "start"), (stage.bad, "end")):
        x = _LEFT if anchor == "start" else right
        label = escape(plain(t.label, _LABEL))
        parts.append(f'<text x="{x}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{label}</text>')
    sides = {t.shown_side for t in stage.tested}
    others = "between two culprits, or cannot tell" if "between" in sides else "cannot tell"
    legend = f"{f'● good, ■ bad, ◆ {others}; ' if any(sides) else ''}each point is one measurement"
    return "\n".join([*parts, "</svg>", f"<figcaption>{legend}</figcaption></figure>"])


def _x(stage: StageResult, place: int) -> float:
    return _LEFT + 8 + (_WIDTH - _LEFT - _RIGHT - 16) * place / max(stage.last, 1)


def _numbers(
    result: BisectionResult, stage: StageResult
) -> tuple[list[tuple[float, str]], list[tuple[TestedRevision, float]]]:
    """The ticks with their labels, and the position of each value."""
    values = [value for t in stage.tested for value in t.values]
    low, high = min(values), max(values)
    if high <= low:
        low, high = low - (abs(low) * 0.01 or 1), high + (abs(high) * 0.01 or 1)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    step = 10 ** math.floor(math.log10((high - low) / 2))
    step = next(s for s in (step, 2 * step, 5 * step, 10 * step) if (high - low) / s <= 5)
    first = math.ceil(low / step)
    marks = [n * step for n in range(first, math.floor(high / step) + 1)]
    ticks = [(y(mark), with_unit(result.column, mark) if result.column else f"{mark:g}") for mark in marks]
    return ticks, [(t, y(value)) for t in stage.tested for value in t.values]


def _words(stage: StageResult) -> tuple[list[tuple[float, str]], list[tuple[TestedRevision, float]]]:
    words = list(dict.fromkeys(word for t in stage.tested for word in t.said))
    gap = (_HEIGHT - _TOP - _BOTTOM) / (len(words) + 1)
    at = {word: _TOP + gap * (number + 1) for number, word in enumerate(words)}
    ticks = [(at[word], plain(word, 14)) for word in words]
    return ticks, [(t, at[word]) for t in stage.tested for word in t.said]


def _culprits(result: BisectionResult, stage: StageResult) -> list[str]:
    """A band over each culprit of this stage."""
    places = {t.id: t.place for t in stage.tested}
    bands = []
    for culprit in result.culprits:
        if culprit.stage == stage.number:
            before, last = places.get(culprit.parent.id), places.get(culprit.revisions[-1].id)
            if before is not None and last is not None:
                x, until = _x(stage, before), _x(stage, last)
                bands.append(
                    f'<rect x="{x:.1f}" y="{_TOP}" width="{max(until - x, 2):.1f}" '
                    f'height="{_HEIGHT - _TOP - _BOTTOM}" fill="#D55E0033"/>'
                )
    return bands


def _mark(stage: StageResult, t: TestedRevision, y: float) -> str:
    x, side = _x(stage, t.place), t.shown_side
    colour = _COLOURS.get(side, _GREY)
    title = f"<title>{escape(plain(f'{t.label} {t.title}', 120))}</title>"
    if side == "bad":
        return (
            f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" fill="{colour}">{title}</rect>'
        )
    if side == "good":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.8" fill="{colour}">{title}</circle>'
    path = f"M{x:.1f} {y - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5z"
    return f'<path d="{path}" fill="{colour}">{title}</path>'
