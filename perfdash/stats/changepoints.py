"""Change points over a whole series: when its level changed, by how much, how surely.

For history and dating: it sees the nights on both sides of a change. It knows nothing of models,
dates or files. Four steps: outliers are drawn in; the noise and its autocorrelation are estimated
from differences, which steps hardly touch; an exact segmentation proposes changes; each is tested,
dated by likelihood and checked against a drift. benchmarks/changepoints.py calibrates all of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ruptures import KernelCPD
from scipy import ndimage, special

from perfdash.stats.intervals import CONFIDENCE, Array

FEWEST = 6  # values, below which nothing is said
ALPHA = 0.001  # changes that one stationary series may show by chance, as the test sees it
PENALTY = 3.5  # times ln n, for proposals; the test has the last word
LOCAL = 4  # nights over which noise adds up where a young level or a date is in question
OUTLYING = 4.0  # deviations that a night may speak against a date with: it may be an outlier
REACH = 30  # nights on either side among which a change is dated
WINDOW = 7  # nights of the running median: what lasts under half of it is an outlier
CAP = 3.0  # standard deviations, beyond which a value counts as one at the cap
MOST_RHO = 0.9
STRETCH = 30  # nights on either side that tell the noise of a stretch
NOISIER = 1.5  # times the deviation of the whole, from which a stretch has its own
FINEST = 1e-12  # of the values: smaller deviations are rounding

Cuts = NDArray[np.intp]


@dataclass(frozen=True)
class ChangePoint:
    """One change of level. Indices count the values as given, missing ones included.

    index: the first value of the new level, most likely. low, high: the first value of the new
    level lies in low..high with about 95 %, so what caused it came after low - 1 and not after
    high. before, after: the levels on either side, in the unit of the values. change: after / before
    - 1 where `ratio`, else after - before. confidence: 1 - p of the test between the two sides.
    """

    index: int
    before: float
    after: float
    change: float
    confidence: float
    low: int
    high: int
    ratio: bool


def is_ratio(values: Sequence[float] | Array) -> bool:
    """Whether the series can be looked at in logs: every value that is there is above zero."""
    given = np.asarray(values, dtype=float)
    return bool(np.all(given[np.isfinite(given)] > 0))


def change_points(
    values: Sequence[float] | Array,
    *,
    ratio: bool = True,
    min_change: float = 0.0,
    persistence: int = 2,
) -> list[ChangePoint]:
    """The changes of level in a series in order of time, by index.

    values: shape (n,), any unit; what is not finite is missing. ratio: look at logs, so that changes
    are ratios; where a value is not above zero the series is looked at as it is. min_change: smaller
    changes are left out, as a fraction (of the larger side, where not in logs). persistence: values
    that a level must have lasted, at least 2, since one alone cannot be told from an outlier.
    """
    if persistence < 2:
        raise ValueError(f"persistence {persistence}: one value alone may be an outlier, so at least 2")
    prepared = _prepared(values, ratio)
    if prepared is None:
        return []
    series = _Series.of(prepared, min_change, persistence)
    cuts = series.significant(series.proposed())
    cuts = series.significant(series.dated(cuts))
    return [series.change(change) for change in series.without_drift(cuts)]


def noise(values: Sequence[float] | Array, *, ratio: bool = True) -> SeriesNoise:
    """The noise of a series as change_points estimates it; 0 for too few values."""
    prepared = _prepared(values, ratio)
    if prepared is None:
        return SeriesNoise(0.0, 0.0)
    estimate = estimated(*winsorized(prepared.y))
    return SeriesNoise(estimate.deviation * prepared.unit, estimate.rho)


@dataclass(frozen=True)
class _Prepared:
    """The values that are not missing, as logs or scaled to at most 1, and their indices."""

    y: Array
    at: Cuts
    ratio: bool
    unit: float


def _prepared(values: Sequence[float] | Array, ratio: bool) -> _Prepared | None:
    """The prepared values; None where no change can be found."""
    given = np.asarray(values, dtype=float)
    at = np.flatnonzero(np.isfinite(given))
    if len(at) < FEWEST:
        return None
    ratio = ratio and is_ratio(given)
    unit = 1.0 if ratio else float(np.max(np.abs(given[at]))) or 1.0
    y = np.log(given[at]) if ratio else given[at] / unit
    return None if np.all(y == y[0]) else _Prepared(y, at, ratio, unit)


def _confidence(z: Array, n: int) -> Array:
    """1 - p of the largest |z| of the tests at all dates of n values.

    Tail of the supremum of a standardized Brownian bridge (Csorgo and Horvath, Limit Theorems in
    Change-Point Analysis, 1.3.26; Vostrikova 1981), trimmed by two values at the ends. Student's t
    (the noise is estimated, from differences: 2 n / 3 degrees of freedom) is mapped to the normal.
    """
    tail = np.maximum(special.stdtr(2 * n / 3, -np.abs(z)), 1e-300)
    x = np.maximum(-special.ndtri(tail), 1.0)
    trim = 2 * math.log(max(n - 2, 3) / 2)
    p = x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (trim - trim / x**2 + 4 / x**2)
    return np.asarray(1 - np.minimum(p, 1.0))


@dataclass(frozen=True)
class _Found:
    """A change as the series sees it: positions among the values that are there."""

    cut: int
    before: float
    after: float
    z: float
    confidence: float
    first: int
    last: int


@dataclass(frozen=True)
class _Series:
    """The values that are there: as given, drawn in, cumulated, with their noise and the filters."""

    given: _Prepared
    y: Array
    sums: Array
    noise: SeriesNoise
    deviation: Array
    min_change: float
    persistence: int

    @classmethod
    def of(cls, given: _Prepared, min_change: float, persistence: int) -> _Series:
        y, floor = winsorized(given.y)
        sums = np.concatenate([[0.0], np.cumsum(y)])
        estimate = estimated(y, floor)
        deviation = local_deviation(y, estimate)
        return cls(given, y, sums, estimate, deviation, min_change, persistence)

    def proposed(self) -> Cuts:
        """The segmentation of least squared error plus a penalty a change (PELT, Killick 2012).

        The penalty is for noise as it adds up over LOCAL values, so that young levels are proposed.
        """
        penalty = PENALTY * math.log(len(self.y)) * float(self.noise.inflation(LOCAL))
        scaled = (self.y - np.median(self.y)) / self.noise.deviation
        ends = KernelCPD(kernel="linear", min_size=2).fit(scaled[:, None]).predict(pen=penalty)
        return np.array(ends[:-1], dtype=np.intp)

    def levels(self, cuts: Cuts) -> tuple[Array, Cuts]:
        """Mean and length of each segment."""
        bounds = np.concatenate([[0], cuts, [len(self.y)]]).astype(np.intp)
        lengths = np.diff(bounds)
        return np.diff(self.sums[bounds]) / lengths, lengths

    def z(self, cuts: Cuts, means: Array, lengths: Cuts) -> Array:
        """Difference of neighbouring means over its standard deviation in autocorrelated noise."""
        variances = self.noise.inflation(lengths) / lengths
        return np.asarray(np.diff(means) / self.deviation[cuts] / np.sqrt(variances[1:] + variances[:-1]))

    def large(self, before: float, after: float) -> bool:
        """Whether a difference of levels is not below min_change."""
        if self.given.ratio:
            return abs(after - before) >= math.log1p(self.min_change)
        return abs(after - before) >= self.min_change * max(abs(before), abs(after))

    def significant(self, cuts: Cuts) -> Cuts:
        """Takes out the weakest of the changes that chance explains, one at a time: segments join."""
        while len(cuts):
            means, lengths = self.levels(cuts)
            z = self.z(cuts, means, lengths)
            passes = _confidence(z, len(self.y)) >= 1 - ALPHA
            passes &= np.minimum(lengths[:-1], lengths[1:]) >= self.persistence
            if passes.all():
                break
            cuts = np.delete(cuts, int(np.argmin(np.where(passes, np.inf, np.abs(z)))))
        return cuts

    def posterior(self, cut: int, lowest: int, highest: int, before: float, after: float) -> Array:
        """Weights of the dates lowest..highest of a step between two levels, all alike beforehand.

        Squared errors of the raw values, capped (the biweight loss of Fearnhead and Rigaill 2019),
        over twice the variance as it adds up over LOCAL values: the log likelihood.
        """
        variance = float(self.deviation[cut]) ** 2 * float(self.noise.inflation(LOCAL))
        values, limit = self.given.y[lowest:highest], OUTLYING**2 * variance
        gain = np.minimum((values - after) ** 2, limit) - np.minimum((values - before) ** 2, limit)
        score = np.concatenate([[0.0], np.cumsum(gain)]) / (2 * variance)
        weights = np.exp(score - score.max())
        return np.asarray(weights / weights.sum())

    def dated(self, cuts: Cuts) -> Cuts:
        """Each cut moved to its most likely date between its neighbours, twice: levels move with it."""
        for _ in range(2):
            if not len(cuts):
                break
            means, _lengths = self.levels(cuts)
            bounds = [0, *cuts.tolist(), len(self.y)]
            moved = []
            for k, cut in enumerate(cuts.tolist()):
                lowest, highest = self.window(cut, bounds[k], bounds[k + 2])
                weights = self.posterior(cut, lowest, highest, float(means[k]), float(means[k + 1]))
                best = lowest + int(np.argmax(weights))
                # An outlier next to a change belongs to neither side: a tie, and no reason to move.
                moved.append(best if weights[best - lowest] > 1.01 * weights[cut - lowest] else cut)
            cuts = np.unique(np.array(moved, dtype=np.intp))
        return cuts

    def window(self, cut: int, previous: int, following: int) -> tuple[int, int]:
        """The dates among which a cut may lie."""
        lowest = max(previous + self.persistence, cut - REACH)
        return min(lowest, cut), max(cut, min(following - self.persistence, cut + REACH))

    def without_drift(self, cuts: Cuts) -> list[_Found]:
        """The changes that a slow drift does not explain.

        Where a straight line through both neighbouring segments fits better than the step between
        them, the step is taken for drift and goes. Others near it must hold against lines fitted to the
        nights on either side (a regression discontinuity; Thistlethwaite and Campbell 1960). Then small
        changes go, the weakest first: of a stair of small steps a larger one is left.
        """
        bounds = [0, *cuts.tolist(), len(self.y)]
        drifts = [self.is_drift(*bounds[k : k + 3]) for k in range(len(cuts))]
        kept = [cut for cut, drift in zip(bounds[1:], drifts, strict=False) if not drift]
        # One step of a drift may look real by luck, so two on either side are asked, or all of a long one.
        long = 3 * sum(drifts) >= len(drifts)
        sloped = {cut for k, cut in enumerate(bounds[1:-1]) if long or any(drifts[max(k - 2, 0) : k + 3])}
        tested = functools.cache(lambda first, cut, last: self.found(first, cut, last, sloped=cut in sloped))
        while kept:
            bounds = [0, *kept, len(self.y)]
            changes = [tested(*bounds[k : k + 3]) for k in range(len(kept))]
            fails = [f for f in changes if f.confidence < 1 - ALPHA or not self.large(f.before, f.after)]
            if not fails:
                return changes
            kept.remove(min(fails, key=lambda f: abs(f.z)).cut)
        return []

    def found(self, first: int, cut: int, last: int, *, sloped: bool) -> _Found:
        """The change at a cut, between the values first..cut and cut..last."""
        before, variance_before = self.edge(first, cut, sloped, at_end=True)
        after, variance_after = self.edge(cut, last, sloped, at_end=False)
        z = (after - before) / float(self.deviation[cut]) / math.sqrt(variance_before + variance_after)
        confidence = float(_confidence(np.array(z), len(self.y)))
        return _Found(cut, before, after, z, confidence, first, last)

    def is_drift(self, first: int, cut: int, last: int) -> bool:
        """Whether a line explains more of the values first..last than a step at cut."""
        values = self.y[first:last]
        n, left = last - first, cut - first
        time = np.arange(n) - (n - 1) / 2
        line = float(time @ values) ** 2 / float(time @ time)
        step = left * (n - left) / n * (float(np.mean(values[left:])) - float(np.mean(values[:left]))) ** 2
        return line > step

    def edge(self, first: int, last: int, sloped: bool, *, at_end: bool) -> tuple[float, float]:
        """The level of a segment next to a change, and its variance.

        The level is the segment's mean, or the end of a line through it.

        The variance is in units of that of the noise.
        """
        if sloped:
            first, last = (max(first, last - REACH), last) if at_end else (first, min(last, first + REACH))
        values, n = self.y[first:last], last - first
        level = float(np.mean(values))
        variance = float(self.noise.inflation(n)) / n
        if not sloped or n < 2:
            return level, variance
        time = np.arange(n) - (n - 1) / 2
        slope = float(time @ values) / float(time @ time)
        # Variance of a fitted line at its end: (4 n - 2) / (n (n + 1)), near four times the mean's.
        return level + slope * float(time[-1] if at_end else time[0]), variance * (4 * n - 2) / (n + 1)

    def change(self, tested: _Found) -> ChangePoint:
        """A change in the unit and by the indices of the values as given."""
        lowest, highest = self.window(tested.cut, tested.first, tested.last)
        weights = self.posterior(tested.cut, lowest, highest, tested.before, tested.after)
        order = np.argsort(-weights, kind="stable")
        held = int(np.searchsorted(np.cumsum(weights[order]), CONFIDENCE)) + 1
        low, high = lowest + int(order[:held].min()), lowest + int(order[:held].max())
        low, high = min(low, tested.cut), max(high, tested.cut)
        at, ratio, unit = self.given.at, self.given.ratio, self.given.unit
        before, after = (math.exp(v) if ratio else v * unit for v in (tested.before, tested.after))
        return ChangePoint(
            index=int(at[tested.cut]),
            before=before,
            after=after,
            change=after / before - 1 if ratio else after - before,
            confidence=tested.confidence,
            # A missing value just before the earliest date may have been of the new level already.
            low=int(at[low - 1]) + 1,
            high=int(at[high]),
            ratio=ratio,
        )


@dataclass(frozen=True)
class SeriesNoise:
    """Of a series about its levels: standard deviation (of logs where `ratio`), lag-1 autocorrelation."""

    deviation: float
    rho: float

    def inflation(self, count: NDArray[np.intp] | float) -> Array:
        """Variance of the mean of `count` neighbours over that of as many independent values.

        AR(1): (1 + rho) / (1 - rho) - 2 rho (1 - rho^m) / (m (1 - rho)^2), e.g. Box, Jenkins and
        Reinsel, Time Series Analysis, 2.1.
        """
        m, rho = np.asarray(count, dtype=float), self.rho
        return np.asarray((1 + rho) / (1 - rho) - 2 * rho * (1 - rho**m) / (m * (1 - rho) ** 2))


def winsorized(y: Array) -> tuple[Array, float]:
    """Outliers drawn in to CAP deviations from the running median; the finest noise believed.

    The median runs over mirrored ends, so two values at an end are a level, and one is not.
    """
    # Values in whole units vary by rounding at least: uniform over the smallest gap.
    floor = max(float(np.min(np.diff(np.unique(y)))) / math.sqrt(12), FINEST * float(np.max(np.abs(y))))
    median = ndimage.median_filter(y, min(WINDOW, len(y)), mode="reflect")
    away = y - median
    cap = CAP * max(_scale(away), floor)
    return median + np.clip(away, -cap, cap), floor


def _scale(away: Array, part: float = 0.9) -> float:
    """Standard deviation from the middle half, or from a larger part if that gives more.

    Up to a tenth of outliers leave no trace; a second mode or a noisy month is noise, not outliers.
    Both are consistent for the normal distribution.
    """
    part = max(part, 0.5)
    half, most = np.quantile(np.abs(away), [0.5, part])
    return max(1.4826 * float(half), float(most) / float(special.ndtri((1 + part) / 2)))


def estimated(y: Array, floor: float) -> SeriesNoise:
    """SeriesNoise from differences at lags 1 and 2, without those beyond CAP deviations: these are steps.

    Variances of differences of an AR(1) are 2 s^2 (1 - rho) and 2 s^2 (1 - rho^2): their ratio less
    one is rho. Difference-based variance: von Neumann 1941; Hall, Kay and Titterington 1990. Negative
    rho counts as none: it would sharpen the test.
    """
    squares = []
    for lag in (1, 2):
        away = np.abs(y[lag:] - y[:-lag])
        # Room for four steps, of which each shows in `lag` differences.
        cap = CAP * max(_scale(away, min(0.9, 1 - 4 * lag / len(y))), floor * math.sqrt(2))
        squares.append(float(np.mean(away[away <= cap] ** 2)))
    first, second = squares
    rho = min(max(second / first - 1, 0.0), MOST_RHO) if first > floor**2 else 0.0
    return SeriesNoise(max(math.sqrt(first / 2 / (1 - rho)), floor), rho)


def local_deviation(y: Array, noise: SeriesNoise) -> Array:
    """The deviation at each value: of the whole series, or of a stretch that is plainly noisier."""
    away = np.abs(np.diff(y, append=y[-1]))
    median = ndimage.median_filter(away, min(2 * STRETCH + 1, len(y)), mode="reflect")
    local = 1.4826 * median / math.sqrt(2 * (1 - noise.rho))
    return np.where(local > NOISIER * noise.deviation, local, noise.deviation)
