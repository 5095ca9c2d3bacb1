"""Whether the two ends of a range differ: reproduced, not reproduced, or undecided after many looks.

Sequential: after each measurement, by the posterior probability that there is no change at all. What
is wrongly believed to be a change in a share p of all looks is bounded by p (Ville 1939).
"""

from __future__ import annotations

import math
from typing import Literal

from perfdash.bisection.evidence import INFORMATION, Evidence, weigh
from perfdash.bisection.question import Question
from perfdash.bisection.state import Range
from perfdash.bisection.view import View

NONE_PRIOR = 0.5  # that the two ends do not differ
NONE_BESIDE = 0.9  # that a second change lies beside one that was found
REPRODUCED = 0.02  # none at or below: searched
NOT_REPRODUCED = 0.98
REPRODUCED_LAST = 0.5  # where more measurements of two builds tell nothing, only other builds between
BEYOND_NOISE = 2e-3  # that two builds do not differ at all, by a step or by their bias
NOT_REPRODUCED_LAST = 0.6
TELLS = 4.5  # deviations that all measurements allowed of a build must tell, or no search is made
SECOND = 0.2  # a second step below this share of the first is not looked for

Judged = Literal["more", "reproduced", "not reproduced", "undecided"]


def none_prior(within: Range) -> float:
    return NONE_BESIDE if within.whole else NONE_PRIOR


def judge_ends(view: View, question: Question, within: Range, pairs: int) -> Judged:
    """What a view of the range says, its ends measured `pairs` times each or more.

    Not reproduced is also what is smaller than the noise of one measurement or than the least change
    that counts: the search would not find it.
    """
    none, last = view.belief.none, pairs >= question.most_pairs // (2 if within.whole else 1)
    alone = None if view.numbers is None else _ends_alone(view, question)
    counts = alone is None or max(abs(alone.low), abs(alone.high)) >= question.minimum_change
    if none <= REPRODUCED and counts:
        return "reproduced"
    if none >= NOT_REPRODUCED or (alone is not None and _nothing(alone, view.exact, question, within)):
        return "not reproduced"
    hidden = alone is not None and _strength(alone, question.most_repeats) < TELLS
    certain = alone is not None and _none(alone, within) <= BEYOND_NOISE
    if none <= REPRODUCED_LAST and counts and not hidden and (certain or last):
        return "reproduced"
    if not last:
        return "more"
    return "not reproduced" if none >= NOT_REPRODUCED_LAST or hidden or not counts else "undecided"


def _ends_alone(view: View, question: Question) -> Evidence:
    """How the two builds differ, by whatever cause: a step or just the bias of each."""
    ends = [view.values[0], view.values[-1]]
    known = question.known
    return weigh(ends, known=known, resolution=view.resolution, biases=(0.0,), bias_weights=(1.0,))


def _strength(alone: Evidence, count: int) -> float:
    return abs(alone.step) * math.sqrt(count * INFORMATION) / alone.sd


def _none(alone: Evidence, within: Range) -> float:
    """Probability that two builds do not differ by anything."""
    prior = none_prior(within)
    return 1 / (1 + (1 - prior) / prior * math.exp(min(float(alone.cut[0]) - alone.none, 700.0)))


def _nothing(alone: Evidence, exact: bool, question: Question, within: Range) -> bool:
    """Whether the ends differ by less than could be told apart, or than counts."""
    smallest = max(question.minimum_change, alone.sd, SECOND * within.whole)
    return (exact and alone.step == 0) or (-smallest < alone.low and alone.high < smallest)
