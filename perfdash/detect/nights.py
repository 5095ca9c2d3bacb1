"""Decide which runs are nights, and which of them can be compared with each other.

One rule, by cases where they are read and by counts of cases where only those are: two runs are comparable
if they share half of their cases. A testbed may be measured in several runs a night (one per dtype, say),
and now and then a few models at a desk: those say nothing of each other.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from perfdash.history import schema
from perfdash.history.queries import Panel, RunLine

_MINIMUM_SHARE = 0.5  # of the cases of another run, so that the two can be compared
NEARBY_RUNS = 24  # before a night: two nights of twelve settings, a run each
NIGHTS_BACK = 120  # days that are read, with all their runs
_SETTING = ("suite", "device", "dtype", "threads", "scenario", "backend", "dynamic")
MOST_SERIES = 6  # nightly series of one testbed
_NEAR = 15  # runs on either side, whose counts decide whether a run is partial
_LATELY = timedelta(days=40)
_AGES = (("night", 0), ("week", 7), ("month", 30))
_TITLES = {0: "an earlier run of the day", 1: "the night before", 7: "a week before", 30: "a month before"}

CaseCounts = Counter[tuple[object, ...]]  # cases by setting


def has_enough_cases(cases: Any, other: Any) -> Any:
    """Whether a run with so many cases, or so many in common, is comparable with one of `other` cases.

    It has at least half of them. Numbers, or arrays of the same shape.
    """
    return cases >= _MINIMUM_SHARE * other


def comparable(panel: Panel) -> NDArray[np.bool_]:
    """For each run before the last of a panel: whether the last run has half of its cases."""
    measured = panel.statuses != ""
    before = measured[:, :-1]
    both = (before & measured[:, -1:]).sum(axis=0)
    enough: NDArray[np.bool_] = (both > 0) & has_enough_cases(both, before.sum(axis=0))
    return enough


def is_a_night(panel: Panel) -> bool:
    """Whether the last run can be judged: it is comparable with a run shortly before.

    Otherwise a few models measured at a desk would count as a night on which all others vanished.
    """
    return bool(comparable(panel)[-NEARBY_RUNS:].any())


def is_complete_beside(cases: int, nearby: Sequence[int]) -> bool:
    """Whether a run has half of the median number of cases of the runs nearby; no runs: False."""
    return bool(nearby and has_enough_cases(cases, statistics.median(nearby)))


def latest_days(runs: Sequence[RunLine], days: int = NIGHTS_BACK) -> list[RunLine]:
    """The runs of the last so many days that have any, however many runs a day has; oldest first."""
    chosen = set(sorted({_day(run) for run in runs})[-days:])
    return [run for run in runs if _day(run) in chosen]


def case_counts(connection: sa.Connection, runs: Sequence[RunLine]) -> dict[int, CaseCounts]:
    """How many cases of each setting some runs have."""
    table = schema.summaries
    found: dict[int, CaseCounts] = {run.id: Counter() for run in runs}
    query = sa.select(*table.c["run_id", *_SETTING, "cases"]).where(table.c.run_id.in_(list(found)))
    for row in connection.execute(query):
        found[row[0]][tuple(row[1:-1])] = row[-1]
    return found


def comparable_counts(one: CaseCounts, other: CaseCounts) -> bool:
    """Whether each run has half of the other's cases, judged by the counts of each setting."""
    return bool(has_enough_cases((one & other).total(), max(one.total(), other.total(), 1)))


def without_partial(runs: Sequence[RunLine], counts_by_run: Mapping[int, CaseCounts]) -> list[RunLine]:
    """Drop partial runs: fewer than half the median case count of runs nearby that share cases."""
    found = []
    for place, run in enumerate(runs):
        near = runs[max(0, place - _NEAR) : place + _NEAR + 1]
        nearby = [
            counts_by_run[each.id].total() for each in near if counts_by_run[each.id] & counts_by_run[run.id]
        ]
        if is_complete_beside(counts_by_run[run.id].total(), nearby):
            found.append(run)
    return found


def newest_of_each_series(runs: Sequence[RunLine], counts_by_run: Mapping[int, CaseCounts]) -> list[RunLine]:
    """The newest night of each series, the newest first; none of long before the newest of all."""
    found: list[RunLine] = []
    for run in reversed(runs):
        if found and _day(found[0]) - _day(run) > _LATELY:
            break
        if len(found) < MOST_SERIES and not any(
            comparable_counts(counts_by_run[run.id], counts_by_run[head.id]) for head in found
        ):
            found.append(run)
    return found


def newest_nights(connection: sa.Connection, runs: Sequence[RunLine]) -> list[RunLine]:
    """The newest night of each series, the newest first; where none has results, the last run."""
    recent = latest_days(runs)
    of = case_counts(connection, recent)
    return newest_of_each_series(without_partial(recent, of), of) or list(runs[-1:])


def earlier_nights(
    runs: Sequence[RunLine], counts_by_run: Mapping[int, CaseCounts]
) -> list[tuple[RunLine, list[tuple[str, str, RunLine]]]]:
    """The newest night of each series, with (title, anchor, run) of those that it is compared with.

    A title says how long before that was, which may be longer than a night, a week or a month.
    """
    whole = without_partial(runs, counts_by_run)
    found = []
    for head in newest_of_each_series(whole, counts_by_run):
        earlier = whole[: whole.index(head)]
        before = [run for run in earlier if comparable_counts(counts_by_run[run.id], counts_by_run[head.id])]
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
