"""The sequential test of a suspected change, pair by pair: stands, dismissed or undecided.

`perfdash confirm`, bisection and `ci/compare.sh` decide by it. Both builds of a pair run one right after the
other, so that what the host does to both cancels. The measurements that raised the suspicion are not used as
evidence, because they were selected for being extreme.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, stdev
from typing import Literal

import numpy as np
from scipy import optimize, special

from perfdash.metrics import MINIMUM_CHANGE
from perfdash.stats.intervals import CONFIDENCE, Array
from perfdash.stats.noise_level import as_normal

Decision = Literal["more", "stands", "dismissed", "undecided"]

PAIRS = 8
LEAST = 6  # pairs that a plan allows at least: of fewer, one outlier can take the decision
_LEAST_TO_DISMISS = 3  # of fewer pairs, one outlier is no small part
FALSE_ALARM = 1e-3  # probability that an unchanged suspect stands
MISS = 0.05  # probability that a change of the size `Boundaries.detects` does not stand
CLIP = 2.5  # deviations at which one pair's ratio is clipped
OUTLIERS = 0.04  # share of pairs that are outliers, allowed for in the boundaries
TRUSTED = 30  # degrees of freedom of the known spread, at most: tonight's spread may differ
_SHAPE = 0.25 - 0.5  # of the boundaries: Wang and Tsiatis' Delta = 0.25, less a half
_STEPS = ((16, 0.05), (48, 0.1), (math.inf, 0.25))  # of the grid for the score's distribution, by pairs


@dataclass(frozen=True)
class Remeasurement:
    """The result of the pairs so far: log ratio new / old, interval, and decision.

    The interval covers the true ratio with 95 % at whatever pair the test stops (repeated confidence
    interval, Jennison and Turnbull 1989, J. R. Statist. Soc. B 51, 305), so it is wider than a plain one.
    wanted: of an undecided test, about how many pairs in all would decide it; None if that is unknown.
    """

    decision: Decision
    estimate: float
    low: float
    high: float
    pairs: int
    wanted: int | None = None


@dataclass(frozen=True)
class Boundaries:
    """Boundaries for the standardised score after pairs 1..N.

    Without a change the score is Gaussian with variance 1. A change stands at or above `stands`. interval:
    half width of the score's repeated interval. detects: the change, in deviations of a pair, that does not
    stand with probability MISS.
    """

    stands: Array
    interval: Array
    detects: float


def decide(
    log_ratios: Sequence[float],
    *,
    suspected: float,
    at_least: float | None = None,
    sd: float | None = None,
    df: float | None = None,
    minimum_change: float = MINIMUM_CHANGE,
    pairs: int = PAIRS,
    most_pairs: int | None = None,
    false_alarm: float = FALSE_ALARM,
) -> Remeasurement:
    """Decide from the log ratios new / old of the pairs so far.

    `suspected`: the change (log) that raised the suspicion; only a change in its direction stands.
    `at_least`: the smallest size (log, above 0) that the suspicion allows; None: what these pairs detect,
    since a change that raised a suspicion is mostly smaller than it looked, but at most `suspected`. `sd`,
    `df`: standard deviation (log) of one run and its degrees of freedom; None: estimated from the pairs
    alone, which takes more of them. `pairs`: how many are planned. `most_pairs`: up to so many if these
    leave it undecided; both tests together keep `false_alarm`.

    Each ratio is clipped at 2.5 deviations (Huber 1964), and their sum is compared with the boundaries of
    `plan`. A change stands only if its robust estimate is also at least `minimum_change`. It is dismissed
    when the interval of three pairs or more lies below what was suspected (`at_least`), or below
    `minimum_change`. After the last pair it is undecided, and without `at_least` as soon as only changes are
    left that are too small for `pairs`. Ratios that are not finite (a failed run) do not
    count as pairs, so the caller must limit them. Raises ValueError for a suspected change of zero.
    """
    if suspected == 0 or not math.isfinite(suspected):
        raise ValueError(f"suspected: a change with a direction is wanted, not {suspected}")
    direction = math.copysign(1.0, suspected)
    ratios = [direction * float(ratio) for ratio in log_ratios if math.isfinite(ratio)]
    n = len(ratios)
    if n == 0:
        return Remeasurement("more", math.nan, -math.inf, math.inf, 0)
    stages = 2 if most_pairs and most_pairs > pairs else 1
    last = pairs if n <= pairs or not most_pairs else most_pairs
    design = plan(last, false_alarm / stages, (1 - CONFIDENCE) / stages)
    look, last = min(n, last) - 1, max(pairs, most_pairs or 0)
    deviation, freedom = _pair_deviation(ratios, sd, df)
    if not math.isfinite(deviation):
        unknown: Decision = "more" if n < last else "undecided"
        return Remeasurement(unknown, direction * median(ratios), -math.inf, math.inf, n)
    # A scale estimated from the pairs alone is widened by an outlier among them, so no clip is needed.
    reach = CLIP * deviation if sd is not None else math.inf
    total = sum(max(-reach, min(reach, ratio)) for ratio in ratios) / deviation
    score = float(as_normal(np.array([total / math.sqrt(n)]), np.array([freedom]))[0])
    estimate = _location(ratios, deviation)
    half = -float(special.stdtrit(freedom, special.ndtr(-design.interval[look]))) * deviation / math.sqrt(n)
    low, high = sorted((direction * (estimate - half), direction * (estimate + half)))

    least = math.log1p(minimum_change)
    detectable = 0.0
    if at_least is None:
        detectable = design.detects * deviation
        at_least = min(abs(suspected), detectable)
    refuted = max(at_least, least)
    decision: Decision = "more" if n < last else "undecided"
    if score >= design.stands[look] and estimate >= least:
        decision = "stands"
    elif n >= _LEAST_TO_DISMISS and estimate + half < refuted:
        decision = "dismissed"
    elif n >= _LEAST_TO_DISMISS and estimate + half < detectable:
        decision = "undecided"  # smaller than these pairs could tell: the next ones would not either
    wanted = None
    if decision == "undecided":
        apart = max(estimate - least, refuted - estimate)
        # The number of pairs times the square of what they detect hardly depends on their number.
        usual = plan(PAIRS).detects * math.sqrt(PAIRS)
        wanted = max(n + 1, math.ceil((usual * deviation / apart) ** 2)) if apart > 0 else None
    return Remeasurement(decision, direction * estimate, low, high, n, wanted)


def pairs_needed(change: float, sd: float, *, most: int = PAIRS) -> int:
    """The number of pairs after which a change of this size stands with 95 %, in noise of `sd` per run."""
    if plan(most).detects * math.sqrt(2) * sd > abs(change):
        return most
    low, high = LEAST - 1, most  # too few | enough
    while high - low > 1:
        middle = (low + high) // 2
        enough = plan(middle).detects * math.sqrt(2) * sd <= abs(change)
        low, high = (low, middle) if enough else (middle, high)
    return high


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
def plan(pairs: int = PAIRS, false_alarm: float = FALSE_ALARM, outside: float = 1 - CONFIDENCE) -> Boundaries:
    """The boundaries for at most `pairs` pairs that keep `false_alarm` over all looks.

    outside: probability that the truth is ever outside of the interval.

    stands at C (n / N)^-0.25 (Wang and Tsiatis 1987, Biometrics 43, 193). C is found by recursive
    integration of the clipped score's distribution (Armitage, McPherson and Rowe 1969), under normal noise
    of which a share of OUTLIERS lies at the clip, half on either side. It holds whatever a dismissal
    decides, since that only ends a test sooner.
    """
    if pairs < 2:
        raise ValueError(f"{pairs} pairs: at least 2 are wanted")
    shape = (np.arange(1, pairs + 1) / pairs) ** _SHAPE

    def upper(chance: float) -> Array:
        return shape * _root(lambda c: _crossing(c * shape, 0.0) - chance, 0.5, CLIP * math.sqrt(pairs))

    stands = upper(false_alarm)
    largest = 2 * CLIP  # beyond it every ratio is clipped
    found = _crossing(stands, largest) >= 1 - MISS
    detects = _root(lambda effect: 1 - MISS - _crossing(stands, effect), 0.0, largest) if found else math.inf
    return Boundaries(stands, upper(outside / 2), detects)


def _crossing(upper: Array, effect: float) -> float:
    """The probability to reach the boundary at any pair, for a change of `effect`."""
    grid = next(step for pairs, step in _STEPS if len(upper) <= pairs)
    half = round(CLIP / grid)
    edges = (np.arange(-half, half + 2) - 0.5) * grid
    edges[0], edges[-1] = -np.inf, np.inf
    of_pair = (1 - OUTLIERS) * np.diff(special.ndtr(edges - effect))
    of_pair[[0, -1]] += OUTLIERS / 2
    mass, above = np.ones(1), 0.0
    for n, high in enumerate(upper, start=1):
        mass = np.convolve(mass, of_pair)
        score = (np.arange(len(mass)) - len(mass) // 2) * grid / math.sqrt(n)
        # A bin across the boundary counts by its part beyond it, so that the function stays continuous.
        beyond = np.clip((score - high) / (grid / math.sqrt(n)) + 0.5, 0, 1)
        beyond[-1] = float(score[-1] >= high)
        above += float(mass @ beyond)
        mass = mass * (1 - beyond)
    return above


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a decreasing function; the nearer end where it has none between them."""
    if function(low) <= 0:
        return low
    return high if function(high) >= 0 else float(optimize.brentq(function, low, high, xtol=1e-11))
