"""Read a column of a CSV file as a series, and find its change points.

Every fault of the file is a UsageError that names file and line and says what to do.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from perfdash.history.importers import foreign_files
from perfdash.history.importers.foreign_files import FilePlace, shown
from perfdash.stats import changepoints
from perfdash.stats.changepoints import ChangePoint, SeriesNoise, change_points, is_ratio, noise, weak_changes
from perfdash.suggestions import did_you_mean

MISSING = {"", "nan", "na", "n/a", "null", "none", "-"}
MOST_VALUES = 100_000  # their segmentation takes half a minute


@dataclass(frozen=True)
class CsvSeries:
    """A series: values (NaN where missing), their lines, and their times if any."""

    name: str
    values: list[float]
    lines: list[int]
    times: list[str] | None

    FEWEST: ClassVar[int] = changepoints.FEWEST

    @property
    def missing(self) -> int:
        return sum(math.isnan(value) for value in self.values)

    @property
    def ratio(self) -> bool:
        """Whether changes are ratios: all values are above zero."""
        return is_ratio(self.values)

    def changes(self, min_change: float, *, weak: bool = False) -> list[ChangePoint]:
        """The changes of at least `min_change`, a fraction, in order of time; weak: the weak ones too."""
        changes = change_points(self.values, min_change=min_change)
        if weak:
            changes += weak_changes(self.values, min_change=min_change)
        return sorted(changes, key=lambda change: change.index)

    def noise(self) -> SeriesNoise:
        return noise(self.values)

    def to_plain(self, min_change: float, *, weak: bool = False) -> dict[str, Any]:
        """Size, noise and changes as plain values for JSON."""
        own_noise = self.noise()
        return {
            "values": len(self.values),
            "missing": self.missing,
            "scale": "ratio" if self.ratio else "difference",
            "noise": {"deviation": own_noise.deviation, "autocorrelation": own_noise.rho},
            "min_change": min_change,
            "changes": self.plain_changes(min_change, weak=weak),
        }

    def plain_changes(self, min_change: float, *, weak: bool = False) -> list[dict[str, Any]]:
        """The changes as plain values, with times if the series has any; weak ones are marked, if wanted."""
        rows: list[dict[str, Any]] = []
        for change in self.changes(min_change, weak=weak):
            row: dict[str, Any] = {"index": change.index, "line": self.lines[change.index]}
            row |= {"before": change.before, "after": change.after, "change": change.change}
            row |= {"confidence": change.confidence, "range": {"low": change.low, "high": change.high}}
            if weak:
                row["weak"] = change.weak
            if self.times is not None:
                row["time"] = self.times[change.index]
                # The cause of the change lies between these two times.
                row["range"] |= {"after": self.times[change.low - 1], "until": self.times[change.high]}
            rows.append(row)
        return rows


def read_column(path: Path, name: str, time: str | None = None) -> CsvSeries:
    """Read a column of a CSV file with a header, sorted by `time` if given.

    UTF-8 with or without BOM, separated by commas; quoted cells may hold line ends. Empty cells and
    nan, NA, N/A, null, none and - are missing values. Times are numbers or ISO 8601 dates.
    """
    table = _records(path)
    line, header = next(table, (0, []))
    if not line:
        raise FilePlace(path).wrong("the file is empty: the first line must name the columns")
    where = FilePlace(path, line)
    at = _position(header, name, "--column", where)
    time_at = None if time is None else _position(header, time, "--time", where)
    values: list[float] = []
    lines: list[int] = []
    times: list[str] = []
    for line, cells in table:
        where = FilePlace(path, line)
        if len(cells) != len(header):
            raise where.wrong(f"{len(cells)} cells, and the header has {len(header)}: correct the line")
        if len(values) == MOST_VALUES:
            raise where.wrong(f"more than {MOST_VALUES} values: keep those of interest")
        values.append(_value(cells[at], name, where))
        lines.append(line)
        if time_at is not None:
            times.append(cells[time_at])
    if not values:
        raise FilePlace(path, line).wrong("there is a header and no line below it: nothing to look at")
    if time is None:
        return CsvSeries(name, values, lines, None)
    order = _order(times, lines, time, path)
    return CsvSeries(name, [values[k] for k in order], [lines[k] for k in order], [times[k] for k in order])


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The first line of each row, and its cells; empty lines are skipped."""
    number = 0

    def texts() -> Iterator[str]:
        nonlocal number
        for number, text in foreign_files.lines(path, end_needed=False):  # noqa: B007 (read by the loop below)
            yield text + "\n"

    reader = csv.reader(texts(), strict=True)
    while True:
        first = number + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise FilePlace(path, first).wrong(
                f"not a line of a CSV ({error}): correct or remove it"
            ) from error
        if cells is None:
            return
        if cells:
            yield first, [cell.strip() for cell in cells]


def _position(header: list[str], name: str, option: str, where: FilePlace) -> int:
    """The index of a column. Raises UsageError if it is missing or ambiguous."""
    count = header.count(name)
    if count == 1:
        return header.index(name)
    if count:
        raise where.wrong(f"{count} columns are named {shown(name)!r} ({option}): give each its own name")
    listed = ", ".join(shown(column, 60) for column in header[:10]) + (", ..." if len(header) > 10 else "")
    near = did_you_mean(name, [shown(column, 60) for column in header])
    hint = (
        "; the cells must be separated by commas" if len(header) == 1 and set(header[0]) & set(";\t") else ""
    )
    raise where.wrong(f"{option}: no column {shown(name)!r}{near}; there are: {listed}{hint}")


def _value(cell: str, name: str, where: FilePlace) -> float:
    """A number, or NaN for a missing one."""
    if cell.lower() in MISSING:
        return math.nan
    number = _number(cell)
    if number is None:
        raise where.wrong(
            f"column {shown(name)!r}: {shown(cell, 60)!r} is no finite number: correct it, or leave it empty"
        )
    return number


def _number(text: str) -> float | None:
    """A finite number as programs write it: no thousands separators, no units."""
    if not text.isascii() or "_" in text or len(text) > 400:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _order(times: list[str], lines: list[int], name: str, path: Path) -> list[int]:
    """The rows in order of time. Raises UsageError for an invalid, mixed or duplicate time."""
    numeric = _number(times[0]) is not None
    keys: list[float] = []
    zoned: bool | None = None
    for text, line in zip(times, lines, strict=True):
        where = FilePlace(path, line)
        key = _number(text)
        if not numeric:
            date = _date(text)
            key = None if date is None else date.replace(tzinfo=date.tzinfo or UTC).timestamp()
            if date is not None:
                zoned = date.tzinfo is not None if zoned is None else zoned
                if zoned != (date.tzinfo is not None):
                    raise where.wrong(
                        f"column {shown(name)!r}: {shown(text, 60)!r}: either all times have a zone or none"
                    )
        if key is None:
            wanted = (
                "number, as the first one is" if numeric else "number or ISO 8601 date (2026-01-31T23:59)"
            )
            raise where.wrong(f"column {shown(name)!r}: {shown(text, 60)!r} is no {wanted}: correct it")
        keys.append(key)
    order = sorted(range(len(keys)), key=keys.__getitem__)
    for first, second in pairwise(order):
        if keys[first] == keys[second]:
            raise FilePlace(path, lines[second]).wrong(
                f"column {shown(name)!r}: {shown(times[second], 60)!r} is the time of line {lines[first]} "
                "too: keep one value a time"
            )
    return order


def _date(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
