"""Read runs, results and series from the history."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from perfdash.errors import UsageError
from perfdash.history import generated_code, result_hosts, schema
from perfdash.history.compression import unpack
from perfdash.history.pass_rates_and_means import SETTING, remark
from perfdash.history.results import Imported, Row, RunRow, case_digest
from perfdash.methods import OWN_THREADS, alike, has_own_threads, numbers
from perfdash.metrics import NUMBERS, is_sampled
from perfdash.records import DISTURBED, NOT_MEASURED, PASSING, Case
from perfdash.suggestions import did_you_mean, not_one_of

CASE_COLUMNS = (
    "suite", "model", "device", "dtype", "batch_size", "threads", "scenario", "backend", "dynamic",
    "amp_dtype", "settings", "configuration",
)  # fmt: skip
T = TypeVar("T")
_PASSING = [str(status) for status in PASSING]
_NOT_MEASURED = [str(status) for status in NOT_MEASURED]


@dataclass(frozen=True, kw_only=True)
class RunLine(RunRow):
    """A run of the store, without its results; `host_class` and `setting` identify its testbed."""

    id: int
    testbed_id: int
    environment_id: int
    results: int
    judged: str | None
    excluded: str | None = None  # why a person excluded it from judging

    def to_plain(self) -> dict[str, Any]:
        """The run as plain values for JSON."""
        return {name: getattr(self, name) for name in RUN_COLUMNS}


RUN_COLUMNS = (
    "id", "name", "started", "state", "origin", "source", "host", "testbed_id", "host_class", "setting",
    "environment_id", "torch", "torch_git_version", "python", "packages", "facts", "noise", "expected",
    "results", "judged", "excluded", "commits", "method",
)  # fmt: skip


def list_runs(
    connection: sa.Connection,
    *,
    name: str | None = None,
    testbed_id: int | None = None,
    since: str | None = None,
    until: str | None = None,
    ids: Sequence[int] | None = None,
    latest: int | None = None,
    with_excluded: bool = True,
    settings: Collection[tuple[Any, ...]] | None = None,
) -> list[RunLine]:
    """Runs from the oldest to the newest; with `latest`, only so many of the newest.

    `with_excluded=False` leaves out the runs that a person excluded from judging. `settings`: only runs
    that measured one of these settings (suite, device, dtype, ..., as SETTING names them).

    `since` and `until` are prefixes of a time (2026, 2026-11, 2026-11-21T03), both included.
    """
    runs, beds, env = schema.runs, schema.testbeds, schema.environments
    query = (
        sa.select(
            *runs.c["id", "name", "started", "ended", "state", "origin", "source", "command", "noise",
                   "expected", "perfdash", "imported", "method", "testbed_id", "environment_id", "results",
                   "judged", "excluded"],
            schema.hosts.c.name.label("host"), beds.c.host_class, beds.c.setting,
            *env.c["torch", "torch_git_version", "python", "packages", "facts", "commits"],
        )
        .join_from(runs, beds, runs.c.testbed_id == beds.c.id)
        .join(env, runs.c.environment_id == env.c.id)
        .join(schema.hosts, runs.c.host_id == schema.hosts.c.id)
        .order_by(runs.c.started.desc(), runs.c.id.desc())
    )  # fmt: skip
    if name is not None:
        query = query.where(runs.c.name == name)
    if testbed_id is not None:
        query = query.where(runs.c.testbed_id == testbed_id)
    if since is not None:
        query = query.where(runs.c.started >= since)
    if until is not None:
        # Only the prefix is compared: no character is the last one in the locale of every database.
        query = query.where(sa.func.substr(runs.c.started, 1, len(until)) <= until)
    if ids is not None:
        query = query.where(runs.c.id.in_(ids))
    if not with_excluded:
        query = query.where(runs.c.excluded.is_(None))
    if settings is not None:
        query = query.where(measured_any(settings))
    if latest is not None:
        query = query.limit(latest)
    return [_run_line(dict(row._mapping)) for row in connection.execute(query)][::-1]


def measured_any(settings: Collection[tuple[Any, ...]]) -> sa.ColumnElement[bool]:
    """The condition that a run measured one of some settings."""
    table = schema.summaries
    of_settings = sa.or_(
        sa.false(),
        *(
            sa.and_(*(table.c[name] == value for name, value in zip(SETTING, setting, strict=True)))
            for setting in settings
        ),
    )
    return sa.select(table.c.run_id).where(table.c.run_id == schema.runs.c.id, of_settings).exists()


def settings_of_run(connection: sa.Connection, run_id: int) -> list[tuple[Any, ...]]:
    """The settings that a run measured."""
    table = schema.summaries
    query = sa.select(*table.c[SETTING]).where(table.c.run_id == run_id)
    return [tuple(row) for row in connection.execute(query)]


def shared_cases(connection: sa.Connection, run_id: int, others: Sequence[int]) -> dict[int, int]:
    """The number of cases of a run that some other runs measured, by run id; none without any."""
    results = schema.results
    cases = sa.select(results.c.case_id).where(results.c.run_id == run_id)
    count = sa.select(results.c.run_id, sa.func.count()).where(results.c.case_id.in_(cases))
    counts = {}
    for chunk in in_chunks(others):
        query = count.where(results.c.run_id.in_(chunk)).group_by(results.c.run_id)
        counts.update({row[0]: row[1] for row in connection.execute(query)})
    return counts


def _run_line(columns: dict[str, Any]) -> RunLine:
    worker = {name: columns.pop(name) for name in ("torch", "torch_git_version", "python", "packages")}
    if commits := columns.pop("commits"):
        worker["commits"] = commits
    facts = dict(columns.pop("facts"))
    if repositories := facts.pop("repositories", None):
        worker["repositories"] = repositories
    environment = {**facts, "worker": worker}
    command, method = tuple(columns.pop("command")), columns.pop("method") or {}
    return RunLine(**columns, environment=environment, command=command, method=method)


def in_chunks(values: Sequence[T], size: int = 500) -> Iterator[Sequence[T]]:
    """Split values for queries with IN (...), because databases limit the number of parameters."""
    return (values[start : start + size] for start in range(0, len(values), size))


def testbed_of(connection: sa.Connection, run: RunRow) -> int | None:
    """The id of a run's testbed; None if the history has no run of it."""
    beds = schema.testbeds
    return connection.execute(sa.select(beds.c.id).where(beds.c.digest == run.testbed_digest)).scalar()


def run_before(
    connection: sa.Connection, run: RunRow, case: Case, *, other_settings: bool = False
) -> RunLine | None:
    """The last run before a run that measured a case on the same testbed and is not excluded.

    The last one of the same machine, if there is any: machines of a class differ. A run in which the case was
    skipped, or failed because of the machine, did not measure it. `other_settings`: on hosts of the same
    class, and whatever the settings of the run and the case were.
    """
    runs, results, cases, beds = schema.runs, schema.results, schema.cases, schema.testbeds
    query = (
        sa.select(runs.c.id, schema.hosts.c.name)
        .join_from(results, runs, results.c.run_id == runs.c.id)
        .join(schema.hosts, runs.c.host_id == schema.hosts.c.id)
        .join(cases, results.c.case_id == cases.c.id)
        .join(beds, runs.c.testbed_id == beds.c.id)
        .where(runs.c.started < run.started, runs.c.excluded.is_(None))
        .where(results.c.status.not_in(_NOT_MEASURED))
        .order_by(runs.c.started.desc(), runs.c.id.desc())
    )
    if other_settings:
        named = {
            name: value for name, value in vars(case).items() if name not in ("settings", "configuration")
        }
        same = [cases.c[name].is_not_distinct_from(value) for name, value in named.items()]
        query = query.where(beds.c.host_class == run.host_class, *same)
    else:
        query = query.where(beds.c.digest == run.testbed_digest, cases.c.digest == case_digest(case))
    earlier = connection.execute(query).all()
    of_machine = [number for number, host in earlier if not set(run.hosts).isdisjoint(host.split("+"))]
    chosen = (of_machine or [number for number, _ in earlier])[:1]
    return list_runs(connection, ids=chosen)[0] if chosen else None


def runs_around(
    connection: sa.Connection, good: RunLine, bad: RunLine, case_id: int
) -> tuple[RunLine | None, RunLine | None]:
    """The last run no later than `good` and the first no earlier than `bad` that measured a case.

    Both are of the testbed of these two runs, and not excluded.
    """
    runs, results = schema.runs, schema.results
    measured = (
        sa.select(runs.c.id)
        .join_from(results, runs, results.c.run_id == runs.c.id)
        .where(runs.c.testbed_id == good.testbed_id, results.c.case_id == case_id)
        .where(runs.c.excluded.is_(None), results.c.status.not_in(_NOT_MEASURED))
        .limit(1)
    )
    before = measured.where(runs.c.started <= good.started)
    after = measured.where(runs.c.started >= bad.started)
    numbers = (
        connection.execute(before.order_by(runs.c.started.desc(), runs.c.id.desc())).scalar(),
        connection.execute(after.order_by(runs.c.started, runs.c.id)).scalar(),
    )
    found = {run.id: run for run in list_runs(connection, ids=[n for n in numbers if n is not None])}
    return found.get(numbers[0] or -1), found.get(numbers[1] or -1)


def rows_of(
    connection: sa.Connection,
    run_id: int,
    *,
    whole: bool = False,
    details: bool = False,
    code: bool = False,
    case_id: int | None = None,
) -> list[Row]:
    """The results of a run, in order of suite and model; with `case_id`, that of one case.

    `details` adds their details and metrics without a column; `whole` adds samples, too; `code` adds
    structures and generated code.
    """
    results, cases, more = schema.results, schema.cases, schema.result_details
    columns = [
        *results.c["id", "status", "started", "verdict", "basis"],
        *results.c[tuple(NUMBERS)],
        *cases.c[CASE_COLUMNS],
    ]
    query = sa.select(*columns).join_from(results, cases, results.c.case_id == cases.c.id)
    order = cases.c["suite", "model", "dtype", "backend", "batch_size", "threads", "id"]
    selected = [results.c.run_id == run_id, *([results.c.case_id == case_id] if case_id is not None else [])]
    lines = connection.execute(query.where(*selected).order_by(*order)).all()
    artifacts = generated_code.load(connection, run_id, case_id) if code else {}
    details_by_result: dict[int, Any] = {}
    others: Mapping[int, Mapping[str, float]] = {}
    if whole or details:
        columns = list(more.c) if whole else [more.c.result_id, more.c.details]
        join = sa.select(*columns).join_from(more, results, results.c.id == more.c.result_id)
        detail_rows = connection.execute(join.where(*selected))
        details_by_result = {row.result_id: row for row in detail_rows}
        others = other_metrics(connection, *selected)
    first, count = 5, len(NUMBERS)
    rows = []
    for line in lines:
        number, status, started, verdict, basis = line[:first]
        values = {
            name: value
            for name, value in zip(NUMBERS, line[first : first + count], strict=True)
            if value is not None
        }
        extra = details_by_result.get(number)
        structure, texts = artifacts.get(number, ({}, {}))
        rows.append(
            Row(
                Case(*line[first + count :]), status, values, started, verdict, basis,
                others=others.get(number, {}),
                samples=_samples(extra.samples if extra and whole else None),
                details=extra.details if extra else {}, structure=structure, code=texts,
            )
        )  # fmt: skip
    return rows


def other_metrics(
    connection: sa.Connection, *conditions: sa.ColumnElement[bool]
) -> dict[int, dict[str, float]]:
    """The metrics without a column, by result and name, of the results that meet conditions."""
    other, results = schema.other_metrics, schema.results
    query = sa.select(other).join(results, results.c.id == other.c.result_id).where(*conditions)
    metrics: dict[int, dict[str, float]] = {}
    for row in connection.execute(query.order_by(other.c.result_id, other.c.name)):
        metrics.setdefault(row.result_id, {})[row.name] = row.value
    return metrics


def _samples(blob: bytes | None) -> dict[str, tuple[float, ...]]:
    return {name: tuple(values) for name, values in unpack(blob).items()} if blob else {}


@dataclass(frozen=True)
class Point:
    """One night of one series."""

    run: str
    started: str
    status: str
    value: float | None
    torch: str | None
    torch_git_version: str | None
    method: dict[str, int] = field(default_factory=dict)  # versions that the metric depends on
    excluded: str | None = None  # why a person excluded the run from judging
    remark: str | None = None  # why a pass counts in no mean, as pass_rates_and_means.remark says it


def series(
    connection: sa.Connection, case_id: int, metric: str, *, testbed_id: int | None = None, since: str = ""
) -> list[Point]:
    """A metric of a case over the nights of a testbed, oldest first.

    `metric` is one of NUMBERS.
    """
    runs, results, env, more = schema.runs, schema.results, schema.environments, schema.result_details
    case = cases_by_id(connection, [case_id]).get(case_id)
    if case is None:
        return []
    query = (
        sa.select(
            runs.c.name,
            runs.c.started,
            results.c.status,
            results.c[metric].label("value"),
            env.c.torch,
            env.c.torch_git_version,
            runs.c.method,
            runs.c.excluded,
            results.c.verdict,
            *results.c[OF_ITS_NIGHT],
            more.c.details,
        )
        .join_from(results, runs, results.c.run_id == runs.c.id)
        .join(env, runs.c.environment_id == env.c.id)
        .outerjoin(more, more.c.result_id == results.c.id)
        .where(results.c.case_id == case_id, runs.c.started >= since)
        .order_by(runs.c.started, runs.c.id)
    )
    if testbed_id is not None:
        query = query.where(runs.c.testbed_id == testbed_id)
    points = []
    for row in connection.execute(query):
        captured = {name: getattr(row, name) for name in OF_ITS_NIGHT if getattr(row, name) is not None}
        result = Row(case, row.status, captured, verdict=row.verdict, details=row.details or {})
        points.append(
            Point(
                row.name,
                row.started,
                row.status,
                row.value,
                row.torch,
                row.torch_git_version,
                numbers(row.method or {}, metric, has_own_threads(case)),
                row.excluded,
                remark(result),
            )
        )
    return points


def trend(
    connection: sa.Connection, suite: str, *, testbed_id: int | None = None, since: str = ""
) -> list[dict[str, Any]]:
    """The summaries of a suite with their runs, oldest first."""
    runs, env = schema.runs, schema.environments
    query = (
        sa.select(
            runs.c.name.label("run"), runs.c.started, runs.c.testbed_id, env.c.torch, env.c.torch_git_version,
            runs.c.method, runs.c.excluded, schema.summaries,
        )
        .join_from(schema.summaries, runs, schema.summaries.c.run_id == runs.c.id)
        .join(env, runs.c.environment_id == env.c.id)
        .where(schema.summaries.c.suite == suite, runs.c.started >= since)
        .order_by(runs.c.started, runs.c.id)
    )  # fmt: skip
    if testbed_id is not None:
        query = query.where(runs.c.testbed_id == testbed_id)
    return [{**row._mapping, "method": row.method or {}} for row in connection.execute(query)]


@dataclass(frozen=True)
class Panel:
    """Many series over the same nights, as arrays of the shape (cases, runs).

    A case that a run did not measure has NaN in `values` and "" in `statuses`. `hosts`: the machine of each
    result; None if no run has several. `own_threads`: the cases of methods.has_own_threads.
    """

    runs: list[RunLine]
    case_ids: list[int]
    values: dict[str, NDArray[np.float64]]
    statuses: NDArray[np.object_]
    hosts: NDArray[np.object_] | None = None
    own_threads: Sequence[int] = ()

    @property
    def machines(self) -> NDArray[np.object_]:
        """The machine of each result; of what was not measured that of the run."""
        of_runs = np.array([run.host for run in self.runs], dtype=object)
        return np.broadcast_to(of_runs, self.statuses.shape) if self.hosts is None else self.hosts

    @cached_property
    def passed(self) -> NDArray[np.bool_]:
        """Where a case passed with its compiled side compiled; unknown counts as compiled."""
        passed = np.isin(self.statuses.astype(str), _PASSING)
        captured = self.values.get("calls_captured")
        return passed if captured is None else passed & (captured != 0)


def panel(
    connection: sa.Connection,
    runs: Sequence[RunLine],
    metrics: Iterable[str],
    case_ids: Sequence[int] | None = None,
) -> Panel:
    """Read metrics of some runs, in their order; of all cases, or of `case_ids`.

    What was sampled while other programs or threads disturbed it is left out, as not measured.
    """
    names = list(metrics)
    results = schema.results
    night = {run.id: place for place, run in enumerate(runs)}
    values_of_cases: list[Any] = []
    for chunk in in_chunks(list(night)):
        query = sa.select(*results.c[("run_id", "case_id", "status", "verdict", *names)])
        query = query.where(results.c.run_id.in_(chunk))
        if case_ids is not None:
            query = query.where(results.c.case_id.in_(case_ids))
        values_of_cases += connection.execute(query).all()
    measured = sorted({row[1] for row in values_of_cases})
    place = {number: index for index, number in enumerate(measured)}
    statuses = np.full((len(measured), len(runs)), "", dtype=object)
    values = {name: np.full((len(measured), len(runs)), np.nan) for name in names}
    if values_of_cases:
        columns = list(zip(*values_of_cases, strict=True))
        at = (
            np.array([place[number] for number in columns[1]]),
            np.array([night[number] for number in columns[0]]),
        )
        statuses[at] = columns[2]
        disturbed = np.array([verdict == DISTURBED for verdict in columns[3]])
        for name, column in zip(names, columns[4:], strict=True):
            numbers_of_cases = np.array(column, dtype=float)  # None becomes NaN
            values[name][at] = np.where(disturbed & is_sampled(name), np.nan, numbers_of_cases)
    cases = schema.cases.c
    for name in values.keys() & set(OF_ITS_NIGHT):  # eager compiles nothing: 0 does not mean a failed capture
        eager = np.isin(measured, _cases(connection, cases.backend == "eager"))[:, None]
        values[name][eager & (values[name] == 0)] = np.nan
    own = _cases(connection, cases.backend.in_(OWN_THREADS), cases.device == "cpu", cases.threads > 1)
    spoilt = [run.origin == "perfdash" and run.method.get("own_threads", 1) == 1 for run in runs]
    if own and any(spoilt):  # by method 1 eager's threads disturbed them
        for name in filter(is_sampled, names):
            values[name][np.isin(measured, own)[:, None] & spoilt] = np.nan
    hosts = _hosts(connection, runs, place, statuses.shape)
    return Panel(list(runs), measured, values, statuses, hosts, own)


def _hosts(
    connection: sa.Connection, runs: Sequence[RunLine], rows: Mapping[int, int], shape: tuple[int, int]
) -> NDArray[np.object_] | None:
    """`Panel.hosts` of some runs; `rows`: the row of each case."""
    night = {run.id: place for place, run in enumerate(runs) if len(run.hosts) > 1}
    if not night:
        return None
    hosts = np.empty(shape, dtype=object)
    hosts[:] = [run.host for run in runs]
    for chunk in in_chunks(list(night)):
        for run_id, case_id, host in result_hosts.load(connection, chunk):
            if case_id in rows:
                hosts[rows[case_id], night[run_id]] = host
    return hosts


def _cases(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> Sequence[int]:
    """The ids of the cases that all conditions select."""
    return connection.execute(sa.select(schema.cases.c.id).where(*where)).scalars().all()


# These counts decide whether a night's own numbers are valid; they are never compared between nights here.
OF_ITS_NIGHT = ("calls_captured", "graphs")


def of_method(panel: Panel, method: Mapping[str, int]) -> Panel:
    """Drop the numbers that another method measured, because methods are never compared."""
    values = dict(panel.values)
    for name in values.keys() - set(OF_ITS_NIGHT):
        differs = [not alike(run.method, method, name) for run in panel.runs]
        if any(differs):
            values[name] = np.where(differs, np.nan, values[name])
    return replace(panel, values=values)


def case_numbers(connection: sa.Connection, testbed_id: int) -> dict[Case, int]:
    """Every case that a run of a testbed measured, without excluded runs, with its id in the store."""
    cases, results, runs = schema.cases, schema.results, schema.runs
    measured = (
        sa.select(results.c.id)
        .join_from(results, runs, results.c.run_id == runs.c.id)
        .where(results.c.case_id == cases.c.id, runs.c.testbed_id == testbed_id)
        .where(runs.c.excluded.is_(None))
    )
    query = sa.select(*cases.c["id", *CASE_COLUMNS]).where(measured.exists())
    return {Case(*row[1:]): row[0] for row in connection.execute(query)}


def cases_by_id(connection: sa.Connection, ids: Iterable[int]) -> dict[int, Case]:
    """Cases by their ids in the store."""
    cases = schema.cases
    cases_of_ids = {}
    for chunk in in_chunks(sorted(set(ids))):
        query = sa.select(*cases.c["id", *CASE_COLUMNS]).where(cases.c.id.in_(chunk))
        cases_of_ids.update({row[0]: Case(*row[1:]) for row in connection.execute(query)})
    return cases_of_ids


def model_series(
    connection: sa.Connection, line: RunLine, model: str, metrics: Sequence[str]
) -> list[tuple[Case, list[list[Point]]]]:
    """Metrics over the nights of a run's testbed, for every case of a model.

    Raises UsageError for an unknown metric and for a model that was never measured there.
    """
    for metric in metrics:
        if metric not in NUMBERS:
            raise UsageError(not_one_of("--metric", metric, NUMBERS))
    cases = case_numbers(connection, line.testbed_id)
    of_model = {case: number for case, number in cases.items() if case.model == model}
    if not of_model:
        hint = did_you_mean(model, sorted({case.model for case in cases}))
        raise UsageError(f"--model {model!r} was never measured on {line.host_class}{hint}")
    return [
        (case, [series(connection, number, metric, testbed_id=line.testbed_id) for metric in metrics])
        for case, number in sorted(of_model.items(), key=lambda item: item[0].name)
    ]


def read_run(connection: sa.Connection, line: RunLine) -> Imported:
    """A run with all numbers and details of its results, without samples."""
    return Imported(line, tuple(rows_of(connection, line.id, details=True)))
