"""Record when nightlies begin and end, and how often they are due. No judgement.

`perfdash nightly begin` and `end` write these rows, so that a missing nightly is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta

import sqlalchemy as sa

from perfdash.errors import UsageError
from perfdash.history import schema
from perfdash.history.acts import present_names
from perfdash.records import Status

RUNNING, OK, PARTIAL, FAILED = "running", "ok", "partial", "failed"
ENDINGS = (OK, PARTIAL, FAILED)
EVERY_S = 86400  # of a job whose interval is unknown
CLOCK_ERROR = timedelta(days=1)  # what begins later than this from now was given a wrong time


@dataclass(frozen=True)
class Nightly:
    """A row of `nightlies`. Times are UTC, ISO 8601; the next is due `every_s` after `begun`.

    `expected`: the settings to measure, each `suite device dtype` or `suite device dtype threads`. `runs`:
    the names of its runs; if empty, the runs that started between `begun` and `ended`.
    """

    job: str
    night: str
    begun: str
    every_s: int
    grace_s: int
    state: str = RUNNING
    ended: str | None = None
    why: str | None = None
    expected: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()


def begin(connection: sa.Connection, nightly: Nightly) -> Nightly:
    """Insert a nightly; one of the same name continues with its first start."""
    table = schema.nightlies
    old = _find(connection, nightly.job, nightly.night)
    if old is None:
        connection.execute(sa.insert(table).values(_values(nightly)))
        return nightly
    again = Nightly(**{**asdict(nightly), "begun": old.begun})
    _update(connection, again)
    return again


def end(
    connection: sa.Connection,
    job: str,
    night: str | None,
    *,
    at: str,
    state: str,
    why: str | None = None,
    runs: Sequence[str] = (),
) -> Nightly:
    """End a nightly, by default the job's latest; `ok` becomes `partial` if results are missing.

    `at`: the present; the latest has begun by then, unless that one has ended and one of the future runs.
    `runs`: the names of its runs, or of their folders, which keep the name that a renamed run had. A nightly
    whose `begin` did not reach the history is inserted, unless it is `ok`: it began with its first run, and
    has the interval of the job's latest. Raises UsageError if the nightly does not exist.
    """
    present = present_names(connection) if runs else {}
    names = tuple(dict.fromkeys(present.get(name, name) for name in runs))
    old = _latest_to_end(connection, job, at) if night is None else _find(connection, job, night)
    if old is None and night is not None and state != OK:
        last = _latest(connection, job, at) or Nightly(job, night, at, EVERY_S, EVERY_S // 8)
        began = _first_start(connection, names) or at
        old = begin(
            connection, Nightly(job, night, began, last.every_s, last.grace_s, expected=last.expected)
        )
    if old is None:
        which = f"{night!r}" if night else "nothing"
        raise UsageError(f"of the nightly {job!r} {which} was begun; `perfdash nightly begin` does it")
    changed = {"state": state, "why": why, "ended": at, "runs": names or old.runs}
    done = Nightly(**{**asdict(old), **changed})
    if state != FAILED and (missing := missing_results(connection, done)):
        reasons = "; ".join([*([why] if why else []), *missing])
        done = Nightly(**{**asdict(done), "state": PARTIAL, "why": reasons})
    _update(connection, done)
    return done


def load(connection: sa.Connection, *, job: str | None = None, latest: int | None = None) -> list[Nightly]:
    """Nightlies, oldest first; with `latest`, only so many of the newest."""
    table = schema.nightlies
    query = sa.select(*table.c[_NAMES]).order_by(table.c.begun.desc(), table.c.id.desc())
    if job is not None:
        query = query.where(table.c.job == job)
    if latest is not None:
        query = query.limit(latest)
    return [_nightly(row) for row in connection.execute(query)][::-1]


def latest_of_jobs(connection: sa.Connection, latest: int) -> dict[str, list[Nightly]]:
    """The newest nightlies of each job, oldest first."""
    return {job: load(connection, job=job, latest=latest) for job in jobs(connection)}


def jobs(connection: sa.Connection) -> list[str]:
    """The names of all jobs."""
    table = schema.nightlies
    return list(connection.execute(sa.select(table.c.job).distinct().order_by(table.c.job)).scalars())


def forget(connection: sa.Connection, job: str, before: str | None = None) -> int:
    """Remove a job's nightlies, or only old ones except the latest; return their number."""
    table = schema.nightlies
    statement = sa.delete(table).where(table.c.job == job)
    if before is not None:
        latest = sa.select(sa.func.max(table.c.begun)).where(table.c.job == job).scalar_subquery()
        statement = statement.where(table.c.begun < before, table.c.begun < latest)
    return connection.execute(statement).rowcount


def rename_run(connection: sa.Connection, old: str, new: str) -> None:
    """Replace the old name of a run in the nightlies, unless another run has that name, too."""
    runs, table = schema.runs, schema.nightlies
    if connection.execute(sa.select(runs.c.id).where(runs.c.name == old).limit(1)).first():
        return
    for row in connection.execute(sa.select(table.c.id, table.c.runs)).all():
        if old in row.runs:
            names = list(dict.fromkeys(new if name == old else name for name in row.runs))
            connection.execute(sa.update(table).where(table.c.id == row.id).values(runs=names))


def copy_nightly(connection: sa.Connection, nightly: Nightly) -> None:
    """Store a nightly of another history; one that ended does not run again."""
    old = _find(connection, nightly.job, nightly.night)
    if old is None:
        connection.execute(sa.insert(schema.nightlies).values(_values(nightly)))
    elif (old.ended or "") < (nightly.ended or ""):
        _update(connection, nightly)


def jobs_in_one_series(connection: sa.Connection, nightly: Nightly) -> list[str]:
    """The other jobs whose last runs measured a case of this job's last runs, on the same testbed.

    The history takes such runs for nights of one line of builds. A job that has not begun for two of its
    intervals counts as given up.
    """
    mine = _last_series(connection, nightly.job)
    return [
        job
        for job in jobs(connection)
        if job != nightly.job
        and (latest := _latest(connection, job, nightly.begun))
        and _seconds_between(latest.begun, nightly.begun) < 2 * latest.every_s + latest.grace_s
        and not mine.isdisjoint(_last_series(connection, job))
    ]


def _last_series(connection: sa.Connection, job: str) -> set[tuple[int, int]]:
    """Testbed and case of what the latest nightly of a job with runs measured, as numbers."""
    nights = load(connection, job=job, latest=10)
    names = next((nightly.runs for nightly in reversed(nights) if nightly.runs), ())
    runs, results = schema.runs, schema.results
    query = (
        sa.select(runs.c.testbed_id, results.c.case_id)
        .distinct()
        .join_from(runs, results, results.c.run_id == runs.c.id)
        .where(runs.c.name.in_(names))
    )
    return {(row.testbed_id, row.case_id) for row in connection.execute(query)}


def _seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def missing_results(connection: sa.Connection, nightly: Nightly) -> list[str]:
    """Expected settings without results in its runs, and incomplete runs.

    An infra_error is no result: the machine failed.
    """
    runs, results, cases = schema.runs, schema.results, schema.cases
    of_nightly = runs.c.started >= nightly.begun
    if nightly.runs:
        of_nightly = runs.c.name.in_(nightly.runs)
    elif nightly.ended:
        of_nightly = sa.and_(of_nightly, runs.c.started <= nightly.ended)
    columns = cases.c["suite", "device", "dtype", "threads"]
    query = (
        sa.select(*columns)
        .distinct()
        .join_from(results, cases, results.c.case_id == cases.c.id)
        .join(runs, results.c.run_id == runs.c.id)
        .where(of_nightly, results.c.status != str(Status.INFRA_ERROR))
    )
    measured = set()
    for row in connection.execute(query):
        words = [str(word) for word in row]
        measured |= {" ".join(words), " ".join(words[:3])}
    missing = [f"{setting} was not measured" for setting in nightly.expected if setting not in measured]
    query = sa.select(*runs.c["name", "results", "expected"]).where(of_nightly)
    stored_runs = connection.execute(query).all()
    for name, count, expected in stored_runs:
        if expected and count < expected:
            missing.append(f"{name} has {count} of {expected} cases")
    names = {row.name for row in stored_runs}
    return missing + [f"{name} is not in the history" for name in nightly.runs if name not in names]


def _find(connection: sa.Connection, job: str, night: str) -> Nightly | None:
    table = schema.nightlies
    query = sa.select(*table.c[_NAMES]).where(table.c.job == job, table.c.night == night)
    row = connection.execute(query).first()
    return None if row is None else _nightly(row)


def _first_start(connection: sa.Connection, names: Sequence[str]) -> str | None:
    """When the first of these runs started; None if the history has none of them."""
    runs = schema.runs
    query = sa.select(sa.func.min(runs.c.started)).where(runs.c.name.in_(names))
    started: str | None = connection.execute(query).scalar()
    return started


def _latest(connection: sa.Connection, job: str, at: str) -> Nightly | None:
    """The latest nightly of a job at a time; one that begins later, by a wrong clock, only without others."""
    table = schema.nightlies
    query = sa.select(*table.c[_NAMES]).where(table.c.job == job)
    is_later = table.c.begun > latest_begin(at)
    row = connection.execute(
        query.order_by(is_later.asc(), table.c.begun.desc(), table.c.id.desc()).limit(1)
    ).first()
    return None if row is None else _nightly(row)


def _latest_to_end(connection: sa.Connection, job: str, at: str) -> Nightly | None:
    """The latest nightly of a job; if it has ended, one that runs and began by a clock that was ahead.

    Such a clock is often set right while the nightly runs.
    """
    latest = _latest(connection, job, at)
    if latest is None or latest.ended is None:
        return latest
    ahead = [nightly for nightly in load(connection, job=job) if nightly.begun > latest_begin(at)]
    return next((nightly for nightly in reversed(ahead) if nightly.state == RUNNING), latest)


def latest_begin(at: str) -> str:
    """The latest time at which a nightly or run can begin, if its clock was right and it is `at`."""
    return (datetime.fromisoformat(at) + CLOCK_ERROR).strftime("%Y-%m-%dT%H:%M:%SZ")


def _nightly(row: sa.Row[tuple[object, ...]]) -> Nightly:
    values = dict(row._mapping)
    return Nightly(**{**values, "expected": tuple(values["expected"]), "runs": tuple(values["runs"])})


def _update(connection: sa.Connection, nightly: Nightly) -> None:
    table = schema.nightlies
    where = table.c.job == nightly.job, table.c.night == nightly.night
    connection.execute(sa.update(table).where(*where).values(_values(nightly)))


def _values(nightly: Nightly) -> dict[str, object]:
    return {**asdict(nightly), "expected": list(nightly.expected), "runs": list(nightly.runs)}


_NAMES = tuple(column.name for column in fields(Nightly))
