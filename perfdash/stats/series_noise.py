"""The noise of one series about its levels, wherever these are: what steps and outliers hardly touch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, special

from perfdash.stats.intervals import Array

WINDOW = 7  # nights of the running median: what lasts under half of it is an outlier
CAP = 3.0  # standard deviations, beyond which a value counts as one at the cap
MOST_RHO = 0.9
REACH = 30  # nights on either side that tell the noise of a stretch
NOISIER = 1.5  # times the deviation of the whole, from which a stretch has its own
FINEST = 1e-12  # of the values: smaller deviations are rounding


@dataclass(frozen=True)
class Noise:
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
    """Standard deviation from the middle half, or from a larger part where that says more.

    Up to a tenth of outliers leave no trace; a second mode or a noisy month is noise, not outliers.
    Both are consistent for the normal distribution.
    """
    part = max(part, 0.5)
    half, most = np.quantile(np.abs(away), [0.5, part])
    return max(1.4826 * float(half), float(most) / float(special.ndtri((1 + part) / 2)))


def estimated(y: Array, floor: float) -> Noise:
    """Noise from differences at lags 1 and 2, without those beyond CAP deviations: these are steps.

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
    return Noise(max(math.sqrt(first / 2 / (1 - rho)), floor), rho)


def local_deviation(y: Array, noise: Noise) -> Array:
    """The deviation at each value: of the whole series, or of a stretch that is plainly noisier."""
    away = np.abs(np.diff(y, append=y[-1]))
    median = ndimage.median_filter(away, min(2 * REACH + 1, len(y)), mode="reflect")
    local = 1.4826 * median / math.sqrt(2 * (1 - noise.rho))
    return np.where(local > NOISIER * noise.deviation, local, noise.deviation)
