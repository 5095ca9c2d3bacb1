"""Speedup with its interval and verdict, from pairs of samples of two or more processes.

Each result keeps what the interval needs of its samples (`conditions`: process_ratios, within_variance,
earlier_processes of earlier nights, cpu_ratio where the interval must contain it, widened_by where it must
be wider). So the intervals of a run
are computed anew whenever more of the run is known: after each case, at the end, after a resume, over merged
shards. The order in which cases were measured does not matter.

Sampling in one process cannot see what differs between processes (addresses, pages, hash seeds), which is
often the larger part. Two processes say little of it, the run's cases together say much: see process_spread.
The interval is that of the truth; another run differs by up to sqrt(2) times as much (ISO 5725-6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdash.methods import CURRENT, alike
from perfdash.metrics import EQUIVALENCE_MARGIN
from perfdash.records import DISTURBED, Result, RunInfo, Speedup
from perfdash.stats.intervals import CONFIDENCE, Array, log_ratio, log_ratio_deviation
from perfdash.stats.process_spread import ProcessRatios, SpreadOfRun, spread_of_run, widened_for_few

SURE = 0.985  # so that a model against itself is called faster or slower in at most 2 of 100
NULL_EXPECTED = 0.02  # a model compared with itself is off by at most that on a quiet machine,
NULL_ALARM = 0.05  # or by a little more here and there, but not so far


@dataclass(frozen=True)
class Pairs:
    """Pairs of one process that count: latencies per call in any one unit, entry by entry a pair."""

    eager: Array
    backend: Array


def ratios_of(processes: Sequence[Pairs]) -> ProcessRatios:
    """The log ratio of each process, and their variance by sampling. Raises ValueError without processes.

    A process with one pair is taken to be as variable, pair by pair, as the others; where each has only one,
    the variance is infinite.
    """
    if not processes:
        raise ValueError("the speedup of no process")
    counts = np.array([len(p.eager) for p in processes])
    deviations = [log_ratio_deviation(p.eager, p.backend) for p in processes]
    variances = np.square(deviations)
    several = counts > 1
    if several.any():
        variances[~several] = float(np.mean(variances[several] * counts[several]))
    return ProcessRatios(
        tuple(log_ratio(p.eager, p.backend) for p in processes),
        widened_for_few(float(np.mean(variances)), counts.tolist()),
    )


def null_warning(worst: object) -> str | None:
    """A warning for a run whose A/A null was too far from 1; None for a quiet machine.

    `worst`: by how much a model compared with itself was off at most (noise.null.worst), 0.02 is 2 %.
    """
    if isinstance(worst, bool) or not isinstance(worst, int | float) or not worst > NULL_ALARM:
        return None
    return (
        f"this machine was disturbed: a model compared with itself was off by {worst:.1%}, where "
        f"{NULL_EXPECTED:.0%} is the most that should be; do not trust differences of that size in this run, "
        "end what else runs on the machine, and measure again"
    )


def verdict(
    low: float, high: float, sure: tuple[float, float] | None = None, margin: float = EQUIVALENCE_MARGIN
) -> str:
    """faster, slower, equivalent or inconclusive, for a 95 % interval and a wider one that makes sure.

    Equivalent: the whole interval lies within 1 / (1 + margin) .. 1 + margin (two one-sided tests,
    Schuirmann 1987). Faster and slower: `sure` lies beyond 1.
    """
    if 1 / (1 + margin) <= low and high <= 1 + margin:
        return "equivalent"
    low, high = sure or (low, high)
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "inconclusive"


def margin_of(info: RunInfo) -> float:
    """The margin of `equivalent` that a run was told; 2 % in runs from before it could be told."""
    return float(info.configuration.get("margin") or 0.02)


def kept_ratios(result: Result) -> ProcessRatios | None:
    """The log ratios that a result keeps of its processes; None without samples, and for older records."""
    ratios = result.conditions.get("process_ratios")
    if not ratios or "within_variance" not in result.conditions:
        return None
    within = result.conditions["within_variance"]
    return ProcessRatios(tuple(math.log(ratio) for ratio in ratios), math.inf if within is None else within)


def keep_earlier(result: Result, nights: Sequence[ProcessRatios]) -> None:
    """Keep in a result what the case's processes were on earlier nights: they say how far these differ.

    So its interval can be computed anew anywhere, without the history that they are from.
    """
    if nights and "process_ratios" in result.conditions:
        result.conditions["earlier_processes"] = [
            [[round(ratio, 6) for ratio in night.ratios], night.within] for night in nights
        ]


def set_speedups(
    results: Sequence[Result], only: Result | None = None, *, margin: float = EQUIVALENCE_MARGIN
) -> SpreadOfRun:
    """Set the speedup of every result with samples, or of `only`; return the spread between processes.

    Results of an earlier method keep the interval that their method made.
    """
    sampled = [
        (result, ratios)
        for result in results
        if alike(result.method, CURRENT, "speedup") and (ratios := kept_ratios(result)) is not None
    ]
    spread = spread_of_run(
        [_undisturbed(result, ratios) for result, ratios in sampled],
        [
            [ProcessRatios(tuple(logs), within) for logs, within in nights]
            for result, _ in sampled
            for nights in [result.conditions.get("earlier_processes", ())]
        ],
    )
    for place, (result, ratios) in enumerate(sampled):
        if only is None or result is only:
            result.speedup = _speedup(result, ratios, spread, place, margin)
    return spread


def _undisturbed(result: Result, ratios: ProcessRatios) -> ProcessRatios:
    """The ratios that the spread between processes is taken from: none of a disturbed case.

    What other programs did to its processes says nothing of how processes differ.
    """
    return ProcessRatios((), math.inf) if result.conditions.get("disturbed") else ratios


def _speedup(
    result: Result, ratios: ProcessRatios, spread: SpreadOfRun, place: int, margin: float
) -> Speedup:
    """The speedup of one result; what other programs did to it makes its interval wider."""
    alone = "pooled" if spread.cases or result.conditions.get("earlier_processes") else "within"
    basis = "processes" if ratios.count > 1 else alone
    disturbed = bool(result.conditions.get("disturbed"))
    if not math.isfinite(ratios.within):  # a single pair of samples
        word = DISTURBED if disturbed else "inconclusive"
        return Speedup(round(math.exp(ratios.mean), 6), None, None, word, basis)

    def interval(confidence: float) -> tuple[float, float]:
        if basis == "within":
            reach = ratios.reach_within(confidence)
        else:
            reach = spread.reach(place, ratios, confidence)
        low, high = math.exp(ratios.mean - reach), math.exp(ratios.mean + reach)
        by_cpu = result.conditions.get("cpu_ratio")
        if by_cpu is not None:
            low, high = min(low, by_cpu), max(high, by_cpu)
        lost = result.conditions.get("widened_by", 0.0)
        return low / (1 + lost), high * (1 + lost)

    low, high = interval(CONFIDENCE)
    # An interval that does not cover what differs between processes supports no verdict.
    word = "inconclusive" if basis == "within" else verdict(low, high, interval(SURE), margin)
    if disturbed:
        word = DISTURBED
    return Speedup(round(math.exp(ratios.mean), 6), round(low, 6), round(high, 6), word, basis)
