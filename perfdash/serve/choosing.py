"""Which runs an address means, and anything of them compared with anything, as the commands do it."""

from __future__ import annotations

import sqlalchemy as sa

from perfdash.detect.comparison import ComparedRuns, Comparison, compare, refuse_overlap, refuse_unlike
from perfdash.detect.past_noise import noise_before
from perfdash.errors import UsageError
from perfdash.history.queries import RunLine, read_run
from perfdash.history.run_selection import select

MOST = 120  # runs on a side: as many as one answer may take the time for


class NotFound(UsageError):
    """What was asked for is not there."""


def chosen(connection: sa.Connection, word: str, host_class: str | None = None) -> list[RunLine]:
    """The runs that a word means, oldest first. Raises NotFound where there is none."""
    try:
        return select(connection, word, host_class=host_class)
    except UsageError as error:
        raise NotFound(str(error)) from error


def one_run(connection: sa.Connection, word: str) -> RunLine:
    """Raises NotFound where a word means no run; UsageError where it means several."""
    found = chosen(connection, word)
    if len(found) > 1:
        names = ", ".join(run.name for run in found[-5:])
        raise UsageError(f"{word!r} means {len(found)} runs; give one of them: {names}")
    return found[0]


def compared(connection: sa.Connection, old: str, new: str, host_class: str | None = None) -> Comparison:
    """Raises NotFound where a word means no run; UsageError where the sides may not be compared."""
    sides = [_side(connection, word, host_class) for word in (old, new)]
    refuse_unlike(*sides)
    refuse_overlap(*sides)
    noise = noise_before(connection, [imported.run for side in sides for imported in side.runs])
    return compare(sides[0], sides[1], noise)


def _side(connection: sa.Connection, word: str, host_class: str | None) -> ComparedRuns:
    lines = chosen(connection, word, host_class)
    if len(lines) > MOST:
        raise UsageError(f"{word!r} means {len(lines)} runs; here at most {MOST}: give a shorter window")
    return ComparedRuns(word, tuple(read_run(connection, line) for line in lines))
