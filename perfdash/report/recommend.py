"""Which way to ship a model on, batch size by batch size, from what was measured. Pure: no text is made here.

A way is within the accuracy bound where its status is `pass` and, where it was scored on labelled data, its
score is at most QUALITY_DROP below eager's. Of those the fastest counts, where it is faster than eager.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfdash.history.rows import Row
from perfdash.history.summing import nothing_captured
from perfdash.records import Status
from perfdash.report.ways import (
    Group,
    Speed,
    Way,
    baseline_of,
    has_numbers,
    is_sound,
    number,
    quality_of,
    real,
    speed_of,
    status_of,
)
from perfdash.stats.speedup import verdict

QUALITY_DROP = 0.01
SAME_MEMORY = 0.03  # peaks are known to this part (docs/method.md)


@dataclass(frozen=True)
class Candidate:
    """A way at a batch size. speed: over the group's baseline; peak_bytes: of its peak memory."""

    way: Way
    row: Row
    speed: Speed | None
    peak_bytes: float | None

    @property
    def beats_eager(self) -> bool:
        """Whether it is faster beyond its interval, and by more than what counts as the same."""
        speed = self.speed
        if speed is None or speed.low is None or speed.high is None:
            return False
        return verdict("processes", speed.low, speed.high) == "faster"


@dataclass(frozen=True)
class Choice:
    """Of one batch size.

    fastest: the fastest way within the bound, None where none beats eager; as_fast: those that cannot be told
    apart from it; next_best: where none beats eager, the one that came nearest. smallest: the ways within the
    bound with the smallest peak memory, and those as small. left_out: faster (or how
    fast is not known), but not within the bound, with the reason.
    """

    batch_size: int
    fastest: Candidate | None
    as_fast: tuple[Candidate, ...]
    next_best: Candidate | None
    smallest: tuple[Candidate, ...]
    left_out: tuple[tuple[Candidate, str], ...]
    eager_peak_bytes: float | None
    measured: bool  # whether any way was found within the bound, be it eager


@dataclass(frozen=True)
class Recommendation:
    """ship: which way at which batch sizes; None stands for eager, the baseline."""

    baseline: Way
    choices: tuple[Choice, ...]
    ship: Mapping[Way | None, tuple[int, ...]]

    def candidate(self, way: Way, size: int) -> Candidate:
        """The result of a way that is shipped at a batch size."""
        (choice,) = (choice for choice in self.choices if choice.batch_size == size)
        return next(each for each in _equals(choice) if each.way == way)


def recommend(group: Group) -> Recommendation:
    """The choice of each batch size, and the fewest ways that serve them all."""
    baseline = group.baseline
    choices = tuple(
        _choice([row for row in group.rows if row.case.batch_size == size], size, baseline)
        for size in group.sizes
    )
    return Recommendation(baseline, choices, _shipped(choices))


def within_bound(row: Row, baseline: Way) -> str | None:
    """Why a result with numbers is not to be shipped; None where it may be."""
    if row.status == Status.PASS_DUE_TO_SKIP:
        return "its outputs were not checked"
    if row.status == Status.PASS and nothing_captured(row):
        return "nothing was captured: it is eager"
    if not is_sound(row):
        return status_of(row)
    if baseline_of(row) != baseline:
        return f"it was compared with {baseline_of(row).label}"
    drop = quality_drop(row)
    if drop is not None and drop > QUALITY_DROP + 1e-9:
        metric = str(quality_of(row).get("metric", "score"))
        return f"{metric.upper() if metric == 'f1' else metric} is {drop:.4f} below eager's"
    return None


def quality_drop(row: Row) -> float | None:
    """How far its score lies below eager's."""
    quality = quality_of(row)
    value, eager = real(quality.get("value")), real(quality.get("eager_value"))
    return None if value is None or eager is None else eager - value


def _choice(rows: Sequence[Row], size: int, baseline: Way) -> Choice:
    within: list[Candidate] = []
    without: list[tuple[Candidate, str]] = []
    for row in rows:
        if not has_numbers(row):
            continue
        way = Way.of(row)
        speed = speed_of(row) if baseline_of(row) == baseline else None
        # Eager against itself is as fast as itself: what was measured of that is noise.
        candidate = Candidate(
            way, row, Speed(1.0, 1.0, 1.0) if way == baseline else speed, number(row, "backend_peak_bytes")
        )
        why = within_bound(row, baseline)
        if why is None:
            within.append(candidate)
        else:
            without.append((candidate, why))
    others = sorted(
        (each for each in within if each.way != baseline and each.speed), key=lambda each: -_value(each)
    )
    fastest = next((each for each in others if each.beats_eager), None)
    as_fast = tuple(each for each in others if fastest and each is not fastest and _overlap(each, fastest))
    floor = _value(fastest) if fastest else 1.0
    return Choice(
        batch_size=size,
        fastest=fastest,
        as_fast=as_fast,
        next_best=others[0] if others and not fastest else None,
        smallest=_smallest(within),
        left_out=tuple(
            sorted(
                ((each, why) for each, why in without if each.speed is None or _value(each) > floor),
                key=lambda pair: -_value(pair[0]),
            )
        ),
        eager_peak_bytes=_eager_peak(rows, baseline),
        measured=bool(within),
    )


def _value(candidate: Candidate) -> float:
    return candidate.speed.value if candidate.speed else 0.0


def _overlap(one: Candidate, other: Candidate) -> bool:
    """Whether the intervals of two speedups have a value in common; one that is not known may be anything."""
    a, b = one.speed, other.speed
    if a is None or b is None or a.low is None or a.high is None or b.low is None or b.high is None:
        return True
    return a.low <= b.high and b.low <= a.high


def _smallest(within: Sequence[Candidate]) -> tuple[Candidate, ...]:
    known = sorted((each.peak_bytes, place) for place, each in enumerate(within) if each.peak_bytes)
    return tuple(within[place] for peak, place in known if peak <= known[0][0] * (1 + SAME_MEMORY))


def _eager_peak(rows: Sequence[Row], baseline: Way) -> float | None:
    """Of its own case; else as it was measured beside another way."""
    own = [number(row, "backend_peak_bytes") for row in rows if Way.of(row) == baseline]
    beside = [number(row, "eager_peak_bytes") for row in rows if baseline_of(row) == baseline]
    return next((peak for peak in [*own, *beside] if peak), None)


def _equals(choice: Choice) -> list[Candidate]:
    """The fastest, and what beats eager and cannot be told apart from it."""
    return [each for each in (choice.fastest, *choice.as_fast) if each and each.beats_eager]


def _shipped(choices: Sequence[Choice]) -> dict[Way | None, tuple[int, ...]]:
    """The way that serves most batch sizes first, the faster of two that serve as many."""
    left = {choice.batch_size: _equals(choice) for choice in choices if choice.measured}
    served: dict[Way | None, tuple[int, ...]] = {}
    while any(left.values()):
        logs: dict[Way, list[float]] = {}
        for some in left.values():
            for each in some:
                logs.setdefault(each.way, []).append(math.log(_value(each)))
        best = max(logs, key=lambda way: (len(logs[way]), sum(logs[way])))
        served[best] = tuple(size for size, some in left.items() if best in [each.way for each in some])
        left = {size: some for size, some in left.items() if size not in served[best]}
    if left:
        served[None] = tuple(left)
    return dict(sorted(served.items(), key=lambda item: item[1]))
