"""Numbers of a step that has parts: forward and backward of a training step, tokens of a generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfdash.history.rows import Row
from perfdash.report.ways import number, real

Cell = Callable[[Row], str | None]


def names(rows: Sequence[Row]) -> list[str]:
    """The parts that any of them has, in their order within a step."""
    return list(dict.fromkeys(name for row in rows for name in _parts(row)))


def time_of(name: str, digits: Callable[[float], str]) -> Cell:
    """`59.65 ± 0.1 % (59.70+-0.07)`: median with its interval; mean and standard deviation."""

    def cell(row: Row) -> str | None:
        part = _parts(row).get(name, {})
        known = (real(part.get(key)) for key in ("median", "ci_low", "ci_high", "mean", "stdev"))
        middle, low, high, mean, deviation = known
        if not middle or low is None or high is None:
            return None
        text = f"{digits(middle)} ± {100 * max(high - middle, middle - low, 0.0) / middle:.1f} %"
        if mean is None or deviation is None:  # one sample has no deviation
            return text
        return f"{text} ({digits(mean)}+-{digits(deviation)})"

    return cell


def new_tokens(row: Row) -> int | None:
    """How many tokens each prompt of a generation got; None of anything else."""
    conditions = row.details.get("conditions")
    found = real(conditions.get("new_tokens")) if isinstance(conditions, Mapping) else None
    return int(found) if found else None


def tokens_per_second(digits: Callable[[float], str]) -> Cell:
    """`77.94 | 12.83`: tokens a second of the whole batch, and milliseconds a token of it."""

    def cell(row: Row) -> str | None:
        latency, tokens = number(row, "backend_ms"), new_tokens(row)
        if not latency or not tokens or row.case.batch_size < 1:
            return None
        every = row.case.batch_size * tokens
        return f"{digits(every * 1e3 / latency)} \\| {digits(latency / every)}"

    return cell


def per_output_token(digits: Callable[[float], str]) -> Cell:
    """Milliseconds from one token of a prompt to its next."""

    def cell(row: Row) -> str | None:
        part, tokens = _parts(row).get("decode"), new_tokens(row)
        middle = real(part.get("median")) if part else None
        return digits(middle / (tokens - 1)) if middle and tokens and tokens > 1 else None

    return cell


def _parts(row: Row) -> Mapping[str, Mapping[str, Any]]:
    parts = row.details.get("parts_ms")
    found = parts.get("backend") if isinstance(parts, Mapping) else None
    every = found.items() if isinstance(found, Mapping) else ()
    return {name: each for name, each in every if isinstance(each, Mapping)}
