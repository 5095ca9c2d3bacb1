"""One number for many models: means of ratios, each under its own name."""

from __future__ import annotations

import math
from collections.abc import Sequence


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
