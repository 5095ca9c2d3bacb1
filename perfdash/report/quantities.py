"""How a number of a metric is written: unit and digits, the same in every table, page and comment."""

from __future__ import annotations

import math

from perfdash.history.results import Row, is_cpu_time
from perfdash.metrics import METRICS

CPU_TIME = "cpu"  # behind a latency that is no wall time
CPU_TIME_NOTE = f"{CPU_TIME}: CPU time instead of wall time, because other programs used the core meanwhile"


def shown(metric: str | None, value: float | None) -> str:
    """A value with its unit; nothing for what is not known or not finite."""
    if value is None or not math.isfinite(value):
        return ""
    registered = METRICS.get(str(metric))
    if registered is None or not registered.unit:
        return f"{value:.4g}"
    if registered.kind == "ratio":
        return f"{value:.3f}{registered.unit}"
    return f"{value * registered.scale:.4g} {registered.unit}"


def marked_clock(text: str, row: Row) -> str:
    """A written latency of a result, with `cpu` behind it where it is CPU time."""
    return f"{text} {CPU_TIME}" if text and is_cpu_time(row) else text


def percent(change: float | None) -> str:
    """A log ratio as a change in per cent, with its sign."""
    if change is None or not math.isfinite(change):
        return ""
    return f"{math.expm1(min(change, 50.0)):+.1%}"
