"""Recommend which technique to ship a model with at each batch size, with the evidence. Pure.

A technique is within the accuracy bound if its status is `pass` and, where it was scored on labelled data,
its score is at most QUALITY_DROP below eager's. The fastest of these is recommended if it beats eager.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfdash.history.pass_rates_and_means import nothing_captured
from perfdash.history.results import Row
from perfdash.records import Status
from perfdash.report.dashboard_tables import status
from perfdash.report.markdown import code, escaped, table
from perfdash.report.number_format import digits
from perfdash.report.techniques.technique_results import (
    Group,
    Speed,
    Technique,
    baseline_of,
    distance_of,
    has_numbers,
    is_sound,
    number,
    quality_of,
    real,
    speed_of,
)

QUALITY_DROP = 0.01
SAME_MEMORY = 0.03  # the relative accuracy of a measured peak (docs/method.md)


@dataclass(frozen=True)
class MeasuredTechnique:
    """A technique at a batch size; `speed` is over the group's baseline."""

    technique: Technique
    row: Row
    speed: Speed | None
    peak_bytes: float | None

    @property
    def beats_eager(self) -> bool:
        """Whether its verdict over the group's baseline is `faster`."""
        return self.speed is not None and self.row.verdict == "faster"


@dataclass(frozen=True)
class Choice:
    """The recommendation for one batch size.

    fastest: the fastest technique within the bound, None where none beats eager; as_fast: those that cannot
    be distinguished from it; next_best: where none beats eager, the fastest of the others. smallest: the
    techniques within the bound with the smallest peak memory, within SAME_MEMORY. left_out: techniques that
    are faster (or whose speed is not known) and not within the bound, with the reason.
    """

    batch_size: int
    fastest: MeasuredTechnique | None
    as_fast: tuple[MeasuredTechnique, ...]
    next_best: MeasuredTechnique | None
    smallest: tuple[MeasuredTechnique, ...]
    left_out: tuple[tuple[MeasuredTechnique, str], ...]
    eager_peak_bytes: float | None
    measured: bool  # whether any technique, eager included, is within the bound

    @property
    def of_one_process(self) -> bool:
        """Whether no technique has the verdict `faster`, and the next best one was sampled in one process."""
        return bool(self.next_best and self.next_best.speed and self.next_best.speed.one_process)


@dataclass(frozen=True)
class Recommendation:
    """The recommended technique for each batch size; None in `ship` is the baseline."""

    group: Group
    baseline: Technique
    choices: tuple[Choice, ...]
    ship: Mapping[Technique | None, tuple[int, ...]]

    def candidate(self, technique: Technique, size: int) -> MeasuredTechnique:
        """The result of a technique that is shipped at a batch size."""
        (choice,) = (choice for choice in self.choices if choice.batch_size == size)
        return next(candidate for candidate in _equals(choice) if candidate.technique == technique)


def recommend(group: Group) -> Recommendation:
    """Choose for each batch size, and find the fewest techniques that serve all of them."""
    baseline = group.baseline
    choices = tuple(
        _choice([row for row in group.rows if row.case.batch_size == size], size, baseline)
        for size in group.sizes
    )
    return Recommendation(group, baseline, choices, _shipped(choices))


def within_bound(row: Row, baseline: Technique) -> str | None:
    """Why a result with numbers must not be shipped; None where it may be."""
    if row.status == Status.PASS_DUE_TO_SKIP:
        return "its outputs were not checked"
    if row.status == Status.PASS and nothing_captured(row):
        return "nothing was captured: it is eager"
    if not is_sound(row):
        return status(row)
    if baseline_of(row) != baseline:
        return f"it was compared with {baseline_of(row).label}"
    drop = quality_drop(row)
    if drop is not None and drop > QUALITY_DROP + 1e-9:
        metric = str(quality_of(row).get("metric", "score"))
        return f"{metric.upper() if metric == 'f1' else metric} is {drop:.4f} below eager's"
    return None


def quality_drop(row: Row) -> float | None:
    """How far the score of a result is below eager's."""
    quality = quality_of(row)
    value, eager = real(quality.get("value")), real(quality.get("eager_value"))
    return None if value is None or eager is None else eager - value


def _choice(rows: Sequence[Row], size: int, baseline: Technique) -> Choice:
    within: list[MeasuredTechnique] = []
    without: list[tuple[MeasuredTechnique, str]] = []
    for row in rows:
        if not has_numbers(row):
            continue
        technique = Technique.of(row)
        speed = speed_of(row) if baseline_of(row) == baseline else None
        # Eager is as fast as itself: a measured difference is noise.
        candidate = MeasuredTechnique(
            technique,
            row,
            Speed(1.0, 1.0, 1.0) if technique == baseline else speed,
            number(row, "backend_peak_bytes"),
        )
        why = within_bound(row, baseline)
        if why is None:
            within.append(candidate)
        else:
            without.append((candidate, why))
    others = sorted((c for c in within if c.technique != baseline and c.speed), key=lambda c: -_value(c))
    fastest = next((c for c in others if c.beats_eager), None)
    as_fast = tuple(c for c in others if fastest and c is not fastest and _overlap(c, fastest))
    floor = _value(fastest) if fastest else 1.0
    return Choice(
        batch_size=size,
        fastest=fastest,
        as_fast=as_fast,
        next_best=others[0] if others and not fastest else None,
        smallest=_smallest(within),
        left_out=tuple(
            sorted(
                ((c, why) for c, why in without if c.speed is None or _value(c) > floor),
                key=lambda pair: -_value(pair[0]),
            )
        ),
        eager_peak_bytes=_eager_peak(rows, baseline),
        measured=bool(within),
    )


def _value(candidate: MeasuredTechnique) -> float:
    return candidate.speed.value if candidate.speed else 0.0


def _overlap(first: MeasuredTechnique, second: MeasuredTechnique) -> bool:
    """Whether the intervals of two speedups overlap; an unknown interval overlaps with any."""
    a, b = first.speed, second.speed
    if a is None or b is None or a.low is None or a.high is None or b.low is None or b.high is None:
        return True
    return a.low <= b.high and b.low <= a.high


def _smallest(within: Sequence[MeasuredTechnique]) -> tuple[MeasuredTechnique, ...]:
    peaks = sorted((c.peak_bytes, place) for place, c in enumerate(within) if c.peak_bytes)
    return tuple(within[place] for peak, place in peaks if peak <= peaks[0][0] * (1 + SAME_MEMORY))


def _eager_peak(rows: Sequence[Row], baseline: Technique) -> float | None:
    """Eager's peak memory from its own case, else as measured beside another technique."""
    own = [number(row, "backend_peak_bytes") for row in rows if Technique.of(row) == baseline]
    beside = [number(row, "eager_peak_bytes") for row in rows if baseline_of(row) == baseline]
    return next((peak for peak in [*own, *beside] if peak), None)


def _equals(choice: Choice) -> list[MeasuredTechnique]:
    """The fastest candidate, and those that beat eager and cannot be distinguished from it."""
    return [c for c in (choice.fastest, *choice.as_fast) if c and c.beats_eager]


def _shipped(choices: Sequence[Choice]) -> dict[Technique | None, tuple[int, ...]]:
    """Assign batch sizes to techniques, the one that serves most sizes first."""
    left = {choice.batch_size: _equals(choice) for choice in choices if choice.measured}
    served: dict[Technique | None, tuple[int, ...]] = {}
    while any(left.values()):
        logs: dict[Technique, list[float]] = {}
        for candidates in left.values():
            for candidate in candidates:
                logs.setdefault(candidate.technique, []).append(math.log(_value(candidate)))
        best = max(logs, key=lambda technique: (len(logs[technique]), sum(logs[technique])))
        served[best] = tuple(size for size, of in left.items() if best in [c.technique for c in of])
        left = {size: candidates for size, candidates in left.items() if size not in served[best]}
    if left:
        served[None] = tuple(left)
    return dict(sorted(served.items(), key=lambda item: item[1]))


_BOUND = (
    "Within the accuracy bound is a way whose status is `pass` (its outputs agree with eager's as the suite "
    "demands; neither disturbed nor beyond the recompile limit) and, where it was scored on labelled data, "
    "whose score is at most "
    f"{QUALITY_DROP:g} below eager's. Faster is a way whose verdict is `faster`. As fast are ways whose "
    f"intervals overlap that of the fastest; as small those whose peak is within {SAME_MEMORY:.0%} of the "
    "smallest. The interval of one process only does not hold what differs between processes, so such a way "
    "is never called faster. Left out are ways that are faster, or that have no speedup over this eager, but "
    "do not keep the bound."
)


def advice(titles: Sequence[str], groups: Sequence[Group]) -> list[str]:
    """The section "What to ship" in Markdown: the bound, one line per model, the table."""
    recommendations = [(title, recommend(group)) for title, group in zip(titles, groups, strict=True)]
    head = [
        "model", "batch size", "fastest", "speedup over eager", "as fast, cannot tell apart",
        "distance to eager", "score (eager's)", "peak memory MB (eager's)", "smallest peak memory MB",
    ]  # fmt: skip
    rows = [row for title, recommended in recommendations for row in _choices(title, recommended)]
    lines = [_line(title, recommended) for title, recommended in recommendations]
    return [_BOUND, "\n".join(lines), table(head, rows, "lrlrlrrrl")]


def _line(title: str, recommendation: Recommendation) -> str:
    """Which technique to ship at which batch sizes, with the evidence."""
    sentences = []
    for technique, sizes in recommendation.ship.items():
        if technique is None:
            sentences.append(_stay(recommendation, sizes))
            continue
        evidence = "; ".join(
            _evidence(recommendation.candidate(technique, size), recommendation, size) for size in sizes
        )
        where = recommendation.group.sizes_in_words(sizes)
        sentences.append(f"ship {code(technique.label)} at {where} ({evidence})")
    unknown = [choice.batch_size for choice in recommendation.choices if not choice.measured]
    if unknown:
        where = recommendation.group.sizes_in_words(unknown)
        sentences.append(f"nothing within the bound was measured at {where}")
    parts = [f"{'; '.join(sentences)}.", _smallest_line(recommendation), _left_out(recommendation)]
    return f"- **{title}**: {' '.join(part for part in parts if part)}"


def _stay(recommendation: Recommendation, sizes: Sequence[int]) -> str:
    group = recommendation.group
    stays = [choice for choice in recommendation.choices if choice.batch_size in sizes]
    near = [
        f"at {group.size_in_words(choice.batch_size)} {code(choice.next_best.technique.label)}: "
        f"{_speedup(choice.next_best)}"
        for choice in stays
        if choice.next_best
    ]
    rest = f"; nearest {'; '.join(near)}" if near else ""
    name = code(recommendation.baseline.label)
    where = group.sizes_in_words(sizes)
    if any(choice.of_one_process for choice in stays):
        return f"cannot tell what beats {name} at {where}, as it was sampled in one process only{rest}"
    return f"nothing within the bound beats {name} at {where}: stay with it{rest}"


def _evidence(candidate: MeasuredTechnique, recommendation: Recommendation, size: int) -> str:
    (choice,) = (choice for choice in recommendation.choices if choice.batch_size == size)
    words = [f"at {recommendation.group.size_in_words(size)}: {_speedup(candidate)}"]
    distance = distance_of(candidate.row)
    words += [f"distance to eager {distance:.2g}"] if distance is not None else []
    score = _score(candidate.row, "eager ")
    words += [f"{_metric(candidate.row)} {score}" if score != "-" else "not scored"]
    words += [f"peak memory in MB {_peak(candidate, choice, 'eager ')}"] if candidate.peak_bytes else []
    return ", ".join(words)


def _smallest_line(recommendation: Recommendation) -> str:
    """The technique with the smallest peak memory at each batch size."""
    sizes_of: dict[Technique, list[int]] = {}
    for choice in recommendation.choices:
        if choice.smallest:
            sizes_of.setdefault(choice.smallest[0].technique, []).append(choice.batch_size)
    words = recommendation.group.sizes_in_words
    parts = [f"{code(technique.label)} at {words(sizes)}" for technique, sizes in sizes_of.items()]
    return f"Smallest peak memory: {'; '.join(parts)}." if parts else ""


def _left_out(recommendation: Recommendation) -> str:
    left_out: dict[tuple[Technique, str], list[tuple[int, MeasuredTechnique]]] = {}
    for choice in recommendation.choices:
        for candidate, why in choice.left_out:
            left_out.setdefault((candidate.technique, why), []).append((choice.batch_size, candidate))
    if not left_out:
        return ""
    parts, words = [], recommendation.group.size_in_words
    for (technique, why), places in left_out.items():
        where = ", ".join(f"{words(size)} ({_times(candidate)})" for size, candidate in places)
        parts.append(f"{code(technique.label)} at {where}: {escaped(why, 200) if ' ' in why else code(why)}")
    return f"Left out: {'; '.join(parts)}."


def _choices(title: str, recommendation: Recommendation) -> list[list[str]]:
    return [
        [
            title,
            recommendation.group.size_in_words(choice.batch_size),
            *_of_choice(choice, recommendation.baseline),
            ", ".join(f"{code(candidate.technique.label)} {digits(candidate.peak_bytes / 1e6)}"
                      for candidate in choice.smallest if candidate.peak_bytes) or "-",
        ]
        for choice in recommendation.choices
    ]  # fmt: skip


def _of_choice(choice: Choice, baseline: Technique) -> list[str]:
    if not choice.measured:
        return ["none within the bound", *["-"] * 5]
    candidate = choice.fastest
    if candidate is None:
        near = "-"
        if choice.next_best:
            near = f"nearest: {code(choice.next_best.technique.label)} {_speedup(choice.next_best)}"
        eager = f"{digits(choice.eager_peak_bytes / 1e6)}" if choice.eager_peak_bytes else "-"
        words = "cannot tell (one process)" if choice.of_one_process else "nothing beats it"
        return [f"{code(baseline.label)}: {words}", near, "-", "-", "-", eager]
    distance = distance_of(candidate.row)
    return [
        code(candidate.technique.label),
        _speedup(candidate),
        ", ".join(f"{code(c.technique.label)} ({_times(c)})" for c in choice.as_fast) or "none",
        "-" if distance is None else f"{distance:.2g}",
        _score(candidate.row),
        _peak(candidate, choice),
    ]


def _times(candidate: MeasuredTechnique) -> str:
    return f"{candidate.speed.value:.2f}x" if candidate.speed else "speedup not known"


def _speedup(candidate: MeasuredTechnique) -> str:
    speed = candidate.speed
    if speed is None or speed.low is None or speed.high is None:
        return f"{_times(candidate)} (interval not known)"
    rest = "; of one process only" if speed.one_process else ""
    return f"{_times(candidate)} ({speed.low:.2f} to {speed.high:.2f}{rest})"


def _score(row: Row, word: str = "") -> str:
    quality = quality_of(row)
    value, eager = real(quality.get("value")), real(quality.get("eager_value"))
    if value is None:
        return "-"
    return f"{value:.4f}" + ("" if eager is None else f" ({word}{eager:.4f})")


def _metric(row: Row) -> str:
    name = str(quality_of(row).get("metric", "score"))
    return "F1" if name == "f1" else escaped(name, 40)


def _peak(candidate: MeasuredTechnique, choice: Choice, word: str = "") -> str:
    if not candidate.peak_bytes:
        return "-"
    eager = f" ({word}{digits(choice.eager_peak_bytes / 1e6)})" if choice.eager_peak_bytes else ""
    return digits(candidate.peak_bytes / 1e6) + eager
