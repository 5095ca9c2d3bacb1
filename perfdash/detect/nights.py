"""Decide which runs are nights, and which of them can be compared with each other.

Two runs are comparable if they share half of their cases; the rule uses the cases where they are read, and
counts of cases per setting elsewhere. A testbed may have several series a night (one per dtype, say), and
now and then a manual run of a few models, which are not comparable with each other.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from perfdash.files import now
from perfdash.history import schema
from perfdash.history.nightlies import latest_begin
from perfdash.history.pass_rates_and_means import SETTING
from perfdash.history.queries import (
    Panel,
    RunLine,
    list_runs,
    measured_any,
    settings_of_run,
    shared_cases,
)
from perfdash.history.results import RunRow
from perfdash.stats.nightly_test import REFERENCE, WINDOWS

_MINIMUM_SHARE = 0.5  # of another run's cases, so that the two can be compared
NEARBY_RUNS = 24  # before a night: two nights of twelve settings, with a run for each
# Runs that are read to judge one: the nightly test uses the last 70, whatever they measured; statuses, counts
# and the later nights of alerts are looked up in all of them.
JUDGED_NIGHTS = WINDOWS + REFERENCE + NEARBY_RUNS
NIGHTS_BACK = 120  # days with runs that are read
_MOST_OLDER_SERIES = 6  # of one testbed, up to which series are added that the last night did not measure
_NEAR = 15  # runs on either side, whose counts decide whether a run is partial
LATELY = timedelta(days=40)  # since the last night of a series that is still measured
_ONE_DAY = timedelta(days=1)
_AGES = (("night", 0), ("week", 7), ("month", 30))
_TITLES = {0: "an earlier run of the day", 1: "the night before", 7: "a week before", 30: "a month before"}

CaseCounts = Counter[tuple[object, ...]]  # cases by setting


def has_enough_cases(cases: Any, other: Any) -> Any:
    """Whether `cases` cases are enough to be compared with a run of `other` cases.

    Numbers, or arrays of the same shape.
    """
    return cases >= _MINIMUM_SHARE * other


def comparable(panel: Panel) -> NDArray[np.bool_]:
    """Whether the last run has half of the cases of each earlier run.

    Returns an array of one flag for each run but the last.
    """
    measured = panel.statuses != ""
    earlier = measured[:, :-1]
    shared = (earlier & measured[:, -1:]).sum(axis=0)
    enough: NDArray[np.bool_] = (shared > 0) & has_enough_cases(shared, earlier.sum(axis=0))
    return enough


def comparable_nights(panel: Panel) -> NDArray[np.bool_]:
    """The comparable runs, without manual runs of a few models if there are others.

    Such a run has less than half of the last run's cases that another comparable run has.
    """
    measured = panel.statuses != ""
    shared = np.where(comparable(panel), (measured[:, :-1] & measured[:, -1:]).sum(axis=0), 0)
    enough: NDArray[np.bool_] = (shared > 0) & has_enough_cases(shared, shared.max(initial=0))
    return enough


def is_a_night(panel: Panel) -> bool:
    """Whether the last run can be judged: it is comparable with a run shortly before.

    Otherwise a manual run of a few models would count as a night on which all other cases vanished.
    """
    return bool(comparable(panel)[-NEARBY_RUNS:].any())


def were_nights(panel: Panel) -> NDArray[np.bool_]:
    """Whether each run but the last was judged itself: a night, and no manual run of a few models.

    As in `is_a_night`, but a run that shares no case with earlier runs counts: it is the first of its kind.
    """
    measured = (panel.statuses != "").astype(float)
    shared = measured.T @ measured
    runs = len(panel.runs)
    earlier = np.tri(runs, k=-1, dtype=bool)  # of each run (row) the runs before it
    nearby = earlier & ~np.tri(runs, k=-NEARBY_RUNS - 1, dtype=bool)
    enough = (shared > 0) & has_enough_cases(shared, shared.diagonal())
    is_first = ~((shared > 0) & earlier).any(axis=1)
    nights: NDArray[np.bool_] = (is_first | (enough & nearby).any(axis=1))[:-1]
    return nights


def is_first_of_its_week(panel: Panel) -> bool:
    """Whether the last run is the first night of its week (from Sunday on) with these cases.

    An earlier run of the week counts if each of the two has half of the other's cases, so neither a manual
    run of a few models nor a run of another setting does.
    """
    measured = panel.statuses != ""
    shared = (measured[:, :-1] & measured[:, -1:]).sum(axis=0)
    alike = comparable(panel) & has_enough_cases(shared, measured[:, -1].sum())
    week = [is_of_the_week(run, panel.runs[-1]) for run in panel.runs[:-1]]
    return not bool((alike & np.array(week, dtype=bool)).any())


def is_of_the_week(run: RunLine, other: RunLine) -> bool:
    """Whether two runs began in one week, from Sunday to Saturday."""
    return _day(run).toordinal() // 7 == _day(other).toordinal() // 7


def is_complete_beside(cases: int, nearby: Sequence[int]) -> bool:
    """Whether a run has half of the median case count of runs nearby; False without any."""
    return bool(nearby and has_enough_cases(cases, statistics.median(nearby)))


def latest_days(runs: Sequence[RunLine], days: int = NIGHTS_BACK) -> list[RunLine]:
    """The runs of the last `days` days that have runs, oldest first."""
    chosen = set(sorted({_day(run) for run in runs})[-days:])
    return [run for run in runs if _day(run) in chosen]


def runs_before(
    connection: sa.Connection,
    run: RunLine,
    *,
    latest: int,
    settings: Collection[tuple[Any, ...]] | None = None,
) -> list[RunLine]:
    """The runs of its testbed and origin before a run, oldest first; `latest`, `settings`: as list_runs."""
    before = list_runs(
        connection,
        testbed_id=run.testbed_id,
        until=run.started,
        latest=latest,
        with_excluded=False,
        settings=settings,
    )
    return [
        earlier
        for earlier in before
        if earlier.origin == run.origin and (earlier.started, earlier.id) < (run.started, run.id)
    ]


def ids_before(
    connection: sa.Connection, run: RunLine, settings: Collection[tuple[Any, ...]] | None = None
) -> list[int]:
    """The numbers of all `runs_before` a run, oldest first: of years of runs the rest is not needed."""
    runs = schema.runs
    query = sa.select(runs.c.id).where(
        runs.c.testbed_id == run.testbed_id,
        runs.c.origin == run.origin,
        runs.c.excluded.is_(None),
        sa.or_(runs.c.started < run.started, sa.and_(runs.c.started == run.started, runs.c.id < run.id)),
    )
    if settings is not None:
        query = query.where(measured_any(settings))
    return list(connection.execute(query.order_by(runs.c.started, runs.c.id)).scalars())


def begins_in_the_future(run: RunRow) -> bool:
    """Whether a run begins so long after now that the clock by which it began was wrong."""
    return run.started > latest_start()


def latest_start() -> str:
    """The latest time at which a run may begin by a right clock."""
    return latest_begin(now())


def later_judged_first(connection: sa.Connection, run: RunLine) -> list[RunLine]:
    """The later nights with half of its cases that were judged before it, so that it changes no alert.

    Runs of several settings, or of several parts of a suite, measure side by side, and the one that began
    first may end last. If all are of other machines (`were_beside`), it changes alerts of failures.
    """
    later = list_runs(
        connection,
        testbed_id=run.testbed_id,
        since=run.started,
        with_excluded=False,
        settings=settings_of_run(connection, run.id),
    )
    judged_first = [
        line
        for line in later
        if line.judged is not None
        and (run.judged is None or line.judged < run.judged)
        and line.origin == run.origin
        and (line.started, line.id) > (run.started, run.id)
        and not begins_in_the_future(line)
    ]
    shared = shared_cases(connection, run.id, [line.id for line in judged_first])
    return [
        line for line in judged_first if line.id in shared and has_enough_cases(shared[line.id], run.results)
    ]


def were_beside(run: RunRow, later: Iterable[RunRow]) -> bool:
    """Whether other machines measured the later runs, and began while the run went on."""
    return all(other_machine(line, run) and line.started <= (run.ended or "") for line in later)


def first_latest_day(connection: sa.Connection, testbed_id: int, days: int) -> str:
    """The first of the last `days` days on which a testbed has runs; "" where it has fewer."""
    runs = schema.runs
    day = sa.func.substr(runs.c.started, 1, 10)
    query = sa.select(day).where(runs.c.testbed_id == testbed_id, runs.c.excluded.is_(None)).distinct()
    return connection.execute(query.order_by(day.desc()).offset(days - 1).limit(1)).scalar() or ""


def case_counts(connection: sa.Connection, runs: Sequence[RunLine]) -> dict[int, CaseCounts]:
    """The number of cases of each setting in some runs, by run id."""
    table = schema.summaries
    counts_by_run: dict[int, CaseCounts] = {run.id: Counter() for run in runs}
    query = sa.select(*table.c["run_id", *SETTING, "cases"]).where(table.c.run_id.in_(list(counts_by_run)))
    for row in connection.execute(query):
        counts_by_run[row[0]][tuple(row[1:-1])] = row[-1]
    return counts_by_run


def comparable_counts(counts: CaseCounts, other: CaseCounts) -> bool:
    """Whether each run has half of the other's cases, by counts per setting."""
    return bool(has_enough_cases((counts & other).total(), max(counts.total(), other.total(), 1)))


def without_partial(runs: Sequence[RunLine], counts_by_run: Mapping[int, CaseCounts]) -> list[RunLine]:
    """Drop partial runs: fewer than half the median case count of comparable runs nearby."""
    complete_runs = []
    for place, run in enumerate(runs):
        run_counts = counts_by_run[run.id]
        near = (counts_by_run[other.id] for other in runs[max(0, place - _NEAR) : place + _NEAR + 1])
        if is_complete_beside(run_counts.total(), [counts.total() for counts in near if counts & run_counts]):
            complete_runs.append(run)
    return complete_runs


def newest_of_each_series(runs: Sequence[RunLine], counts_by_run: Mapping[int, CaseCounts]) -> list[RunLine]:
    """The newest night of each series that is still measured, the newest first.

    All series of the last night, which may begin on the day before, and of those before it a few.
    """
    heads: list[RunLine] = []
    for run in reversed(runs):
        age = _day(heads[0]) - _day(run) if heads else timedelta()
        if age > LATELY or (age > _ONE_DAY and len(heads) >= _MOST_OLDER_SERIES):
            break
        if not any(comparable_counts(counts_by_run[run.id], counts_by_run[head.id]) for head in heads):
            heads.append(run)
    return heads


def newest_nights(connection: sa.Connection, runs: Sequence[RunLine]) -> list[RunLine]:
    """The newest night of each series, the newest first; without results, the last run."""
    recent = latest_days(runs)
    counts = case_counts(connection, recent)
    return newest_of_each_series(without_partial(recent, counts), counts) or list(runs[-1:])


def earlier_nights(
    runs: Sequence[RunLine], counts_by_run: Mapping[int, CaseCounts]
) -> list[tuple[RunLine, list[tuple[str, str, RunLine]]]]:
    """The newest night of each series, with (title, anchor, run) of its baselines.

    The baselines are of the night's own machine, if that measured any. A title says how long before the night
    the run was: often more than a night, a week or a month.
    """
    complete_runs = without_partial(runs, counts_by_run)
    nights = []
    for head in newest_of_each_series(complete_runs, counts_by_run):
        earlier = complete_runs[: complete_runs.index(head)]
        before = [run for run in earlier if comparable_counts(counts_by_run[run.id], counts_by_run[head.id])]
        chosen: list[tuple[str, str, RunLine]] = []
        for anchor, days in _AGES:
            until = _day(head) - timedelta(days=days)
            old = [run for run in before if days == 0 or _day(run) <= until]
            baseline = previous_run(head, old) if old else None
            if baseline and baseline not in [run for *_, run in chosen]:
                chosen.append((how_long(baseline, head), anchor, baseline))
        nights.append((head, chosen))
    return nights


def previous_run(run: RunLine, earlier: Sequence[RunLine]) -> RunLine:
    """The newest of some earlier runs, of the same machine if it has any: machines of a class differ.

    `earlier`: at least one, oldest first.
    """
    of_machine = [other for other in earlier if not other_machine(other, run)]
    return (of_machine or earlier)[-1]


def other_machine(old: RunRow, new: RunRow) -> str:
    """Names the machines of two runs that have none in common; empty otherwise."""
    return other_machines([old], [new])


def other_machines(old: Iterable[RunRow], new: Iterable[RunRow]) -> str:
    """Names the machines of two sides of runs that have none in common; empty otherwise."""
    sides = [sorted({host for run in runs for host in run.hosts}) for runs in (old, new)]
    names = " | ".join("+".join(hosts) for hosts in sides)
    return f"on another machine: {names}" if set(sides[0]).isdisjoint(sides[1]) else ""


def how_long(old: RunLine, new: RunLine) -> str:
    """How long before a night an earlier run was, in words."""
    days = days_between(old, new)
    return _TITLES.get(days, f"{days} days before")


def days_between(old: RunRow, new: RunRow) -> int:
    """The number of days from the one on which a run began to that of another."""
    return (_day(new) - _day(old)).days


def _day(run: RunRow) -> date:
    return date.fromisoformat(run.started[:10])
