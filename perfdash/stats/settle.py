"""The intervals of a run's speedups from what all its results together tell of the spread.

Each result keeps what its own samples say (`conditions`: process_ratios, within_variance, cpu_ratio
where the interval must take that in, widened_by where it is to be wider), so the intervals can be made
anew whenever more of the run is known: after each case, at the end, after a resume, over merged shards.
The order in which cases were measured leaves no trace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfdash.records import Result, Speedup
from perfdash.stats.intervals import Spread
from perfdash.stats.speedup import Summary, estimate, verdict


def summary_of(result: Result) -> Summary | None:
    """What the samples of a result say; None for one without (also of an older record)."""
    ratios = result.conditions.get("process_ratios")
    if not ratios or "within_variance" not in result.conditions:
        return None
    within = result.conditions["within_variance"]
    return Summary(tuple(math.log(ratio) for ratio in ratios), math.inf if within is None else within)


def pooled_spread(results: Sequence[Result]) -> Spread:
    """The spread between processes from all replicated cases, weighted by degrees of freedom."""
    spread = Spread()
    for result in results:
        if summary := summary_of(result):
            spread = spread.plus(summary.own.variance, summary.own.df)
    return spread


def settle(results: Sequence[Result], only: Result | None = None) -> Spread:
    """Sets the speedup of every result that has samples, or of one; the pooled spread it rests on."""
    everything = pooled_spread(results)
    for result in results if only is None else [only]:
        summary = summary_of(result)
        if summary is not None:
            # Its own spread is counted once: estimate() adds it.
            set_interval(result, summary, everything.minus(summary.own))
    return everything


def set_interval(result: Result, summary: Summary, pooled: Spread) -> None:
    """The speedup of one result, with what other cases tell of the spread."""
    found = estimate(summary, pooled)
    low, high = found.ci_low, found.ci_high
    by_cpu = result.conditions.get("cpu_ratio")
    if by_cpu is not None:
        low, high = min(low, by_cpu), max(high, by_cpu)
    lost = result.conditions.get("widened_by", 0.0)
    low, high = low / (1 + lost), high * (1 + lost)
    result.speedup = Speedup(
        round(found.value, 6), round(low, 6), round(high, 6), verdict(found.basis, low, high), found.basis
    )
