"""Numbers of a step that has parts: forward and backward of a training step, tokens of a generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfdash.history.rows import Row
from perfdash.report.steps import new_tokens, parts_of, per_token, tokens_per_second
from perfdash.report.ways import real

Cell = Callable[[Row], str | None]


def names(rows: Sequence[Row]) -> list[str]:
    """The parts that any of them has, in their order within a step."""
    return list(dict.fromkeys(name for row in rows for name in parts_of(row)))


def time_of(name: str, digits: Callable[[float], str]) -> Cell:
    """`59.65 ± 0.1 % (59.70+-0.07)`: median with its interval; mean and standard deviation."""

    def cell(row: Row) -> str | None:
        part = parts_of(row).get(name, {})
        known = (real(part.get(key)) for key in ("median", "ci_low", "ci_high", "mean", "stdev"))
        middle, low, high, mean, deviation = known
        if not middle or low is None or high is None:
            return None
        text = f"{digits(middle)} ± {100 * max(high - middle, middle - low, 0.0) / middle:.1f} %"
        if mean is None or deviation is None:  # one sample has no deviation
            return text
        return f"{text} ({digits(mean)}+-{digits(deviation)})"

    return cell


def throughput(digits: Callable[[float], str]) -> Cell:
    """`77.94 | 12.83`: tokens a second of the whole batch, and milliseconds a token of it."""

    def cell(row: Row) -> str | None:
        speed = tokens_per_second(row)
        return f"{digits(speed)} \\| {digits(1e3 / speed)}" if speed else None

    return cell


def per_output_token(digits: Callable[[float], str]) -> Cell:
    """Milliseconds from one token of a prompt to its next."""

    def cell(row: Row) -> str | None:
        middle = per_token(parts_of(row), new_tokens(row))
        return digits(middle) if middle else None

    return cell
