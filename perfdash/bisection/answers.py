"""What yes-or-no answers (crashed, wrong output) say of the place of a change in a row of builds.

No statistics of values: an answer is right but for a small chance, and how often a bad build shows its
fault is learnt from the bad builds, for some fail only at times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from perfdash.stats.intervals import Array

GOOD = (0.3, 10.0)  # Beta prior of the share of answers "fails" of a good build: rarely
BAD = (4.0, 0.4)  # and of a bad one: nearly always, but one in two is thought possible


@dataclass(frozen=True)
class AnswerEvidence:
    """Of M builds in order: cut (M - 1,) and none as in Evidence.

    fails_good, fails_bad: shares of answers that show the fault, on either side.
    """

    cut: Array
    none: float
    fails_good: float
    fails_bad: float


def weigh_answers(answers: Sequence[Sequence[bool]]) -> AnswerEvidence:
    """The evidence of M >= 2 builds by their answers (True: fails), the shares of failures integrated over.

    A Beta-binomial on each side of the cut. Without a change all builds fail alike. Raises ValueError
    for a build without answers.
    """
    if len(answers) < 2 or any(len(each) == 0 for each in answers):
        raise ValueError("two builds or more are wanted, each with an answer")
    failed = np.array([sum(each) for each in answers], dtype=float)
    passed = np.array([len(each) for each in answers]) - failed
    failed_before, passed_before = np.cumsum(failed), np.cumsum(passed)
    failed_after = failed_before[-1] - failed_before[:-1]
    passed_after = passed_before[-1] - passed_before[:-1]
    cut = _marginal(failed_before[:-1], passed_before[:-1], GOOD) + _marginal(failed_after, passed_after, BAD)
    none = float(_marginal(failed_before[-1:], passed_before[-1:], (0.5, 0.5))[0])
    best = int(np.argmax(cut))
    return AnswerEvidence(
        cut,
        none,
        _mean(failed_before[best], passed_before[best], GOOD),
        _mean(failed_after[best], passed_after[best], BAD),
    )


def _marginal(failed: Array, passed: Array, prior: tuple[float, float]) -> Array:
    total: Array = special.betaln(prior[0] + failed, prior[1] + passed) - special.betaln(*prior)
    return total


def _mean(failed: float, passed: float, prior: tuple[float, float]) -> float:
    return float((prior[0] + failed) / (sum(prior) + failed + passed))
