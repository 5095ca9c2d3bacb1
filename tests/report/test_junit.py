from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.comparison import ComparedRuns, compare
from perfdash.errors import MachineError
from perfdash.history.alert_store import ACKNOWLEDGED, OPEN, Alert
from perfdash.methods import CURRENT
from perfdash.report.changes import NEW_FAILURE, REGRESSION, VANISHED, RunChange
from perfdash.report.junit import document, write, write_alerts, write_comparison
from tests.history.made import case, row, run

ALERT = Alert(
    "metric", 1, 1, "backend_ms", OPEN, 1, 1, 2, 3, "t", "t", before=10.0, after=12.0, change=0.18, id=7
)


def evidence(**change):
    return AlertEvidence(replace(ALERT, **change), case("<m&m>"), None, None, None)


def test_results_and_alerts(tmp_path):
    rows = [
        row("good"),
        replace(row("bad", "crash"), details={"error": {"message": "died\x00 <of> \x1b[1mthis"}}),
        replace(row("left", "skipped"), details={"skip_reason": "needs a GPU"}),
    ]
    write(tmp_path / "j.xml", "run", rows, [evidence(), evidence(state=ACKNOWLEDGED), evidence(direction=-1)])
    root = ET.parse(tmp_path / "j.xml").getroot()
    suites = {suite.get("name"): suite for suite in root}
    counts = {name: (s.get("tests"), s.get("failures"), s.get("skipped")) for name, s in suites.items()}
    assert counts == {"timm": ("3", "1", "1"), "regressions": ("3", "1", "0")}
    (failure,) = suites["timm"].findall("testcase/failure")
    assert failure.get("message") == "died? <of> ?[1mthis"
    (failure,) = suites["regressions"].findall("testcase/failure")
    assert failure.get("type") == "regression"


def test_a_change_without_levels_has_no_arrow():
    changes = [
        RunChange(VANISHED, case("a"), "no longer measured"),
        RunChange(REGRESSION, case("b"), "compiled latency", change=0.1133),
        RunChange(REGRESSION, case("c"), "compiled latency", "20 ms", "23 ms", 0.1398),
        RunChange(NEW_FAILURE, case("d"), "status", "pass", "crash"),
    ]
    root = ET.fromstring(document("run", [], changes))
    assert [failure.get("message") for failure in root.iter("failure")] == [
        "no longer measured",
        "compiled latency: +12.0%",
        "compiled latency: 20 ms -> 23 ms +15.0%",
        "status: pass -> crash",
    ]


def test_a_quiet_night_is_one_test_that_passed(tmp_path):
    write_alerts(tmp_path / "j.xml", [])
    (suite,) = ET.parse(tmp_path / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")


def test_a_comparison(tmp_path):
    old, new = run(rows=[row("a"), row("b")]), run(rows=[row("a"), row("b", "fail_accuracy")])
    write_comparison(tmp_path / "j.xml", compare(ComparedRuns("o", (old,)), ComparedRuns("n", (new,))))
    (suite,) = ET.parse(tmp_path / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert suite.find("testcase/failure").get("message") == "pass -> fail_accuracy"


def test_no_improvement_is_a_reason_of_a_regression(tmp_path):
    """It runs in half the time, but needs more memory."""

    def nights(first, by, status="pass", **other):
        return ComparedRuns("x", tuple(
            run(f"2026-11-{day:02}", [row("a", status, eager_ms=noise * 20, backend_ms=noise * 10 / by,
                                          speedup=2 * by, backend_peak_bytes=noise * 1e8 * by)], **other)
            for day in range(first, first + 4) for noise in [1 + day / 1000]
        ))  # fmt: skip

    def reasons(old, new):
        write_comparison(tmp_path / "j.xml", compare(old, new))
        return [failure.get("message") for failure in ET.parse(tmp_path / "j.xml").iter("failure")]

    assert reasons(nights(1, 1.0), nights(5, 2.0)) == ["backend_peak_bytes +100.8%"]
    other_check = {"method": {**CURRENT, "accuracy": CURRENT["accuracy"] + 1}}
    unchecked = nights(5, 2.0, "pass_due_to_skip", **other_check)
    assert reasons(nights(1, 1.0), unchecked) == ["backend_peak_bytes +100.8%"], "statuses by two methods"


def test_a_case_that_fails_on_both_sides_of_a_comparison_is_skipped(tmp_path):
    old = run(rows=[row("a"), row("b", "crash"), row("c", "crash")])
    new = run(rows=[row("a"), row("b", "crash"), row("c")])
    write_comparison(tmp_path / "j.xml", compare(ComparedRuns("o", (old,)), ComparedRuns("n", (new,))))
    (suite,) = ET.parse(tmp_path / "j.xml").getroot()
    skipped = {test.get("name"): [part.get("message") for part in test] for test in suite}
    assert [messages for name, messages in skipped.items() if "_b_" in name] == [["crash -> crash"]]
    assert [messages for name, messages in skipped.items() if "_c_" in name] == [[]]


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(MachineError, match="--junit"):
        write_alerts(tmp_path / "none" / "j.xml", [])
