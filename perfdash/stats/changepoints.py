"""Change points of a whole series: when its level changed, by how much, how certainly.

Used for history and dating, where the nights on both sides of a change are known. Four steps: winsorize
outliers; estimate the noise and its autocorrelation from differences, on which steps have little effect;
propose changes by an exact segmentation; test each, date it by likelihood, and check it against a drift.
benchmarks/changepoints.py calibrates all of it. Knows nothing of models, dates or files.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from ruptures import KernelCPD
from scipy import ndimage, special

from perfdash.stats.intervals import CONFIDENCE, Array
from perfdash.stats.noise_level import ar1_inflation

FEWEST = 6  # values in a series, below which no change is reported
ALPHA = 0.001  # false changes in one stationary series
PENALTY = 3.5  # times ln n, for proposals; the test decides
# For noise that looks Gaussian and independent, whose tails the test describes exactly.
CALM_ALPHA = 0.004
CALM_PENALTY = 2.9
CALM_RHO = 0.15  # largest autocorrelation of such noise
CALM_SHARE = 0.01  # largest share of its values that are winsorized: 0.3 % of Gaussian ones are
LOCAL = 4  # nights over which autocorrelated noise adds up, for young levels and for dates
OUTLYING = 4.0  # deviations at which a night's evidence about a date is capped: it may be an outlier
REACH = 30  # nights on either side among which a change is dated
WINDOW = 7  # nights of the running median: excursions of less than half of it are outliers
CAP = 3.0  # standard deviations at which a value is winsorized
MOST_RHO = 0.9
RHO_SPREAD = 0.1  # standard deviation of the autocorrelation between the series of a host
WEAK_WINDOW = 50  # values of a window in which weak changes are sought
WEAK_APART = 4  # values between two changes, below which they are one
STRETCH = 30  # nights on either side from which the local noise is estimated
NOISIER = 1.5  # times the deviation of the whole series, above which the local noise is used
CONSTANT_MOVES = 3  # moves of a series that is constant but for steps
FINEST = 1e-12  # relative to the values: smaller deviations are rounding errors

Cuts = NDArray[np.intp]


@dataclass(frozen=True)
class ChangePoint:
    """A change of level. Indices count the values as given, including missing ones.

    index: the most likely first value of the new level. low, high: it lies in low..high with about 95 %, so
    the cause lies after low - 1 and not after high. before, after: the levels on either side, in the unit of
    the values. change: after / before - 1 where `ratio`, otherwise after - before. confidence: 1 - p of the
    test between the two sides.
    """

    index: int
    before: float
    after: float
    change: float
    confidence: float
    low: int
    high: int
    ratio: bool
    weak: bool = False


def is_ratio(values: Sequence[float] | Array) -> bool:
    """Whether the series can be analysed in logs: all its finite values are positive."""
    given = np.asarray(values, dtype=float)
    return bool(np.all(given[np.isfinite(given)] > 0))


def change_points(
    values: Sequence[float] | Array,
    *,
    ratio: bool = True,
    min_change: float = 0.0,
    persistence: int = 2,
    rho: float | None = None,
) -> list[ChangePoint]:
    """The changes of level in a series, in order of time.

    values: shape (n,), any unit; values that are not finite are missing. ratio: analyse logs, so that changes
    are ratios, unless a value is not positive. min_change: smaller changes are left out, as a fraction (of
    the larger side, where not in logs). persistence: the least number of values of a level, at least 2,
    because one value cannot be distinguished from an outlier. rho: the usual autocorrelation of such series
    (`pooled_rho`), towards which the series' own estimate is drawn.
    """
    if persistence < 2:
        raise ValueError(f"persistence {persistence}: one value alone may be an outlier, so at least 2")
    prepared = _prepared(values, ratio)
    if prepared is None:
        return []
    series = _Series.prepare(prepared, min_change, persistence, rho)
    cuts = series.cuts()
    if series.calm and any(series.drifts(cuts)):  # of the flanks of a drift the test tells less exactly
        series = replace(series, calm=False)
        cuts = series.cuts()
    return [series.change(change) for change in series.without_drift(cuts)]


def weak_changes(
    values: Sequence[float] | Array, *, min_change: float = 0.0, persistence: int = 3
) -> list[ChangePoint]:
    """The changes that the same test finds in windows of the series and not in the whole, in order of time.

    Arguments as for `change_points`. In a window of WEAK_WINDOW values a slow wander of the rest neither
    hides a step nor counts as noise. There are many windows, so false changes are more frequent
    (benchmarks/changepoints.py): they are for the eye, never an alert.
    """
    given = np.asarray(values, dtype=float)
    at = np.flatnonzero(np.isfinite(given))
    ratio = is_ratio(given)  # of the whole series, so that all its changes have one scale
    strong = change_points(given, ratio=ratio, min_change=min_change, persistence=persistence)
    if len(at) <= WEAK_WINDOW:
        return []
    place = {int(index): number for number, index in enumerate(at)}
    taken = [place[change.index] for change in strong]
    candidates: list[ChangePoint] = []
    last = len(at) - WEAK_WINDOW
    for first in sorted({*range(0, last, WEAK_WINDOW // 2), last}):
        window = at[first : first + WEAK_WINDOW]
        start = int(window[0])
        part = given[start : int(window[-1]) + 1]
        for change in change_points(part, ratio=ratio, min_change=min_change, persistence=persistence):
            index = start + change.index
            moved = replace(change, index=index, low=start + change.low, high=start + change.high, weak=True)
            candidates.append(moved)
    weak: list[ChangePoint] = []
    for change in sorted(candidates, key=lambda change: -change.confidence):
        number = place[change.index]
        if all(abs(number - other) >= WEAK_APART for other in taken):
            taken.append(number)
            weak.append(change)
    return sorted(weak, key=lambda change: change.index)


def pooled_rho(rows: Iterable[Sequence[float] | Array]) -> float | None:
    """The median lag-1 autocorrelation of the series of a host; None for fewer than three series."""
    estimates = [estimate.rho for row in rows if (estimate := noise(row)).deviation > 0]
    return float(np.median(estimates)) if len(estimates) >= 3 else None


def noise(values: Sequence[float] | Array, *, ratio: bool = True) -> SeriesNoise:
    """The noise of a series as `change_points` estimates it; 0 for too few values."""
    prepared = _prepared(values, ratio)
    if prepared is None:
        return SeriesNoise(0.0, 0.0)
    estimate = estimated(*winsorized(prepared.y))
    return SeriesNoise(estimate.deviation * prepared.unit, estimate.rho)


@dataclass(frozen=True)
class _Prepared:
    """The finite values of a series, as logs or scaled, with their indices."""

    y: Array
    at: Cuts
    ratio: bool
    unit: float


def _prepared(values: Sequence[float] | Array, ratio: bool) -> _Prepared | None:
    """The prepared values; None for too few values or a constant series."""
    given = np.asarray(values, dtype=float)
    at = np.flatnonzero(np.isfinite(given))
    if len(at) < FEWEST:
        return None
    ratio = ratio and is_ratio(given)
    unit = 1.0 if ratio else float(np.max(np.abs(given[at]))) or 1.0
    y = np.log(given[at]) if ratio else given[at] / unit
    return None if np.all(y == y[0]) else _Prepared(y, at, ratio, unit)


def _confidence(z: Array, n: int) -> Array:
    """1 - p of the largest |z| of tests at all dates of n values.

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
class _TestedChange:
    """A change with its test; positions count the finite values."""

    cut: int
    before: float
    after: float
    z: float
    confidence: float
    first: int
    last: int


@dataclass(frozen=True)
class _Series:
    """The finite values of a series: as given, winsorized and cumulated, with their noise."""

    given: _Prepared
    y: Array
    sums: Array
    noise: SeriesNoise
    deviation: Array
    min_change: float
    persistence: int
    calm: bool

    @classmethod
    def prepare(
        cls, given: _Prepared, min_change: float, persistence: int, usual_rho: float | None
    ) -> _Series:
        y, floor = winsorized(given.y)
        sums = np.concatenate([[0.0], np.cumsum(y)])
        estimate = estimated(y, floor, usual_rho)
        deviation = local_deviation(y, estimate)
        calm = estimate.rho <= CALM_RHO and float(np.mean(y != given.y)) <= CALM_SHARE
        return cls(given, y, sums, estimate, deviation, min_change, persistence, calm)

    @property
    def alpha(self) -> float:
        """The largest p of a change."""
        return CALM_ALPHA if self.calm else ALPHA

    def proposed(self) -> Cuts:
        """Segment by least squared error plus a penalty per change (PELT, Killick 2012).

        The penalty allows for autocorrelated noise over LOCAL values only, so that young levels are proposed.
        """
        penalty = (
            (CALM_PENALTY if self.calm else PENALTY)
            * math.log(len(self.y))
            * float(self.noise.inflation(LOCAL))
        )
        scaled = (self.y - np.median(self.y)) / self.noise.deviation
        ends = KernelCPD(kernel="linear", min_size=2).fit(scaled[:, None]).predict(pen=penalty)
        return np.array(ends[:-1], dtype=np.intp)

    def cuts(self) -> Cuts:
        """The tested and dated changes."""
        return self.significant(self.dated(self.significant(self.proposed())))

    def drifts(self, cuts: Cuts) -> list[bool]:
        """Whether each cut is explained better by a drift."""
        bounds = [0, *cuts.tolist(), len(self.y)]
        return [self.is_drift(*bounds[k : k + 3]) for k in range(len(cuts))]

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
        """Whether a difference of levels is at least min_change."""
        if self.given.ratio:
            return abs(after - before) >= math.log1p(self.min_change)
        return abs(after - before) >= self.min_change * max(abs(before), abs(after))

    def significant(self, cuts: Cuts) -> Cuts:
        """Remove changes that chance explains, the weakest first, so that segments join."""
        while len(cuts):
            means, lengths = self.levels(cuts)
            z = self.z(cuts, means, lengths)
            passes = _confidence(z, len(self.y)) >= 1 - self.alpha
            passes &= np.minimum(lengths[:-1], lengths[1:]) >= self.persistence
            if passes.all():
                break
            cuts = np.delete(cuts, int(np.argmin(np.where(passes, np.inf, np.abs(z)))))
        return cuts

    def posterior(self, cut: int, lowest: int, highest: int, before: float, after: float) -> Array:
        """Posterior weights of the dates lowest..highest of a step, from equal prior weights.

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
        """Move each cut to its most likely date; twice, because the levels move with it."""
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
                # An outlier next to a change fits neither side: the tie is no reason to move.
                moved.append(best if weights[best - lowest] > 1.01 * weights[cut - lowest] else cut)
            cuts = np.unique(np.array(moved, dtype=np.intp))
        return cuts

    def window(self, cut: int, previous: int, following: int) -> tuple[int, int]:
        """The earliest and latest date of a cut."""
        lowest = max(previous + self.persistence, cut - REACH)
        return min(lowest, cut), max(cut, min(following - self.persistence, cut + REACH))

    def without_drift(self, cuts: Cuts) -> list[_TestedChange]:
        """The changes that a slow drift does not explain.

        A step is removed as drift if a straight line through both neighbouring segments fits better than the
        step. Steps near it are tested against lines fitted to the nights on either side (a regression
        discontinuity; Thistlethwaite and Campbell 1960). Then small changes beside one of the same direction
        are removed, the weakest first, so that of a staircase of small steps a larger step remains. Other
        small ones are left out at the end: without them a level beside a larger step would be a mixed one.
        """
        bounds, drifts = [0, *cuts.tolist(), len(self.y)], self.drifts(cuts)
        remaining = [cut for cut, drift in zip(bounds[1:], drifts, strict=False) if not drift]
        # One step of a drift may look real by chance, so the test extends to two steps on either side, and to
        # all steps of a series that is mostly drift.
        long = 3 * sum(drifts) >= len(drifts)
        sloped = {cut for k, cut in enumerate(bounds[1:-1]) if long or any(drifts[max(k - 2, 0) : k + 3])}
        tested_change = functools.cache(
            lambda first, cut, last: self.tested(first, cut, last, sloped=cut in sloped)
        )
        while remaining:
            bounds = [0, *remaining, len(self.y)]
            changes = [tested_change(*bounds[k : k + 3]) for k in range(len(remaining))]
            fails = [f for f in changes if f.confidence < 1 - self.alpha]
            fails = fails or [changes[k] for k in range(len(changes)) if self.is_of_a_staircase(changes, k)]
            if not fails:
                return [change for change in changes if self.large(change.before, change.after)]
            remaining.remove(min(fails, key=lambda f: abs(f.z)).cut)
        return []

    def is_of_a_staircase(self, changes: list[_TestedChange], k: int) -> bool:
        """Whether a change is small, and beside one of the same direction."""
        beside = [*changes[max(k - 1, 0) : k], *changes[k + 1 : k + 2]]
        is_small = not self.large(changes[k].before, changes[k].after)
        return is_small and any(change.z * changes[k].z > 0 for change in beside)

    def tested(self, first: int, cut: int, last: int, *, sloped: bool) -> _TestedChange:
        """Test the change at a cut, between the values first..cut and cut..last."""
        before, variance_before = self.edge(first, cut, sloped, at_end=True)
        after, variance_after = self.edge(cut, last, sloped, at_end=False)
        z = (after - before) / float(self.deviation[cut]) / math.sqrt(variance_before + variance_after)
        confidence = float(_confidence(np.array(z), len(self.y)))
        return _TestedChange(cut, before, after, z, confidence, first, last)

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

        The level is the segment's mean, or the end of a line through it. The variance is relative to that of
        the noise.
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

    def change(self, tested: _TestedChange) -> ChangePoint:
        """The change in the unit and the indices of the values as given."""
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
    """The noise of a series about its levels: standard deviation and lag-1 autocorrelation."""

    deviation: float
    rho: float

    def inflation(self, count: NDArray[np.intp] | float) -> Array:
        """Variance of the mean of `count` neighbours over that of as many independent values."""
        return ar1_inflation(self.rho, np.asarray(count, dtype=float))


def winsorized(y: Array) -> tuple[Array, float]:
    """Winsorize values at CAP deviations from the running median; return the noise floor too.

    The median uses mirrored ends, so that two values at an end are a level, and one value is not.
    """
    if np.count_nonzero(np.diff(y)) <= CONSTANT_MOVES:
        # Constant but for few steps: its smallest gap is a step, not the noise of rounding.
        median = ndimage.median_filter(y, min(WINDOW, len(y)), mode="reflect")
        return median, FINEST * float(np.max(np.abs(y)))
    # Rounded values have at least the noise of rounding: uniform over the smallest gap.
    floor = max(float(np.min(np.diff(np.unique(y)))) / math.sqrt(12), FINEST * float(np.max(np.abs(y))))
    median = ndimage.median_filter(y, min(WINDOW, len(y)), mode="reflect")
    away = y - median
    cap = CAP * max(_scale(away), floor)
    # The others stay as they are to the last bit, which median + away is not near 0.
    return np.where(np.abs(away) > cap, median + np.clip(away, -cap, cap), y), floor


def _scale(away: Array, part: float = 0.9) -> float:
    """Standard deviation from the middle half, or from a larger part if that is larger.

    Up to a tenth of outliers have no effect, while a second mode or a noisy month counts as noise. Both
    estimates are consistent for the normal distribution.
    """
    part = max(part, 0.5)
    half, most = np.quantile(np.abs(away), [0.5, part])
    return max(1.4826 * float(half), float(most) / float(special.ndtri((1 + part) / 2)))


def estimated(y: Array, floor: float, usual_rho: float | None = None) -> SeriesNoise:
    """Estimate the noise from differences at lags 1 and 2, excluding steps.

    Differences beyond CAP deviations are steps.

    Variances of differences of an AR(1) are 2 s^2 (1 - rho) and 2 s^2 (1 - rho^2): their ratio less
    one is rho. Difference-based variance: von Neumann 1941; Hall, Kay and Titterington 1990. A negative
    rho counts as 0, because it would make the test less strict. usual_rho: that of similar series. The
    estimate from n values has a variance of about 2 / n and is drawn towards it by its share of the variance.
    """
    squares = []
    for lag in (1, 2):
        away = np.abs(y[lag:] - y[:-lag])
        # Allow for four steps, each of which affects `lag` differences.
        cap = CAP * max(_scale(away, min(0.9, 1 - 4 * lag / len(y))), floor * math.sqrt(2))
        squares.append(float(np.mean(away[away <= cap] ** 2)))
    first, second = squares
    rho = min(max(second / first - 1, 0.0), MOST_RHO) if first > floor**2 else 0.0
    if usual_rho is not None and first > floor**2:
        own = RHO_SPREAD**2 / (RHO_SPREAD**2 + 2 / len(y))
        rho = own * rho + (1 - own) * min(usual_rho, MOST_RHO)
    return SeriesNoise(max(math.sqrt(first / 2 / (1 - rho)), floor), rho)


def local_deviation(y: Array, noise: SeriesNoise) -> Array:
    """The deviation at each value: of its stretch if noisier than the whole series."""
    away = np.abs(np.diff(y, append=y[-1]))
    median = ndimage.median_filter(away, min(2 * STRETCH + 1, len(y)), mode="reflect")
    local = 1.4826 * median / math.sqrt(2 * (1 - noise.rho))
    return np.where(local > NOISIER * noise.deviation, local, noise.deviation)
