"""Read text files of other programs within limits, and check their numbers and names.

Every fault of a file is a UsageError with file, line and what to do. Numbers become finite values in the
units of perfdash.metrics. Their bounds lie far outside what any machine measures: they catch a wrong column
or unit, not a slow model.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from perfdash.errors import UsageError
from perfdash.metrics import NUMBERS

FILE_LIMIT = 256 << 20  # bytes of a file that is read line by line
DOCUMENT_LIMIT = 64 << 20  # of a file that is held in memory, where Python objects take ten times as much
LINE_LIMIT = 1 << 20
SAMPLE = 1 << 20
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_LONGEST_INT = 40  # digits: counts and ids are shorter, and converting a million digits takes minutes

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

# Units in ms and in bytes. "gb" is 10^9 bytes, because the torch harnesses divide by 10**9.
TIME_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3,
           "milliseconds": 1.0, "microseconds": 1e-3, "min": 6e4}  # fmt: skip
MEMORY_BYTES = {"b": 1.0, "bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9,
                "kib": 1024.0, "mib": 1024.0**2, "gib": 1024.0**3}  # fmt: skip


@dataclass(frozen=True)
class FilePlace:
    """A place in a file, for messages and for a row's origin."""

    path: Path
    line: int | None = None

    def __str__(self) -> str:
        return shown(str(self.path)) + (f", line {self.line}" if self.line else "")

    def wrong(self, fault: str) -> UsageError:
        """The error for this place. `fault`: what is wrong, and what the user can do."""
        return UsageError(f"{self}: {fault}")

    @property
    def origin(self) -> dict[str, Any]:
        """File name and line, without folders, whose names may be private."""
        return {"file": shown(self.path.name), "line": self.line}


@dataclass(frozen=True)
class FileBeginning:
    """The beginning of a file, to recognise its format; empty for folders and binary files."""

    path: Path
    head: str
    is_folder: bool = False


def shown(text: str, longest: int = 300) -> str:
    """Shorten and escape foreign text for a message: one line, printable."""
    text = text if len(text) <= longest else text[:longest] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def sample(path: Path) -> FileBeginning:
    """The first SAMPLE bytes of a file as text. Raises UsageError if it cannot be read."""
    if _stat(path, FilePlace(path)) and path.is_dir():
        return FileBeginning(path, "", is_folder=True)
    with _opened(path) as file:
        try:
            head = file.read(SAMPLE)
        except OSError as error:
            raise _unreadable(FilePlace(path), error) from error
    if not head:
        raise FilePlace(path).wrong("the file is empty: nothing to import")
    text = head.decode("utf-8", "replace").removeprefix("\ufeff")
    return FileBeginning(path, "" if "\0" in text else text)


def lines(path: Path, *, end_needed: bool = True) -> Iterator[tuple[int, str]]:
    """Number and text of every line, without its end.

    With `end_needed`, a last line without a line end is an error: the file may be cut off within a number.
    """
    size, number = 0, 0
    with _opened(path) as file:
        while True:
            where = FilePlace(path, number + 1)
            try:
                line = file.readline(LINE_LIMIT + 1)
            except OSError as error:
                raise _unreadable(where, error) from error
            if not line:
                return
            number += 1
            size += len(line)
            if len(line) > LINE_LIMIT:
                raise where.wrong(f"the line is longer than {LINE_LIMIT >> 20} MiB: not a file of results")
            if size > FILE_LIMIT:
                raise where.wrong(f"the file is larger than {FILE_LIMIT >> 20} MiB: import it in parts")
            if end_needed and not line.endswith(b"\n"):
                raise where.wrong(
                    "the last line has no line end, so the file seems cut off: "
                    "import a whole one (add the line end if it is whole)"
                )
            yield number, _decoded(line, where).removesuffix("\n").removesuffix("\r")


def cells(text: str, where: FilePlace) -> list[str]:
    """The fields of one line of a CSV."""
    try:
        return [cell.strip() for cell in next(csv.reader([text], strict=True), [])]
    except csv.Error as error:
        raise where.wrong(f"not a line of a CSV ({error}): correct or remove it") from error


def whole_text(path: Path, limit: int = DOCUMENT_LIMIT) -> str:
    """The text of a file of at most `limit` bytes."""
    where = FilePlace(path)
    with _opened(path) as file:
        try:
            data = file.read(limit + 1)
        except OSError as error:
            raise _unreadable(where, error) from error
    if len(data) > limit:
        raise where.wrong(f"the file is larger than {limit >> 20} MiB: import it in parts")
    return _decoded(data, where)


def json_values(path: Path) -> Iterator[tuple[FilePlace, Any]]:
    """The values of a JSON document, list or JSON lines, each with its place.

    The items of a list at the top are values, also of a list in one of several lines
    (upload_benchmark_results.py of pytorch/test-infra accepts both). NaN, Infinity and duplicate keys are
    refused.
    """
    text = whole_text(path)
    decoder = json.JSONDecoder(
        parse_constant=_no_constant, parse_int=_int, parse_float=_float, object_pairs_hook=_unique
    )
    position = counted = 0
    line = 1
    inside = False  # whether the position is in a list at the top
    while True:
        position = _skip_spaces(text, position)
        line, counted = line + text.count("\n", counted, position), position
        where = FilePlace(path, line)
        if position == len(text):
            if inside:
                raise where.wrong("the list has no end, the file seems cut off: import a whole one")
            return
        if not inside and text[position] == "[":
            inside, position = True, _skip_spaces(text, position + 1)
            if text[position : position + 1] == "]":
                inside, position = False, position + 1
            continue
        try:
            value, position = decoder.raw_decode(text, position)
            _check_text(value)
        except json.JSONDecodeError as error:
            error_place = FilePlace(path, error.lineno)
            raise error_place.wrong(f"not valid JSON ({error.msg}): cut off or damaged") from error
        except RecursionError as error:
            raise where.wrong("nested too deeply for a file of results") from error
        except ValueError as error:
            raise where.wrong(f"the value that begins here holds {error}: correct or remove it") from error
        yield where, value
        if inside:
            position = _skip_spaces(text, position)
            mark = text[position : position + 1]
            if mark not in (",", "]"):
                line, counted = line + text.count("\n", counted, position), position
                raise FilePlace(path, line).wrong("not valid JSON (',' or ']' expected): cut off or damaged")
            inside, position = mark == ",", position + 1


def is_number(text: str) -> bool:
    """Whether text is a decimal number; inf and nan are none."""
    return len(text) <= _LONGEST and bool(_NUMBER.fullmatch(text))


def parsed_number(text: str, where: FilePlace, what: str) -> float:
    """Parse a decimal number. Raises UsageError for anything else, also for inf and nan."""
    if not is_number(text):
        raise where.wrong(f"{what} is {shown(text, 60)!r}, not a number: correct or remove the line")
    return finite_number(float(text), where, what)


def finite_number(value: Any, where: FilePlace, what: str) -> float:
    """A number of a JSON or YAML document as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise where.wrong(f"{what} is {shown(str(value), 60)!r}, not a number: correct or remove it")
    if not abs(value) < _LARGEST:
        raise where.wrong(f"{what} is {shown(str(value), 60)}, no possible measurement: correct or remove it")
    return float(value)


def checked_metric(name: str, value: float, where: FilePlace, what: str = "") -> float:
    """Check a value of the metric `name` of perfdash.metrics; counts become ints."""
    registered = NUMBERS[name]
    low, high = _BOUNDS.get(registered.kind, _COUNT_BOUNDS)
    if not low <= value <= high or (registered.is_integer and value != int(value)):
        raise where.wrong(
            f"{what or name} is {value:g}, which cannot be (unit or column mistaken?): correct or remove it"
        )
    return int(value) if registered.is_integer else value


def checked_batch_size(value: Any, where: FilePlace) -> int:
    """A batch size; 0 if the file has none, because the harness failed too early."""
    if value in (None, "", "None"):
        return 0
    read = parsed_number if isinstance(value, str) else finite_number
    size = read(value, where, "batch size")
    if not 0 <= size <= MOST_BATCHED or size != int(size):
        raise where.wrong(f"batch size {size:g} cannot be: correct or remove the line")
    return int(size)


def checked_name(value: Any, where: FilePlace, what: str) -> str:
    """Check a name (model, suite, back end): printable, with 1 to 300 characters."""
    if not isinstance(value, str) or not value.strip() or len(value) > 300 or not value.isprintable():
        raise where.wrong(f"{what} is {shown(str(value), 60)!r}, not a name: correct or remove it")
    return value.strip()


def _skip_spaces(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _no_constant(name: str) -> float:
    raise ValueError(f"{name}, which is no measurement")


def _int(digits: str) -> int:
    if len(digits) > _LONGEST_INT:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{shown(digits, 40)}, too large for a number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1) if len(names) < 1000 else "a key"
        raise ValueError(f"{shown(twice, 80)!r} twice in one object")
    return value


def _check_text(value: Any) -> None:
    """Refuse NUL and unpaired surrogates, which JSON can spell and no database accepts."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            left += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            left += item
        elif isinstance(item, str) and _NO_TEXT.search(item):
            raise ValueError("text with a NUL or an unpaired surrogate")


def _opened(path: Path) -> BinaryIO:
    where = FilePlace(path)
    kind = _stat(path, where).st_mode
    if stat.S_ISDIR(kind):
        raise where.wrong("this is a folder: name the files in it")
    if not stat.S_ISREG(kind):  # opening a pipe would wait for a writer
        raise where.wrong("this is a device, pipe or socket: name a file")
    try:
        return path.open("rb")
    except OSError as error:
        raise _unreadable(where, error) from error


def _stat(path: Path, where: FilePlace) -> os.stat_result:
    try:
        return path.stat()
    except (OSError, ValueError) as error:
        raise _unreadable(where, error) from error


def _unreadable(where: FilePlace, error: Exception) -> UsageError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return where.wrong(f"cannot be read ({reason}): check path and permissions")


def _decoded(data: bytes, where: FilePlace) -> str:
    if b"\0" in data:
        raise where.wrong("holds NUL bytes, so it is no text: name a file of results")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = where.line or data.count(b"\n", 0, error.start) + 1
        raise FilePlace(where.path, line).wrong("not UTF-8 text: convert the file to UTF-8") from error
    return text.removeprefix("\ufeff") if where.line in (None, 1) else text
