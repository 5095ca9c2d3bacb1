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

from perfdash.stats.intervals import CONFIDENCE, Array, Spread, log_ratio, log_ratio_deviation

MARGIN = 0.02
SURE = 0.98  # level of the interval that a verdict faster or slower needs


@dataclass(frozen=True)
class Pairs:
    """The clean pairs of one process: latencies per call in any one unit, entry by entry a pair."""

    eager: Array
    backend: Array


@dataclass(frozen=True)
class Estimate:
    """A ratio with its 95 % interval, and the wider 98 % one on which a verdict rests.

    basis as in records.Speedup; own is this case's own spread between processes.
    """

    value: float
    ci_low: float
    ci_high: float
    sure_low: float
    sure_high: float
    basis: str
    own: Spread


def estimate(processes: Sequence[Pairs], pooled: Spread, *, seed: int = 0) -> Estimate:
    """The speedup over one or more processes, `pooled` being what other cases tell of the spread.

    With one process the variance is the pooled one, or the within-process one where that is larger;
    with several it is their own sample variance pooled with `pooled`, over K. Degrees of freedom
    add up. Without any knowledge of the spread the interval is the within-process one, and basis
    says `within`. Raises ValueError without processes.
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
    reach = min(_quantile(CONFIDENCE, spread.df) * deviation, 700.0)
    sure = min(_quantile(SURE, spread.df) * deviation, 700.0)
    return Estimate(
        value=math.exp(centre),
        ci_low=math.exp(centre - reach),
        ci_high=math.exp(centre + reach),
        sure_low=math.exp(centre - sure),
        sure_high=math.exp(centre + sure),
        basis=basis,
        own=own,
    )


def _quantile(level: float, df: int) -> float:
    """Two-sided quantile of Student's t, of the normal distribution where df is 0."""
    distribution = stats.t(df) if df else stats.norm()
    return float(distribution.ppf((1 + level) / 2))


def verdict(found: Estimate, margin: float = MARGIN) -> str:
    """faster, slower, equivalent or inconclusive.

    Equivalent: the whole 95 % interval lies within 1 / (1 + margin) .. 1 + margin (two one-sided
    tests, Schuirmann 1987, at 2.5 %). Faster and slower: the 98 % interval lies beyond 1, so that a
    model against itself is called so in at most 2 of 100. An interval that does not cover the spread
    between processes (basis `within`) supports no verdict.
    """
    if found.basis == "within":
        return "inconclusive"
    if 1 / (1 + margin) <= found.ci_low and found.ci_high <= 1 + margin:
        return "equivalent"
    if found.sure_low > 1:
        return "faster"
    return "slower" if found.sure_high < 1 else "inconclusive"
