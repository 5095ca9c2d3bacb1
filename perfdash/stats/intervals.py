"""Intervals for medians and for their ratio, within a process and over processes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

CONFIDENCE = 0.95


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
    """log(median eager / median backend)."""
    return math.log(float(np.median(eager))) - math.log(float(np.median(backend)))


def log_ratio_deviation(eager: Array, backend: Array, *, seed: int, resamples: int = 400) -> float:
    """Standard deviation of log_ratio within one process, by a bootstrap over pairs.

    The samples of a pair stay together, since drift hits both (Efron and Tibshirani, An
    Introduction to the Bootstrap, chapter 6). Fewer than two pairs: infinity.
    """
    n = len(eager)
    if n < 2:
        return math.inf
    rows = np.random.default_rng(seed).integers(0, n, size=(resamples, n))
    ratios = np.log(np.median(eager[rows], axis=1)) - np.log(np.median(backend[rows], axis=1))
    return float(np.std(ratios, ddof=1))
