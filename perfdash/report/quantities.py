"""How a number of a metric is written: unit and digits, the same in every table, page and comment."""

from __future__ import annotations

import math

from perfdash.history.rows import PARTS, Row, is_cpu_time

_UNITS = {
    "eager_ms": (" ms", 1.0),
    "backend_ms": (" ms", 1.0),
    **dict.fromkeys(PARTS, (" ms", 1.0)),
    "compilation_s": (" s", 1.0),
    "compilation_cpu_s": (" s", 1.0),
    "first_call_s": (" s", 1.0),
    "wall_s": (" s", 1.0),
    "eager_peak_bytes": (" MB", 1e-6),
    "backend_peak_bytes": (" MB", 1e-6),
    "compile_peak_bytes": (" MB", 1e-6),
    "compile_held_bytes": (" MB", 1e-6),
    "weights_bytes": (" MB", 1e-6),
}
_RATIOS = ("speedup", "compression_ratio")
CPU_TIME = "cpu"  # behind a latency that is no wall time
CPU_TIME_NOTE = f"{CPU_TIME}: CPU time instead of wall time, because other programs used the core meanwhile"


def shown(metric: str | None, value: float | None) -> str:
    """A value with its unit; nothing for what is not known or not finite."""
    if value is None or not math.isfinite(value):
        return ""
    if metric in _RATIOS:
        return f"{value:.3f}x"
    unit, scale = _UNITS.get(str(metric), ("", 1.0))
    return f"{value * scale:.4g}{unit}"


def marked_clock(text: str, row: Row) -> str:
    """A written latency of a result, with `cpu` behind it where it is CPU time."""
    return f"{text} {CPU_TIME}" if text and is_cpu_time(row) else text


def percent(change: float | None) -> str:
    """A log ratio as a change in per cent, with its sign."""
    if change is None or not math.isfinite(change):
        return ""
    return f"{math.expm1(min(change, 50.0)):+.1%}"
