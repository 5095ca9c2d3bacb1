"""A run's method in the history, and histories that were made before there was one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from perfdash.errors import UsageError
from perfdash.history.ingest import take_in
from perfdash.history.maintenance import merge
from perfdash.history.queries import list_runs, read_run, rows_of
from perfdash.history.results import from_run
from perfdash.history.store import open_store
from perfdash.records import Case, Result, RunInfo, Status
from tests.history.made import row, run
from tests.stores import made_store

FIXTURES = Path(__file__).parents[1] / "fixtures"
NEW = {"latency": 2}


@pytest.fixture
def of_before(tmp_path):
    """A history as perfdash made it before records had a method: six nights, one alert."""
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as connection:
        connection.executescript((FIXTURES / "history_schema0003.sql").read_text())
    connection.close()
    with open_store(str(path)) as opened:
        yield opened


def test_a_history_of_before_opens_and_its_runs_are_of_the_first_method(of_before):
    with of_before.read() as connection:
        runs = list_runs(connection)
        rows = rows_of(connection, runs[0].id, whole=True)
    assert [line.method for line in runs] == [{}] * 6
    assert rows[0].samples == {"eager_ms": (10.0, 10.5), "backend_ms": (5.0, 5.25)}
    numbers = rows[0].values
    assert numbers["speedup"] == pytest.approx(numbers["eager_ms"] / numbers["backend_ms"])


def test_the_method_of_a_run_is_kept(store, tmp_path):
    take_in(store, [run("2026-11-01", [row()], method=NEW), run("2026-11-02", [row()], method={})])
    with store.read() as connection:
        first, second = list_runs(connection)
        assert read_run(connection, first).run.method == NEW
    assert (first.method, second.method) == (NEW, {})
    with made_store(tmp_path / "other.db") as target:
        merge(target, store)
        with target.read() as connection:
            assert [line.method for line in list_runs(connection)] == [NEW, {}]


def results(*methods):
    return [
        Result(Case("timm", f"m{k}"), "", 0.0, Status.PASS, method=method) for k, method in enumerate(methods)
    ]


def info():
    return RunInfo("r", "2026-11-01T00:00:00Z", "farm", [], {}, {}, 2, "0.1")


def test_a_run_is_taken_in_with_the_method_of_its_records():
    assert from_run(info(), results(NEW, NEW), "runs/r").run.method == NEW


def test_a_run_that_mixes_methods_is_refused():
    with pytest.raises(UsageError, match=r"runs/r: .*m0.* and .*m1.* different methods \(latency 1 -> 2\)"):
        from_run(info(), results({}, NEW), "runs/r")
