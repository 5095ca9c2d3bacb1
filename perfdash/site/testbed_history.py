"""Read a testbed's history as arrays: recent nights one by one, older ones by week, or by four weeks.

Each night and each week is cached under a digest of its runs: a run that is replaced, pruned or imported late
changes only what it touches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from perfdash.detect.nights import latest_days
from perfdash.history import schema
from perfdash.history.queries import Panel, RunLine, cases_by_id, in_chunks, list_runs, panel
from perfdash.history.results import case_digest, digest
from perfdash.methods import changes, numbers
from perfdash.metrics import CHARTS, NUMBERS
from perfdash.records import DISTURBED, NOT_MEASURED, PASSING, Case, Status
from perfdash.site.site_folder import ArrayCache, Arrays
from perfdash.stats.intervals import Array
from perfdash.stats.machine_levels import numbers_of_machines

FORMAT = 11  # of what is kept: another number makes all of it anew
NIGHTS = 400  # kept one by one, with all their runs, for comparisons and change points
DAYS = 91  # drawn one by one; older ones by weeks
# Charted metrics whose interval is kept too.
BOUNDED = tuple(name for name in CHARTS if NUMBERS[name].has_interval)
READ = (
    *CHARTS, *(f"{name}_{end}" for name in BOUNDED for end in ("low", "high")),
    "graph_breaks", "fallbacks", "calls_captured", "graphs",
)  # fmt: skip
_COUNTS = ("tried", "passed", "failed")  # of the nights of a week
_AT_ONCE = 20  # runs read in one query
_PASSING = [str(status) for status in PASSING]
_NO_FAILURE = ["", *map(str, NOT_MEASURED), *_PASSING]
Singles = NDArray[np.float32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Testbed:
    """A testbed: runs on it may be compared with each other, and with no others."""

    id: int
    digest: str
    host_class: str
    setting: dict[str, object]

    @property
    def title(self) -> str:
        words = [self.host_class, *(f"{name} {value}" for name, value in sorted(self.setting.items()))]
        return ", ".join(words)


class Period(NamedTuple):
    """One week, or four, whose nights are one point; `begin` is a Monday."""

    begin: date
    weeks: int

    @property
    def words(self) -> str:
        return f"week of {self.begin}" if self.weeks == 1 else f"{self.weeks} weeks from {self.begin}"

    @property
    def middle(self) -> float:
        """Seconds since 1970."""
        return epoch(str(self.begin)) + 3.5 * self.weeks * 86400 - 43200


@lru_cache(maxsize=8192)
def period_of(started: str, newest: str) -> Period:
    """The period of a run; `newest`: when the newest run of all started.

    What is older than a year lies in four weeks: on a chart of five years a week has no pixel of its own.
    """
    monday = _monday(started)
    year = date.fromisoformat(newest[:10]).toordinal() - 365
    weekly_from = (year + 26) // 28 * 28 + 1  # day 1 is a Monday
    if monday.toordinal() >= weekly_from:
        return Period(monday, 1)
    return Period(date.fromordinal((monday.toordinal() - 1) // 28 * 28 + 1), 4)


@dataclass(frozen=True)
class Weeks:
    """Older nights by period: median, lowest and highest of the passing nights.

    `tried`, `passed` and `failed` count the nights (cases x periods); one that is skipped, or in which
    nothing was captured, is neither of the last two. `last`: the place among all runs of the week's last one
    that has the case: only nights by its method are in `values`; -1 where none has it. `counted`: of each of
    CHARTS the median of the nights that count in means (cases x periods).
    """

    periods: list[Period]
    values: dict[str, Singles]
    counted: dict[str, Singles]
    tried: NDArray[np.int32]
    passed: NDArray[np.int32]
    failed: NDArray[np.int32]
    last: NDArray[np.int32]


@dataclass(frozen=True)
class TestbedHistory:
    """A testbed's runs and numbers; `recent` are its last nights, oldest first.

    Nights from `daily` on are drawn one by one.

    values: of each of READ (cases x recent), NaN where not measured; statuses: words, "" for none; hosts: the
    machine of each result, "" for none;
    passed: that the numbers are of what they should be; counted: that they also count in means. `row` finds
    a case by the store's number.
    """

    bed: Testbed
    runs: list[RunLine]
    recent: list[RunLine]
    daily: int
    cases: dict[int, Case]
    row: dict[int, int]
    values: dict[str, Singles]
    statuses: NDArray[np.object_]
    hosts: NDArray[np.object_]
    passed: Flags
    counted: Flags
    weeks: Weeks
    marks: dict[int, str]  # of each run, what tells it from all others and from what it was before
    excluded: list[RunLine]  # that a person excluded from judging; in none of the other fields

    @cached_property
    def method_codes(self) -> dict[str, NDArray[np.int32]]:
        """For each of READ and `status`: a number per run, equal if runs are comparable."""
        methods = [run.method for run in self.runs]
        return {name: codes(methods, name) for name in (*READ, "status")}

    @cached_property
    def _several_methods(self) -> set[str]:
        """The metrics that not all runs measured by the same method."""
        return {name for name, codes in self.method_codes.items() if len(np.unique(codes)) > 1}

    def codes_of(self, name: str, nights: Sequence[int]) -> NDArray[np.int32]:
        """The method_codes of some of the recent nights."""
        return self.method_codes[name][self._older :][nights]

    def machines_of(self, row: int, nights: Sequence[int]) -> NDArray[np.intp]:
        """A number for the machine of each of a case's results on some of the recent nights."""
        hosts = self.hosts[row, nights]
        machines = np.zeros(len(nights), dtype=np.intp)
        machines[hosts != ""] = numbers_of_machines(hosts[hosts != ""])
        return machines

    def breaks(self, name: str, row: int, weeks: Sequence[int], nights: Sequence[int]) -> dict[int, str]:
        """The weeks and nights of a case at which the method changes, with its name."""
        if name not in self._several_methods:
            return {}
        places = [*self.weeks.last[row, weeks].tolist(), *(self._older + night for night in nights)]
        method_codes = self.method_codes[name][places]
        return {
            k: ", ".join(changes(self.runs[places[k - 1]].method, self.runs[places[k]].method, name))
            for k in (np.flatnonzero(np.diff(method_codes)) + 1).tolist()
        }

    def panel(self, connection: sa.Connection, runs: Sequence[RunLine], metrics: Sequence[str]) -> Panel:
        """What queries.panel reads, in 32 bits, from these arrays where they have all of it."""
        place = {run.id: night for night, run in enumerate(self.recent)}
        has_all = set(metrics) <= set(READ) and all(run.id in place for run in runs)
        if not has_all or any(len(run.hosts) > 1 for run in runs):
            return panel(connection, runs, metrics)
        nights = np.array([place[run.id] for run in runs], dtype=np.intp)
        measured = np.flatnonzero((self.statuses[:, nights] != "").any(axis=1))
        numbers = list(self.row)
        return Panel(
            list(runs),
            [numbers[row] for row in measured.tolist()],
            {name: self.values[name][np.ix_(measured, nights)].astype(float) for name in metrics},
            self.statuses[np.ix_(measured, nights)],
        )

    @cached_property
    def disturbed(self) -> Flags:
        """The passes (cases x recent) whose latencies are left out because other programs disturbed them.

        They count in no mean though they were compiled and checked, and have no latency.
        """
        has_latency = np.isfinite([self.values[name] for name in ("eager_ms", "backend_ms", "speedup")])
        is_left_out: Flags = self.passed & ~self.counted & ~has_latency.any(axis=0)
        is_pass: Flags = self.statuses == str(Status.PASS)
        return is_left_out & is_pass

    @property
    def _older(self) -> int:
        """The runs before the recent ones."""
        return len(self.runs) - len(self.recent)


def codes(methods: Sequence[Mapping[str, int]], name: str) -> NDArray[np.int32]:
    """Number the methods: equal where numbers of a column may be compared."""
    code_of: dict[str, int] = {}
    return np.array(
        [code_of.setdefault(str(numbers(method, name)), len(code_of)) for method in methods], dtype=np.int32
    )


def beds(connection: sa.Connection) -> list[Testbed]:
    """All testbeds that have a run that is not excluded, those with the newest first."""
    table, runs = schema.testbeds, schema.runs
    last = sa.func.max(runs.c.started)
    query = (
        sa.select(table.c.id, table.c.digest, table.c.host_class, table.c.setting)
        .join_from(table, runs, runs.c.testbed_id == table.c.id)
        .where(runs.c.excluded.is_(None))
        .group_by(table.c.id)
        .order_by(last.desc(), table.c.id)
    )
    return [Testbed(*row) for row in connection.execute(query)]


def testbeds_with_runs(connection: sa.Connection) -> list[tuple[Testbed, list[RunLine]]]:
    """All testbeds with their runs, oldest first, without excluded ones."""
    return [(bed, list_runs(connection, testbed_id=bed.id, with_excluded=False)) for bed in beds(connection)]


def epoch(started: str) -> float:
    """Seconds since 1970 of a time as the store has it."""
    moment = datetime.fromisoformat(started)
    return moment.timestamp() if moment.tzinfo else datetime.fromisoformat(f"{started}+00:00").timestamp()


def _monday(started: str) -> date:
    day = date.fromisoformat(started[:10])
    return day - timedelta(days=day.weekday())


def read_history(
    connection: sa.Connection,
    bed: Testbed,
    cache: ArrayCache | None = None,
    *,
    nights: int = NIGHTS,
    case_ids: Sequence[int] | None = None,
) -> TestbedHistory:
    """Read the history of a testbed, of all or some cases.

    Some cases are read without the cache: that is quick.
    """
    cache = cache if cache is not None and case_ids is None else ArrayCache()
    stored = list_runs(connection, testbed_id=bed.id)
    runs = [run for run in stored if run.excluded is None]
    recent = latest_days(runs, nights)
    daily = _first_daily(runs, len(recent))
    newest = runs[-1].started if runs else ""
    older = [
        list(group) for _, group in groupby(runs[:daily], key=lambda run: period_of(run.started, newest))
    ]
    marks = _marks(connection, bed)
    reader = _HistoryReader(connection, cache, case_ids, marks)
    by_night = list(reader.nights(recent))
    by_week = [reader.week(group) for group in older]
    digests = np.unique(
        np.concatenate([np.array([], "S16"), *(night["cases"] for night in by_night + by_week)])
    )
    case_of = {case_digest(case)[:16].encode(): (number, case) for number, case in reader.cases().items()}
    numbers = [case_of[text] for text in digests.tolist()]
    statuses, hosts = (np.full((len(digests), len(recent)), "", dtype=object) for _ in range(2))
    passed, counted = (np.zeros(statuses.shape, dtype=bool) for _ in range(2))
    values = {name: np.full(statuses.shape, np.nan, dtype=np.float32) for name in READ}
    for place, night in enumerate(by_night):
        rows = np.searchsorted(digests, night["cases"])
        statuses[rows, place] = night["words"].astype(object)[night["statuses"]]
        hosts[rows, place] = night["hosts"].astype(object)[night["machines"]]
        passed[rows, place] = night["passed"]
        counted[rows, place] = night["counted"]
        for name, column in zip(READ, night["values"], strict=True):
            values[name][rows, place] = column
    return TestbedHistory(
        bed,
        runs,
        recent,
        daily - (len(runs) - len(recent)),
        dict(numbers),
        {number: place for place, (number, _) in enumerate(numbers)},
        values,
        statuses,
        hosts,
        passed,
        counted,
        _weeks(digests, older, by_week, newest),
        marks,
        [run for run in stored if run.excluded is not None],
    )


def failed(statuses: NDArray[np.object_]) -> Flags:
    """Where a case was tried and did not pass; what was skipped, or lost by the machine, is no failure."""
    return ~np.isin(statuses, _NO_FAILURE)


def _first_daily(runs: Sequence[RunLine], limit: int) -> int:
    """The place of the first run that is drawn by itself.

    It is the first of a week, DAYS or at most `limit` runs ago.
    """
    if not runs:
        return 0
    start = _monday(str(date.fromisoformat(runs[-1].started[:10]) - timedelta(days=DAYS)))
    first = next(place for place, run in enumerate(runs) if run.started[:10] >= str(start))
    return max(first, len(runs) - limit)


def _weeks(
    digests: NDArray[np.bytes_], older: Sequence[list[RunLine]], weeks: Sequence[Arrays], newest: str
) -> Weeks:
    """`older` are the runs of each period, the first of all runs."""
    shape = len(digests), len(older)
    values = {name: np.full((*shape, 3), np.nan, dtype=np.float32) for name in CHARTS}
    counted = {name: np.full(shape, np.nan, dtype=np.float32) for name in CHARTS}
    counts = {name: np.zeros(shape, dtype=np.int32) for name in _COUNTS}
    last = np.full(shape, -1, dtype=np.int32)
    start = 0
    for place, week in enumerate(weeks):
        rows = np.searchsorted(digests, week["cases"])
        for name, count in counts.items():
            count[rows, place] = week[name]
        last[rows, place] = start + week["last"]
        start += len(older[place])
        for name, column in zip(CHARTS, week["values"], strict=True):
            values[name][rows, place] = column
        for name, column in zip(CHARTS, week["counted"], strict=True):
            counted[name][rows, place] = column
    periods = [period_of(group[0].started, newest) for group in older]
    return Weeks(periods, values, counted, last=last, **counts)


def _marks(connection: sa.Connection, bed: Testbed) -> dict[int, str]:
    runs = schema.runs
    query = sa.select(runs.c.id, runs.c.key, runs.c.content).where(runs.c.testbed_id == bed.id)
    return {row.id: f"{row.key} {row.content}" for row in connection.execute(query)}


class _HistoryReader:
    """Reads nights and weeks from the cache, and what is not there from the store."""

    def __init__(
        self,
        connection: sa.Connection,
        cache: ArrayCache,
        case_ids: Sequence[int] | None,
        marks: dict[int, str],
    ) -> None:
        self.connection, self.cache, self.case_ids, self.marks = connection, cache, case_ids, marks
        self._cases: dict[int, Case] = {}

    def cases(self) -> dict[int, Case]:
        """All cases of the store by number, or those asked for."""
        if not self._cases:
            case_ids = self.case_ids
            if case_ids is None:
                case_ids = self.connection.execute(sa.select(schema.cases.c.id)).scalars().all()
            self._cases = cases_by_id(self.connection, case_ids)
        return self._cases

    def _key(self, kind: str, runs: Sequence[RunLine]) -> str:
        return digest([FORMAT, kind, READ, [self.marks[run.id] for run in runs]])

    def nights(self, runs: Sequence[RunLine]) -> Iterator[Arrays]:
        """Read the arrays of each run, from the cache where possible.

        They are the sorted digests of its cases, values (READ x cases), statuses, machines, passed and
        counted.
        """
        for start in range(0, len(runs), _AT_ONCE):
            chunk = runs[start : start + _AT_ONCE]
            cached = {run.id: self.cache.get(self._key("night", [run])) for run in chunk}
            missing = [run for run in chunk if cached[run.id] is None]
            computed = dict(zip((run.id for run in missing), self._read(missing), strict=True))
            for run in missing:
                self.cache.put(self._key("night", [run]), computed[run.id])
            yield from (cached[run.id] or computed[run.id] for run in chunk)

    def week(self, runs: Sequence[RunLine]) -> Arrays:
        """Read the arrays of the runs of a week, from the cache where possible.

        They are values (CHARTS x cases x 3: median, lowest, highest), counted (CHARTS x cases: the median of
        what counts in means), _COUNTS, and `last`: the place of the last run that has a case.

        Values by another method than that of this run are left out.
        """
        key = self._key("week", runs)
        arrays = self.cache.get(key)
        if arrays is None:
            methods = np.array([codes([run.method for run in runs], name) for name in CHARTS])
            arrays = _aggregated(self._read(runs), methods)
            self.cache.put(key, arrays)
        return arrays

    def _read(self, runs: Sequence[RunLine]) -> list[Arrays]:
        if not runs:
            return []
        whole = panel(self.connection, runs, READ, self.case_ids)
        cases = self.cases()
        names = np.array([case_digest(cases[number])[:16] for number in whole.case_ids], dtype="S16")
        order = np.argsort(names)
        passed = _passed(whole)
        counted = self._counted(whole, passed)
        nights: list[Arrays] = []
        for night in range(len(whole.runs)):
            measured = order[whole.statuses[order, night] != ""]
            words, places = np.unique(whole.statuses[measured, night].astype(str), return_inverse=True)
            hosts, machines = np.unique(whole.machines[measured, night].astype(str), return_inverse=True)
            nights.append(
                {
                    "cases": names[measured],
                    "values": np.array(
                        [whole.values[name][measured, night] for name in READ], dtype=np.float32
                    ),
                    "words": words,
                    "statuses": places.astype(np.int16),
                    "hosts": hosts,
                    "machines": machines.astype(np.int16),
                    "passed": passed[measured, night],
                    "counted": counted[measured, night],
                }
            )
        return nights

    def _counted(self, whole: Panel, passed: Flags) -> Flags:
        """Where a result counts in means: history.pass_rates_and_means.is_counted, over arrays.

        Whether dynamo gave up is in the details only: reading those of 1,920 results takes 0.03 s.
        """
        counted: Flags = passed & (whole.statuses == str(Status.PASS))
        row = {number: place for place, number in enumerate(whole.case_ids)}
        night_of = {run.id: place for place, run in enumerate(whole.runs)}
        results, more = schema.results, schema.result_details
        query = (
            sa.select(*results.c["run_id", "case_id", "verdict"], more.c.details)
            .outerjoin_from(results, more, more.c.result_id == results.c.id)
            .where(results.c.status == str(Status.PASS))
        )
        if self.case_ids is not None:
            query = query.where(results.c.case_id.in_(self.case_ids))
        for chunk in in_chunks(list(night_of)):
            for result in self.connection.execute(query.where(results.c.run_id.in_(chunk))):
                if result.verdict == DISTURBED or (result.details or {}).get("recompile_limit"):
                    counted[row[result.case_id], night_of[result.run_id]] = False
        return counted


def _passed(whole: Panel) -> Flags:
    """Where numbers are of a compiled model: history.pass_rates_and_means.is_compiled, over arrays."""
    good = np.isin(whole.statuses.astype(str), _PASSING)
    captured: Flags = (whole.values["calls_captured"] != 0) & (whole.values["graphs"] != 0)
    return good & captured


def _aggregated(nights: Sequence[Arrays], methods: NDArray[np.int32]) -> Arrays:
    """`methods` (CHARTS x nights): a number for each method that a metric was measured by."""
    cases = np.unique(np.concatenate([arrays["cases"] for arrays in nights]))
    values = np.full((len(CHARTS), len(cases), len(nights)), np.nan, dtype=np.float32)
    counted = values.copy()
    counts = {name: np.zeros(len(cases), dtype=np.int32) for name in _COUNTS}
    last = np.zeros(len(cases), dtype=np.int32)
    for place, arrays in enumerate(nights):
        rows = np.searchsorted(cases, arrays["cases"])
        counts["tried"][rows] += 1
        counts["passed"][rows] += arrays["passed"]
        counts["failed"][rows] += failed(arrays["words"])[arrays["statuses"]]
        last[rows] = place
        charted = arrays["values"][: len(CHARTS)]
        values[:, rows, place] = np.where(arrays["passed"], charted, np.nan)
        counted[:, rows, place] = np.where(arrays["counted"], charted, np.nan)
    by_another_method = methods[:, None, :] != methods[:, last][:, :, None]
    values[by_another_method] = counted[by_another_method] = np.nan
    medians = three(counted)[..., 0]
    return {"cases": cases, "values": three(values), "counted": medians, "last": last, **counts}


def three(values: NDArray[np.floating]) -> Singles:
    """Median, lowest and highest along the last axis; NaN without a value."""
    spans = np.full((*values.shape[:-1], 3), np.nan, dtype=np.float32)
    measured = np.isfinite(values).any(axis=-1)
    given = np.where(np.isfinite(values), values, np.nan)[measured].astype(float)  # a median adds two
    if len(given):
        spans[measured] = np.stack(
            [np.nanmedian(given, axis=-1), np.nanmin(given, axis=-1), np.nanmax(given, axis=-1)], axis=-1
        )
    return spans


def as_logs(values: Array | Singles, passed: Flags) -> Array:
    """Logs of those that passed and are above zero, else NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        good = passed & (values > 0)
        return np.where(good, np.log(np.where(good, values, 1.0).astype(float)), np.nan)


def means_over_same_models(
    history: TestbedHistory,
    case_ids: Sequence[int],
    name: str,
    periods: Sequence[Period],
    run_ids: Sequence[int],
    *,
    geometric: bool,
) -> Array:
    """The mean of a metric over the cases in each period and then on each night; NaN where none was measured.

    On a night on which a case has no value, or one that counts in no mean, its last one before counts, else
    its first one after; only values by the same method stand in for each other.
    """
    rows = [history.row[number] for number in case_ids]
    count = len(periods) + len(run_ids)
    if not count or not rows:
        return np.full(count, np.nan)
    week_of = {period: place for place, period in enumerate(history.weeks.periods)}
    weeks = np.array([week_of.get(period, -1) for period in periods], dtype=np.intp)
    night_of = {run.id: place for place, run in enumerate(history.recent)}
    nights = np.array([night_of.get(run_id, -1) for run_id in run_ids], dtype=np.intp)
    of_week = history.weeks.counted[name][rows]
    of_night = np.where(history.counted[rows], history.values[name][rows], np.nan)
    values = np.hstack([_some_columns(of_week, weeks), _some_columns(of_night, nights)])
    values[~(values > 0)] = np.nan
    # The run that decides by which method a column was measured; -1: none.
    last = _some_columns(history.weeks.last[rows], weeks).max(axis=0)
    older = len(history.runs) - len(history.recent)
    run = np.concatenate([np.nan_to_num(last, nan=-1), np.where(nights >= 0, older + nights, -1)]).astype(int)
    methods = np.where(run >= 0, history.method_codes[name][run], -1)
    values[:, run < 0] = np.nan
    filled = _gaps_filled(values, methods)
    known = np.isfinite(filled)
    logs = np.log(np.where(known, filled, 1.0)) if geometric else np.where(known, filled, 0.0)
    with np.errstate(invalid="ignore"):
        means: Array = logs.sum(axis=0) / known.sum(axis=0)
    means[~np.isfinite(values).any(axis=0)] = np.nan
    return np.exp(means) if geometric else means


def _some_columns(values: NDArray[Any], places: NDArray[np.intp]) -> Array:
    """Some columns of an array; NaN for place -1."""
    columns = np.full((len(values), len(places)), np.nan)
    columns[:, places >= 0] = values[:, places[places >= 0]]
    return columns


def _gaps_filled(values: Array, methods: NDArray[np.int32]) -> Array:
    """Gaps of each row filled from the nights of the same method: from the one before, else the one after."""
    filled = values.copy()
    for method in np.unique(methods).tolist():
        places = np.flatnonzero(methods == method)
        part = filled[:, places]
        for order in (range(1, len(places)), range(len(places) - 2, -1, -1)):
            step = -1 if order.step > 0 else 1
            for place in order:
                gap = np.isnan(part[:, place])
                part[gap, place] = part[gap, place + step]
        filled[:, places] = part
    return filled
