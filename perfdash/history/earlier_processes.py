"""How far the processes of a case differed on earlier nights of a testbed.

Only what differs within a night is used (stats.process_spread): between nights a regression may lie.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from perfdash.history import schema
from perfdash.history.ingest import testbed_values
from perfdash.history.queries import CASE_COLUMNS
from perfdash.history.results import RunRow
from perfdash.records import Case
from perfdash.stats.process_spread import ProcessRatios

NIGHTS = 10  # more change nothing, and older ones are of other builds


def earlier_processes(
    connection: sa.Connection, run: RunRow, cases: Collection[Case], nights: int = NIGHTS
) -> dict[Case, list[ProcessRatios]]:
    """The processes of each case on the last nights before a run on its testbed, the newest first.

    Nights on which a case was sampled in one process, or not at all, are left out.
    """
    runs, results, details = schema.runs, schema.results, schema.result_details
    latest = (
        sa.select(runs.c.id)
        .join(schema.testbeds, runs.c.testbed_id == schema.testbeds.c.id)
        .where(schema.testbeds.c.digest == testbed_values(run)["digest"])
        .where(runs.c.started < run.started)
        .order_by(runs.c.started.desc(), runs.c.id.desc())
        .limit(nights)
    )
    numbers = list(connection.execute(latest).scalars())
    query = (
        sa.select(results.c.run_id, details.c.details, *schema.cases.c[CASE_COLUMNS])
        .join_from(results, schema.cases, results.c.case_id == schema.cases.c.id)
        .join(details, results.c.id == details.c.result_id)
        .where(results.c.run_id.in_(numbers))
    )
    by_case: dict[Case, list[tuple[int, ProcessRatios]]] = {}
    for number, more, *values in connection.execute(query):
        case = Case(*values)
        processes = _processes(more) if case in cases else None
        if processes:
            by_case.setdefault(case, []).append((numbers.index(number), processes))
    return {
        case: [processes for _, processes in sorted(found, key=lambda item: item[0])]
        for case, found in by_case.items()
    }


def _processes(details: Any) -> ProcessRatios | None:
    """The processes of one result; None for fewer than two, and for what is no such thing."""
    kept = details.get("processes") if isinstance(details, dict) else None
    if not isinstance(kept, dict):
        return None
    ratios, within = kept.get("ratios"), kept.get("within")
    numbers = [*ratios, within] if isinstance(ratios, list) else []
    if len(numbers) < 3 or not all(isinstance(number, int | float) and number > 0 for number in numbers):
        return None
    return ProcessRatios(tuple(math.log(ratio) for ratio in numbers[:-1]), float(numbers[-1]))
