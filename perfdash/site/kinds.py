"""Which runs are nights, and which of them are of the same kind: the same suites in the same settings.

One testbed may be measured in several runs a night (a dtype each, say), and now and then a few models at
a desk; none of these says anything of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, timedelta

import numpy as np
import sqlalchemy as sa

from perfdash.detect.findings import MINIMUM_SHARE
from perfdash.history import schema
from perfdash.history.queries import RunLine
from perfdash.site.suite_setting import SuiteSetting

NIGHTS_BACK = 120  # that are looked at, with all their runs
MOST = 6  # kinds
_NEAR = 15  # runs on either side, beside which a night is seen to be one
_LATELY = timedelta(days=40)
_AGES = (("night", 0), ("week", 7), ("month", 30))
_TITLES = {0: "an earlier run of the day", 1: "the night before", 7: "a week before", 30: "a month before"}

Shape = Counter[SuiteSetting]  # cases by setting


def latest_days(runs: Sequence[RunLine], days: int = NIGHTS_BACK) -> list[RunLine]:
    """The runs of the last so many days that have any, however many runs a day has; oldest first."""
    chosen = set(sorted({_day(run) for run in runs})[-days:])
    return [run for run in runs if _day(run) in chosen]


def shapes(connection: sa.Connection, runs: Sequence[RunLine]) -> dict[int, Shape]:
    """How many cases of each setting some runs have."""
    table = schema.summaries
    found: dict[int, Shape] = {run.id: Counter() for run in runs}
    query = sa.select(*table.c["run_id", *SuiteSetting._fields, "cases"]).where(
        table.c.run_id.in_(list(found))
    )
    for row in connection.execute(query):
        found[row[0]][SuiteSetting(*row[1:-1])] = row[-1]
    return found


def alike(one: Shape, other: Shape) -> bool:
    """Whether each has half of the other's cases, as far as their settings tell."""
    return (one & other).total() >= MINIMUM_SHARE * max(one.total(), other.total(), 1)


def nights(runs: Sequence[RunLine], shapes: Mapping[int, Shape]) -> list[RunLine]:
    """Without the runs that have under half of the cases of those about them that share any with them."""
    found = []
    for place, run in enumerate(runs):
        near = runs[max(0, place - _NEAR) : place + _NEAR + 1]
        counts = [shapes[each.id].total() for each in near if shapes[each.id] & shapes[run.id]]
        if counts and shapes[run.id].total() >= MINIMUM_SHARE * float(np.median(counts)):
            found.append(run)
    return found


def heads(runs: Sequence[RunLine], shapes: Mapping[int, Shape]) -> list[RunLine]:
    """The newest night of each kind, the newest first; none of long before the newest of all."""
    found: list[RunLine] = []
    for run in reversed(runs):
        if found and _day(found[0]) - _day(run) > _LATELY:
            break
        if len(found) < MOST and not any(alike(shapes[run.id], shapes[head.id]) for head in found):
            found.append(run)
    return found


def newest(connection: sa.Connection, runs: Sequence[RunLine]) -> list[RunLine]:
    """The newest night of each kind, the newest first; where none has results, the last run."""
    recent = latest_days(runs)
    of = shapes(connection, recent)
    return heads(nights(recent, of), of) or list(runs[-1:])


def partners(
    runs: Sequence[RunLine], shapes: Mapping[int, Shape]
) -> list[tuple[RunLine, list[tuple[str, str, RunLine]]]]:
    """The newest night of each kind, with (title, anchor, run) of those that it is compared with.

    A title says how long before that was, which may be longer than a night, a week or a month.
    """
    whole = nights(runs, shapes)
    found = []
    for head in heads(whole, shapes):
        earlier = whole[: whole.index(head)]
        before = [run for run in earlier if alike(shapes[run.id], shapes[head.id])]
        chosen: list[tuple[str, str, RunLine]] = []
        for anchor, days in _AGES:
            until = _day(head) - timedelta(days=days)
            old = [run for run in before if days == 0 or _day(run) <= until]
            if old and old[-1] not in [run for *_, run in chosen]:
                chosen.append((how_long(old[-1], head), anchor, old[-1]))
        found.append((head, chosen))
    return found


def how_long(old: RunLine, new: RunLine) -> str:
    """How long before a night another was, in words."""
    days = (_day(new) - _day(old)).days
    return _TITLES.get(days, f"{days} days before")


def _day(run: RunLine) -> date:
    return date.fromisoformat(run.started[:10])
