"""Geometric means of both sides of a comparison, over the cases that both have. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from perfdash.history.results import Row
from perfdash.stats.intervals import CONFIDENCE, Array
from perfdash.stats.means import shared_variance
from perfdash.stats.nightly_test import FLOOR
from perfdash.stats.noise_level import levels_and_noise


@dataclass(frozen=True)
class Means:
    """Geometric means of a metric over the cases that pass a check on both sides.

    Cases in which dynamo reached its recompile limit, or whose outputs were not checked, are left out. Each
    is (mean, low, high) with the 95 % interval of Student's t over the models' logs; `ratio` uses log ratios,
    so that differences between models cancel. What all models of a run share does not: of speedups it is
    added to the interval of `ratio` (stats.means), of latencies it is not known.
    """

    metric: str
    cases: int
    old: tuple[float, float, float]
    new: tuple[float, float, float]
    ratio: tuple[float, float, float]


def means_of(
    metric: str,
    logs: tuple[Array, Array],
    counted: NDArray[np.bool_],
    rows: Sequence[Sequence[Sequence[Row]]],
    pairs: float = 0.0,
) -> Means | None:
    """The means of one metric; None where no case counts.

    `logs` of both sides have the shape (cases, runs), NaN where a run has none; `counted` says which cases
    may count; `rows` are those of both sides, case by case; `pairs`: of so many runs of each side are the
    logs where rows are those of the last pair alone.
    """
    in_both = np.isfinite(logs[0]).any(axis=1) & np.isfinite(logs[1]).any(axis=1) & counted
    if not in_both.any():
        return None
    levels, _ = levels_and_noise(logs, FLOOR)
    before, after = (level[in_both] for level in levels)
    shared = sum(_shared(side, in_both, pairs) for side in rows) if metric == "speedup" else 0.0
    return Means(metric, len(before), _mean(before), _mean(after), _mean(after - before, shared))


def _shared(side: Sequence[Sequence[Row]], counted: NDArray[np.bool_], pairs: float) -> float:
    """The variance of a side's mean log speedup by what all models of a run share; 0 of imported runs."""
    chosen = [row for of_case, counts in zip(side, counted, strict=True) if counts for row in of_case]
    # One process without a known spread gives no interval: `within`.
    measured = [row for row in chosen if row.values.get("speedup_low") or row.basis == "within"]
    if not measured:
        return 0.0
    count = int(counted.sum())
    one_parent = sum(row.basis in ("pooled", "within") for row in measured) / len(measured)
    return shared_variance(count, one_parent * count) / (pairs or max(1.0, len(measured) / count))


def _mean(logs: Array, shared: float = 0.0) -> tuple[float, float, float]:
    """Geometric mean with its 95 % interval by Student's t over the logs; NaN for one value.

    `shared`: a variance that all of the logs have in common.
    """
    middle, reach = float(np.mean(logs)), math.nan
    if len(logs) > 1:
        error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
        own = float(special.stdtrit(len(logs) - 1, (1 + CONFIDENCE) / 2)) * error
        reach = min(700.0, math.hypot(own, float(special.ndtri((1 + CONFIDENCE) / 2)) * math.sqrt(shared)))
    return math.exp(middle), math.exp(middle - reach), math.exp(min(middle + reach, 700.0))
