"""Pick the next build or repeat by expected information per cost; re-measure the ends now and then.

A repeat costs a measurement; a new build costs that and the building. Pure.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from perfdash.bisection.events import Build, Measure
from perfdash.bisection.posterior import Belief, Range, State, View
from perfdash.stats.intervals import Array

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
