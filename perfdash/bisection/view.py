"""What a state says of one range: where the culprit may be, and what one more measurement would tell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from perfdash.bisection.answers import AnswerEvidence, weigh_answers
from perfdash.bisection.evidence import INFORMATION, Evidence, lumped, weigh
from perfdash.bisection.search import Belief, belief
from perfdash.bisection.state import Range, State
from perfdash.stats.intervals import Array


@dataclass(frozen=True)
class View:
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


def look(state: State, within: Range, none_prior: float) -> View:
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
    return View(now, tested, values, measurable, numbers, answers, resolution)


def _log_prior(state: State, within: Range) -> Array:
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
