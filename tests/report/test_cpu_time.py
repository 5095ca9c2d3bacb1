"""Latencies that are CPU time are marked wherever they are shown, and explained once below the table."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs, rows_of
from perfdash.report.full_tables import full_tables
from perfdash.report.night import Night
from perfdash.report.night_export import to_csv
from perfdash.report.run_summary import summary
from perfdash.report.techniques.technique_report import technique_report
from perfdash.report.terminal_tables import run_rows
from tests.report.nights import imported, row
from tests.report.results import good, info
from tests.report.technique_runs import measured, night
from tests.stores import made_store

NOTE = "cpu: CPU time instead of wall time, because other programs used the core meanwhile"


def by_clock(clock, model):
    return row("timm", model, 1.2, details={"conditions": {"clock": clock}})


def lines_with(text, model):
    return [line for line in text.splitlines() if f"| {model} " in line]


@pytest.mark.parametrize("clock", ["cpu", "wall"])
def test_show(clock):
    result = good("model", 1.4, "faster")
    result.conditions["clock"] = clock
    text = summary([result, good("other", 1.2, "faster")], info(2))
    assert (NOTE in text.splitlines()) == (clock == "cpu")
    (line,) = [shown_line for shown_line in text.splitlines() if "1.400x" in shown_line]
    assert ("14.00 cpu" in line and "10.00 cpu" in line) == (clock == "cpu")
    (line,) = [shown_line for shown_line in text.splitlines() if "1.200x" in shown_line]
    assert "cpu" not in line


def test_comment():
    text = full_tables(Night(imported([by_clock("cpu", "disturbed"), by_clock("wall", "quiet")])))
    assert text.count(NOTE) == 1
    (line,) = [shown_line for shown_line in lines_with(text, "disturbed") if "12.000" in shown_line]
    assert " 12.000 cpu |" in line
    assert " 10.000 cpu |" in line
    assert not any(" cpu |" in shown_line for shown_line in lines_with(text, "quiet"))


def test_grid():
    disturbed = measured(backend="inductor", speedup=2.0)
    conditions = {**disturbed.details["conditions"], "clock": "cpu"}
    disturbed = replace(disturbed, details={**disturbed.details, "conditions": conditions})
    text = technique_report(night([measured(), disturbed]))
    assert text.count(NOTE) == 1
    for cell in ("| 5.000 cpu ± 0.6 % |", "| 200.0 cpu ± 0.6 % |", "| 10.00 cpu |", " cpu (of 200) |"):
        assert cell in text
    assert "+100.0 % (" in text, "a ratio of two times by the same clock needs no mark"


def test_parts_of_a_step():
    parts = {side: {"forward": {"median": 5.0, "mean": 5.0}} for side in ("eager", "backend")}
    details = {"parts_ms": parts, "conditions": {"clock": "cpu"}}
    text = technique_report(Night(imported([row("timm", "trained", scenario="training", details=details)])))
    assert "| 5.000 | 12.00 cpu | 83.33 cpu |" in text, "the parts are wall time"
    assert NOTE in text


def test_history_show(tmp_path):
    with made_store(tmp_path / "history.db") as store:
        take_in(store, [imported([by_clock("cpu", "disturbed"), by_clock("wall", "quiet")])])
        with store.read() as connection:
            (line,) = list_runs(connection)
            text = run_rows(line, rows_of(connection, line.id, details=True))
    assert text.splitlines()[-1] == NOTE
    (line,) = lines_with(text, "disturbed") or [text]
    assert " 12.000 cpu |" in line
    assert " 10.000 cpu |" in line
    assert not any(" cpu" in shown_line for shown_line in lines_with(text, "quiet"))


def test_csv():
    rows = [by_clock("cpu", "disturbed"), by_clock("wall", "quiet"), row("timm", "imported")]
    read = csv.DictReader(io.StringIO(to_csv(Night(imported(rows)))))
    assert [line["clock"] for line in read] == ["cpu", "wall", ""]
