"""Copy the alerts of a history to another, with all that belongs to them and the runs that were judged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from perfdash.history import acts, schema
from perfdash.history.alert_store import SHOWN
from perfdash.history.ingest import case_ids, mark_replaced, number_of, replaced_since_judged
from perfdash.history.queries import cases_by_id

Series = tuple[str, str | None, str, str | None, int]


def open_series(connection: sa.Connection) -> set[Series]:
    """The series with an open alert: digests of testbed and case, kind, metric, direction."""
    alerts, beds, cases = schema.alerts, schema.testbeds, schema.cases
    query = (
        sa.select(beds.c.digest, cases.c.digest, alerts.c.kind, alerts.c.metric, alerts.c.direction)
        .join_from(alerts, beds, alerts.c.testbed_id == beds.c.id)
        .join(cases, alerts.c.case_id == cases.c.id, isouter=True)
        .where(alerts.c.state.in_(SHOWN))
    )
    return {(row[0], row[1], row[2], row[3], row[4]) for row in connection.execute(query)}


def copy_alerts(source: sa.Connection, target: sa.Connection, other_runs: Collection[int]) -> int:
    """Copy all alerts under their numbers, which issues name; return how many.

    None where the target has alerts or a judged run. Their events, bisections and the decisions of people
    come along (also levels accepted from runs and exclusions of runs that the target had before), and which
    runs were judged: later nights go on from there. `other_runs`: those of the source
    of which the target has other results. They, those of which the target knows batch sizes that the source
    does not, and those that were replaced in the source and not judged since, are marked: what they changed
    is taken back when they are judged.
    """
    alerts, runs = schema.alerts, schema.runs
    if _has_judgement(target) or not _has_judgement(source):
        return 0
    keys = {row.key: row.id for row in target.execute(sa.select(runs.c.key, runs.c.id))}
    run_ids: dict[Any, int] = {}
    judged_as = replaced_since_judged(source)
    without_size, here_without = _cases_without_size(source), _cases_without_size(target)
    for row in source.execute(sa.select(*runs.c["id", "key", "judged", "testbed_id", "started", "excluded"])):
        if row.key in keys:
            run_ids[row.id] = keys[row.key]
            if row.excluded is not None:
                here = sa.update(runs).where(runs.c.key == row.key, runs.c.excluded.is_(None))
                target.execute(here.values(excluded=row.excluded))
            if row.id not in other_runs and without_size.get(row.key) == here_without.get(row.key):
                here = sa.update(runs).where(runs.c.key == row.key)
                target.execute(here.values(judged=row.judged))
            elif row.judged is not None:
                judged_as.setdefault(row.id, []).append((row.testbed_id, row.started))
    rows: dict[sa.Table, list[dict[str, Any]]] = {}
    for table in (alerts, schema.alert_events, schema.bisections):
        query = sa.select(table).order_by(table.c.id)
        rows[table] = [_of_runs(dict(row._mapping), run_ids) for row in source.execute(query)]
    rows[schema.acts] = [_of_runs(act, run_ids) for act in _acts_to_copy(source, target)]
    every = [row for of_table in rows.values() for row in of_table]
    of_marks = {testbed for marks in judged_as.values() for testbed, _ in marks}
    beds = _testbeds(source, target, of_marks | {row["testbed_id"] for row in every if row.get("testbed_id")})
    for number, marks in judged_as.items():
        if number in run_ids:
            moved = [(beds[testbed], started) for testbed, started in marks]
            mark_replaced(target, run_ids[number], moved)
    cases = _cases(source, target, {row["case_id"] for row in every if row.get("case_id")})
    for table, copies in rows.items():
        for copy in copies:
            for name, numbers in (("testbed_id", beds), ("case_id", cases)):
                if copy.get(name) is not None:
                    copy[name] = numbers[copy[name]]
            if table is not alerts:
                del copy["id"]
        if copies:
            target.execute(sa.insert(table), copies)
    if rows[alerts] and target.dialect.name == "postgresql":
        last = sa.select(sa.func.max(alerts.c.id)).scalar_subquery()
        target.execute(sa.select(sa.func.setval(sa.func.pg_get_serial_sequence("alerts", "id"), last)))
    return len(rows[alerts])


def _cases_without_size(connection: sa.Connection) -> dict[str, set[str]]:
    """The digests of the cases with batch size 0 of each run, by the run's key."""
    runs, results, cases = schema.runs, schema.results, schema.cases
    query = (
        sa.select(runs.c.key, cases.c.digest)
        .join_from(results, runs, results.c.run_id == runs.c.id)
        .join(cases, results.c.case_id == cases.c.id)
        .where(cases.c.batch_size == 0)
    )
    digests: dict[str, set[str]] = {}
    for key, digest in connection.execute(query):
        digests.setdefault(key, set()).add(digest)
    return digests


def _acts_to_copy(source: sa.Connection, target: sa.Connection) -> list[dict[str, Any]]:
    """The acts that nights are judged by, without those that the target has: they came with their runs.

    The name that a person gave to a run is copied only with the run.
    """
    table = schema.acts
    query = sa.select(table).order_by(table.c.id)

    def identity(row: sa.Row[Any]) -> tuple[str, ...]:
        return tuple(map(str, (row.at, row.who, row.host, row.act, row.subject, row.details)))

    copied = {identity(row) for row in target.execute(query)}
    judged_by = query.where(table.c.run_id.is_(None) | (table.c.act != acts.RENAME))
    return [dict(row._mapping) for row in source.execute(judged_by) if identity(row) not in copied]


def _has_judgement(connection: sa.Connection) -> bool:
    """Whether a history has alerts or judged runs."""
    runs = schema.runs
    queries = (sa.select(schema.alerts.c.id), sa.select(runs.c.id).where(runs.c.judged.is_not(None)))
    return any(connection.execute(query.limit(1)).first() is not None for query in queries)


def _of_runs(values: Mapping[str, Any], run_ids: Mapping[Any, int]) -> dict[str, Any]:
    """The columns or details of an alert with the numbers that its runs have in the target."""
    moved = dict(values)
    for name, value in values.items():
        if name == "fixed_run_id" and value is not None:  # a run that was pruned is of long ago
            moved[name] = run_ids.get(value, -1)
        elif name.endswith("run_id"):
            moved[name] = run_ids.get(value)
        elif name == "spells":
            moved[name] = [[run_ids.get(end, -1) for end in spell] for spell in value]
        elif name == "fixed_states":
            moved[name] = [_of_runs(fixed, run_ids) for fixed in value]
        elif name == "details":
            moved[name] = _of_runs(value, run_ids)
    return moved


def _testbeds(source: sa.Connection, target: sa.Connection, wanted: Collection[int]) -> dict[int, int]:
    """The numbers of testbeds in the target, by those in the source; new ones are inserted."""
    table = schema.testbeds
    query = sa.select(*table.c["id", "digest", "host_class", "setting"]).where(table.c.id.in_(wanted))
    beds = [dict(row._mapping) for row in source.execute(query)]
    return {bed.pop("id"): number_of(target, table, "digest", bed) for bed in beds}


def _cases(source: sa.Connection, target: sa.Connection, wanted: Collection[int]) -> dict[int, int]:
    """The numbers of cases in the target, by those in the source; new ones are inserted."""
    cases = cases_by_id(source, wanted)
    ids = case_ids(target, list(cases.values()))
    return {number: ids[case] for number, case in cases.items()}
