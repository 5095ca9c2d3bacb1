"""Search one range: the same observations always lead to the same action.

The ends of the range are compared first. If they differ, the culprit between them is searched, then what is
left and right of it, until the whole difference is explained. Pure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

import numpy as np

from perfdash.bisection.events import (
    Action,
    Answered,
    Build,
    BuildSeen,
    Done,
    Marked,
    Measure,
    Measured,
    Observation,
    Outcome,
    Question,
    Verdict,
)
from perfdash.bisection.likelihood import INFORMATION, Evidence, robust_level, weigh
from perfdash.bisection.next_action import BESIDE, LEAST_WITHIN, end_beside, first_builds, most_telling
from perfdash.bisection.posterior import Culprits, Range, State, View, culprits, look, seen, start

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


AIM = 0.99  # probability at which no more is measured; if it can't be had the wanted confidence will do
NONE_LATER = 0.75  # when the builds between the ends differ as much as these: not reproduced
NONE_LEFT = 0.05  # doubt that there is a change at all, at the end
LEAST = {False: 4, True: 2}  # measurements of each end before it is judged, of numbers and of answers
EXPLAINED = 0.5  # of the largest step: the steps found may miss the ends' difference by so much
SECOND_THOUGHTS = 2  # so often all is searched anew, where they miss it


class Bisection:
    """A question and what was seen. `action` is what to do next; `observe` takes what came of it."""

    def __init__(self, question: Question, observations: Iterable[Observation] = ()) -> None:
        self.state, self.action = _decide(start(question))
        for observation in observations:
            self.observe(observation)

    def observe(self, observation: Observation) -> None:
        """Raises ValueError for an observation that does not belong to the question."""
        self.state, self.action = after(self.state, self.action, observation)


def after(state: State, action: Action, observation: Observation) -> tuple[State, Action]:
    """State and next action, given those before and what was observed since."""
    state = seen(state, observation)
    if isinstance(action, Build) and not isinstance(observation, Marked):
        left = tuple(p for p in action.places if p not in state.built and p not in state.broken)
        if left:  # of what is built at once the others are still on their way
            return state, Build(left)
    if isinstance(observation, Measured | Answered) and state.pending and state.pending[0].reproduced:
        beside = end_beside(state, state.pending[0], BESIDE)
        if beside is not None:
            return state, beside
    return _decide(state)


def _decide(state: State) -> tuple[State, Action]:
    while state.pending:
        found = _examine(state, state.pending[0])
        if isinstance(found, Range):
            state = dataclasses.replace(state, pending=(found, *state.pending[1:]))
        elif isinstance(found, Outcome):
            pending = (*state.pending[1:], *_beyond(found))
            state = dataclasses.replace(state, outcomes=(*state.outcomes, found), pending=pending)
            if state.second_thoughts < SECOND_THOUGHTS and not _explained(state):
                again = Range(0, state.question.last, reproduced=True)
                state = dataclasses.replace(
                    state, outcomes=(), pending=(again,), second_thoughts=state.second_thoughts + 1
                )
        else:
            return state, found
    return state, Done(_apart(state), _builds(state))


def _examine(state: State, within: Range) -> Action | Outcome | Range:
    """The next action in a range, or what came out of it, or the range as reproduced."""
    ends = (within.low, within.high)
    if any(not state.measurable(end) or (within.whole > 0 and state.told(end)) for end in ends):
        return Outcome("end not measured", *ends)
    if any(end not in state.built for end in ends):
        return Build(first_builds(state, within))
    if within.reproduced:
        return _search(state, within)
    # Good, bad, bad, good: so that a drift of the host hits both alike.
    last = state.places[-1] if state.places else None
    more = Measure(min(ends, key=lambda end: (state.count(end), end != last)))
    pairs = min(state.count(end) for end in ends)
    if pairs < (1 if within.whole else LEAST[state.question.answers]):
        return more
    view = look(state, within, none_prior(within))
    judged = judge_ends(view, state.question, within, pairs)
    if judged == "more":
        return more
    if judged == "reproduced":
        return dataclasses.replace(within, reproduced=True)
    return _outcome(judged, view, within)


def _search(state: State, within: Range) -> Action | Outcome:
    question = state.question
    view = look(state, within, none_prior(within))
    none = view.belief.none
    if none >= NONE_LATER:
        end = min((within.low, within.high), key=state.count)
        return (
            Measure(end)
            if state.count(end) < question.most_pairs
            else _outcome("not reproduced", view, within)
        )
    found = culprits(view.belief, view.measurable, max(AIM, question.confidence))
    if found.splittable:
        action = most_telling(state, within, view)
        if action is not None:
            return action
        found = culprits(view.belief, view.measurable, question.confidence)
        if found.splittable:
            return _outcome("cannot tell", view, within, found)
    # Both builds at its edges are to be seen more than once, whatever is believed.
    # One that a person has marked need not be seen at all.
    edges = [x for x in (within.low + found.first - 1, within.low + found.last) if not state.told(x)]
    unseen = [edge for edge in edges if state.count(edge) < LEAST_WITHIN]
    if unseen:
        return Measure(unseen[0]) if unseen[0] in state.built else Build((unseen[0],))
    if none <= NONE_LEFT:
        return _outcome("found", view, within, found)
    # Two builds that differ may do so by chance; more of the same may tell.
    edge = min(edges, key=state.count, default=None)
    if edge is not None and state.count(edge) < question.most_repeats:
        return Measure(edge)
    return _outcome("not reproduced" if none > 0.5 else "cannot tell", view, within, found)


def _beyond(found: Outcome) -> list[Range]:
    """The ranges left and right of a culprit."""
    if found.verdict != "found":
        return []
    sides = [(found.low, found.first - 1), (found.last, found.high)]
    whole = abs(found.step) if math.isfinite(found.step) else math.inf
    return [Range(low, high, whole) for low, high in sides if high > low]


def _explained(state: State) -> bool:
    """Whether several steps together make the ends' difference. If not, one was seen where none is."""
    steps = [each.step for each in state.outcomes if each.verdict == "found"]
    if len(steps) < 2 or state.question.answers:
        return True
    by_place, ends = state.by_place(), (0, state.question.last)
    if any(end not in by_place for end in ends):  # it has failed since
        return True
    low, high = (robust_level(np.array(by_place[end])) for end in ends)
    return abs(sum(steps) - (high - low)) <= EXPLAINED * max(abs(step) for step in steps)


def _apart(state: State) -> tuple[Outcome, ...]:
    """The outcomes; of several steps each as large as between its neighbours, no longer between the ends."""
    steps = sorted((each for each in state.outcomes if each.verdict == "found"), key=lambda each: each.first)
    if len(steps) < 2 or state.question.answers:
        return state.outcomes
    better, by_place = {}, state.by_place()
    for k, each in enumerate(steps):
        low = steps[k - 1].last if k else 0
        high = steps[k + 1].first - 1 if k + 1 < len(steps) else state.question.last
        if low not in by_place or high not in by_place:  # it has failed since
            continue
        seen_apart = look(state, Range(low, high, abs(each.step)), NONE_PRIOR).numbers
        assert seen_apart is not None
        better[each.first] = dataclasses.replace(
            each, step=seen_apart.step, step_low=seen_apart.low, step_high=seen_apart.high
        )
    return tuple(better.get(each.first, each) if each.verdict == "found" else each for each in state.outcomes)


def _outcome(verdict: Verdict, view: View, within: Range, found: Culprits | None = None) -> Outcome:
    numbers, none = view.numbers, view.belief.none
    outcome = Outcome(verdict, within.low, within.high, none=none)
    if found is not None:
        outcome = dataclasses.replace(
            outcome,
            first=within.low + found.first,
            last=within.low + found.last,
            probability=found.probability * (1 - none),
            splittable=found.splittable,
        )
    if numbers is None:
        return outcome
    return dataclasses.replace(
        outcome,
        step=numbers.step,
        step_low=numbers.low,
        step_high=numbers.high,
        sd=numbers.sd,
        bias=numbers.bias,
    )


def _builds(state: State) -> tuple[BuildSeen, ...]:
    """Each measured build, for the report: chances as in the whole row."""
    whole = Range(0, state.question.last)
    by_place = state.by_place()
    if not {0, whole.high} <= set(by_place):
        return ()
    bad = look(state, whole, NONE_PRIOR).belief.bad
    answers, builds = state.question.answers, []
    for place, values in by_place.items():
        level = math.nan if answers else robust_level(np.array(values))
        fails = sum(values) / len(values) if answers else math.nan
        builds.append(BuildSeen(place, len(values), level, fails, float(bad[place])))
    return tuple(builds)
