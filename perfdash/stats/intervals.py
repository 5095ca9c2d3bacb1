"""Intervals for medians and for their ratio, within a process and over processes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

CONFIDENCE = 0.95
_FEWEST_RANKED = 8  # pairs that a signed rank interval takes


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median by order statistics, distribution free (Conover, 3.2).

    Below six values no such interval exists: the range is returned. Raises ValueError when empty.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    if n == 0:
        raise ValueError("the median of no values")
    low = int(stats.binom.ppf((1 - CONFIDENCE) / 2, n, 0.5))
    low = max(0, min(low - 1, (n - 1) // 2)) if n >= 6 else 0
    return float(ordered[low]), float(ordered[n - 1 - low])


def log_ratio(eager: Array, backend: Array) -> float:
    """The typical log of eager / backend over pairs: the median of the means of all two pairs.

    Hodges and Lehmann, Ann. Math. Statist. 34, 598 (1963). A pair is sampled within two calls, so what slows
    the machine for longer is in both samples and cancels; it does not in a ratio of two medians.
    """
    return float(np.median(_pair_means(np.log(eager / backend))))


def log_ratio_deviation(eager: Array, backend: Array) -> float:
    """Standard deviation of log_ratio within one process; fewer than two pairs: infinity.

    From the 95 % interval of the signed rank test (Hollander and Wolfe, Nonparametric Statistical Methods,
    3.3). That needs eight pairs; with fewer it is the standard error of the mean.
    """
    logs = np.log(eager / backend)
    n = len(logs)
    if n < 2:
        return math.inf
    if n < _FEWEST_RANKED:
        return float(np.std(logs, ddof=1)) / math.sqrt(n)
    means = np.sort(_pair_means(logs))
    z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    low = max(0, math.floor(n * (n + 1) / 4 - z * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)))
    return float(means[-1 - low] - means[low]) / (2 * z)


def _pair_means(values: Array) -> Array:
    """The mean of each two values, and each value itself: n (n + 1) / 2."""
    first, second = np.triu_indices(len(values))
    return (values[first] + values[second]) / 2
