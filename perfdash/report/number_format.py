"""Format numbers with unit and digits, the same in every table, page and comment."""

from __future__ import annotations

import math

from perfdash.history.results import Row, is_cpu_time
from perfdash.metrics import METRICS

CPU_TIME = "cpu"  # behind a latency that is no wall time
CPU_TIME_NOTE = f"{CPU_TIME}: CPU time instead of wall time, because other programs used the core meanwhile"


def with_unit(metric: str | None, value: float | None) -> str:
    """A value with its unit; empty where it is not known or not finite."""
    if value is None or not math.isfinite(value):
        return ""
    registered = METRICS.get(str(metric))
    if registered is None or not registered.unit:
        return four_digits(value)
    if registered.kind == "ratio":
        return f"{value:.3f}{registered.unit}"
    return f"{four_digits(value * registered.scale)} {registered.unit}"


def four_digits(value: float) -> str:
    """Four significant digits, and all digits before the point: 12346, not 1.235e+04."""
    return f"{value:.0f}" if 9999.5 <= abs(value) < 1e15 else f"{value:.4g}"


def counted(number: int, noun: str) -> str:
    """A number of things: 1 night, 2 nights."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def mark_cpu_time(text: str, row: Row) -> str:
    """A formatted latency, with `cpu` behind it where it is CPU time."""
    return f"{text} {CPU_TIME}" if text and is_cpu_time(row) else text


def digits(value: float) -> str:
    """Four significant digits, as a plain number."""
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    return f"{value:,.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"


def percent_change(change: float | None) -> str:
    """A log ratio as a signed change in per cent."""
    if change is None or not math.isfinite(change):
        return ""
    return f"{math.expm1(min(change, 50.0)):+.1%}"
