"""The answers of the JSON API: plain values from a connection and the request's parameters."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from perfdash.detect.causes import gather_in_causes
from perfdash.history import alert_store, queries
from perfdash.history.queries import RunLine
from perfdash.history.results import Row
from perfdash.metrics import NUMBERS
from perfdash.report import alert_text
from perfdash.report.comparison_text import to_plain
from perfdash.serve.parameters import NotFound, Parameter, compared, one_run, page, paging

Values = dict[str, Any]
_RUN = Parameter("run", "a run's name, last, or a date that means one run", default="last")
_TESTBED = Parameter("testbed", "a testbed's number  [default: that of the last run]", "number")
_SINCE = Parameter("since", "runs from this time: 2026, 2026-11, 2026-11-21", "time")
_UNTIL = Parameter("until", "runs up to this time, included", "time")
_PRIVATE = ("source",)  # the path of the run's folder: nothing for a reader of the network


RUNS = (_SINCE, _UNTIL, Parameter("testbed", "only runs of this testbed", "number"), *paging())


def runs(connection: sa.Connection, values: Values) -> Values:
    """Runs, the newest first."""
    listed = queries.list_runs(
        connection, testbed_id=values["testbed"], since=values["since"], until=values["until"]
    )
    cut, part = page(listed[::-1], values)
    return {**cut, "runs": [run_plain(run) for run in part]}


RUN = (
    _RUN,
    Parameter("suite", "only cases of this suite"),
    Parameter("model", "only cases of this model"),
    *paging(),
)


def run(connection: sa.Connection, values: Values) -> Values:
    """A run and its results."""
    line = one_run(connection, values["run"])
    rows = [
        row
        for row in queries.rows_of(connection, line.id)
        if values["suite"] in (None, row.case.suite) and values["model"] in (None, row.case.model)
    ]
    cut, part = page(rows, values)
    return {"run": run_plain(line), **cut, "results": [_row_plain(row) for row in part]}


CASES = (
    _TESTBED,
    Parameter("suite", "only cases of this suite"),
    Parameter("model", "only cases of this model"),
    *paging(),
)


def cases(connection: sa.Connection, values: Values) -> Values:
    """The cases ever measured on a testbed, with the numbers that `series` accepts."""
    bed = _testbed(connection, values["testbed"])
    numbered = [
        (case, number)
        for case, number in queries.case_numbers(connection, bed).items()
        if values["suite"] in (None, case.suite) and values["model"] in (None, case.model)
    ]
    cut, part = page(sorted(numbered, key=lambda pair: (pair[0].name, pair[1])), values)
    return {"testbed": bed, **cut, "cases": [{"id": number, **vars(case)} for case, number in part]}


SERIES = (
    Parameter("case", "a case's number, as `cases` tells it", "number", required=True),
    Parameter("metric", "which number", tuple(NUMBERS), "speedup"),
    _TESTBED,
    _SINCE,
    *paging(),
)


def series(connection: sa.Connection, values: Values) -> Values:
    """A metric of a case over the nights of a testbed, the oldest first."""
    bed = _testbed(connection, values["testbed"])
    case = queries.cases_by_id(connection, [values["case"]]).get(values["case"])
    points = queries.series(
        connection, values["case"], values["metric"], testbed_id=bed, since=values["since"] or ""
    )
    if case is None:
        raise NotFound(f"there is no case {values['case']}")
    cut, part = page(points, values)
    return {
        "case": vars(case), "metric": values["metric"], "testbed": bed, **cut,
        "points": [vars(point) for point in part],
    }  # fmt: skip


SIDE = "a run's name, last, a date, a window 2026-11-01..2026-11-10, torch==2.14.0, a commit of torch"
COMPARE = (
    Parameter("old", SIDE, required=True),
    Parameter("new", f"the same of what it is compared with: {SIDE}", required=True),
    Parameter("host_class", "of runs on several classes of hosts, those on this one"),
    *paging(),
)


def compare(connection: sa.Connection, values: Values) -> Values:
    """Compare two sides over their common cases: significant changes first, then by size."""
    comparison = to_plain(compared(connection, values["old"], values["new"], values["host_class"]))
    cut, part = page(comparison["cases"], values)
    return {**comparison, **cut, "cases": list(part)}


STATES = ("live", "all", *alert_store.STATES)
ALERTS = (
    Parameter("state", "in which state; live: all that are not over and not only suspected", STATES, "live"),
    Parameter("direction", "only what got worse, or better", ("worse", "better")),
    *paging(200, 50),
)


def alerts(connection: sa.Connection, values: Values) -> Values:
    """Alerts, the newest first, each with its life."""
    state = values["state"]
    states = {"live": alert_store.LIVE, "all": alert_store.STATES}.get(state, (state,))
    directions = {None: (-1, 0, 1), "worse": (1,), "better": (-1,)}[values["direction"]]
    matching = [
        alert for alert in alert_store.load(connection, states=states) if alert.direction in directions
    ]
    cut, part = page(matching[::-1], values)
    plain = [
        alert_text.to_plain(evidence, alert_store.events(connection, evidence.alert.id or 0))
        for evidence in gather_in_causes(connection, list(part))
    ]
    return {**cut, "alerts": plain}


TREND = (
    Parameter("suite", "which suite", required=True),
    _TESTBED,
    _SINCE,
    *paging(),
)


def trend(connection: sa.Connection, values: Values) -> Values:
    """The summaries of a suite on a testbed, per run and setting, the oldest first."""
    bed = _testbed(connection, values["testbed"])
    nights_found = queries.trend(connection, values["suite"], testbed_id=bed, since=values["since"] or "")
    cut, part = page(nights_found, values)
    nights = [{name: night[name] for name in night if name not in ("run_id", "testbed_id")} for night in part]
    return {"suite": values["suite"], "testbed": bed, **cut, "nights": nights}


def _testbed(connection: sa.Connection, number: int | None) -> int:
    last = queries.list_runs(connection, testbed_id=number, latest=1)
    if not last:
        raise NotFound("the history has no run" + (f" of testbed {number}" if number is not None else ""))
    return last[0].testbed_id


def run_plain(run: RunLine) -> Values:
    """The run as plain values, without what only its owner should see."""
    return {name: value for name, value in run.to_plain().items() if name not in _PRIVATE}


def _row_plain(row: Row) -> Values:
    return {
        "case": vars(row.case), "status": row.status, "verdict": row.verdict, "basis": row.basis,
        "started": row.started, "values": dict(row.values),
    }  # fmt: skip
