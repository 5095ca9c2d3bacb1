"""How far the processes of a case differ, estimated from all cases of a run and from earlier nights.

Two processes say next to nothing of the spread between them, the cases of a run together say much. So each
case's spread is shrunk towards what all cases say (empirical Bayes). The model, in logs of the ratios:

    ratio of a process = truth of the case + N(0, between^2) + N(0, within)

`within` is known from the samples. `between` differs from model to model: its logarithm is normal around the
run's median, and a few models are far more variable than that. The median and the spread of `between` over
models are unknown; both are integrated over a grid, with a weak prior (_MEDIAN_EXPECTED), so a run of one
case is judged by the prior and its own processes. Between processes the variance can come out zero, never
negative.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from perfdash.stats.intervals import CONFIDENCE, Array

# Standard deviations between processes that are considered, as logs: 0.02 % counts as none.
_BETWEEN = np.geomspace(2e-4, 0.4, 72)
_MEDIANS = np.geomspace(5e-4, 0.08, 28)
_SPREADS = np.array([0.15, 0.3, 0.45, 0.6, 0.8, 1.0])
# What one machine differs from another by: medians of 0.3 to 2 % were seen on five kinds of machine, and
# twice as much either way is as likely as not on another.
_MEDIAN_EXPECTED, _MEDIAN_SPREAD = 0.01, 0.9
# Some models (one in twelve) are far more variable than the others, about three times.
_ODD, _ODD_TIMES, _ODD_SPREAD = 0.08, 3.0, 1.0
# Earlier nights ran other builds, so each counts for less than tonight.
_NIGHT_WEIGHT = 0.7
_FEW_PAIRS = 10
_USUAL = 0.012  # between the processes of an ordinary model


@dataclass(frozen=True)
class ProcessRatios:
    """The log ratios of a case's processes, and the variance of each by sampling alone."""

    ratios: tuple[float, ...]
    within: float

    @property
    def count(self) -> int:
        """How many processes there are."""
        return len(self.ratios)

    @property
    def mean(self) -> float:
        """The log of the geometric mean."""
        return float(np.mean(self.ratios))

    def reach_within(self, confidence: float) -> float:
        """Half the width of the mean's interval by sampling alone, blind to the spread between processes."""
        return float(stats.norm.ppf((1 + confidence) / 2)) * math.sqrt(self.within / self.count)


@dataclass(frozen=True)
class SpreadOfRun:
    """What a run says of the spread between processes.

    `median`: of the standard deviations over models. `cases`: how many were sampled in several processes.
    `weights` (cases, grid): the probability of each value of _BETWEEN, by case in the order given.
    """

    median: float
    cases: int
    weights: Array

    @property
    def facts(self) -> dict[str, float | int]:
        """As run.json has it."""
        return {"relative_sd": round(self.median, 6), "cases": self.cases}

    def reach(self, place: int, processes: ProcessRatios, confidence: float = CONFIDENCE) -> float:
        """Half the width of the interval of the truth, as a log, that holds with this probability.

        The error of the mean is a mixture of normal errors, one for each possible spread between processes;
        so few processes widen what they are about, and leave the known part within them as it is.
        Infinite where sampling says nothing (`within` infinite).
        """
        if not math.isfinite(processes.within):
            return math.inf
        deviations = np.sqrt((_BETWEEN**2 + processes.within) / processes.count)
        weights = self.weights[place]
        low, high = 0.0, float(8 * deviations[-1])
        for _ in range(60):
            middle = (low + high) / 2
            outside = 2 * float(weights @ special.ndtr(-middle / deviations))
            low, high = (middle, high) if outside > 1 - confidence else (low, middle)
        return high


def widened_for_few(variance: float, pairs: Sequence[int]) -> float:
    """The variance within, larger where fewer than ten pairs a process estimate it.

    By the square of Student's t over the normal quantile, so that a normal interval of it covers as t does.
    """
    if min(pairs) >= _FEW_PAIRS:
        return variance
    df = sum(count - 1 for count in pairs)
    if df < 1:
        return math.inf
    return variance * float((stats.t(df).ppf(0.975) / stats.norm.ppf(0.975)) ** 2)


def spread_of_run(
    cases: Sequence[ProcessRatios], earlier: Sequence[Sequence[ProcessRatios]] | None = None
) -> SpreadOfRun:
    """The spread between processes of every case; `earlier` has the same case's earlier nights, by case.

    Only differences within a night count: those between nights hold what has changed.
    """
    likelihoods = np.array([_likelihood(case) for case in cases]).reshape(len(cases), len(_BETWEEN))
    for place, nights in enumerate(earlier or ()):
        for night in nights:
            likelihoods[place] += _NIGHT_WEIGHT * _likelihood(night)
    # The largest is 1, so that no product of many nights vanishes.
    likelihoods = np.exp(likelihoods - likelihoods.max(axis=1, keepdims=True))
    priors, hyperprior = _priors()
    # einsum, not @: the linear algebra library would wake its threads on cores that are measured on.
    evidence = np.einsum("ij,kj->ik", likelihoods, priors)  # (cases, hyperparameters)
    # Sorted sums do not depend on the order in which cases were measured.
    logs = np.sort(np.log(np.maximum(evidence, 1e-300)), axis=0).sum(axis=0) + np.log(hyperprior)
    posterior = np.exp(logs - logs.max())
    posterior /= posterior.sum()
    mixed = np.einsum("ik,kj->ij", posterior / np.maximum(evidence, 1e-300), priors) * likelihoods
    weights = mixed / mixed.sum(axis=1, keepdims=True)
    medians = np.repeat(_MEDIANS, len(_SPREADS))
    return SpreadOfRun(
        float(np.exp(posterior @ np.log(medians))), sum(case.count > 1 for case in cases), weights
    )


def disagree(processes: ProcessRatios | None) -> bool:
    """Whether two processes differ by more than the prior allows, so that further ones are worth taking.

    It looks at their difference alone, never at the ratio, so that no verdict is sought.
    """
    if processes is None or processes.count < 2 or not math.isfinite(processes.within):
        return False
    deviation = float(np.std(processes.ratios, ddof=1))
    return deviation > 2 * math.sqrt(_USUAL**2 + processes.within)


def _likelihood(case: ProcessRatios) -> Array:
    """The log likelihood of each spread, the truth integrated out (restricted maximum likelihood)."""
    if case.count < 2 or not math.isfinite(case.within):
        return np.zeros(len(_BETWEEN))
    variance = _BETWEEN**2 + case.within
    squares = float(np.sum((np.asarray(case.ratios) - case.mean) ** 2))
    return np.asarray(-(case.count - 1) / 2 * np.log(variance) - squares / (2 * variance))


@functools.cache
def _priors() -> tuple[Array, Array]:
    """Over the grid (hyperparameters, spreads), and the weight of each row of it."""
    rows, weights = [], []
    logs = np.log(_BETWEEN)
    for median in _MEDIANS:
        for spread in _SPREADS:
            usual = stats.norm(math.log(median), spread).pdf(logs)
            odd = stats.norm(math.log(_ODD_TIMES * median), _ODD_SPREAD).pdf(logs)
            row = (1 - _ODD) * usual / usual.sum() + _ODD * odd / odd.sum()
            rows.append(row)
            weights.append(stats.norm(math.log(_MEDIAN_EXPECTED), _MEDIAN_SPREAD).pdf(math.log(median)))
    hyperprior = np.asarray(weights)
    return np.asarray(rows), hyperprior / hyperprior.sum()
