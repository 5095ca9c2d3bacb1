"""Where the culprit may be, and which build to try or measure next: by information per cost.

Places are numbers: 0 is the good end, n the bad one, and the culprit is one of 1..n; a build of place x
is bad if the culprit is at x or before. What a place is, this file does not know.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from perfdash.bisection.evidence import log_sum
from perfdash.stats.intervals import Array

Places = NDArray[np.int64]

BROKEN = 0.1  # chance that an untried build fails, before anything is known
BROKEN_NEAR = 0.6  # right beside one that failed
BROKEN_REACH = 4.0  # and by so many places farther off it is a third of that


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
