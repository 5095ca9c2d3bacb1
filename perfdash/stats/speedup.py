"""Speedup with its interval and verdict, from pairs of samples of one or more processes.

Sampling in one process cannot see what differs between processes (addresses, pages, caches), which
is often the larger part. So the interval is Student's t over the processes' log ratios, with the
spread between processes measured in this case, pooled from the run's replicated cases, or both. A
percentile bootstrap over two or three processes would be far too narrow (benchmarks/coverage.py
shows both).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from perfdash.stats.intervals import Array, Spread, log_ratio, log_ratio_deviation

MARGIN = 0.02


@dataclass(frozen=True)
class Pairs:
    """The clean pairs of one process: latencies per call in any one unit, entry by entry a pair."""

    eager: Array
    backend: Array


@dataclass(frozen=True)
class Estimate:
    """A ratio with its interval; basis as in records.Speedup; own is this case's own spread."""

    value: float
    ci_low: float
    ci_high: float
    basis: str
    own: Spread


def estimate(processes: Sequence[Pairs], pooled: Spread, *, seed: int = 0) -> Estimate:
    """The speedup over one or more processes, `pooled` being what other cases tell of the spread.

    With one process the variance is the pooled one, or the within-process one where that is larger;
    with several it is their own sample variance pooled with `pooled`, over K. Degrees of freedom
    add up. The interval holds what another run of the same case would report, 95 times in 100 (ISO
    5725-6, reproducibility limit: sqrt(2) times the interval of one result), and so the truth more
    often than that. Without any knowledge of the spread the interval is the within-process one, and
    basis says `within`. Raises ValueError without processes.
    """
    if not processes:
        raise ValueError("the speedup of no process")
    ratios = [log_ratio(p.eager, p.backend) for p in processes]
    deviations = [log_ratio_deviation(p.eager, p.backend, seed=seed + k) for k, p in enumerate(processes)]
    within = float(np.mean(np.square(deviations)))
    count = len(ratios)
    own = Spread(float(np.var(ratios, ddof=1)), count - 1) if count > 1 else Spread()
    spread = pooled.plus(own.variance, own.df)
    centre = float(np.mean(ratios))
    if spread.df == 0:
        deviation, basis = math.sqrt(within), "within"
    else:
        # A spread seen smaller than what sampling alone makes is luck: never go below that.
        deviation = math.sqrt(max(spread.variance, within) / count)
        basis = "processes" if own.df else "pooled"
    reach = min(_quantile(spread.df) * deviation, 700.0)
    return Estimate(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach), basis, own)


def _quantile(df: int) -> float:
    """How many standard deviations the interval reaches (Student's t, normal where df is 0).

    sqrt(2) of the 95 % quantile, for another run; at least the 98 % one, so that a model against
    itself is called faster or slower in at most 2 of 100.
    """
    distribution = stats.t(df) if df else stats.norm()
    return max(math.sqrt(2) * float(distribution.ppf(0.975)), float(distribution.ppf(0.99)))


def verdict(found: Estimate, margin: float = MARGIN) -> str:
    """faster, slower, equivalent or inconclusive.

    Equivalent: the whole interval lies within 1 / (1 + margin) .. 1 + margin (two one-sided tests,
    Schuirmann 1987). Faster and slower: it lies beyond 1. An interval that does not cover the spread
    between processes (basis `within`) supports no verdict.
    """
    if found.basis == "within":
        return "inconclusive"
    if 1 / (1 + margin) <= found.ci_low and found.ci_high <= 1 + margin:
        return "equivalent"
    if found.ci_low > 1:
        return "faster"
    return "slower" if found.ci_high < 1 else "inconclusive"
