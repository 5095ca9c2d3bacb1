"""What earlier nights measured of a case: how often, when last, and how far processes differed in a night.

A run asks before it chooses its cases, and before it makes intervals.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from perfdash.files import now
from perfdash.history import schema
from perfdash.history.nightlies import latest_begin
from perfdash.history.pass_rates_and_means import setting_of_case
from perfdash.history.queries import CASE_COLUMNS, measured_any, testbed_of
from perfdash.history.results import RunRow, without_machine
from perfdash.methods import CURRENT, alike, has_own_threads
from perfdash.records import DISTURBED, NOT_MEASURED, Case, Status

if TYPE_CHECKING:
    from perfdash.stats.process_spread import ProcessRatios

_LATEST_RUNS = 400  # of a host, that are read
_PROCESS_NIGHTS = 10  # more change nothing, and older ones are of other builds
_TRIED = [str(status) for status in Status if status not in NOT_MEASURED or status == Status.INFRA_ERROR]


@dataclass(frozen=True)
class NightsOfCase:
    """What a host has measured of a case with the same options: the nights, when last, and its seconds then.

    `last` is None where it was never measured so; then the seconds are those of other options, if any.
    `failed`: when it ended in infra_error since, newest first.
    """

    nights: int
    last: str | None
    wall_s: float | None
    failed: tuple[str, ...] = ()


def measured_on(connection: sa.Connection, host: str, setting: Mapping[str, Any]) -> dict[Case, NightsOfCase]:
    """What a host has measured of each case in its latest runs; skipped cases were not tried.

    Only runs with this setting (results.setting_of_options) count as nights: a case that another nightly of
    the host measures with other options still has to be measured with these.
    """
    runs, results, cases, testbeds = schema.runs, schema.results, schema.cases, schema.testbeds
    hosts, of_results = schema.hosts, schema.result_hosts
    alone_or_with_others = [
        number for number, name in connection.execute(sa.select(hosts.c.id, hosts.c.name))
        if host in name.split("+")
    ]  # fmt: skip
    latest = (
        sa.select(runs.c.id)
        .where(runs.c.host_id.in_(alone_or_with_others), runs.c.excluded.is_(None))
        .where(runs.c.started <= latest_begin(now()))  # of a wrong clock: nobody waits for its date
        .order_by(runs.c.started.desc(), runs.c.id.desc())
        .limit(_LATEST_RUNS)
    )
    query = (
        sa.select(
            runs.c.started, runs.c.testbed_id, results.c.status, results.c.wall_s, *cases.c[CASE_COLUMNS]
        )
        .join_from(results, runs, results.c.run_id == runs.c.id)
        .join(cases, results.c.case_id == cases.c.id)
        .outerjoin(of_results, of_results.c.result_id == results.c.id)
        .join(hosts, sa.func.coalesce(of_results.c.host_id, runs.c.host_id) == hosts.c.id)
        .where(hosts.c.name == host, results.c.run_id.in_(latest))
        .where(results.c.status.in_(_TRIED))
        .order_by(runs.c.started.desc(), runs.c.id.desc())
    )
    own_testbeds = {
        number
        for number, other in connection.execute(sa.select(testbeds.c.id, testbeds.c.setting))
        if without_machine(other) == setting
    }
    known: dict[Case, NightsOfCase] = {}
    for started, testbed, status, wall_s, *values in connection.execute(query):
        case = Case(*values)
        nights = known.get(case, NightsOfCase(0, None, None))
        if testbed not in own_testbeds:
            if status != Status.INFRA_ERROR and nights.wall_s is None:
                known[case] = replace(nights, wall_s=wall_s)
            continue
        if status != Status.INFRA_ERROR:
            newest = nights if nights.nights else replace(nights, last=started, wall_s=wall_s)
            nights = replace(newest, nights=newest.nights + 1)
        elif not nights.nights:
            nights = replace(nights, failed=(*nights.failed, started))
        known[case] = nights
    return known


def earlier_processes(
    connection: sa.Connection, run: RunRow, cases: Collection[Case], nights: int = _PROCESS_NIGHTS
) -> dict[Case, list[ProcessRatios]]:
    """The processes of each case on the nights before a run, the newest first.

    Only spread within a night is used (stats.process_spread), because a regression may lie between nights.
    Nights by another method of speedup, that sampled a case in fewer than two processes, or that other
    programs disturbed, are left out.
    """
    runs, results, details = schema.runs, schema.results, schema.result_details
    latest = (
        sa.select(runs.c.id, runs.c.method)
        .where(runs.c.testbed_id == testbed_of(connection, run))
        .where(runs.c.started < run.started, runs.c.excluded.is_(None))
        .where(measured_any({setting_of_case(case) for case in cases}))
        .order_by(runs.c.started.desc(), runs.c.id.desc())
        .limit(nights)
    )
    methods: dict[int, Mapping[str, int]] = {
        number: method or {}
        for number, method in connection.execute(latest)
        if alike(method or {}, CURRENT, "speedup")
    }
    numbers = list(methods)
    query = (
        sa.select(results.c.run_id, details.c.details, *schema.cases.c[CASE_COLUMNS])
        .join_from(results, schema.cases, results.c.case_id == schema.cases.c.id)
        .join(details, results.c.id == details.c.result_id)
        .where(results.c.run_id.in_(numbers))
        .where(results.c.verdict.is_distinct_from(DISTURBED))
    )
    by_case: dict[Case, list[tuple[int, ProcessRatios]]] = {}
    for number, result_details, *values in connection.execute(query):
        case = Case(*values)
        processes = _processes(result_details) if case in cases else None
        if processes and alike(methods[number], CURRENT, "speedup", has_own_threads(case)):
            by_case.setdefault(case, []).append((numbers.index(number), processes))
    return {
        case: [processes for _, processes in sorted(nights_of_case, key=lambda item: item[0])]
        for case, nights_of_case in by_case.items()
    }


def _processes(details: Any) -> ProcessRatios | None:
    """The processes of a result; None for fewer than two, and for malformed details."""
    from perfdash.stats.process_spread import ProcessRatios

    processes = details.get("processes") if isinstance(details, dict) else None
    if not isinstance(processes, dict):
        return None
    ratios, within = processes.get("ratios"), processes.get("within")
    numbers = [*ratios, within] if isinstance(ratios, list) else []
    if len(numbers) < 3 or not all(isinstance(number, int | float) and number > 0 for number in numbers):
        return None
    return ProcessRatios(tuple(math.log(ratio) for ratio in numbers[:-1]), float(numbers[-1]))
