"""Noise of the series of one host: level, spread, autocorrelation and tails, each pooled.

From 60 nights a series' spread is known within 10 %, its autocorrelation within 0.13, and its tails not at
all; all series of a host together determine all three. So each series' estimate is shrunk towards the pooled
one, the more the series agree with each other (empirical Bayes). Values are logs, so spreads are relative.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from perfdash.stats.intervals import Array

Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]

_MANY = 10  # series whose spread on a night is looked at
_UNEVEN = 1.15  # spread of a night in deviations, where a tenth of the series changed
WINSOR = 2.5  # deviations at which values are winsorized for the spread
SEVERAL = 3  # runs of a side from which its noise is estimated
_KEPT = float(stats.chi2.cdf(WINSOR**2, 3) + WINSOR**2 * stats.chi2.sf(WINSOR**2, 1))
_MAD = float(1 / stats.norm.ppf(0.75))
_STEP = 0.02  # bin of the pooled distribution, in deviations
_PRIOR = 200  # nights of Student's t(4) that are added to the pooled distribution


@dataclass(frozen=True)
class NoiseLevel:
    """Level and noise of S series over T nights.

    level, sd, df, count: (S,); `df` is of the squared sd, `count` the number of values. correlation
    (S, L - 1): that of nights 1..L - 1 apart. inflation (S, L): variance of the mean of 1..L consecutive
    nights over that of independent nights. residuals (S, T): (value - level) / sd, NaN where missing.
    constant (S,): the spread is 0. quiet (S,): it is at most the floor; constant rows are quiet.
    machines (S,): variance of the level for want of nights on the last nights' machines, relative to the
    squared sd.
    """

    level: Array
    sd: Array
    df: Array
    count: Counts
    correlation: Array
    inflation: Array
    residuals: Array
    constant: Flags
    quiet: Flags
    machines: Array | float = 0.0

    @property
    def fitted_variance(self) -> Array:
        """Variance of `level` by the number of nights, relative to the squared sd; infinite without one."""
        # The inflation at the last lag approximates that of long windows.
        return np.where(self.count > 0, self.inflation[:, -1] / np.maximum(self.count, 1), np.inf)

    @property
    def level_variance(self) -> Array:
        """Variance of `level` relative to the squared sd, that of the machines' levels included."""
        return np.asarray(self.fitted_variance + self.machines)


def excess_spread(scores: Array) -> Array:
    """How much farther apart the series are than noise explains, of each night: 1 or more, (T,).

    `scores` (S, T): distances from the level in standard deviations, NaN where missing. A host in another
    state, or with busy neighbours, does not slow all models alike: then the scores of a night, or of some
    nights together, are spread more widely than 1. The spread is the median distance from the median. Up to
    _UNEVEN it is taken for changes of single series (a tenth of them); below that and three of its
    standard errors, and for few series, the result is 1.
    """
    count = np.isfinite(scores).sum(axis=0)
    middle = row_medians(scores.T)
    spread = np.nan_to_num(_MAD * row_medians(np.abs(scores - middle[None, :]).T))
    # The standard error of the median distance of n Gaussian scores is 1.17 / sqrt(n) of it.
    chance = _UNEVEN + 3 * 1.17 / np.sqrt(np.maximum(count, 1))
    return np.where((count >= _MANY) & (spread > chance), spread / _UNEVEN, 1.0)


def row_medians(values: Array) -> Array:
    """Median of each row without its NaN values; NaN for an empty row. np.nanmedian is slower."""
    ordered = np.sort(values, axis=1)
    count = np.sum(np.isfinite(values), axis=1)
    rows = np.arange(len(values))
    last = max(values.shape[1] - 1, 0)
    high = ordered[rows, np.minimum(count // 2, last)]
    low = ordered[rows, np.clip((count - 1) // 2, 0, last)]
    return np.where(count > 0, (low + high) / 2, np.nan)


def noise_level(values: Array, *, floor: float, lags: int = 10, spent: int = 1) -> NoiseLevel:
    """Estimate level and noise of each row of `values` (S, T): logs, NaN where missing.

    `floor`: the least standard deviation. `spent`: parameters already fitted to each row (2 for a line). The
    level is Huber's M-estimate. The variance is winsorized, and moderated as by Smyth (2004), Linear models
    and empirical Bayes methods, Stat. Appl. Genet. Mol. Biol. 3(1):3.
    """
    present = np.isfinite(values)
    count = present.sum(axis=1)
    n = np.maximum(count, 1)
    level, scale = _level(values, present, count)
    residual = np.where(present, values - level[:, None], 0.0)
    reach = (WINSOR * scale)[:, None]
    clipped = np.clip(residual, -reach, reach)
    # A spread of the size of rounding errors counts as 0.
    plain = np.sum(clipped**2, axis=1) / n
    constant = (plain <= 1e-18 * np.maximum(1.0, np.nan_to_num(level) ** 2)) & (count >= 3)
    safe = np.where(constant, 1.0, np.sqrt(np.maximum(plain, 1e-300)))
    unit = clipped / safe[:, None]
    unit[constant] = 0.0
    # Quiet series, whose noise is of another kind (rounding), tell nothing of the autocorrelation of others.
    fine = ~constant & (plain <= floor**2)
    correlation = np.zeros((len(values), lags - 1))
    for rows in (fine, ~fine):
        correlation[rows] = _autocorrelation(unit[rows], present[rows], count[rows], lags)
    weights = np.clip(1 - np.arange(1, lags)[None, :] / np.arange(1, lags + 1)[:, None], 0, None)
    inflation = np.maximum(1.0, 1 + 2 * correlation @ weights.T)
    # Degrees of freedom: the fitted level uses one night if they are independent, more if they are not.
    left = np.maximum(count - inflation[:, -1] - (spent - 1), 0.5 * np.maximum(count - spent, 0))
    winsorised = np.isfinite(scale)
    variance = plain * n / np.maximum(left, 0.5) / np.where(winsorised, _KEPT, 1.0)
    df = _effective_df(unit, present & ~constant[:, None], left, correlation)
    varying = ~constant & (count > spent)
    moderated, df = _moderate(variance, df, varying)
    quiet = constant | (moderated <= floor**2)
    sd = np.sqrt(np.maximum(moderated, floor**2))
    # A constant series gets the floor as its spread, with more degrees of freedom the longer it is.
    sd, df = np.where(constant, floor, sd), np.where(constant, np.maximum(count - 1.0, 1.0), df)
    residuals = np.where(present, residual / sd[:, None], np.nan)
    return NoiseLevel(level, sd, df, count, correlation, inflation, residuals, constant, quiet)


def _level(values: Array, present: Flags, count: Counts) -> tuple[Array, Array]:
    """Huber's M-estimate of location of each row, and the scale for winsorizing.

    The scale is infinite for rows that are too short to winsorize.
    """
    level = row_medians(values)
    away = np.abs(values - level[:, None])
    mad = _MAD * row_medians(away)
    # If most nights are equal, up to a twentieth of differing nights are outliers; more are noise.
    odd = np.sort(np.where(present, away, np.inf), axis=1)
    rank = np.clip(np.ceil(0.95 * count).astype(int) - 1, 0, values.shape[1] - 1)
    typical = odd[np.arange(len(values)), rank]
    scale = np.where(mad > 0, mad, typical / WINSOR)
    scale = np.where(count < 10, np.inf, scale)  # too few to distinguish an outlier from the spread
    reach = np.where(np.isfinite(scale), 2 * scale, 2 * mad)[:, None]
    for _ in range(3):
        residual = np.where(present, values - level[:, None], 0.0)
        level = level + np.clip(residual, -reach, reach).sum(axis=1) / np.maximum(count, 1)
    return level, scale


def _autocorrelation(unit: Array, present: Flags, count: Counts, lags: int) -> Array:
    """Autocorrelation (S, lags - 1) at lags 1.., shrunk towards the mean over all series.

    The mean is weighted by pairs. A series' own estimate counts as far as the series differ by more than
    their sampling variance, 1 / pairs (Bartlett 1946).
    """
    width, (pairs, product) = unit.shape[1], np.zeros((2, len(unit), lags - 1))
    for lag in range(1, min(lags, width)):
        pairs[:, lag - 1] = (present[:, :-lag] & present[:, lag:]).sum(axis=1)
        product[:, lag - 1] = np.einsum("ij,ij->i", unit[:, :-lag], unit[:, lag:])
    usable = (pairs >= 3) & (unit != 0).any(axis=1)[:, None]
    number = np.maximum(usable.sum(axis=0), 1)
    weight = np.where(usable, pairs, 0.0)
    total = np.maximum(weight.sum(axis=0), 1)
    sampling = np.where(usable, 1 / np.maximum(pairs, 1), 0.0)
    # Residuals of a fitted level have a correlation of -1 / n even if the nights are independent.
    estimate = product / np.maximum(pairs, 1) + 1 / np.maximum(count, 1)[:, None]
    mean = np.sum(estimate * weight, axis=0) / total
    estimate = np.clip(estimate, -1, 1)
    excess = np.sum(((estimate - mean) ** 2 - sampling) * weight, axis=0) / total
    between = np.maximum(0.0, excess - 2 * np.sqrt(2 / number) * sampling.sum(axis=0) / number)
    share = np.where(usable, between / np.where(usable, between + sampling, 1.0), 0.0)
    # Beyond a lag of which no row has three pairs, nothing is known.
    known = np.logical_and.accumulate(usable.any(axis=0))
    shrunk = np.where(known, mean + share * (estimate - mean), 0.0)
    # The correction is larger than 1 / n if the nights are autocorrelated.
    more = np.maximum(0.0, 2 * shrunk.sum(axis=1)) / np.maximum(count, lags)
    corrected: Array = np.clip(shrunk + more[:, None] * (shrunk > 0), -0.99, 0.99)
    return corrected


def _effective_df(unit: Array, used: Flags, left: Array, correlation: Array) -> Array:
    """Degrees of freedom of a winsorised variance: 2 / its squared relative error.

    The error follows from the pooled kurtosis of the winsorised residuals, and from the squared
    autocorrelations (Bartlett 1946).
    """
    squares = np.square(unit[used])
    kurtosis = float(np.mean(np.square(squares)) / np.mean(squares) ** 2) if squares.any() else 3.0
    # The scale of winsorized residuals was estimated too, so the variance is never better than Gaussian.
    df: Array = left * 2 / max(kurtosis - 1, 2.0) / (1 + 2 * np.sum(correlation**2, axis=1))
    return df


def _moderate(variance: Array, df: Array, varying: Flags) -> tuple[Array, Array]:
    """Variances shrunk towards a common one, with their degrees of freedom (Smyth 2004, section 6.2).

    The prior (d0 degrees of freedom of s0 squared) is fitted to the log variances of the varying rows. Rows
    that are too short for a variance of their own get the prior's.
    """
    chosen = varying & (df > 0) & (variance > 0)
    if not chosen.any():
        return variance, df
    d, log_variance = df[chosen], np.log(variance[chosen])
    shifted = log_variance - special.digamma(d / 2) + np.log(d / 2)
    mean = float(np.mean(shifted))
    if len(d) < 3:
        return variance, df  # too few rows to fit a prior
    excess = float(np.var(shifted, ddof=1) - np.mean(special.polygamma(1, d / 2)))
    if excess > 1e-4:
        prior_df = 2 * _inverse_trigamma(excess)
        prior = float(np.exp(mean + special.digamma(prior_df / 2) - np.log(prior_df / 2)))
    else:
        prior_df, prior = np.inf, float(np.exp(mean))
    prior_df = min(prior_df, float(np.sum(d)))
    row_df = np.where(chosen, df, 0.0)
    pooled = (prior_df * prior + row_df * np.where(chosen, variance, 0.0)) / (prior_df + row_df)
    return pooled, prior_df + row_df


def _inverse_trigamma(value: float) -> float:
    """Solve trigamma(x) = value > 0 by Newton's method on 1 / trigamma.

    Source: Smyth (2004), appendix.
    """
    x = 0.5 + 1 / value
    for _ in range(50):
        at = float(special.polygamma(1, x))
        step = at * (1 - at / value) / float(special.polygamma(2, x))
        x += step
        if abs(step) < 1e-8 * x:
            break
    return x


class Tails:
    """Tail probabilities of the mean of m nights' clipped residuals, from all residuals.

    The distribution of one night is the histogram of the residuals (in deviations), clipped at +-clip, with
    some nights of Student's t(4) added, because the residuals of a small host do not determine its tails. The
    distribution of m nights is its m-fold convolution. So the p of a night is the share of such nights on
    this host, and the p of two in a row is about its square.
    """

    def __init__(self, residuals: Array, clip: float, most: int) -> None:
        edges, prior = _histogram_of_t4(clip)
        counts, _ = np.histogram(np.clip(residuals, -clip, clip), edges)
        self._one = (counts + _PRIOR * prior) / (len(residuals) + _PRIOR)
        self._most = most
        self._sums = [self._one]

    def p(self, score: Array, nights: Counts) -> Array:
        """Two-sided p of standardised means of `nights` independent nights.

        Each side has its own tail, doubled, because noise is often skewed. 1 for more than `most` nights.
        """
        result = np.ones_like(score)
        for count in np.unique(nights):
            if not 1 <= count <= self._most:
                continue
            rows = nights == count
            mass = self._sum_of(int(count))
            tails = np.cumsum(mass), np.cumsum(mass[::-1])[::-1]
            at = score[rows]
            place = np.clip(at * np.sqrt(count) / _STEP + len(mass) // 2, 0, len(mass) - 1)
            # Between two bins the log of the tail is interpolated.
            bins = np.minimum(np.floor(place) + np.arange(2)[:, None], len(mass) - 1).astype(np.int64)
            near, far = np.log(np.maximum(np.where(at > 0, tails[1][bins], tails[0][bins]), 1e-300))
            sided = near + (place - np.floor(place)) * (far - near)
            result[rows] = np.minimum(1.0, 2 * np.exp(sided))
        return result

    def _sum_of(self, nights: int) -> Array:
        """The distribution of the sum over `nights` nights, computed on demand."""
        while len(self._sums) < nights:
            self._sums.append(np.convolve(self._sums[-1], self._one))
        return self._sums[nights - 1]


@functools.cache
def _histogram_of_t4(clip: float) -> tuple[Array, Array]:
    """Edges of bins between -clip and clip, and their probabilities under Student's t(4)."""
    half = round(clip / _STEP)
    edges = np.asarray((np.arange(-half, half + 2) - 0.5) * _STEP, dtype=np.float64)
    edges[0], edges[-1] = -np.inf, np.inf
    return edges, np.diff(stats.t(4).cdf(edges))


def as_normal(score: Array, df: Array) -> Array:
    """The normal score as rare as a Student's t score (Wallace 1959, Ann. Math. Stat. 30, 1124)."""
    finite = np.where(np.isfinite(df), np.maximum(df, 0.5), 1e12)
    size: Array = np.sqrt(finite * np.log1p(score**2 / finite)) * (8 * finite + 1) / (8 * finite + 3)
    return np.copysign(size, score)


@dataclass(frozen=True)
class PooledNoise:
    """The noise of each case: sd of one run's log, df and inflation.

    An unknown sd is NaN. `inflation`: as in NoiseLevel.
    """

    sd: Array
    df: Array
    inflation: Array


def levels_and_noise(logs: tuple[Array, Array], floor: float) -> tuple[list[Array], PooledNoise]:
    """The level of each side, and noise pooled over sides with several runs.

    The level of three or more runs is Huber's, so that an outlier does not move it; otherwise the mean.
    """
    size = len(logs[0])
    levels, spreads = [], []
    for side in logs:
        if side.shape[1] >= SEVERAL and size:
            spreads.append(noise_level(side, floor=floor))
            levels.append(spreads[-1].level)
        else:
            count = np.maximum(np.isfinite(side).sum(axis=1), 1)
            levels.append(np.nansum(side, axis=1) / count)
    if not spreads:
        return levels, PooledNoise(np.full(size, np.nan), np.zeros(size), np.ones((size, 100)))
    inflation = ar1_inflation(max(neighbours(level.residuals) for level in spreads), np.arange(1, 101))
    weights = [np.where(level.count >= SEVERAL, level.df, 0.0) for level in spreads]
    df = np.asarray(sum(weights))
    squares = np.zeros(size)
    for weight, level in zip(weights, spreads, strict=True):
        n = np.maximum(level.count, SEVERAL)
        # The level of autocorrelated nights absorbs more of their spread than that of independent ones.
        taken = (inflation[np.minimum(n, len(inflation)) - 1] - 1) / (n - 1)
        squares += weight * level.sd**2 / np.maximum(1 - taken, 0.25)
    sd = np.sqrt(np.where(df > 0, squares / np.maximum(df, 1e-9), np.nan))
    return levels, PooledNoise(sd, df, np.tile(inflation, (size, 1)))


def neighbours(residuals: Array) -> float:
    """Correlation of neighbouring runs, pooled over all cases, corrected for the fitted level.

    Kendall (1954), Biometrika 41, 403: E(r) = rho - (1 + 3 rho) / (n - 1).
    """
    n = residuals.shape[1]
    clipped = np.clip(residuals, -3, 3)
    pairs = clipped[:, 1:] * clipped[:, :-1]
    squares = np.nanmean(clipped**2) if np.isfinite(clipped).any() else 0.0
    if n < 5 or not np.isfinite(pairs).any() or squares == 0:
        return 0.0
    r = float(np.nanmean(pairs)) / float(squares)
    return float(min(0.9, max(0.0, (r + 1 / (n - 1)) / (1 - 3 / (n - 1)))))


def ar1_inflation(rho: float, m: Array | NDArray[np.int_]) -> Array:
    """Variance of the mean of `m` neighbours of an AR(1) over that of independent values.

    (1 + rho) / (1 - rho) - 2 rho (1 - rho^m) / (m (1 - rho)^2), e.g. Box, Jenkins and Reinsel, Time Series
    Analysis, 2.1.
    """
    return np.asarray((1 + rho) / (1 - rho) - 2 * rho * (1 - rho**m) / (m * (1 - rho) ** 2))
