"""Speedup with its interval and verdict, from pairs of samples of one or more processes.

Each result keeps what the interval needs of its samples (`conditions`: process_ratios, within_variance,
cpu_ratio where the interval must contain it, widened_by where it must be wider). So the intervals of a run
are computed anew whenever more of the run is known: after each case, at the end, after a resume, over merged
shards. The order in which cases were measured does not matter.

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

from perfdash.records import Result, Speedup
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
class LogRatios:
    """The log ratios of the processes, and the variance within them."""

    ratios: tuple[float, ...]
    within: float

    @property
    def own(self) -> Spread:
        """The spread between the processes."""
        count = len(self.ratios)
        return Spread(float(np.var(self.ratios, ddof=1)), count - 1) if count > 1 else Spread()


def log_ratios_of(processes: Sequence[Pairs], *, seed: int = 0) -> LogRatios:
    """The log ratios of one or more processes. Raises ValueError without processes."""
    if not processes:
        raise ValueError("the speedup of no process")
    deviations = [log_ratio_deviation(p.eager, p.backend, seed=seed + k) for k, p in enumerate(processes)]
    return LogRatios(
        tuple(log_ratio(p.eager, p.backend) for p in processes), float(np.mean(np.square(deviations)))
    )


def estimate(log_ratios: LogRatios, pooled: Spread) -> Estimate:
    """The speedup over one or more processes; `pooled` is the spread measured in other cases.

    With one process the variance is the pooled one, or the within-process one where that is larger;
    with several it is their own sample variance pooled with `pooled`, over K. Degrees of freedom
    add up. The interval holds what another run of the same case would report, 95 times in 100 (ISO
    5725-6, reproducibility limit: sqrt(2) times the interval of one result), and so the truth more
    often than that. Without any knowledge of the spread the interval is the within-process one, and
    basis says `within`.
    """
    own = log_ratios.own
    spread = pooled.plus(own.variance, own.df)
    centre = float(np.mean(log_ratios.ratios))
    if spread.df == 0:
        deviation, basis = math.sqrt(log_ratios.within), "within"
    else:
        # A spread seen smaller than what sampling alone makes is luck: never go below that.
        deviation = math.sqrt(max(spread.variance, log_ratios.within) / len(log_ratios.ratios))
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
    """A warning for a run whose A/A null was too far from 1; None for a quiet machine.

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


def stored_log_ratios(result: Result) -> LogRatios | None:
    """The log ratios that a result keeps; None without samples, and for older records."""
    ratios = result.conditions.get("process_ratios")
    if not ratios or "within_variance" not in result.conditions:
        return None
    within = result.conditions["within_variance"]
    return LogRatios(tuple(math.log(ratio) for ratio in ratios), math.inf if within is None else within)


def pooled_spread(results: Sequence[Result]) -> Spread:
    """The spread between processes over all replicated cases, weighted by degrees of freedom."""
    spread = Spread()
    for result in results:
        if log_ratios := stored_log_ratios(result):
            spread = spread.plus(log_ratios.own.variance, log_ratios.own.df)
    return spread


def set_speedups(results: Sequence[Result], only: Result | None = None) -> Spread:
    """Set the speedup of every result with samples, or of `only`; return the pooled spread."""
    everything = pooled_spread(results)
    for result in results if only is None else [only]:
        log_ratios = stored_log_ratios(result)
        if log_ratios is not None:
            # Its own spread is counted once: estimate() adds it.
            set_interval(result, log_ratios, everything.minus(log_ratios.own))
    return everything


def set_interval(result: Result, log_ratios: LogRatios, pooled: Spread) -> None:
    """Set the speedup of one result; `pooled` is the spread of the other cases."""
    estimated = estimate(log_ratios, pooled)
    low, high = estimated.ci_low, estimated.ci_high
    by_cpu = result.conditions.get("cpu_ratio")
    if by_cpu is not None:
        low, high = min(low, by_cpu), max(high, by_cpu)
    lost = result.conditions.get("widened_by", 0.0)
    low, high = low / (1 + lost), high * (1 + lost)
    result.speedup = Speedup(
        round(estimated.value, 6),
        round(low, 6),
        round(high, 6),
        verdict(estimated.basis, low, high),
        estimated.basis,
    )
