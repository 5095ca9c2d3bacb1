"""Cases of the back end eager, which compiles nothing: they are judged like those of any other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.detect.comparison import ComparedRuns, compare
from perfdash.detect.findings import WORSE
from perfdash.history import alert_store
from perfdash.history.queries import list_runs, read_run
from perfdash.history.results import Imported, from_result
from perfdash.records import Case, Result, Status
from tests.detect.simulated import farm, judge_nights, slower
from tests.stores import made_store

NIGHTS = 34


def of_eager(runs):
    """The runs as perfdash 0.1 recorded them of the back end eager: counts of 0."""
    counts = {"graphs": 0.0, "calls_captured": 0.0, "graph_breaks": 0.0}
    return [
        Imported(
            run.run,
            tuple(
                replace(row, case=replace(row.case, backend="eager"), values={**row.values, **counts})
                for row in run.rows
            ),
        )
        for run in runs
    ]


@pytest.fixture
def store(tmp_path):
    with made_store(tmp_path / "history.db") as opened_store:
        yield opened_store


def judged(store, runs):
    judge_nights(store, runs)
    with store.read() as connection:
        return [(alert.kind, alert.metric, alert.direction) for alert in alert_store.load(connection)]


def test_a_slowdown_raises_an_alert(store):
    runs = of_eager(farm(NIGHTS, change=slower("model03", 28, 1.15)))
    assert judged(store, runs) == [("metric", "backend_ms", WORSE)]


def test_a_crash_raises_an_alert_and_is_worse_in_a_comparison(store):
    def statuses(night, name):
        return "crash" if (night, name) == (NIGHTS - 1, "model03") else "pass"

    runs = of_eager(farm(NIGHTS, statuses=statuses))
    assert judged(store, runs) == [("status", "status", WORSE)]
    with store.read() as connection:
        old, new = (read_run(connection, line) for line in list_runs(connection, latest=2))
    comparison = compare(ComparedRuns("old", (old,)), ComparedRuns("new", (new,)))
    assert [one.case.model for one in comparison.both if one.status_direction == WORSE] == ["model03"]
    assert {one.old_status for one in comparison.both} == {"pass"}
    assert "backend_ms" in comparison.both[-1].deltas


def test_a_record_of_eager_has_no_counts_of_what_was_captured():
    def values(backend):
        case = Case("techniques", "resnet18", dtype="bfloat16", backend=backend)
        capture = {"graphs": 0, "graph_breaks": 0, "calls_captured": 0, "fallbacks": {}}
        return from_result(Result(case, "2026-11-20T01:00:00Z", 1.0, Status.PASS, capture=capture)).values

    assert values("eager") == {"wall_s": 1.0}
    assert values("inductor")["graphs"] == 0
