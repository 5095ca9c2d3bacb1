"""One number for many models: means of ratios, each under its own name."""

from __future__ import annotations

import math
from collections.abc import Sequence

# How far all models of one fork parent err together, as the standard deviation of a log. By
# benchmarks/fork_spread.py: 0.8 % from 16 parents and three models, known to no better than 0 to 1.6 %.
SHARED_SD = 0.008
# A fork parent is started anew after so many cases (runner/slot.py).
_CASES_OF_A_PARENT = 40
_NORMAL = 1.959964  # the 97.5 % quantile of the normal distribution


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean of logs (Fleming and Wallace 1986: the mean for ratios). NaN when empty."""
    if not values:
        return math.nan
    return math.exp(sum(math.log(value) for value in values) / len(values))


def clipped_geometric_mean(values: Sequence[float]) -> float:
    """The mean the old dashboard shows: each ratio below 1 counts as 1. It hides every slowdown."""
    return geometric_mean([max(1.0, value) for value in values])


def arithmetic_mean(values: Sequence[float]) -> float:
    """The sum over the count; NaN when empty."""
    return sum(values) / len(values) if values else math.nan


def geometric_mean_interval(
    speedups: Sequence[tuple[float, float, float]], *, one_parent: int = 0
) -> tuple[float, float]:
    """The 95 % interval of the geometric mean of these models, from (value, low, high) of each.

    It says how well the mean of just these models is known, not how other models would do. The errors of the
    models are independent but for what their fork parents lend to all (shared_variance()). Raises ValueError
    when empty.
    """
    if not speedups:
        raise ValueError("the mean of no models")
    count = len(speedups)
    errors = [math.log(high / low) / 2 / _NORMAL for _, low, high in speedups]
    variance = sum(error**2 for error in errors) / count**2 + shared_variance(count, one_parent)
    reach = _NORMAL * math.sqrt(variance)
    middle = sum(math.log(value) for value, _, _ in speedups) / count
    return math.exp(middle - reach), math.exp(middle + reach)


def shared_variance(count: int, one_parent: float = 0) -> float:
    """The variance of the mean log of `count` models that the fork parents lend to all of them.

    `one_parent` of them were sampled in one process, under the first parent alone. No number of models
    makes it vanish, and it does not cancel between two runs. 0 of one model, whose own interval has it.
    """
    if count < 2:
        return 0.0
    # How much of the mean is due to the first and to the second parent; both are renewed after some cases.
    second = (count - one_parent) / count / 2
    renewed = max(1.0, count / _CASES_OF_A_PARENT)
    return SHARED_SD**2 * ((1 - second) ** 2 + second**2) / renewed
