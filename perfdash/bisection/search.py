"""Search one range: the same observations always lead to the same action.

The ends of the range are compared first. If they differ, the culprit between them is searched, then what is
left and right of it, until the whole difference is explained. Pure.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from perfdash.bisection.events import (
    Action,
    Answered,
    Build,
    Done,
    Marked,
    Measure,
    Measured,
    MeasuredBuild,
    Observation,
    Question,
    RangeOutcome,
    Verdict,
)
from perfdash.bisection.posterior import (
    Belief,
    Culprits,
    RangeView,
    SearchRange,
    SearchState,
    culprits,
    look,
    seen,
    start,
)
from perfdash.stats.intervals import Array
from perfdash.stats.step_likelihood import INFORMATION, Evidence, robust_level, weigh

Places = NDArray[np.int64]

BROKEN = 0.1  # chance that an untried build fails, before anything is known
BROKEN_NEAR = 0.6  # right beside one that failed
BROKEN_REACH = 4.0  # and by so many places farther off it is a third of that


def unbroken(tried: Sequence[int], failed: Sequence[int], n: int) -> Array:
    """(n + 1,): chance that the build of each place succeeds: failures come in runs.

    tried: places that were built, failed: those that could not. The usual rate is learnt (Beta prior).
    """
    usual = (len(failed) + 20 * BROKEN) / (len(tried) + len(failed) + 20)
    places = np.arange(n + 1)
    chance = np.full(n + 1, usual)
    order = np.array(sorted(failed))
    if len(order):
        good = np.concatenate([[-np.inf], np.sort(np.asarray(tried, dtype=float)), [np.inf]])
        left = np.searchsorted(order, places, side="right") - 1
        for side, index in ((-1, left), (1, left + 1)):
            exists = (index >= 0) & (index < len(order))
            nearest = order[np.clip(index, 0, len(order) - 1)]
            # A build in between that succeeded ends the run.
            same = np.searchsorted(good, places) == np.searchsorted(good, nearest)
            near = BROKEN_NEAR * np.exp(-np.abs(places - nearest) / BROKEN_REACH)
            chance = np.where(exists & same & (side != 0), np.maximum(chance, near), chance)
    return 1 - chance


def next_builds(
    now: Belief, cost: Array, chance: Array, strength: float, count: int
) -> tuple[list[int], float]:
    """Up to `count` places to build at once, that together tell most for their cost; and how much (nats).

    cost (n + 1,): of building and measuring a place, infinite where it can't be or was. chance (n + 1,):
    that the build succeeds. strength: deviations between the sides that a measured build will show. The
    first guess are quantiles of the belief; then each is moved to where it splits best what lies
    between its neighbours.
    """
    bad = now.bad
    possible = np.isfinite(cost) & (bad > 1e-9) & (bad < 1 - 1e-9)
    possible[[0, -1]] = False
    candidates = np.flatnonzero(possible)
    if not len(candidates):
        return [], 0.0
    count = min(count, len(candidates))
    chosen = sorted(
        {int(np.searchsorted(bad, k / (count + 1))) for k in range(1, count + 1)} | {0, len(bad) - 1}
    )
    chosen = _nearest(chosen[1:-1], candidates)
    told = 0.0
    for _ in range(1 if count == 1 else 3):
        for k in range(len(chosen)):
            low = chosen[k - 1] if k else 0
            high = chosen[k + 1] if k + 1 < len(chosen) else len(bad) - 1
            inside = candidates[(candidates > low) & (candidates < high)]
            if len(inside):
                mass = bad[high] - bad[low]
                gain = chance[inside] * information((bad[inside] - bad[low]) / max(mass, 1e-300), strength)
                chosen[k] = int(inside[np.argmax(gain / cost[inside])])
    edges = np.array([0, *chosen, len(bad) - 1])
    mass = np.diff(bad[edges])
    # One after the other: what each tells given those to its left.
    rest = 1 - bad[edges[:-2]]
    told = float(
        np.sum(chance[edges[1:-1]] * rest * information(mass[:-1] / np.maximum(rest, 1e-300), strength))
    )
    return chosen, told


def _nearest(wanted: Sequence[int], candidates: Places) -> list[int]:
    """Distinct candidates near the wanted places, rising."""
    found: set[int] = set()
    for place in wanted:
        free = np.array([c for c in _around(candidates, place, len(wanted)) if c not in found])
        if len(free):
            found.add(int(free[np.argmin(np.abs(free - place))]))
    return sorted(found)


def _around(candidates: Places, place: int, width: int) -> Places:
    at = int(np.searchsorted(candidates, place))
    return candidates[max(0, at - width) : at + width + 1]


def information(probability: Array, strength: float | Array) -> Array:
    """Nats that a Gaussian measurement tells of a side that is bad with this probability.

    strength: distance of the two sides in deviations of the measurement. Mutual information of a
    binary input and its noisy output, read from a table made by quadrature.
    """
    odds, strengths, table = _information_table()
    p = np.clip(np.asarray(probability, dtype=float), 1e-12, 1 - 1e-12)
    x = np.clip(np.abs(np.log(p / (1 - p))), odds[0], odds[-1]) / (odds[1] - odds[0])
    y = np.clip(strength, 0.0, strengths[-1]) / (strengths[1] - strengths[0])
    i = np.minimum(x.astype(int), len(odds) - 2)
    j = np.minimum(np.asarray(y).astype(int), len(strengths) - 2)
    u, v = x - i, y - j
    # In logs over the odds, where it falls exponentially.
    low = table[i, j] * (1 - v) + table[i, j + 1] * v
    high = table[i + 1, j] * (1 - v) + table[i + 1, j + 1] * v
    result: Array = np.exp(np.log(low + 1e-300) * (1 - u) + np.log(high + 1e-300) * u)
    return np.where(np.asarray(strength) > 0, result, 0.0)


@functools.cache
def _information_table() -> tuple[Array, Array, Array]:
    """Log odds (I,), strengths (J,) and the information (I, J)."""
    odds, strengths = np.linspace(0, 24, 97), np.linspace(0, 10, 101)
    y = np.linspace(-8, 18, 209)
    p = special.expit(odds)[:, None, None]
    good = np.exp(-0.5 * y**2)[None, None, :] / np.sqrt(2 * np.pi)
    bad = np.exp(-0.5 * (y[None, :] - strengths[:, None]) ** 2)[None] / np.sqrt(2 * np.pi)
    # p is the chance of the likelier side; q = 1 - p without cancellation.
    q = special.expit(-odds)[:, None, None]
    mixed = p * good + q * bad
    told = p * special.rel_entr(good, mixed) + q * special.rel_entr(bad, mixed)
    return odds, strengths, np.maximum(told.sum(axis=-1) * (y[1] - y[0]), 0.0)


LEAST_WITHIN = 2  # measurements of a build between the ends
BESIDE = 2  # of builds between, before an end is measured once more
SURE = 4.0  # deviations that tell two sides apart for good
WORTH = 1e-3  # nats; a measurement that tells less is not made
WORTH_BUILDING = 0.02  # and a build
MOST_BUILDS, MOST_BUILDS_MORE = 3, 8  # so many times log2 of the range, and so many more, at most
MOST_VALUES, MOST_VALUES_MORE = 24, 60  # and measurements of the builds between
BUILD_COST = 10.0  # in measurements, where the caller names none


def least_repeats(view: RangeView) -> int:
    """Measurements that a build's side is believed on at the earliest."""
    return 1 if view.exact else LEAST_WITHIN


def first_builds(state: SearchState, within: SearchRange) -> tuple[int, ...]:
    """The two ends, and with more builders than two the places that are asked for first."""
    width, spare = within.high - within.low, max(state.question.jobs - 2, 0)
    inner = sorted({within.low + round(width * k / (spare + 1)) for k in range(1, spare + 1)})
    costs = _build_costs(state, within)
    wanted = [p for p in inner if within.low < p < within.high and math.isfinite(costs[p - within.low])]
    return tuple(p for p in (within.low, within.high, *wanted) if p not in state.built)


def most_telling(state: SearchState, within: SearchRange, view: RangeView) -> Build | Measure | None:
    """The action that tells most for its cost; None where nothing tells anything."""
    rounds = math.log2(within.high - within.low)
    tried = sum(within.low < p < within.high for p in (*state.built, *state.broken))
    measured = sum(within.low < p < within.high for p in state.places)
    if tried >= MOST_BUILDS * rounds + MOST_BUILDS_MORE:
        return None
    if measured >= MOST_VALUES * rounds + MOST_VALUES_MORE:
        return None
    question = state.question
    price = question.measure_cost * (1.0 if view.exact or question.answers else 1 + 1 / BESIDE)
    place, rate = _best_repeat(state, within, view, price)
    repeats = _repeats(view)
    costs = _build_costs(state, within) + repeats * price
    inside = range(within.low, within.high + 1)
    built = [p - within.low for p in inside if p in state.built]
    chance = unbroken(built, [p - within.low for p in inside if p in state.broken], len(inside) - 1)
    places, told = next_builds(view.belief, costs, chance, float(view.strength(repeats)), question.jobs)
    if places and told > WORTH_BUILDING:
        # Built at once they take as long as the dearest, but are measured one after the other.
        cost = max(costs[p] for p in places) + (len(places) - 1) * repeats * price
        if told / cost > rate:
            return end_beside(state, within, 1) or Build(tuple(p + within.low for p in places))
    return Measure(place) if place is not None else None


def _best_repeat(
    state: SearchState, within: SearchRange, view: RangeView, price: float
) -> tuple[int | None, float]:
    """The build that is best measured again, and nats per cost."""
    bad, least, most = view.belief.bad, least_repeats(view), state.question.most_repeats
    inner = [p for p in sorted(state.built) if within.low < p < within.high]
    inner = [p for p in inner if view.measurable[p - within.low] and state.count(p) < most]
    begun = [p for p in inner if 0 < state.count(p) < least]
    if begun:  # one value may be an outlier, and says nothing of the noise
        return begun[0], math.inf
    best, best_rate = None, 0.0
    for place in inner:
        x, count = place - within.low, state.count(place)
        more = max(least - count, 1)
        gained = math.sqrt(max(float(view.strength(count + more) ** 2 - view.strength(count) ** 2), 0.0))
        told = float(information(bad[x : x + 1], gained)[0])
        if told > WORTH and told / (more * price) > best_rate:
            best, best_rate = place, told / (more * price)
    return best, best_rate


def end_beside(state: SearchState, within: SearchRange, after_so_many: int) -> Measure | None:
    """An end to be measured once more, after so many measurements of builds between.

    So that what the host does is seen, and the levels become known. Not of answers and exact values.
    """
    if state.question.answers:
        return None
    since = 0
    for place in reversed(state.places):
        if place in (within.low, within.high):
            break
        since += 1
    if since < after_so_many:
        return None
    by_place: dict[int, set[float]] = {}
    for place, value in zip(state.places, state.values, strict=True):
        by_place.setdefault(place, set()).add(value)
    if all(len(each) == 1 for each in by_place.values()):
        return None
    return Measure(min((within.low, within.high), key=state.count))


def _repeats(view: RangeView) -> int:
    """About how many measurements a new build takes until its side is known."""
    least = least_repeats(view)
    return next((count for count in range(least, 8) if float(view.strength(count)) >= SURE), 8)


def _build_costs(state: SearchState, within: SearchRange) -> Array:
    """(n + 1,): of building each place of the range; infinite where it was tried or must not be."""
    question = state.question
    usual = [BUILD_COST * question.measure_cost] * (question.last + 1)
    costs = np.array(question.build_cost or usual, dtype=float)
    costs[[*state.built, *state.broken, *(p for p, side in state.marks.items() if side == "skip")]] = math.inf
    return costs[within.low : within.high + 1]


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


def none_prior(within: SearchRange) -> float:
    return NONE_BESIDE if within.whole else NONE_PRIOR


def judge_ends(view: RangeView, question: Question, within: SearchRange, pairs: int) -> Judged:
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


def _ends_alone(view: RangeView, question: Question) -> Evidence:
    """How the two builds differ, by whatever cause: a step or just the bias of each."""
    ends = [view.values[0], view.values[-1]]
    known = question.known
    return weigh(ends, known=known, resolution=view.resolution, biases=(0.0,), bias_weights=(1.0,))


def _strength(alone: Evidence, count: int) -> float:
    return abs(alone.step) * math.sqrt(count * INFORMATION) / alone.sd


def _none(alone: Evidence, within: SearchRange) -> float:
    """Probability that two builds do not differ by anything."""
    prior = none_prior(within)
    return 1 / (1 + (1 - prior) / prior * math.exp(min(float(alone.cut[0]) - alone.none, 700.0)))


def _nothing(alone: Evidence, exact: bool, question: Question, within: SearchRange) -> bool:
    """Whether the ends differ by less than could be told apart, or than counts."""
    smallest = max(question.minimum_change, alone.sd, SECOND * within.whole)
    return (exact and alone.step == 0) or (-smallest < alone.low and alone.high < smallest)


AIM = 0.99  # probability at which no more is measured; if it can't be had the wanted confidence will do
NONE_LATER = 0.75  # when the builds between the ends differ as much as these: not reproduced
NONE_LEFT = 0.05  # doubt that there is a change at all, at the end
LEAST = {False: 4, True: 2}  # measurements of each end before it is judged, of numbers and of answers
EXPLAINED = 0.5  # of the largest step: the steps found may miss the ends' difference by so much
SECOND_THOUGHTS = 2  # so often all is searched anew, where they miss it


class RangeSearch:
    """A question and what was seen. `action` is what to do next; `observe` takes what came of it."""

    def __init__(self, question: Question, observations: Iterable[Observation] = ()) -> None:
        self.state, self.action = _decide(start(question))
        for observation in observations:
            self.observe(observation)

    def observe(self, observation: Observation) -> None:
        """Raises ValueError for an observation that does not belong to the question."""
        self.state, self.action = after(self.state, self.action, observation)


def after(state: SearchState, action: Action, observation: Observation) -> tuple[SearchState, Action]:
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


def _decide(state: SearchState) -> tuple[SearchState, Action]:
    while state.pending:
        found = _examine(state, state.pending[0])
        if isinstance(found, SearchRange):
            state = dataclasses.replace(state, pending=(found, *state.pending[1:]))
        elif isinstance(found, RangeOutcome):
            pending = (*state.pending[1:], *_beyond(found))
            state = dataclasses.replace(state, outcomes=(*state.outcomes, found), pending=pending)
            if state.second_thoughts < SECOND_THOUGHTS and not _explained(state):
                again = SearchRange(0, state.question.last, reproduced=True)
                state = dataclasses.replace(
                    state, outcomes=(), pending=(again,), second_thoughts=state.second_thoughts + 1
                )
        else:
            return state, found
    return state, Done(_apart(state), _builds(state))


def _examine(state: SearchState, within: SearchRange) -> Action | RangeOutcome | SearchRange:
    """The next action in a range, or what came out of it, or the range as reproduced."""
    ends = (within.low, within.high)
    if any(not state.measurable(end) or (within.whole > 0 and state.told(end)) for end in ends):
        return RangeOutcome("end not measured", *ends)
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


def _search(state: SearchState, within: SearchRange) -> Action | RangeOutcome:
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


def _beyond(found: RangeOutcome) -> list[SearchRange]:
    """The ranges left and right of a culprit."""
    if found.verdict != "found":
        return []
    sides = [(found.low, found.first - 1), (found.last, found.high)]
    whole = abs(found.step) if math.isfinite(found.step) else math.inf
    return [SearchRange(low, high, whole) for low, high in sides if high > low]


def _explained(state: SearchState) -> bool:
    """Whether several steps together make the ends' difference. If not, one was seen where none is."""
    steps = [each.step for each in state.outcomes if each.verdict == "found"]
    if len(steps) < 2 or state.question.answers:
        return True
    by_place, ends = state.by_place(), (0, state.question.last)
    if any(end not in by_place for end in ends):  # it has failed since
        return True
    low, high = (robust_level(np.array(by_place[end])) for end in ends)
    return abs(sum(steps) - (high - low)) <= EXPLAINED * max(abs(step) for step in steps)


def _apart(state: SearchState) -> tuple[RangeOutcome, ...]:
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
        seen_apart = look(state, SearchRange(low, high, abs(each.step)), NONE_PRIOR).numbers
        assert seen_apart is not None
        better[each.first] = dataclasses.replace(
            each, step=seen_apart.step, step_low=seen_apart.low, step_high=seen_apart.high
        )
    return tuple(better.get(each.first, each) if each.verdict == "found" else each for each in state.outcomes)


def _outcome(
    verdict: Verdict, view: RangeView, within: SearchRange, found: Culprits | None = None
) -> RangeOutcome:
    numbers, none = view.numbers, view.belief.none
    outcome = RangeOutcome(verdict, within.low, within.high, none=none)
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


def _builds(state: SearchState) -> tuple[MeasuredBuild, ...]:
    """Each measured build, for the report: chances as in the whole row."""
    whole = SearchRange(0, state.question.last)
    by_place = state.by_place()
    if not {0, whole.high} <= set(by_place):
        return ()
    bad = look(state, whole, NONE_PRIOR).belief.bad
    answers, builds = state.question.answers, []
    for place, values in by_place.items():
        level = math.nan if answers else robust_level(np.array(values))
        fails = sum(values) / len(values) if answers else math.nan
        builds.append(MeasuredBuild(place, len(values), level, fails, float(bad[place])))
    return tuple(builds)
