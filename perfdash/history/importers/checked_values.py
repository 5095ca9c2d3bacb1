"""Numbers of foreign files, checked: in the units of perfdash.metrics, finite, and possible.

The bounds are far outside what any machine gives; they catch a wrong column or unit, not a slow model.
"""

from __future__ import annotations

import re
from typing import Any

from perfdash.history.importers.text_files import FilePlace, shown
from perfdash.metrics import NUMBERS

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_LONGEST = 64
_LARGEST = 1e300  # beyond it sums and squares overflow

_BOUNDS = {  # by the kind of the metric: lowest and highest
    "latency": (1e-7, 1e9),
    "time": (0.0, 1e8),
    "memory": (0.0, 1e16),
    "ratio": (1e-6, 1e6),
}
_COUNT_BOUNDS = (0.0, 1e9)
MOST_BATCHED = 10_000_000

# What a unit is, in ms, s and bytes. "gb" is 10^9 here, as the torch harnesses divide (10**9).
TIME_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3,
           "milliseconds": 1.0, "microseconds": 1e-3, "min": 6e4}  # fmt: skip
MEMORY_BYTES = {"b": 1.0, "bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9,
                "kib": 1024.0, "mib": 1024.0**2, "gib": 1024.0**3}  # fmt: skip


def number(text: str, where: FilePlace, what: str) -> float:
    """A decimal number as harnesses write it. Raises UsageError for anything else, inf and nan too."""
    if len(text) > _LONGEST or not _NUMBER.fullmatch(text):
        raise where.wrong(f"{what} is {shown(text, 60)!r}, not a number: correct or remove the line")
    return finite(float(text), where, what)


def finite(value: Any, where: FilePlace, what: str) -> float:
    """A number of a JSON or YAML document as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise where.wrong(f"{what} is {shown(str(value), 60)!r}, not a number: correct or remove it")
    if not abs(value) < _LARGEST:
        raise where.wrong(f"{what} is {shown(str(value), 60)}, no possible measurement: correct or remove it")
    return float(value)


def metric(name: str, value: float, where: FilePlace, what: str = "") -> float:
    """Check a value of the metric `name` of perfdash.metrics; counts become ints."""
    registered = NUMBERS[name]
    low, high = _BOUNDS.get(registered.kind, _COUNT_BOUNDS)
    if not low <= value <= high or (registered.is_integer and value != int(value)):
        raise where.wrong(
            f"{what or name} is {value:g}, which cannot be (unit or column mistaken?): correct or remove it"
        )
    return int(value) if registered.is_integer else value


def batch_size(value: Any, where: FilePlace) -> int:
    """A batch size; 0 if the file has none, as the harness failed before."""
    if value in (None, "", "None"):
        return 0
    read = number if isinstance(value, str) else finite
    size = read(value, where, "batch size")
    if not 0 <= size <= MOST_BATCHED or size != int(size):
        raise where.wrong(f"batch size {size:g} cannot be: correct or remove the line")
    return int(size)


def name(value: Any, where: FilePlace, what: str) -> str:
    """A name (of a model, suite, back end): printable text, not empty, not longer than a line."""
    if not isinstance(value, str) or not value.strip() or len(value) > 300 or not value.isprintable():
        raise where.wrong(f"{what} is {shown(str(value), 60)!r}, not a name: correct or remove it")
    return value.strip()
