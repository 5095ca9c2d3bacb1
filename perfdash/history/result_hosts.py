"""The machine of each result, where several machines measured a run: shards, a cluster, a resumed run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import sqlalchemy as sa

from perfdash.history import schema
from perfdash.history.results import Row


def of_row(row: Row) -> str | None:
    """The machine that measured a result; None if it is not recorded."""
    conditions = row.details.get("conditions")
    return conditions.get("host") if isinstance(conditions, Mapping) else None


def store(connection: sa.Connection, by_result: Iterable[tuple[int, Row]], ids: Mapping[str, int]) -> None:
    """Store the machines of results; `ids`: those of the run's machines, by name."""
    values = [
        {"result_id": result_id, "host_id": ids[host]}
        for result_id, row in by_result
        if (host := of_row(row)) and host in ids
    ]
    if values:
        connection.execute(sa.insert(schema.result_hosts), values)


def load(connection: sa.Connection, run_ids: Collection[int]) -> list[tuple[int, int, str]]:
    """(run, case, machine) of the results of some runs whose machines are stored."""
    table, results = schema.result_hosts, schema.results
    query = (
        sa.select(results.c.run_id, results.c.case_id, schema.hosts.c.name)
        .join_from(table, results, table.c.result_id == results.c.id)
        .join(schema.hosts, table.c.host_id == schema.hosts.c.id)
        .where(results.c.run_id.in_(run_ids))
    )
    return [(row[0], row[1], row[2]) for row in connection.execute(query)]
