"""What the observations say of one range: where the culprit may be, with which probability.

Observations are added up in the order of the journal; nothing is decided here. Pure.
"""

from __future__ import annotations

import dataclasses
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
    Resumed,
    Side,
)
from perfdash.stats.intervals import Array
from perfdash.stats.step_likelihood import (
    INFORMATION,
    LONG_PAUSE,
    AnswerEvidence,
    Evidence,
    log_sum,
    lumped,
    weigh,
    weigh_answers,
    without_host,
)

PAUSE = 5.0  # a build takes the host as far as so many measurements


@dataclass(frozen=True)
class SearchRange:
    """The places low..high; `whole`: the step that was found beside it, 0 in the whole row.

    reproduced: its ends were seen to differ.
    """

    low: int
    high: int
    whole: float = 0.0
    reproduced: bool = False


@dataclass(frozen=True)
class SearchState:
    """built, broken (place: why), marks; the measurements in order as places, times and values.

    pending: ranges yet to be searched, the first now; outcomes: of those that were. second_thoughts:
    how often all outcomes were dropped, for they did not explain what the ends show.
    """

    question: Question
    built: frozenset[int] = frozenset()
    broken: Mapping[int, str] = field(default_factory=dict)
    marks: Mapping[int, Side] = field(default_factory=dict)
    places: tuple[int, ...] = ()
    times: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    clock: float = 0.0
    pending: tuple[SearchRange, ...] = ()
    outcomes: tuple[RangeOutcome, ...] = ()
    second_thoughts: int = 0

    def measurable(self, place: int) -> bool:
        """Whether it is, or may yet be, built and measured."""
        if place in self.broken or self.marks.get(place) == "skip":
            return False
        costs = self.question.build_cost
        within = 0 < place < self.question.last
        return place in self.built or not (within and costs and math.isinf(costs[place]))

    def told(self, place: int) -> bool:
        """Whether a person has said which side it is on."""
        return self.marks.get(place) in ("good", "bad")

    def by_place(self, raw: bool = False) -> dict[int, list[float]]:
        """Values of each measured place, rising; of numbers without what the host did to all alike.

        raw: as they were measured.
        """
        values = self.values
        if not self.question.answers and not raw:
            values = tuple(float(v) for v in without_host(self.places, self.times, self.values))
        found: dict[int, list[float]] = {}
        for place, value in zip(self.places, values, strict=True):
            if self.measurable(place):
                found.setdefault(place, []).append(value)
        return dict(sorted(found.items()))

    def count(self, place: int) -> int:
        return self.places.count(place)


def start(question: Question) -> SearchState:
    return SearchState(question, pending=(SearchRange(0, question.last),))


def seen(state: SearchState, observation: Observation) -> SearchState:
    """The state with one observation more.

    Raises ValueError for one that the question cannot hold, and for a mark that contradicts another.
    """
    if isinstance(observation, Resumed):
        return dataclasses.replace(state, clock=state.clock + LONG_PAUSE)
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
            clock=state.clock + PAUSE,
        )
    if isinstance(observation, Marked):
        # A person knows better than what was concluded: all is thought over.
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


@dataclass(frozen=True)
class Belief:
    """places (n,): probability that the culprit is at 1..n; none: that there is no change. Sum 1."""

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
    """Places first..last, of which one brought the change; `probability`, given a change, that it is so.

    splittable: builds within are left that could be measured.
    """

    first: int
    last: int
    probability: float
    splittable: bool


def belief(
    log_prior: Array, tested: Sequence[int], log_cut: Array, log_none: float, none_prior: float
) -> Belief:
    """Bayes: log prior of the culprit's place (n,), and the log likelihood of a step between tested builds.

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
    """The smallest run of places that holds the culprit with this confidence, given a change.

    measurable (n + 1,): False where a build failed. Culprits that only such builds would tell apart
    are one set. Of runs equally short the likelier.
    """
    n = len(now.places)
    # A set ends at each place whose build can be measured, for it tells what is before from what is after.
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
    """Of a range of n + 1 places, numbered from its low end: belief, measured places, their values.

    measurable (n + 1,): may be built and measured. numbers or answers: the evidence, one of them None.
    resolution: a spread below is none.
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
        """Values without noise: each build always gave the same."""
        several = [each for each in self.values if len(each) > 1]
        return self.numbers is not None and bool(several) and all(max(v) == min(v) for v in several)

    def strength(self, count: float | Array) -> Array:
        """Deviations by which `count` measurements tell a good build from a bad one."""
        m = np.asarray(count, dtype=float)
        if self.answers is not None:
            apart = special.ndtri(self.answers.fails_bad) - special.ndtri(self.answers.fails_good)
            return np.asarray(max(float(apart), 0.1) * np.sqrt(m))
        assert self.numbers is not None
        noise = self.numbers.sd**2 / np.maximum(m * INFORMATION, 1e-9)
        return np.asarray(abs(self.numbers.step) / np.sqrt(self.numbers.bias**2 + noise))


def look(state: SearchState, within: SearchRange, none_prior: float) -> RangeView:
    """The view of a range whose two ends were measured."""
    question, n = state.question, within.high - within.low
    by_place = {p: v for p, v in state.by_place().items() if within.low <= p <= within.high}
    if within.whole == 0:  # what a person has said of a build stands for what was measured of it
        ends = (within.low, within.high)
        by_place = {p: v for p, v in by_place.items() if p in ends or not state.told(p)}
    tested = [place - within.low for place in by_place]
    values = list(by_place.values())
    numbers = answers = None
    resolution = question.resolution
    evidence: Evidence | AnswerEvidence
    if question.answers:
        evidence = answers = weigh_answers([[value > 0.5 for value in each] for each in values])
    else:
        resolution = max(resolution, lumped(list(state.by_place(raw=True).values())))
        evidence = numbers = weigh(values, known=question.known, resolution=resolution)
    now = belief(_log_prior(state, within), tested, evidence.cut, evidence.none, none_prior)
    inside = range(within.low, within.high + 1)
    measurable = np.array([state.measurable(place) or state.told(place) for place in inside])
    assert len(measurable) == n + 1
    return RangeView(now, tested, values, measurable, numbers, answers, resolution)


def _log_prior(state: SearchState, within: SearchRange) -> Array:
    """(n,): of the culprit's place in the range, with a person's marks, which outweigh what was expected."""
    question = state.question
    weights = np.array(question.prior or [1.0] * question.last, dtype=float)[within.low : within.high]
    possible = np.ones(len(weights), dtype=bool)
    if within.whole == 0:  # what is marked is marked good or bad as the two ends of the whole row are
        places = np.arange(within.low + 1, within.high + 1)
        for place, side in state.marks.items():
            if side != "skip":
                possible &= (places > place) == (side == "good")
    weights = np.where(possible, weights, 0.0)
    if not weights.sum() > 0:
        weights = possible.astype(float)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(weights))
