"""The sequential test that confirms or dismisses a suspected change, pair by pair of runs.

Both builds run on the same night, one after the other, so that the night's effect on both cancels. The night
that raised the suspicion is not used as evidence, because it was selected for being extreme.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, stdev
from typing import Literal

import numpy as np
from scipy import special, stats

from perfdash.metrics import MINIMUM_CHANGE
from perfdash.stats.intervals import CONFIDENCE, Array
from perfdash.stats.noise_level import as_normal

Decision = Literal["more", "stands", "dismissed"]

PAIRS = 8
FALSE_ALARM = 1e-3  # probability that an unchanged suspect stands
MISS = 0.02  # probability that a change of the size `Boundaries.detects` is dismissed
CLIP = 2.5  # deviations at which one pair's ratio is clipped
OUTLIERS = 0.04  # share of pairs that are outliers, allowed for in the boundaries
TRUSTED = 30  # degrees of freedom of the known spread, at most: tonight's spread may differ
_SHAPE = 0.25 - 0.5  # of the boundaries: Wang and Tsiatis' Delta = 0.25, less a half
_STEP = 0.05  # of the grid for the score's distribution


@dataclass(frozen=True)
class Remeasurement:
    """The result of the pairs so far: log ratio new / old, interval, and decision.

    The interval covers the true ratio with 95 % at whatever pair the test stops (repeated confidence
    interval, Jennison and Turnbull 1989, J. R. Statist. Soc. B 51, 305), so it is wider than a plain one.
    """

    decision: Decision
    estimate: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class Boundaries:
    """Boundaries for the standardised score after pairs 1..N.

    Without a change the score is Gaussian with variance 1. A change stands at or above `stands` and is
    dismissed at or below `dismissed`. interval: half width. detects: the change, in deviations of a pair,
    that is missed with probability MISS.
    """

    stands: Array
    dismissed: Array
    interval: Array
    detects: float


def decide(
    log_ratios: Sequence[float],
    *,
    suspected: float,
    sd: float | None = None,
    df: float | None = None,
    minimum_change: float = MINIMUM_CHANGE,
    pairs: int = PAIRS,
    false_alarm: float = FALSE_ALARM,
) -> Remeasurement:
    """Decide from the log ratios new / old of the pairs so far.

    `suspected`: the change (log) that raised the suspicion; only its sign counts, and only a change
    in that direction stands. `sd`, `df`: standard deviation (log) of one run and its degrees of
    freedom; None: estimated from the pairs alone, which takes more of them. `pairs`: the most pairs.

    Each ratio is clipped at 2.5 deviations (Huber 1964), and their sum is compared with the boundaries of
    `plan`. A change stands only if its robust estimate is also at least `minimum_change`. Ratios that are not
    finite (a failed run) do not count as pairs, so the caller must limit them.
    Raises ValueError for a suspected change of zero.
    """
    if suspected == 0 or not math.isfinite(suspected):
        raise ValueError(f"suspected: a change with a direction is wanted, not {suspected}")
    direction = math.copysign(1.0, suspected)
    ratios = [direction * float(ratio) for ratio in log_ratios if math.isfinite(ratio)]
    n = len(ratios)
    if n == 0:
        return Remeasurement("more", math.nan, -math.inf, math.inf, 0)
    design = plan(pairs, false_alarm)
    look = min(n, pairs) - 1
    deviation, freedom = _pair_deviation(ratios, sd, df)
    if not math.isfinite(deviation):
        unknown: Decision = "more" if n < pairs else "dismissed"
        return Remeasurement(unknown, direction * median(ratios), -math.inf, math.inf, n)
    # A scale estimated from the pairs alone is widened by an outlier among them, so no clip is needed.
    reach = CLIP * deviation if sd is not None else math.inf
    total = sum(max(-reach, min(reach, ratio)) for ratio in ratios) / deviation
    score = float(as_normal(np.array([total / math.sqrt(n)]), np.array([freedom]))[0])
    estimate = _location(ratios, deviation)
    half = -float(special.stdtrit(freedom, special.ndtr(-design.interval[look]))) * deviation / math.sqrt(n)
    low, high = sorted((direction * (estimate - half), direction * (estimate + half)))

    relevant = estimate >= math.log1p(minimum_change)
    decision: Decision = "more"
    if score >= design.stands[look] and relevant:
        decision = "stands"
    elif score <= design.dismissed[look] or n >= pairs:
        decision = "dismissed"
    return Remeasurement(decision, direction * estimate, low, high, n)


def pairs_needed(change: float, sd: float, *, least: int = 3, most: int = PAIRS) -> int:
    """The number of pairs that detects a change in noise of `sd` per run."""
    for pairs in range(least, most):
        if plan(pairs, FALSE_ALARM).detects * math.sqrt(2) * sd <= abs(change):
            return pairs
    return most


def _pair_deviation(ratios: list[float], sd: float | None, df: float | None) -> tuple[float, float]:
    """Standard deviation of a pair and its df, from past nights and these pairs.

    The past counts for at most TRUSTED degrees of freedom, so that pairs with a larger spread widen it.
    Degrees of freedom by Satterthwaite (1946).
    """
    pair_df = len(ratios) - 1
    if sd is None:
        if pair_df < 2:
            return math.inf, 1.0
        # Equal ratios would be infinitely significant, so the deviation is at least a tenth of a percent.
        return max(stdev(ratios), 1e-3), float(pair_df)
    past_variance = 2 * max(sd, 1e-6) ** 2
    past_df = TRUSTED if df is None else max(min(df, TRUSTED), 1.0)
    middle = median(ratios)
    squares = sum(min((ratio - middle) ** 2, CLIP**2 * past_variance) for ratio in ratios)
    total = past_df + pair_df
    variance = (past_variance * past_df + squares) / total
    exact = past_df**2 / (max(df, 1.0) if df is not None else past_df) + pair_df
    return math.sqrt(variance), total**2 / exact if exact else math.inf


def _location(ratios: list[float], deviation: float) -> float:
    """Huber's M-estimate of location with a known scale, clipped at 1.5 deviations (Huber 1964)."""
    centre, reach = median(ratios), 1.5 * deviation
    for _ in range(20):
        step = sum(max(-reach, min(reach, ratio - centre)) for ratio in ratios) / len(ratios)
        centre += step
        if abs(step) < 1e-9:
            break
    return centre


@functools.cache
def plan(pairs: int = PAIRS, false_alarm: float = FALSE_ALARM) -> Boundaries:
    """The boundaries for at most `pairs` pairs that keep FALSE_ALARM and MISS overall.

    Pampallona and Tsiatis (1994, J. Statist. Plann. Inference 42, 19), with Delta 0.25: stands
    at C1 (n / N)^-0.25, dismissed at detects sqrt(n) - C2 (n / N)^-0.25, meeting at pair N. C1 and C2
    are found by recursive integration of the clipped score's distribution (Armitage, McPherson and Rowe
    1969), under normal noise of which a share of OUTLIERS lies at the clip, half on either side. C1
    keeps FALSE_ALARM even if a dismissal is overruled and measuring continues.
    """
    if pairs < 2:
        raise ValueError(f"{pairs} pairs: at least 2 are wanted")
    n = np.arange(1, pairs + 1)
    shape = (n / pairs) ** _SHAPE
    never = np.full(pairs, -np.inf)

    def upper(chance: float) -> float:
        return _root(lambda c: _crossings(c * shape, never, 0.0)[0] - chance, 0.5, CLIP * math.sqrt(pairs))

    c1 = upper(false_alarm)

    def missed(c2: float) -> float:
        effect = (c1 + c2) / math.sqrt(pairs)
        stands, _ = _crossings(c1 * shape, effect * np.sqrt(n) - c2 * shape, effect)
        return 1 - stands - MISS

    c2 = _root(missed, 0.0, 6.0)
    effect = (c1 + c2) / math.sqrt(pairs)
    dismissed = effect * np.sqrt(n) - c2 * shape
    dismissed[-1] = c1
    return Boundaries(c1 * shape, dismissed, upper((1 - CONFIDENCE) / 2) * shape, effect)


def _crossings(upper: Array, lower: Array, effect: float) -> tuple[float, float]:
    """The probabilities to stop at the upper and lower boundary, for a change of `effect`."""
    half = round(CLIP / _STEP)
    edges = (np.arange(-half, half + 2) - 0.5) * _STEP
    edges[0], edges[-1] = -np.inf, np.inf
    of_pair = (1 - OUTLIERS) * np.diff(stats.norm.cdf(edges - effect))
    of_pair[[0, -1]] += OUTLIERS / 2
    mass, above, below = np.ones(1), 0.0, 0.0
    for n, (high, low) in enumerate(zip(upper, lower, strict=True), start=1):
        mass = np.convolve(mass, of_pair)
        score = (np.arange(len(mass)) - len(mass) // 2) * _STEP / math.sqrt(n)
        # A bin across the boundary counts by its part beyond it, so that the function stays continuous.
        width = _STEP / math.sqrt(n)
        beyond = np.clip((score - high) / width + 0.5, 0, 1)
        beyond[-1] = float(score[-1] >= high)
        short = np.minimum(np.clip((low - score) / width + 0.5, 0, 1), 1 - beyond)
        above, below = above + float(mass @ beyond), below + float(mass @ short)
        mass = mass * (1 - beyond - short)
    return above, below


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a decreasing function, by bisection."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return (low + high) / 2
