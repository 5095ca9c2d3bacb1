"""The JSON API: its addresses with their parameters and the shapes of their answers."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Response

from perfdash.detect.causes import gather_in_causes
from perfdash.history import alert_store, queries
from perfdash.history.pass_rates_and_means import remark
from perfdash.history.queries import RunLine
from perfdash.history.results import Row, clock_of
from perfdash.history.run_selection import find_run
from perfdash.metrics import NUMBERS
from perfdash.report import alert_text
from perfdash.report.comparison_text import to_plain
from perfdash.serve import response_models as shapes
from perfdash.serve.cached_answers import Answer
from perfdash.serve.parameters import (
    LIMIT,
    Limit,
    Model,
    NotFound,
    Offset,
    OneOf,
    Since,
    Suite,
    Testbed,
    Until,
    compared,
    one_run,
    page,
    refuse_unknown,
    text,
    whole,
)

Values = dict[str, Any]
_PRIVATE = ("source",)  # the path of the run's folder: nothing for a reader of the network
_SIDE = (
    "a run's name or id:N, last, a date, a window 2026-11-01..2026-11-10, torch==2.14.0, a commit of torch"
)
_STATES = ("live", "all", *alert_store.STATES)

ROUTER = APIRouter(
    prefix="/api",
    dependencies=[Depends(refuse_unknown)],
    responses={
        "4XX": {
            "model": shapes.Error,
            "description": "400: a parameter is wrong; 404: there is no such thing",
        },
        503: {"model": shapes.Error, "description": "the history cannot be read at the moment"},
    },
)


@ROUTER.get("/runs", response_model=shapes.Runs, summary="Runs, the newest first.")
def runs(
    answer: Answer,
    since: Since = None,
    until: Until = None,
    testbed: Annotated[int | None, whole("only runs of this testbed")] = None,
    offset: Offset = 0,
    limit: Limit = LIMIT,
) -> Response:
    def make(connection: sa.Connection) -> Values:
        listed = queries.list_runs(connection, testbed_id=testbed, since=since, until=until)
        cut, part = page(listed[::-1], offset, limit)
        return {**cut, "runs": [run_plain(run) for run in part]}

    return answer.json(make)


@ROUTER.get("/run", response_model=shapes.RunResults, summary="A run and its results.")
def run(
    answer: Answer,
    run: Annotated[str, text("a run's name or id:N, last, or a date that means one run")] = "last",
    suite: Suite = None,
    model: Model = None,
    offset: Offset = 0,
    limit: Limit = LIMIT,
) -> Response:
    def make(connection: sa.Connection) -> Values:
        line = one_run(connection, run)
        rows = [
            row
            for row in queries.rows_of(connection, line.id, details=True)
            if suite in (None, row.case.suite) and model in (None, row.case.model)
        ]
        cut, part = page(rows, offset, limit)
        return {"run": run_plain(line), **cut, "results": [_row_plain(row) for row in part]}

    return answer.json(make)


@ROUTER.get(
    "/cases",
    response_model=shapes.Cases,
    summary="The cases ever measured on a testbed, with the numbers that `series` accepts.",
)
def cases(
    answer: Answer,
    testbed: Testbed = None,
    suite: Suite = None,
    model: Model = None,
    offset: Offset = 0,
    limit: Limit = LIMIT,
) -> Response:
    def make(connection: sa.Connection) -> Values:
        bed = _testbed(connection, testbed)
        numbered = [
            (case, number)
            for case, number in queries.case_numbers(connection, bed).items()
            if suite in (None, case.suite) and model in (None, case.model)
        ]
        cut, part = page(sorted(numbered, key=lambda pair: (pair[0].name, pair[1])), offset, limit)
        return {"testbed": bed, **cut, "cases": [{"id": number, **vars(case)} for case, number in part]}

    return answer.json(make)


@ROUTER.get(
    "/series",
    response_model=shapes.Series,
    summary="A metric of a case over the nights of a testbed, the oldest first.",
)
def series(
    answer: Answer,
    case: Annotated[int, whole("a case's number, as `cases` tells it")],
    metric: Annotated[str, OneOf(tuple(NUMBERS)), text("which number")] = "speedup",
    testbed: Testbed = None,
    since: Since = None,
    offset: Offset = 0,
    limit: Limit = LIMIT,
) -> Response:
    def make(connection: sa.Connection) -> Values:
        bed = _testbed(connection, testbed)
        of = queries.cases_by_id(connection, [case]).get(case)
        if of is None:
            raise NotFound(f"there is no case {case}")
        points = queries.series(connection, case, metric, testbed_id=bed, since=since or "")
        cut, part = page(points, offset, limit)
        return {
            "case": vars(of), "metric": metric, "testbed": bed, **cut,
            "points": [vars(point) for point in part],
        }  # fmt: skip

    return answer.json(make)


@ROUTER.get(
    "/compare",
    response_model=shapes.ComparisonAnswer,
    summary="Compare two sides over their common cases: significant changes first, then by size.",
)
def compare(
    answer: Answer,
    old: Annotated[str, text(_SIDE)],
    new: Annotated[str, text(f"the same of what it is compared with: {_SIDE}")],
    host_class: Annotated[str | None, text("of runs on several classes of hosts, those on this one")] = None,
    offset: Offset = 0,
    limit: Limit = LIMIT,
) -> Response:
    def make(connection: sa.Connection) -> Values:
        comparison = to_plain(compared(connection, old, new, host_class))
        cut, part = page(comparison["cases"], offset, limit)
        return {**comparison, **cut, "cases": list(part)}

    return answer.json(make)


@ROUTER.get("/alerts", response_model=shapes.Alerts, summary="Alerts, the newest first, each with its life.")
def alerts(
    answer: Answer,
    state: Annotated[
        str, OneOf(_STATES), text("in which state; live: all that are not over and not only suspected")
    ] = "live",
    direction: Annotated[
        str | None, OneOf(("worse", "better")), text("only what got worse, or better")
    ] = None,
    offset: Offset = 0,
    limit: Annotated[int, whole("how many at most", 1, 200)] = 50,
) -> Response:
    def make(connection: sa.Connection) -> Values:
        states = {"live": alert_store.LIVE, "all": alert_store.STATES}.get(state, (state,))
        directions = {None: (-1, 0, 1), "worse": (1,), "better": (-1,)}[direction]
        matching = [
            alert for alert in alert_store.load(connection, states=states) if alert.direction in directions
        ]
        cut, part = page(matching[::-1], offset, limit)
        plain = [
            alert_text.to_plain(evidence, alert_store.events(connection, evidence.alert.id or 0))
            for evidence in gather_in_causes(connection, list(part))
        ]
        return {**cut, "alerts": plain}

    return answer.json(make)


@ROUTER.get(
    "/trend",
    response_model=shapes.Trend,
    summary="The summaries of a suite on a testbed, per run and setting, the oldest first.",
)
def trend(
    answer: Answer,
    suite: Annotated[str, text("which suite")],
    testbed: Testbed = None,
    since: Since = None,
    offset: Offset = 0,
    limit: Limit = LIMIT,
) -> Response:
    def make(connection: sa.Connection) -> Values:
        bed = _testbed(connection, testbed)
        found = queries.trend(connection, suite, testbed_id=bed, since=since or "")
        cut, part = page(found, offset, limit)
        nights = [
            {name: night[name] for name in night if name not in ("run_id", "testbed_id")} for night in part
        ]
        return {"suite": suite, "testbed": bed, **cut, "nights": nights}

    return answer.json(make)


def _testbed(connection: sa.Connection, number: int | None) -> int:
    """The testbed of a number; without one, that of the last run, as `last` names it."""
    if not queries.list_runs(connection, testbed_id=number, latest=1):
        raise NotFound("the history has no run" + (f" of testbed {number}" if number is not None else ""))
    return find_run(connection, "last").testbed_id if number is None else number


def run_plain(run: RunLine) -> Values:
    """The run as plain values, without what only its owner should see."""
    return {name: value for name, value in run.to_plain().items() if name not in _PRIVATE}


def _row_plain(row: Row) -> Values:
    return {
        "case": vars(row.case), "status": row.status, "verdict": row.verdict, "basis": row.basis,
        "remark": remark(row), "clock": clock_of(row), "started": row.started, "values": dict(row.values),
        "others": dict(row.others),
    }  # fmt: skip
