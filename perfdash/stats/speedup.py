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
NULL_ALARM = 0.05  # a model compared with itself: over the margin here and there, but not so far


@dataclass(frozen=True)
class Pairs:
    """Pairs of one process that count: latencies per call in any one unit, entry by entry a pair."""

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


@dataclass(frozen=True)
class Summary:
    """What the interval needs of the samples: a log ratio a process, the variance within them."""

    ratios: tuple[float, ...]
    within: float

    @property
    def own(self) -> Spread:
        """The spread between the processes."""
        count = len(self.ratios)
        return Spread(float(np.var(self.ratios, ddof=1)), count - 1) if count > 1 else Spread()


def summarize(processes: Sequence[Pairs], *, seed: int = 0) -> Summary:
    """The samples of one or more processes in brief. Raises ValueError without processes."""
    if not processes:
        raise ValueError("the speedup of no process")
    deviations = [log_ratio_deviation(p.eager, p.backend, seed=seed + k) for k, p in enumerate(processes)]
    return Summary(
        tuple(log_ratio(p.eager, p.backend) for p in processes), float(np.mean(np.square(deviations)))
    )


def estimate(summary: Summary, pooled: Spread) -> Estimate:
    """The speedup over one or more processes, `pooled` being what other cases tell of the spread.

    With one process the variance is the pooled one, or the within-process one where that is larger;
    with several it is their own sample variance pooled with `pooled`, over K. Degrees of freedom
    add up. The interval holds what another run of the same case would report, 95 times in 100 (ISO
    5725-6, reproducibility limit: sqrt(2) times the interval of one result), and so the truth more
    often than that. Without any knowledge of the spread the interval is the within-process one, and
    basis says `within`.
    """
    own = summary.own
    spread = pooled.plus(own.variance, own.df)
    centre = float(np.mean(summary.ratios))
    if spread.df == 0:
        deviation, basis = math.sqrt(summary.within), "within"
    else:
        # A spread seen smaller than what sampling alone makes is luck: never go below that.
        deviation = math.sqrt(max(spread.variance, summary.within) / len(summary.ratios))
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


def null_warning(worst: object) -> str | None:
    """What a reader must know before any number of a run; None where its A/A null was near enough to 1.

    `worst`: by how much a model compared with itself was off at most (noise.null.worst), 0.02 is 2 %.
    """
    if isinstance(worst, bool) or not isinstance(worst, int | float) or not worst > NULL_ALARM:
        return None
    return (
        f"this machine was disturbed: a model compared with itself was off by {worst:.1%}, where "
        f"{MARGIN:.0%} is the most that should be; do not trust differences of that size in this run, end "
        "what else runs on the machine, and measure again"
    )


def verdict(basis: str, low: float, high: float, margin: float = MARGIN) -> str:
    """faster, slower, equivalent or inconclusive, for an interval and what it rests on.

    Equivalent: the whole interval lies within 1 / (1 + margin) .. 1 + margin (two one-sided tests,
    Schuirmann 1987). Faster and slower: it lies beyond 1. An interval that does not cover the spread
    between processes (basis `within`) supports no verdict.
    """
    if basis == "within":
        return "inconclusive"
    if 1 / (1 + margin) <= low and high <= 1 + margin:
        return "equivalent"
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "inconclusive"
