"""Read a request's parameters, and find the runs that its words mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from perfdash.detect.comparison import (
    ComparedRuns,
    Comparison,
    compare,
    noise_before,
    refuse_overlap,
    refuse_unlike,
)
from perfdash.errors import UsageError
from perfdash.history.queries import RunLine, read_run, select

LONGEST = 300  # characters of a value
_TIME = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\dZ?)?)?)?)?)?")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a request.

    kind: text, number (whole, from `least` to `most`), time (or its beginning), or a choice of words.
    """

    name: str
    about: str
    kind: str | tuple[str, ...] = "text"
    default: str | int | None = None
    required: bool = False
    least: int = 0
    most: int = 2**31 - 1

    def schema(self) -> dict[str, Any]:
        """The parameter as JSON Schema."""
        if self.kind == "number":
            shape: dict[str, Any] = {"type": "integer", "minimum": self.least, "maximum": self.most}
        elif self.kind == "time":
            shape = {"type": "string", "pattern": f"^{_TIME.pattern}$"}
        elif isinstance(self.kind, tuple):
            shape = {"type": "string", "enum": list(self.kind)}
        else:
            shape = {"type": "string", "maxLength": LONGEST}
        return shape if self.default is None else {**shape, "default": self.default}

    def read(self, text: str) -> str | int:
        """Parse a value. Raises UsageError if it is invalid."""
        if len(text) > LONGEST:
            raise UsageError(f"{self.name}: more than {LONGEST} characters")
        if self.kind == "number":
            if not re.fullmatch(r"[0-9]{1,10}", text) or not self.least <= int(text) <= self.most:
                raise UsageError(f"{self.name}: {text!r} is no whole number from {self.least} to {self.most}")
            return int(text)
        if self.kind == "time" and not _TIME.fullmatch(text):
            raise UsageError(f"{self.name}: {text!r} is no time; give e.g. 2026-11 or 2026-11-21")
        if isinstance(self.kind, tuple) and text not in self.kind:
            raise UsageError(f"{self.name}: {text!r} is none of {', '.join(self.kind)}")
        return text


def read_all(parameters: Sequence[Parameter], given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The value of each parameter by name: given, default, or None.

    Raises UsageError that names the parameter at fault. An empty value counts as not given.
    """
    values: dict[str, Any] = {parameter.name: parameter.default for parameter in parameters}
    by_name = {parameter.name: parameter for parameter in parameters}
    seen = set()
    for name, text in given:
        if name not in by_name:
            names = ", ".join(by_name) or "none"
            raise UsageError(f"there is no parameter {name[:40]!r} here; there are: {names}")
        if name in seen:
            raise UsageError(f"{name} is given twice")
        seen.add(name)
        if text:
            values[name] = by_name[name].read(text)
    for parameter in parameters:
        if parameter.required and values[parameter.name] is None:
            raise UsageError(f"{parameter.name} is missing: {parameter.about}")
    return values


LIMIT = 200  # items of a page, unless the request has a limit
MOST = 2000


def paging(most: int = MOST, limit: int = LIMIT) -> tuple[Parameter, Parameter]:
    """The parameters that cut a list into pages."""
    return (
        Parameter("offset", "how many to leave out first", "number", 0),
        Parameter("limit", "how many at most", "number", limit, least=1, most=most),
    )


def page(items: Sequence[Any], values: dict[str, Any]) -> tuple[dict[str, int], Sequence[Any]]:
    """The requested part of a list, and the fields that say where it was cut."""
    start, limit = values["offset"], values["limit"]
    return {"total": len(items), "offset": start, "limit": limit}, items[start : start + limit]


MOST_RUNS = 120  # runs on a side: more would keep a server's thread busy for too long


class NotFound(UsageError):
    """The request names something that does not exist (HTTP 404)."""


def chosen(connection: sa.Connection, word: str, host_class: str | None = None) -> list[RunLine]:
    """The runs that a word means, oldest first. Raises NotFound where there is none."""
    try:
        return select(connection, word, host_class=host_class)
    except UsageError as error:
        raise NotFound(str(error)) from error


def one_run(connection: sa.Connection, word: str) -> RunLine:
    """The run that a word means. Raises NotFound for none, UsageError for several."""
    runs = chosen(connection, word)
    if len(runs) > 1:
        names = ", ".join(run.name for run in runs[-5:])
        raise UsageError(f"{word!r} means {len(runs)} runs; give one of them: {names}")
    return runs[0]


def compared(connection: sa.Connection, old: str, new: str, host_class: str | None = None) -> Comparison:
    """Compare two sides. Raises NotFound for unknown runs, UsageError for incomparable ones."""
    sides = [_compared_runs(connection, word, host_class) for word in (old, new)]
    refuse_unlike(*sides)
    refuse_overlap(*sides)
    noise = noise_before(connection, [imported for side in sides for imported in side.runs])
    return compare(sides[0], sides[1], noise)


def _compared_runs(connection: sa.Connection, word: str, host_class: str | None) -> ComparedRuns:
    lines = chosen(connection, word, host_class)
    if len(lines) > MOST_RUNS:
        raise UsageError(f"{word!r} means {len(lines)} runs; here at most {MOST_RUNS}: give a shorter window")
    return ComparedRuns(word, tuple(read_run(connection, line) for line in lines))
