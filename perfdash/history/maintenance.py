"""Prune a history, and merge two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from perfdash.errors import MachineError
from perfdash.history import acts, generated_code, nightlies, schema
from perfdash.history.alert_copies import copy_alerts, open_series
from perfdash.history.ingest import KNOWN, OLDER, REPLACED, TAKEN_IN, ForeignShards, store_run
from perfdash.history.queries import RunLine, in_chunks, list_runs, rows_of
from perfdash.history.results import Imported, pruned_content
from perfdash.history.store import Store, brief

COPIED, NOT_COPIED = "alerts copied", "open alerts not copied"
_RUNS_AT_ONCE = 50


def prune(store: Store, runs: Sequence[RunLine], *, samples_only: bool = False) -> int:
    """Remove runs with their results, or only their samples; return the number of results.

    Alerts stay, without their references to removed runs. SQLite's file keeps its size until `shrink`.
    """
    results = schema.results
    count = 0
    for ids in in_chunks([run.id for run in runs], _RUNS_AT_ONCE):
        with store.write() as connection:
            if samples_only:
                count += _drop_samples(connection, ids)
            else:
                count += connection.execute(sa.delete(results).where(results.c.run_id.in_(ids))).rowcount
                connection.execute(sa.delete(schema.runs).where(schema.runs.c.id.in_(ids)))
                generated_code.drop_unused(connection)
    return count


def shrink(store: Store, *, pruned: bool) -> None:
    """Make SQLite's file smaller if something was pruned, or if a tenth of it is free after an earlier prune.

    Raises MachineError where there is no room for it.
    """
    if not store.is_sqlite:
        return
    with store.exclusive() as connection:
        free, pages = (
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("freelist_count", "page_count")
        )
        if not pruned and free < pages / 10:
            return
        try:
            connection.exec_driver_sql("VACUUM")
        except DBAPIError as error:
            raise MachineError(
                f"the history {store.shown} could not be made smaller ({brief(error)}), which needs free "
                "room of up to twice its size; make room, and repeat the command"
            ) from error


def prune_nightlies(store: Store, before: str) -> int:
    """Remove nightlies that began before a time; the latest of each job stays, for the heartbeat."""
    with store.write() as connection:
        return sum(nightlies.forget(connection, job, before) for job in nightlies.jobs(connection))


def _drop_samples(connection: sa.Connection, ids: Sequence[int]) -> int:
    """Remove the samples of runs; return the number of results that had any.

    Each of these runs gets a new `content`, so that importing its run folder again restores the samples.
    """
    runs, results, details = schema.runs, schema.results, schema.result_details
    sampled = (
        sa.select(runs.c.id, runs.c.content)
        .distinct()
        .join_from(runs, results, results.c.run_id == runs.c.id)
        .join(details, details.c.result_id == results.c.id)
        .where(runs.c.id.in_(ids), details.c.samples.is_not(None))
    )
    for run_id, content in connection.execute(sampled).all():
        pruned = sa.update(runs).where(runs.c.id == run_id).values(content=pruned_content(content))
        connection.execute(pruned)
    result_ids = sa.select(results.c.id).where(results.c.run_id.in_(ids))
    where = details.c.result_id.in_(result_ids), details.c.samples.is_not(None)
    return connection.execute(sa.update(details).where(*where).values(samples=None)).rowcount


def merge(target: Store, source: Store, warn: Callable[[str], None] = lambda _: None) -> dict[str, int]:
    """Store every run and nightly of another history; count the runs by outcome, and the alerts.

    Into a history without alerts and judged runs the alerts are copied, too. Otherwise they are judged anew
    from its latest runs, and those that are open there only are counted. Of a run that is new here, what
    people did with it (excluded, renamed) is copied; of a run that is here already only with the alerts, and
    without its name: it keeps the one here, also in the nightlies. `warn` gets a line for each run that a
    merge of its shards replaces, and for each that is left out because it has shards of another run here.
    """
    counts = dict.fromkeys((TAKEN_IN, REPLACED, KNOWN, OLDER), 0)
    names: dict[str, str] = {}
    older: set[int] = set()
    with source.read() as connection:
        runs = list_runs(connection)
        for run in runs:
            copy = read_stored_run(connection, run)
            with target.write() as here:
                try:
                    outcome = store_run(here, copy, warn)
                except ForeignShards as error:
                    outcome = OLDER
                    warn(f"{run.name} is left out: {error}")
                if outcome == TAKEN_IN:
                    _copy_acts(connection, here, run)
                query = sa.select(schema.runs.c.name).where(schema.runs.c.key == copy.key)
                names[run.name] = here.execute(query).scalar() or run.name
            counts[outcome] += 1
            older |= {run.id} if outcome == OLDER else set()
        heartbeat = nightlies.load(connection)
        with target.write() as here:
            for nightly in heartbeat:
                runs_here = tuple(names.get(name, name) for name in nightly.runs)
                nightlies.copy_nightly(here, replace(nightly, runs=runs_here))
            counts[COPIED] = copy_alerts(connection, here, older)
            counts[NOT_COPIED] = len(open_series(connection) - open_series(here))
    return counts


def _copy_acts(source: sa.Connection, target: sa.Connection, run: RunLine) -> None:
    """Copy the acts on a run, and its exclusion, to a history that has just stored it."""
    stored = acts.load(source, run_id=run.id)
    if not stored and run.excluded is None:
        return
    runs, table = schema.runs, schema.acts
    key = sa.select(runs.c.key).where(runs.c.id == run.id)
    where = runs.c.key == source.execute(key).scalar_one()
    new = target.execute(sa.select(runs.c.id, runs.c.testbed_id).where(where)).one()
    target.execute(sa.update(runs).where(where).values(excluded=run.excluded))
    for act in stored:
        values = {**vars(act), "run_id": new.id, "testbed_id": new.testbed_id, "alert_id": None}
        values.pop("id")
        target.execute(sa.insert(table).values(values))


def read_stored_run(connection: sa.Connection, line: RunLine) -> Imported:
    """Read a run as it was imported, with the original's `content`, structures and code.

    Samples have 32 bits.
    """
    query = sa.select(*schema.runs.c["key", "content", "taken_in"]).where(schema.runs.c.id == line.id)
    row = connection.execute(query).one()
    rows = tuple(rows_of(connection, line.id, whole=True, code=True))
    return Imported(line, rows, copied=(row.key, row.content), taken_in=row.taken_in)
