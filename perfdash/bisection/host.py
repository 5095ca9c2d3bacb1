"""What the host did to all builds alike while they were measured, taken out of the values.

Builds are measured in turn with the two ends, again and again, so what moves them together shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from perfdash.stats.intervals import Array

Owners = NDArray[np.intp]  # which of the builds each value is of

LEAST = 8  # values below which nothing is said of the host
POLISH = 20  # rounds, after which the levels and moves hardly change
STEADY = 0.5  # prior probability that the host does not move
SIZES = (0.1, 0.5, 2.0, 8.0, 32.0)  # variance of the host's part, in variances of the noise
SPANS = (8.0, 40.0)  # it stays alike over about so many measurements
WINSOR = 2.5
LONG_PAUSE = 1000.0  # in the times: after it nothing that was known of the host holds


def without_host(places: Sequence[int], times: Sequence[float], values: Sequence[float]) -> Array:
    """The values less what is common to all builds at a time: measurements of `places` at `times`.

    times: in measurements, with longer gaps where something else was done between. A mixed model: levels
    of builds are fixed, the host is a Gaussian process with an exponential covariance (Robinson 1991,
    Statist. Sci. 6, 15), averaged over its possible sizes by their restricted likelihood. Where the
    host seems steady next to nothing is taken out. Outliers are winsorised.
    """
    y = np.asarray(values, dtype=float)
    builds, owner = np.unique(np.asarray(places), return_inverse=True)
    if len(y) < LEAST or len(y) - len(builds) < LEAST // 2:
        return y
    y = y - _moves(owner, times, y)
    middle = _medians(y, owner)
    away = np.abs(y - middle[owner])
    several = np.bincount(owner)[owner] > 1
    scale = 1.4826 * float(np.median(away[several]))
    if scale == 0:
        return y
    host, moves = _host(owner, times, middle[owner] + np.clip(y - middle[owner], -3 * scale, 3 * scale))
    if moves > 0.5:
        # Once more, with outliers told from what the host did.
        rest = y - host
        middle = _medians(rest, owner)
        rest = rest - middle[owner]
        reach = WINSOR * 1.4826 * float(np.median(np.abs(rest[several])))
        host, _ = _host(owner, times, middle[owner] + host + np.clip(rest, -reach, reach))
    return y - host


def _moves(owner: Owners, times: Sequence[float], y: Array) -> Array:
    """By how much the host was elsewhere after each long pause: median polish of builds and sessions.

    As seen by the builds that were measured before and after; 0 where there are none (Tukey 1977,
    Exploratory Data Analysis, ch. 11).
    """
    session = np.cumsum(np.concatenate([[0], np.diff(np.asarray(times, dtype=float)) > LONG_PAUSE / 2]))
    moves = np.zeros(len(y))
    if session[-1] == 0:
        return moves
    for _ in range(POLISH):
        levels = _medians(y - moves, owner)[owner]
        for k in range(1, int(session[-1]) + 1):
            mine, known = session == k, np.isin(owner, owner[session < k])
            if np.any(mine & known):
                moves[mine] = np.median((y - levels)[mine & known])
    return moves


def _medians(y: Array, owner: Owners) -> Array:
    order = np.argsort(owner, kind="stable")
    parts = np.split(y[order], np.cumsum(np.bincount(owner))[:-1])
    return np.array([median(part.tolist()) for part in parts])


def _host(owner: Owners, times: Sequence[float], y: Array) -> tuple[Array, float]:
    """The host's part of each value, and the probability that there is any."""
    t = np.asarray(times, dtype=float)
    same = owner[:, None] == owner[None, :]
    centre = np.eye(len(y)) - same / same.sum(axis=1)[:, None]
    rest = centre @ y
    free = len(y) - len(np.unique(owner))
    logs = [np.log(STEADY) - 0.5 * free * np.log(rest @ rest)]
    parts = [np.zeros(len(y))]
    for span in SPANS:
        shape = np.exp(-np.abs(t[:, None] - t[None, :]) / span)
        values, vectors = np.linalg.eigh(centre @ shape @ centre)
        seen = vectors.T @ rest
        inner = np.maximum(values, 0.0)
        for size in SIZES:
            variance = 1 + size * inner
            fit = seen / variance
            prior = np.log((1 - STEADY) / (len(SPANS) * len(SIZES)))
            logs.append(prior - 0.5 * np.log(variance).sum() - 0.5 * free * np.log(fit @ seen))
            parts.append(size * (shape @ (centre @ (vectors @ fit))))
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    return np.asarray(weights @ np.array(parts)), float(1 - weights[0])
