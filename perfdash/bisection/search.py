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
    start,
    with_observation,
)
from perfdash.stats.intervals import Array
from perfdash.stats.step_likelihood import INFORMATION, Evidence, robust_level, weigh

Places = NDArray[np.int64]

BROKEN = 0.1  # probability that an untried build fails, before any was tried
BROKEN_NEAR = 0.6  # right beside a failed build
BROKEN_REACH = 4.0  # places over which that falls to a third


def unbroken(tried: Sequence[int], failed: Sequence[int], n: int) -> Array:
    """(n + 1,): probability that the build of each place succeeds. Failures come in runs.

    tried: places that were built; failed: places whose build failed. The usual rate is learnt (Beta prior).
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
            # A successful build in between ends the run.
            same = np.searchsorted(good, places) == np.searchsorted(good, nearest)
            near = BROKEN_NEAR * np.exp(-np.abs(places - nearest) / BROKEN_REACH)
            chance = np.where(exists & same & (side != 0), np.maximum(chance, near), chance)
    return 1 - chance


def next_builds(
    now: Belief, cost: Array, chance: Array, strength: float, count: int
) -> tuple[list[int], float]:
    """Up to `count` builds with the most information per cost, and its nats.

    cost (n + 1,): of building and measuring a place; infinite if it was built or cannot be. chance (n + 1,):
    that the build succeeds. strength: deviations between the sides that a measured build will show. The
    first guess is quantiles of the belief; then each place moves to the best split between its neighbours.
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
    # One after the other: the information of each, given those to its left.
    rest = 1 - bad[edges[:-2]]
    nats = float(
        np.sum(chance[edges[1:-1]] * rest * information(mass[:-1] / np.maximum(rest, 1e-300), strength))
    )
    return chosen, nats


def _nearest(wanted: Sequence[int], candidates: Places) -> list[int]:
    """Distinct candidates near the wanted places, in rising order."""
    chosen: set[int] = set()
    for place in wanted:
        at = int(np.searchsorted(candidates, place))
        around = candidates[max(0, at - len(wanted)) : at + len(wanted) + 1]
        free = np.array([candidate for candidate in around if candidate not in chosen])
        if len(free):
            chosen.add(int(free[np.argmin(np.abs(free - place))]))
    return sorted(chosen)


def information(probability: Array, strength: float | Array) -> Array:
    """Information in nats of a Gaussian measurement of a build. probability: that it is bad.

    strength: distance of the two sides in standard deviations of the measurement. It is the mutual
    information of a binary input and its noisy output, from a table made by quadrature.
    """
    odds, strengths, table = _information_table()
    p = np.clip(np.asarray(probability, dtype=float), 1e-12, 1 - 1e-12)
    x = np.clip(np.abs(np.log(p / (1 - p))), odds[0], odds[-1]) / (odds[1] - odds[0])
    y = np.clip(strength, 0.0, strengths[-1]) / (strengths[1] - strengths[0])
    i = np.minimum(x.astype(int), len(odds) - 2)
    j = np.minimum(np.asarray(y).astype(int), len(strengths) - 2)
    u, v = x - i, y - j
    # Interpolated in logs over the odds, where it falls exponentially.
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
    # p is the probability of the likelier side; q = 1 - p without cancellation.
    q = special.expit(-odds)[:, None, None]
    mixed = p * good + q * bad
    nats = p * special.rel_entr(good, mixed) + q * special.rel_entr(bad, mixed)
    return odds, strengths, np.maximum(nats.sum(axis=-1) * (y[1] - y[0]), 0.0)


LEAST_WITHIN = 2  # measurements of a build between the ends
BESIDE = 2  # measurements of builds between, before an end is measured again
SURE = 4.0  # standard deviations that separate two sides for good
WORTH = 1e-3  # nats; a measurement with less information is not made
WORTH_BUILDING = 0.02  # nats; the same of a build
MOST_BUILDS, MOST_BUILDS_MORE = 3, 8  # builds at most: 3 log2 of the range, and 8
MOST_VALUES, MOST_VALUES_MORE = 24, 60  # the same of measurements of the builds between
BUILD_COST = 10.0  # in measurements, if the caller gives no cost


def least_repeats(view: RangeView) -> int:
    """The least number of measurements before a build's side is believed."""
    return 1 if view.exact else LEAST_WITHIN


def first_builds(state: SearchState, within: SearchRange) -> tuple[int, ...]:
    """The two ends; with more than two builders also the first places between."""
    width, spare = within.high - within.low, max(state.question.jobs - 2, 0)
    inner = sorted({within.low + round(width * k / (spare + 1)) for k in range(1, spare + 1)})
    costs = _build_costs(state, within)
    wanted = [p for p in inner if within.low < p < within.high and math.isfinite(costs[p - within.low])]
    return tuple(p for p in (within.low, within.high, *wanted) if p not in state.built)


def most_telling(state: SearchState, within: SearchRange, view: RangeView) -> Build | Measure | None:
    """The action with the most information per cost; None if none has any."""
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
    places, nats = next_builds(view.belief, costs, chance, float(view.strength(repeats)), question.jobs)
    if places and nats > WORTH_BUILDING:
        # Side by side they take as long as the slowest build, but they are measured one after the other.
        cost = max(costs[p] for p in places) + (len(places) - 1) * repeats * price
        if nats / cost > rate:
            return end_beside(state, within, 1) or Build(tuple(p + within.low for p in places))
    return Measure(place) if place is not None else None


def _best_repeat(
    state: SearchState, within: SearchRange, view: RangeView, price: float
) -> tuple[int | None, float]:
    """The build that is best measured again, and its nats per cost."""
    bad, least, most = view.belief.bad, least_repeats(view), state.question.most_repeats
    inner = [p for p in sorted(state.built) if within.low < p < within.high and p not in state.same]
    inner = [p for p in inner if view.measurable[p - within.low] and state.count(p) < most]
    begun = [p for p in inner if 0 < state.count(p) < least]
    if begun:  # a single value may be an outlier, and does not show the noise
        return begun[0], math.inf
    best, best_rate = None, 0.0
    for place in inner:
        x, count = place - within.low, state.count(place)
        more = max(least - count, 1)
        gained = math.sqrt(max(float(view.strength(count + more) ** 2 - view.strength(count) ** 2), 0.0))
        nats = float(information(bad[x : x + 1], gained)[0])
        if nats > WORTH and nats / (more * price) > best_rate:
            best, best_rate = place, nats / (more * price)
    return best, best_rate


def end_beside(state: SearchState, within: SearchRange, after_so_many: int) -> Measure | None:
    """An end to be measured again, after so many measurements of builds between.

    It shows the drift of the host and the levels of the sides. Answers and exact values need none.
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
    if all(len(values) == 1 for values in by_place.values()):
        return None
    return Measure(min((within.low, within.high), key=state.count))


def _repeats(view: RangeView) -> int:
    """About how many measurements show the side of a new build."""
    least = least_repeats(view)
    return next((count for count in range(least, 8) if float(view.strength(count)) >= SURE), 8)


def _build_costs(state: SearchState, within: SearchRange) -> Array:
    """(n + 1,): the cost of building each place. Infinite if it was tried or is skipped."""
    question = state.question
    usual = [BUILD_COST * question.measure_cost] * (question.last + 1)
    costs = np.array(question.build_cost or usual, dtype=float)
    costs[[*state.built, *state.broken, *(p for p, side in state.marks.items() if side == "skip")]] = math.inf
    return costs[within.low : within.high + 1]


NONE_PRIOR = 0.5  # prior probability that the two ends do not differ
NONE_BESIDE = 0.9  # prior probability that no second change lies beside a culprit
REPRODUCED = 0.02  # probability of no change at or below which the range is searched
NOT_REPRODUCED = 0.98  # and at or above which it is not
REPRODUCED_LAST = 0.5  # the same, once more measurements of the two ends would not help
NOT_REPRODUCED_LAST = 0.6
BEYOND_NOISE = 2e-3  # probability that two builds do not differ at all, by a step or by their bias
TELLS = 4.5  # deviations that all allowed measurements of a build must show, or the range is not searched
SECOND = 0.2  # a second step below this share of the first is ignored,
SECOND_LEAST, SECOND_CLEAR = 0.05, 4.0  # unless it is above this, and so many deviations of a measurement

Judged = Literal["more", "reproduced", "not reproduced", "undecided"]


def none_prior(within: SearchRange) -> float:
    return NONE_BESIDE if within.whole else NONE_PRIOR


def judge_ends(view: RangeView, question: Question, within: SearchRange, pairs: int) -> Judged:
    """Judge whether the ends of a range differ, after `pairs` measurements of each or more.

    A change below the noise of one measurement, or below the least change that counts, is not reproduced
    either: the search would not find it.
    """
    none, last = view.belief.none, pairs >= question.most_pairs // (2 if within.whole else 1)
    alone = None if view.numbers is None else _ends_alone(view, question)
    least = max(question.minimum_change, _least_second(view, within))
    counts = alone is None or max(abs(alone.low), abs(alone.high)) >= least
    if none <= REPRODUCED and counts:
        return "reproduced"
    # Beside a large culprit less than a fifth of it counts, too: an outlier among two values of its build
    # makes the noise seem large, and hides that.
    enough = pairs >= LEAST[False] or view.exact or SECOND * within.whole <= SECOND_LEAST
    if none >= NOT_REPRODUCED or (alone is not None and enough and _nothing(alone, view.exact, least)):
        return "not reproduced"
    hidden = alone is not None and _strength(alone, question.most_repeats) < TELLS
    certain = alone is not None and _none(alone, within) <= BEYOND_NOISE
    if none <= REPRODUCED_LAST and counts and not hidden and (certain or last):
        return "reproduced"
    if not last:
        return "more"
    return "not reproduced" if none >= NOT_REPRODUCED_LAST or hidden or not counts else "undecided"


def _ends_alone(view: RangeView, question: Question) -> Evidence:
    """The difference of the two builds from any cause: a step or their bias."""
    ends = [view.values[0], view.values[-1]]
    known = question.known
    return weigh(ends, known=known, resolution=view.resolution, biases=(0.0,), bias_weights=(1.0,))


def _strength(alone: Evidence, count: int) -> float:
    return abs(alone.step) * math.sqrt(count * INFORMATION) / alone.sd


def _none(alone: Evidence, within: SearchRange) -> float:
    """The probability that two builds do not differ at all."""
    prior = none_prior(within)
    return 1 / (1 + (1 - prior) / prior * math.exp(min(float(alone.cut[0]) - alone.none, 700.0)))


def _least_second(view: RangeView, within: SearchRange) -> float:
    """The smallest change that is searched for beside a culprit.

    Noise with two modes, and builds that differ a little, look like a small change; beside a small culprit a
    share of it tells them apart. A large one would hide real changes by that.
    """
    if view.numbers is None:
        return 0.0
    return min(SECOND * within.whole, max(SECOND_LEAST, SECOND_CLEAR * view.numbers.sd))


def _nothing(alone: Evidence, exact: bool, least: float) -> bool:
    """Whether the ends differ by less than can be measured, or than counts."""
    smallest = max(alone.sd, least)
    return (exact and alone.step == 0) or (-smallest < alone.low and alone.high < smallest)


AIM = 0.99  # probability at which measuring stops; the wanted confidence is enough if it cannot be reached
NONE_LATER = 0.75  # probability of no change at which a search ends: not reproduced
NONE_LEFT = 0.05  # probability of no change that a culprit may leave
LEAST = {False: 4, True: 2}  # measurements of each end before it is judged: of numbers, of answers
EXPLAINED = 0.5  # of the largest step: the steps may miss the ends' difference by so much
SECOND_THOUGHTS = 2  # times that all is searched again because the steps miss it


class RangeSearch:
    """The search of one range. `action` is what to do next; `observe` takes the observation."""

    def __init__(self, question: Question, observations: Iterable[Observation] = ()) -> None:
        self.state, self.action = _decide(start(question))
        for observation in observations:
            self.observe(observation)

    def observe(self, observation: Observation) -> None:
        """Raises ValueError for an observation that does not fit the question."""
        self.state, self.action = after(self.state, self.action, observation)


def after(state: SearchState, action: Action, observation: Observation) -> tuple[SearchState, Action]:
    """The next state and action, after an observation."""
    state = with_observation(state, observation)
    if isinstance(action, Build) and not isinstance(observation, Marked):
        left = tuple(p for p in action.places if p not in state.built and p not in state.broken)
        if left:  # the other builds of this action are still running
            return state, Build(left)
    if isinstance(observation, Measured | Answered) and state.pending and state.pending[0].reproduced:
        beside = end_beside(state, state.pending[0], BESIDE)
        if beside is not None:
            return state, beside
    return _decide(state)


def _decide(state: SearchState) -> tuple[SearchState, Action]:
    while state.pending:
        result = _examine(state, state.pending[0])
        if isinstance(result, SearchRange):
            state = dataclasses.replace(state, pending=(result, *state.pending[1:]))
        elif isinstance(result, RangeOutcome):
            pending = (*state.pending[1:], *_beyond(result))
            state = dataclasses.replace(state, outcomes=(*state.outcomes, result), pending=pending)
            if state.second_thoughts < SECOND_THOUGHTS and not _explained(state):
                again = SearchRange(0, state.question.last, reproduced=True)
                state = dataclasses.replace(
                    state, outcomes=(), pending=(again,), second_thoughts=state.second_thoughts + 1
                )
        else:
            return state, result
    return state, Done(_apart(state), _builds(state))


def _examine(state: SearchState, within: SearchRange) -> Action | RangeOutcome | SearchRange:
    """The next action in a range, or its outcome, or the range as reproduced."""
    ends = (within.low, within.high)
    if any(not state.measurable(end) or (within.whole > 0 and state.is_marked(end)) for end in ends):
        return RangeOutcome("end not measured", *ends)
    if any(end not in state.built for end in ends):
        return Build(first_builds(state, within))
    if within.whole > 0 and state.are_same(*ends):
        return RangeOutcome("not reproduced", *ends)
    if within.reproduced:
        return _search(state, within)
    # Good, bad, bad, good: so that drift of the host affects both alike.
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
    suspects = culprits(view.belief, view.measurable, max(AIM, question.confidence))
    if suspects.splittable:
        action = most_telling(state, within, view)
        if action is not None:
            return action
        suspects = culprits(view.belief, view.measurable, question.confidence)
        if suspects.splittable:
            return _outcome("cannot tell", view, within, suspects)
    # Both builds at its edges must be measured more than once, whatever is believed; marked ones need not. A
    # build that is the same as another one is represented by that one.
    edges = [
        state.same.get(x, x)
        for x in (within.low + suspects.first - 1, within.low + suspects.last)
        if not state.is_marked(x)
    ]
    unmeasured = [edge for edge in edges if state.count(edge) < LEAST_WITHIN]
    if unmeasured:
        return Measure(unmeasured[0]) if unmeasured[0] in state.built else Build((unmeasured[0],))
    if none <= NONE_LEFT:
        return _outcome("found", view, within, suspects)
    # The two builds may differ by chance: measure them again.
    edge = min(edges, key=state.count, default=None)
    if edge is not None and state.count(edge) < question.most_repeats:
        return Measure(edge)
    return _outcome("not reproduced" if none > 0.5 else "cannot tell", view, within, suspects)


def _beyond(outcome: RangeOutcome) -> list[SearchRange]:
    """The ranges on both sides of a culprit."""
    if outcome.verdict != "found":
        return []
    sides = [(outcome.low, outcome.first - 1), (outcome.last, outcome.high)]
    whole = abs(outcome.step) if math.isfinite(outcome.step) else math.inf
    return [SearchRange(low, high, whole) for low, high in sides if high > low]


def _explained(state: SearchState) -> bool:
    """Whether several steps add up to the ends' difference. If not, one of them is false."""
    steps = [outcome.step for outcome in state.outcomes if outcome.verdict == "found"]
    if len(steps) < 2 or state.question.answers:
        return True
    by_place, ends = state.by_place(), (0, state.question.last)
    if any(end not in by_place for end in ends):  # it failed since then
        return True
    low, high = (robust_level(np.array(by_place[end])) for end in ends)
    return abs(sum(steps) - (high - low)) <= EXPLAINED * max(abs(step) for step in steps)


def _apart(state: SearchState) -> tuple[RangeOutcome, ...]:
    """The outcomes, each of several steps bounded by its neighbours and estimated between them.

    A step whose place cannot be told bounds its neighbours, too.
    """
    steps = sorted(
        (
            outcome
            for outcome in state.outcomes
            if outcome.first and outcome.verdict in ("found", "cannot tell")
        ),
        key=lambda outcome: outcome.first,
    )
    if len(steps) < 2 or state.question.answers:
        return state.outcomes
    better, by_place = {}, state.by_place()
    for k, outcome in enumerate(steps):
        if outcome.verdict != "found":
            continue
        left = steps[k - 1].last if k else 0
        right = steps[k + 1].first - 1 if k + 1 < len(steps) else state.question.last
        # An edge may have failed since then, and not all places around a set are measured.
        before = [place for place in by_place if left <= place < outcome.first]
        after = [place for place in by_place if outcome.last <= place <= right]
        if not before or not after:
            continue
        low, high = min(before), max(after)
        apart = look(state, SearchRange(low, high, abs(outcome.step)), NONE_PRIOR).numbers
        assert apart is not None
        better[outcome.first] = dataclasses.replace(
            outcome, low=low, high=high, step=apart.step, step_low=apart.low, step_high=apart.high
        )
    return tuple(
        better.get(outcome.first, outcome) if outcome.verdict == "found" else outcome
        for outcome in state.outcomes
    )


def _outcome(
    verdict: Verdict, view: RangeView, within: SearchRange, suspects: Culprits | None = None
) -> RangeOutcome:
    numbers, none = view.numbers, view.belief.none
    outcome = RangeOutcome(verdict, within.low, within.high, none=none)
    if suspects is not None:
        outcome = dataclasses.replace(
            outcome,
            first=within.low + suspects.first,
            last=within.low + suspects.last,
            probability=suspects.probability * (1 - none),
            splittable=suspects.splittable,
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
    """The measured builds, for the report; probabilities as in the whole range."""
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
