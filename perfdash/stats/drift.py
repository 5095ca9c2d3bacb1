"""Detect slow drift against the first nights after a series' last accepted change.

The nightly test misses a drift, because no night differs enough from the nights just before it. Here the
reference nights stay fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from perfdash.stats.host_shift import host_shift
from perfdash.stats.intervals import Array
from perfdash.stats.nightly_test import FLOOR, discoveries
from perfdash.stats.noise_level import Counts, Flags, as_normal, excess_spread, noise_level, row_medians

FIRST = 20
LAST = 14
MINIMUM_CHANGE = 0.03
DISCOVERY_RATE = 0.002
# Where at least so many series are judged and more than this share of them drift the same way, it may be the
# host, whose state moves its series by unlike amounts.
MANY, TOGETHER = 10, 0.25


@dataclass(frozen=True)
class Drift:
    """The drift test of S series, as arrays (S,).

    judged: long enough; otherwise numbers are NaN and `drifting` is False. change: log of the last nights
    over the reference, without the host's drift. p: two-sided. reference: log level of the first nights,
    without shifts of the host. host: its `state` (HostShift) on the last night.
    together: drifts as many others do, the same way or no farther, so that it may be the host.
    """

    judged: Flags
    drifting: Flags
    change: Array
    p: Array
    reference: Array
    host: Array
    together: Flags


def drift(values: Array, *, start: Counts | None = None) -> Drift:
    """Compare the last nights of each row with its first nights.

    `values` (S, T): logs of the whole history, NaN = missing; nights before `start` (S,) are ignored. A row
    needs FIRST + LAST values. Spread and autocorrelation come from the residuals of a resistant line
    (Tukey 1977, Exploratory Data Analysis, chapter 5), because around a mean the drift itself would count as
    noise. The pooled autocorrelation up to lag 19 widens the variance of both means, so noise that wanders
    and returns is no drift. Noise that wanders without returning cannot be distinguished from a drift.
    """
    values = np.asarray(values, dtype=float)
    present = np.isfinite(values)
    if start is not None:
        present &= np.arange(values.shape[1])[None, :] >= np.asarray(start)[:, None]
    values = np.where(present, values, np.nan)
    shifts = host_shift(values, present, FLOOR)
    values = values - shifts.own
    count = present.sum(axis=1)
    judged = count >= FIRST + LAST
    rank = np.cumsum(present, axis=1)
    at_first = present & (rank <= FIRST)
    at_last = present & (rank > count[:, None] - LAST)
    noise = noise_level(values - _line(values, present, rank, count), floor=FLOOR, lags=FIRST, spent=2)

    reference = _mean(values, at_first, noise.sd)
    change = _mean(values, at_last, noise.sd) - reference
    lags = noise.inflation.shape[1]
    variance = sum(noise.inflation[:, min(n, lags) - 1] / n for n in (FIRST, LAST))
    scores = change / (noise.sd * np.sqrt(variance))
    p = np.where(judged, 2 * special.ndtr(-np.abs(as_normal(scores, noise.df))), np.nan)
    change = np.where(judged, change, np.nan)
    enough = judged & (np.abs(change) >= np.log1p(MINIMUM_CHANGE))
    drifting = enough & discoveries(p, DISCOVERY_RATE)
    # Where the host's state changed, its series moved by unlike amounts, which is no drift of theirs.
    wide = excess_spread(np.where(judged & ~noise.constant, scores, np.nan)[:, None])
    beyond = 2 * special.ndtr(-np.abs(as_normal(scores / wide, noise.df)))
    together = drifting & ~discoveries(np.where(judged, beyond, np.nan), DISCOVERY_RATE)
    if judged.sum() >= MANY:
        for way in (drifting & (change > 0), drifting & (change < 0)):
            if way.sum() > TOGETHER * judged.sum():
                together |= way
    return Drift(judged, drifting, change, p, reference, shifts.state[:, -1], together)


def _mean(values: Array, nights: Flags, sd: Array) -> Array:
    """Mean over some nights of each row, values clipped at 2 deviations about the median."""
    middle = row_medians(np.where(nights, values, np.nan))
    away = np.where(nights, values - middle[:, None], 0.0)
    reach = 2 * sd[:, None]
    mean: Array = middle + np.clip(away, -reach, reach).sum(axis=1) / np.maximum(nights.sum(axis=1), 1)
    return mean


def _line(values: Array, present: Flags, rank: Counts, count: Counts) -> Array:
    """Slope times night, from the medians of each row's first and last third."""
    nights = np.broadcast_to(np.arange(values.shape[1], dtype=float), values.shape)
    third = (count // 3)[:, None]
    ends = []
    for part in (present & (rank <= third), present & (rank > count[:, None] - third)):
        ends.append([row_medians(np.where(part, array, np.nan)) for array in (values, nights)])
    (low, from_night), (high, to_night) = ends
    slope = np.nan_to_num((high - low) / np.maximum(to_night - from_night, 1.0))
    return np.asarray(slope[:, None] * nights, dtype=float)
