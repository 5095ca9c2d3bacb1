"""Levels and noise of two windows of runs, a row a case: what a comparison of windows rests on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdash.stats.intervals import Array
from perfdash.stats.noise_level import noise_level

SEVERAL = 3  # runs of a window, from which they tell of its noise


@dataclass(frozen=True)
class Known:
    """Arrays over the cases: sd of one run's log (NaN: unknown), its df, inflation as in NoiseLevel."""

    sd: Array
    df: Array
    inflation: Array


def levels_and_noise(logs: tuple[Array, Array], floor: float) -> tuple[list[Array], Known]:
    """The level of each side, and the noise about it from the sides with several runs, pooled.

    Of three runs and more the level is Huber's, so that an outlier does not move it; else the mean.
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
        return levels, Known(np.full(size, np.nan), np.zeros(size), np.ones((size, 100)))
    inflation = inflation_of(max(neighbours(level.residuals) for level in spreads))
    weights = [np.where(level.count >= SEVERAL, level.df, 0.0) for level in spreads]
    df = np.asarray(sum(weights))
    squares = np.zeros(size)
    for weight, level in zip(weights, spreads, strict=True):
        n = np.maximum(level.count, SEVERAL)
        # A level fitted to nights that hang together took more of their spread than one night's.
        taken = (inflation[np.minimum(n, len(inflation)) - 1] - 1) / (n - 1)
        squares += weight * level.sd**2 / np.maximum(1 - taken, 0.25)
    sd = np.sqrt(np.where(df > 0, squares / np.maximum(df, 1e-9), np.nan))
    return levels, Known(sd, df, np.tile(inflation, (size, 1)))


def neighbours(residuals: Array) -> float:
    """Correlation of neighbouring runs, one for all cases, corrected for the fitted level.

    Kendall (1954), Biometrika 41, 403: E(r) = rho - (1 + 3 rho) / (n - 1).
    """
    n = residuals.shape[1]
    some = np.clip(residuals, -3, 3)
    pairs = some[:, 1:] * some[:, :-1]
    squares = np.nanmean(some**2) if np.isfinite(some).any() else 0.0
    if n < 5 or not np.isfinite(pairs).any() or squares == 0:
        return 0.0
    r = float(np.nanmean(pairs)) / float(squares)
    return float(min(0.9, max(0.0, (r + 1 / (n - 1)) / (1 - 3 / (n - 1)))))


def inflation_of(rho: float) -> Array:
    """Variance of the mean of 1.. neighbouring runs over that of independent ones, for AR(1)."""
    m = np.arange(1, 101)
    return np.asarray((1 + rho) / (1 - rho) - 2 * rho * (1 - rho**m) / (m * (1 - rho) ** 2))
