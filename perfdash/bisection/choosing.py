"""Which build to make, or to measure once more: what tells most for its cost, and how often an end between.

One rule for both: a repeat costs a measurement, a new build that and the building.
"""

from __future__ import annotations

import math

import numpy as np

from perfdash.bisection.question import Build, Measure
from perfdash.bisection.search import information, next_builds, unbroken
from perfdash.bisection.state import Range, State
from perfdash.bisection.view import View
from perfdash.stats.intervals import Array

LEAST_WITHIN = 2  # measurements of a build between the ends
BESIDE = 2  # of builds between, before an end is measured once more
SURE = 4.0  # deviations that tell two sides apart for good
WORTH = 1e-3  # nats; a measurement that tells less is not made
WORTH_BUILDING = 0.02  # and a build
MOST_BUILDS, MOST_BUILDS_MORE = 3, 8  # so many times log2 of the range, and so many more, at most
MOST_VALUES, MOST_VALUES_MORE = 24, 60  # and measurements of the builds between
BUILD_COST = 10.0  # in measurements, where the caller names none


def least_repeats(view: View) -> int:
    """Measurements that a build's side is believed on at the earliest."""
    return 1 if view.exact else LEAST_WITHIN


def first_builds(state: State, within: Range) -> tuple[int, ...]:
    """The two ends, and with more builders than two the places that are asked for first."""
    width, spare = within.high - within.low, max(state.question.jobs - 2, 0)
    inner = sorted({within.low + round(width * k / (spare + 1)) for k in range(1, spare + 1)})
    costs = _build_costs(state, within)
    wanted = [p for p in inner if within.low < p < within.high and math.isfinite(costs[p - within.low])]
    return tuple(p for p in (within.low, within.high, *wanted) if p not in state.built)


def most_telling(state: State, within: Range, view: View) -> Build | Measure | None:
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


def _best_repeat(state: State, within: Range, view: View, price: float) -> tuple[int | None, float]:
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


def end_beside(state: State, within: Range, after_so_many: int) -> Measure | None:
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


def _repeats(view: View) -> int:
    """About how many measurements a new build takes until its side is known."""
    least = least_repeats(view)
    return next((count for count in range(least, 8) if float(view.strength(count)) >= SURE), 8)


def _build_costs(state: State, within: Range) -> Array:
    """(n + 1,): of building each place of the range; infinite where it was tried or must not be."""
    question = state.question
    usual = [BUILD_COST * question.measure_cost] * (question.last + 1)
    costs = np.array(question.build_cost or usual, dtype=float)
    costs[[*state.built, *state.broken, *(p for p, side in state.marks.items() if side == "skip")]] = math.inf
    return costs[within.low : within.high + 1]
