"""The parts of a step, from a result to a night of the history."""

from __future__ import annotations

import numpy as np

from perfdash.history.ingest import take_in
from perfdash.history.queries import case_numbers, list_runs, panel, rows_of, series
from perfdash.history.results import from_result
from perfdash.metrics import PARTS
from perfdash.records import Case, Measurement, Result, Status
from tests.history.made import run

CASE = Case("timm", "resnet18", scenario="training")


def trained(**parts):
    medians = {name: {"median": value} for name, value in parts.items()}
    return Result(
        CASE, "2026-11-01T01:00:00Z", 60.0, Status.PASS,
        backend_ms=Measurement(100.0, 99.0, 101.0, 100.0, 1.0, 30),
        parts_ms={"eager": {"forward": {"median": 50.0}}, "backend": medians},
        memory={"parameters": 11_689_512}, phases_s={"load": 0.5},
    )  # fmt: skip


def test_parts_of_the_back_end_are_metrics():
    row = from_result(trained(forward=20.0, backward=79.0, optimizer=1.0))
    assert {name: row.values.get(name) for name in PARTS} == {
        "forward_ms": 20.0, "backward_ms": 79.0, "optimizer_ms": 1.0, "prefill_ms": None, "decode_ms": None,
    }  # fmt: skip
    assert row.details["parameters"] == 11_689_512
    assert row.details["load_s"] == 0.5
    assert row.details["spread_ms"] == {"backend": {"mean": 100.0, "stdev": 1.0, "n": 30}}


def test_a_part_of_no_name_we_know_stays_in_the_details():
    row = from_result(trained(forward=20.0, warming=80.0))
    assert "warming_ms" not in row.values
    assert row.details["parts_ms"]["backend"]["warming"] == {"median": 80.0}


def test_they_come_back_from_the_store(store):
    rows = [from_result(trained(forward=20.0, backward=80.0))]
    take_in(store, [run("2026-11-01", rows)])
    with store.read() as connection:
        (line,) = list_runs(connection)
        (row,) = rows_of(connection, line.id)
        (number,) = case_numbers(connection, line.testbed_id).values()
        points = series(connection, number, "backward_ms")
        whole = panel(connection, [line], PARTS)
    assert row.values["forward_ms"] == 20.0
    assert [point.value for point in points] == [80.0]
    assert whole.values["backward_ms"].tolist() == [[80.0]]
    assert np.isnan(whole.values["decode_ms"]).all()
