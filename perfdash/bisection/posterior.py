"""The posterior probability of each place of the culprit in one range. Pure.

Observations are added in the order of the journal; search.py decides what to do.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import special

from perfdash.bisection.events import (
    Answered,
    Broken,
    Built,
    Marked,
    Observation,
    Question,
    RangeOutcome,
    Refuted,
    Resumed,
    Same,
    Side,
)
from perfdash.stats.intervals import Array
from perfdash.stats.step_likelihood import (
    INFORMATION,
    LONG_PAUSE,
    AnswerEvidence,
    Evidence,
    KnownNoise,
    log_sum,
    lumped,
    weigh,
    weigh_answers,
    without_host,
)

PAUSE = 5.0  # a build lets the host drift as much as this many measurements


@dataclass(frozen=True)
class SearchRange:
    """The places low..high.

    whole: the step that was found beside them; 0 for the whole range. reproduced: its ends differ.
    """

    low: int
    high: int
    whole: float = 0.0
    reproduced: bool = False


@dataclass(frozen=True)
class SearchState:
    """All observations of a search, and what is left to search.

    broken: the reason by place. same: by place, a measurable place with the same code and libraries.
    places, times, values: the measurements in order. clock: now, in measurements. pending: ranges to be
    searched, the present one first. outcomes: of the searched ranges.
    second_thoughts: how often all outcomes were dropped because they did not explain the ends' difference.
    """

    question: Question
    built: frozenset[int] = frozenset()
    broken: Mapping[int, str] = field(default_factory=dict)
    marks: Mapping[int, Side] = field(default_factory=dict)
    same: Mapping[int, int] = field(default_factory=dict)
    places: tuple[int, ...] = ()
    times: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    clock: float = 0.0
    pending: tuple[SearchRange, ...] = ()
    outcomes: tuple[RangeOutcome, ...] = ()
    second_thoughts: int = 0

    def measurable(self, place: int) -> bool:
        """Whether a place is built, or may be, and can be measured."""
        if place in self.broken or self.marks.get(place) == "skip":
            return False
        costs = self.question.build_cost
        within = 0 < place < self.question.last
        return place in self.built or not (within and costs and math.isinf(costs[place]))

    def is_marked(self, place: int) -> bool:
        """Whether a person marked it good or bad."""
        return self.marks.get(place) in ("good", "bad")

    def by_place(self, raw: bool = False) -> dict[int, list[float]]:
        """The values of each measured place, in rising order of places.

        The host's drift, common to all builds, is removed from numbers, unless `raw`.
        """
        values = self.values
        if not self.question.answers and not raw:
            values = _without_host(self.places, self.times, self.values)
        by_place: dict[int, list[float]] = {}
        for place, value in zip(self.places, values, strict=True):
            if self.measurable(place):
                by_place.setdefault(place, []).append(value)
        return dict(sorted(by_place.items()))

    def are_same(self, place: int, other: int) -> bool:
        """Whether two builds have the same code and libraries."""
        return self.same.get(place, place) == self.same.get(other, other)

    def count(self, place: int) -> int:
        return self.places.count(place)


# Each state is looked at several times: to decide what is next, to show it, and when it is replayed.
@functools.lru_cache(maxsize=32)
def _without_host(
    places: tuple[int, ...], times: tuple[float, ...], values: tuple[float, ...]
) -> tuple[float, ...]:
    return tuple(float(v) for v in without_host(places, times, values))


@functools.lru_cache(maxsize=32)
def _weighed(values: tuple[tuple[float, ...], ...], known: KnownNoise | None, resolution: float) -> Evidence:
    evidence = weigh(values, known=known, resolution=resolution)
    evidence.cut.flags.writeable = False
    return evidence


def start(question: Question) -> SearchState:
    return SearchState(question, pending=(SearchRange(0, question.last),))


def with_observation(state: SearchState, observation: Observation) -> SearchState:
    """The state with another observation.

    Raises ValueError for an observation that does not fit the question, and for contradicting marks.
    """
    if isinstance(observation, Resumed):
        return dataclasses.replace(state, clock=state.clock + LONG_PAUSE)
    if isinstance(observation, Refuted):
        return _refuted(state, observation)
    question, place = state.question, observation.place
    if not 0 <= place <= question.last:
        raise ValueError(f"{observation}: the places are 0..{question.last}")
    if isinstance(observation, Built):
        broken = {k: why for k, why in state.broken.items() if k != place}
        return dataclasses.replace(
            state, built=state.built | {place}, broken=broken, clock=state.clock + PAUSE
        )
    if isinstance(observation, Broken):
        return dataclasses.replace(
            state,
            built=state.built - {place},
            broken={**state.broken, place: observation.why},
            same=_without(state.same, place),
            clock=state.clock + PAUSE,
        )
    if isinstance(observation, Same):
        return dataclasses.replace(state, same={**state.same, place: observation.twin})
    if isinstance(observation, Marked):
        # A mark overrules what was concluded: all ranges are searched again.
        marks = {**state.marks, place: observation.side}
        goods = (x for x, side in marks.items() if side == "good")
        bads = (x for x, side in marks.items() if side == "bad")
        if max(goods, default=0) >= min(bads, default=question.last):
            raise ValueError(
                "the marks contradict each other: a place marked bad lies before one marked good"
            )
        return dataclasses.replace(
            state,
            marks=marks,
            same=_without(state.same, place) if observation.side == "skip" else state.same,
            pending=(SearchRange(0, question.last),),
            outcomes=(),
            second_thoughts=0,
        )
    if isinstance(observation, Answered) != question.answers:
        raise ValueError(
            f"{observation}: this bisection is about {'answers' if question.answers else 'numbers'}"
        )
    value = float(observation.fails) if isinstance(observation, Answered) else observation.value
    if not math.isfinite(value):
        raise ValueError(f"{observation}: a finite value is wanted")
    return dataclasses.replace(
        state,
        built=state.built | {place},
        places=(*state.places, place),
        times=(*state.times, state.clock),
        values=(*state.values, value),
        clock=state.clock + 1,
    )


def _without(same: Mapping[int, int], place: int) -> dict[int, int]:
    """The builds that are the same as another one, without those that a skipped place stands for."""
    return {build: twin for build, twin in same.items() if place not in (build, twin)}


def _refuted(state: SearchState, observation: Refuted) -> SearchState:
    """The state after a culprit was refuted: its fresh builds replace the earlier ones.

    The whole range is searched again. The ends keep their measurements, which show the host's drift.
    """
    inner = {value.place for value in observation.values} - {0, state.question.last}
    kept = [
        measurement
        for measurement in zip(state.places, state.times, state.values, strict=True)
        if measurement[0] not in inner
    ]
    state = dataclasses.replace(
        state,
        places=tuple(place for place, _, _ in kept),
        times=tuple(time for _, time, _ in kept),
        values=tuple(value for _, _, value in kept),
        pending=(SearchRange(0, state.question.last, reproduced=True),),
        outcomes=(),
        second_thoughts=0,
    )
    for value in observation.values:
        state = with_observation(state, value)
    return state


@dataclass(frozen=True)
class Belief:
    """The posterior. places (n,): that the culprit is at 1..n. none: that nothing changed. Sum 1."""

    places: Array
    none: float

    @property
    def bad(self) -> Array:
        """(n + 1,): probability, given a change, that the build at 0..n is bad."""
        sums = np.concatenate([[0.0], np.cumsum(self.places)])
        result: Array = sums / max(sums[-1], 1e-300)
        return result


@dataclass(frozen=True)
class Culprits:
    """The places first..last, one of which brought the change.

    probability: that it is one of them, given a change. splittable: builds within could still be measured.
    """

    first: int
    last: int
    probability: float
    splittable: bool


def belief(
    log_prior: Array, tested: Sequence[int], log_cut: Array, log_none: float, none_prior: float
) -> Belief:
    """Apply Bayes' rule: log prior of the culprit's place (n,) and evidence of the builds.

    tested (M,): rising places, the first 0 and the last n; log_cut (M - 1,) and log_none of them.
    none_prior: probability, before anything was measured, that there is no change.
    """
    n = len(log_prior)
    segment = np.searchsorted(np.asarray(tested), np.arange(1, n + 1)) - 1
    logs = log_prior - log_sum(log_prior) + np.log1p(-none_prior) + np.asarray(log_cut)[segment]
    none = log_none + np.log(none_prior) if none_prior > 0 else -np.inf
    total = np.logaddexp(log_sum(logs), none)
    return Belief(np.exp(logs - total), float(np.exp(none - total)))


def culprits(now: Belief, measurable: NDArray[np.bool_], confidence: float) -> Culprits:
    """The shortest run of places that holds the culprit with this confidence, given a change.

    measurable (n + 1,): False where a build failed. Places that only failed builds would separate stay
    together. Of equally short runs the likelier is taken.
    """
    n = len(now.places)
    # A set ends at each place whose build can be measured: it separates what is before from what is after.
    ends = np.flatnonzero(measurable[1:] | (np.arange(1, n + 1) == n)) + 1
    sums = np.concatenate([[0.0], np.cumsum(now.places)])
    sums = sums / max(sums[-1], 1e-300)
    starts = np.concatenate([[0], ends[:-1]])
    # For each start the first end that gathers enough.
    starts = starts[sums[starts] + confidence <= 1 + 1e-9]
    at = np.minimum(np.searchsorted(sums[ends], sums[starts] + confidence - 1e-9), len(ends) - 1)
    atoms = at - np.searchsorted(ends, starts, side="right")
    probability = sums[ends[at]] - sums[starts]
    best = np.lexsort((-probability, ends[at] - starts, atoms > 0))[0]
    first, last = int(starts[best]) + 1, int(ends[at[best]])
    return Culprits(first, last, float(min(probability[best], 1.0)), bool(atoms[best] > 0))


@dataclass(frozen=True)
class RangeView:
    """The evidence on a range of n + 1 places, numbered from its low end.

    tested: the measured places; values: of each. measurable (n + 1,): may be built and measured. numbers or
    answers: the evidence, one of them None. resolution: a smaller spread counts as none.
    """

    belief: Belief
    tested: list[int]
    values: list[list[float]]
    measurable: NDArray[np.bool_]
    numbers: Evidence | None
    answers: AnswerEvidence | None
    resolution: float

    @property
    def exact(self) -> bool:
        """Whether the values have no noise: every repeat gave the same value."""
        repeated = [values for values in self.values if len(values) > 1]
        return self.numbers is not None and bool(repeated) and all(max(v) == min(v) for v in repeated)

    def strength(self, count: float | Array) -> Array:
        """Standard deviations by which `count` measurements separate a good build from a bad one."""
        m = np.asarray(count, dtype=float)
        if self.answers is not None:
            apart = special.ndtri(self.answers.fails_bad) - special.ndtri(self.answers.fails_good)
            return np.asarray(max(float(apart), 0.1) * np.sqrt(m))
        assert self.numbers is not None
        noise = self.numbers.sd**2 / np.maximum(m * INFORMATION, 1e-9)
        return np.asarray(abs(self.numbers.step) / np.sqrt(self.numbers.bias**2 + noise))


def look(state: SearchState, within: SearchRange, none_prior: float) -> RangeView:
    """Weigh the evidence on a range whose two ends were measured."""
    question, n = state.question, within.high - within.low
    by_place = {p: v for p, v in state.by_place().items() if within.low <= p <= within.high}
    if within.whole == 0:  # a mark replaces the measurements of a build
        ends = (within.low, within.high)
        by_place = {p: v for p, v in by_place.items() if p in ends or not state.is_marked(p)}
    tested = [place - within.low for place in by_place]
    values = list(by_place.values())
    numbers = answers = None
    resolution = question.resolution
    evidence: Evidence | AnswerEvidence
    if question.answers:
        evidence = answers = weigh_answers(
            [[value > 0.5 for value in build_values] for build_values in values]
        )
    else:
        resolution = max(resolution, lumped(list(state.by_place(raw=True).values())))
        evidence = numbers = _weighed(tuple(map(tuple, values)), question.known, resolution)
    now = belief(_log_prior(state, within), tested, evidence.cut, evidence.none, none_prior)
    inside = range(within.low, within.high + 1)
    measurable = np.array([state.measurable(place) or state.is_marked(place) for place in inside])
    assert len(measurable) == n + 1
    return RangeView(now, tested, values, measurable, numbers, answers, resolution)


def _log_prior(state: SearchState, within: SearchRange) -> Array:
    """(n,): log prior of the culprit's place in the range; a mark outweighs any weight."""
    question = state.question
    weights = np.array(question.prior or [1.0] * question.last, dtype=float)[within.low : within.high]
    possible = np.ones(len(weights), dtype=bool)
    places = np.arange(within.low + 1, within.high + 1)
    if within.whole == 0:  # marks say good or bad as the two ends of the whole range do
        for place, side in state.marks.items():
            if side != "skip":
                possible &= (places > place) == (side == "good")
    between = np.zeros(len(weights), dtype=bool)
    for place, twin in state.same.items():
        between |= (places > min(place, twin)) & (places <= max(place, twin))
    if (possible & ~between).any():
        possible &= ~between
    weights = np.where(possible, weights, 0.0)
    if not weights.sum() > 0:
        weights = possible.astype(float)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(weights))
