"""The types of a request's parameters, plain messages about wrong ones, and the runs that its words mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import sqlalchemy as sa
from annotated_types import Ge, Le
from fastapi import Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from perfdash.detect.comparison import ComparedRuns, Comparison, refuse_overlap, refuse_unlike
from perfdash.detect.comparison_in_history import compare_in_history
from perfdash.errors import UsageError
from perfdash.history.queries import RunLine, read_run
from perfdash.history.run_selection import check_time, only, select

LONGEST = 300  # characters of a value
_TIME = r"^[0-9]{4}(-[0-9]{2}(-[0-9]{2}(T[0-9]{2}(:[0-9]{2}(:[0-9]{2}Z?)?)?)?)?)?$"


@dataclass(frozen=True)
class OneOf:
    """A choice of words: `Annotated[str, OneOf(words), ...]`."""

    words: Sequence[str]

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.literal_schema(list(self.words))


def text(about: str) -> Any:
    return Query(description=about, max_length=LONGEST)


def whole(about: str, least: int = 0, most: int = 2**31 - 1) -> Any:
    return Query(description=about, ge=least, le=most)


def time(about: str) -> Any:
    return Query(description=about, pattern=_TIME)


def _check_time(given: str | None) -> str | None:
    """Refuse a month 13, which has the digits of a time. Raises ValueError, as pydantic expects."""
    try:
        return None if given is None else check_time(given, "")
    except UsageError as error:
        raise ValueError(str(error)) from error


Suite = Annotated[str | None, text("only cases of this suite")]
Model = Annotated[str | None, text("only cases of this model")]
Testbed = Annotated[
    int | None, whole("a testbed's number  [default: that of the last run that is not excluded]")
]
Since = Annotated[
    str | None, time("runs from this time: 2026, 2026-11, 2026-11-21"), AfterValidator(_check_time)
]
Until = Annotated[str | None, time("runs up to this time, included"), AfterValidator(_check_time)]
Offset = Annotated[int, whole("how many to leave out first")]
Limit = Annotated[int, whole("how many at most", 1, 2000)]
LIMIT = 200  # items of a page, unless the request has a limit


def page(items: Sequence[Any], offset: int, limit: int) -> tuple[dict[str, int], Sequence[Any]]:
    """The requested part of a list, and the fields that say where it was cut."""
    return {"total": len(items), "offset": offset, "limit": limit}, items[offset : offset + limit]


async def refuse_unknown(request: Request) -> None:
    """Raise UsageError for a parameter that the address does not have, or that is given twice."""
    names = [field.alias for field in request.scope["route"].dependant.query_params]
    seen = set()
    for name, _ in request.query_params.multi_items():
        if name not in names:
            raise UsageError(
                f"there is no parameter {name[:40]!r} here; there are: {', '.join(names) or 'none'}"
            )
        if name in seen:
            raise UsageError(f"{name} is given twice")
        seen.add(name)


def complaint(request: Request, error: RequestValidationError) -> str:
    """What is wrong with the first wrong parameter, in plain words."""
    first = error.errors()[0]
    name, value = first["loc"][-1], first["input"]
    (field,) = [one for one in request.scope["route"].dependant.query_params if one.alias == name]
    rules = field.field_info.metadata
    if first["type"] == "missing":
        return f"{name} is missing: {field.field_info.description}"
    if len(value) > LONGEST:
        return f"{name}: more than {LONGEST} characters"
    bounds = [rule.ge for rule in rules if isinstance(rule, Ge)] + [
        rule.le for rule in rules if isinstance(rule, Le)
    ]
    if bounds:
        return f"{name}: {value!r} is no whole number from {bounds[0]} to {bounds[1]}"
    for rule in rules:
        if isinstance(rule, OneOf):
            return f"{name}: {value!r} is none of {', '.join(rule.words)}"
    return f"{name}: {value!r} is no time; give e.g. 2026-11 or 2026-11-21"


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
    return only(word, chosen(connection, word))


def compared(connection: sa.Connection, old: str, new: str, host_class: str | None = None) -> Comparison:
    """Compare two sides. Raises NotFound for unknown runs, UsageError for incomparable ones."""
    sides = [_compared_runs(connection, word, host_class) for word in (old, new)]
    refuse_unlike(*sides)
    refuse_overlap(*sides)
    return compare_in_history(connection, sides[0], sides[1])


def _compared_runs(connection: sa.Connection, word: str, host_class: str | None) -> ComparedRuns:
    lines = chosen(connection, word, host_class)
    if len(lines) > MOST_RUNS:
        raise UsageError(f"{word!r} means {len(lines)} runs; here at most {MOST_RUNS}: give a shorter window")
    return ComparedRuns(word, tuple(read_run(connection, line) for line in lines))
