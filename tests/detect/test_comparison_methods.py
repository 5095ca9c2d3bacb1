"""Two sides by different methods: what both measured alike is compared, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfdash.detect.comparison import ComparedRuns, PastNoise, compare
from perfdash.report.changes import of_comparison
from perfdash.report.comparison_text import comparison, to_plain
from perfdash.report.gates import comparison_gate
from perfdash.report.night import against
from tests.history.made import case, row, run

VALUES = {"speedup": 2.0, "backend_ms": 10.0, "compilation_cpu_s": 30.0, "backend_peak_bytes": 1e8,
          "compression_ratio": 2.0, "calls_captured": 9.0}  # fmt: skip
NOISE = {name: {case("a"): PastNoise(0.001, 40.0, np.ones(10))} for name in VALUES}


def night(method=(), status="pass", day=1, factor=1.0):
    worse = {name: value * factor for name, value in VALUES.items()}
    return run(f"2026-11-{day:02}", [row("a", status, **worse)], method=dict.fromkeys(method, 2))


def compared(old, *new):
    return compare(ComparedRuns("old", tuple(old)), ComparedRuns("new", new), NOISE)


@pytest.mark.parametrize(
    ("method", "left"),
    [
        ([], {"speedup", "backend_ms", "compilation_cpu_s", "backend_peak_bytes"}),
        (["latency"], {"compilation_cpu_s", "backend_peak_bytes"}),
        (["speedup"], {"backend_ms", "compilation_cpu_s", "backend_peak_bytes"}),
        (["memory", "compilation"], {"speedup", "backend_ms"}),
    ],
)
def test_only_what_both_measured_alike_is_compared(method, left):
    compared_runs = compared([night()], night(method, day=2, factor=1.5))
    (compared_case,) = compared_runs.both
    assert compared_case.deltas.keys() == left
    means = {mean.metric for mean in compared_runs.means}
    assert ("compression_ratio" in means) == ("memory" not in method)
    assert set(compared_runs.methods) == {f"{name} 1 -> 2" for name in method}


@pytest.mark.parametrize(("backend", "threads", "is_compared"), [
    ("openvino", 2, False), ("openvino", 1, True), ("inductor", 2, True),
])  # fmt: skip
def test_latencies_beside_own_threads_are_compared_by_one_method(backend, threads, is_compared):
    nights = []
    for one in (night(), night(["own_threads"], day=2, factor=1.5)):
        (row,) = one.rows
        nights.append(replace(one, rows=(replace(row, case=case("a", backend=backend, threads=threads)),)))
    noise = {name: {nights[0].rows[0].case: PastNoise(0.001, 40.0, np.ones(10))} for name in VALUES}
    sides = compare(*(ComparedRuns("side", (one,)) for one in nights), noise)
    (compared_case,) = sides.both
    assert sides.methods == ([] if is_compared else ["own_threads 1 -> 2"])
    assert ("backend_ms" in compared_case.deltas) == is_compared
    assert "backend_peak_bytes" in compared_case.deltas


def test_nights_of_a_window_by_the_old_method_do_not_count():
    window = [night(day=1, factor=3.0), night(day=2, factor=3.0), night(["latency"], day=3)]
    (compared_case,) = compared(window, night(["latency"], day=4)).both
    assert compared_case.deltas["backend_ms"].change == pytest.approx(0.0)
    assert compared_case.deltas["backend_peak_bytes"].change < 0, "of memory all nights count"


def test_a_status_by_another_method_of_checking_is_no_change():
    worse = night(["accuracy"], "fail_accuracy", 2)
    compared_runs = compared([night()], worse)
    (compared_case,) = compared_runs.both
    assert not compared_case.changed
    assert not compared_case.regressed
    assert of_comparison(compared_runs) == []
    assert "fail_accuracy" not in comparison(compared_runs).partition("All cases in both")[0]
    alike = compared([night()], replace(worse, run=replace(worse.run, method={})))
    assert [change.what for change in of_comparison(alike)] == ["status"]


def test_a_model_that_stops_running_is_a_failure_by_every_method():
    compared_runs = compared([night()], night(["accuracy"], "crash", 2))
    (compared_case,) = compared_runs.both
    assert compared_case.regressed
    assert [(change.what, change.after) for change in of_comparison(compared_runs)] == [("status", "crash")]
    back = compared([night(status="crash")], night(["accuracy"], day=2))
    assert not back.both[0].changed, "the new check may pass what the old one would not"


def test_it_is_reported_what_is_not_compared(capsys):
    compared_runs = compared([night()], night(["memory"], day=2))
    assert "Measured by different methods, so not compared: memory 1 -> 2" in comparison(compared_runs)
    assert to_plain(compared_runs)["methods"] == ["memory 1 -> 2"]
    assert comparison_gate(compared_runs, print) == 0
    assert "not compared, as measured by different methods (memory 1 -> 2)" in capsys.readouterr().out
    caution = against(compared_runs.new.runs[0], compared_runs).caution
    assert caution == "what was measured by different methods (memory 1 -> 2)"


def test_where_nothing_is_left_no_gate_passes():
    every = ["latency", "speedup", "compilation", "memory", "accuracy", "capture"]
    compared_runs = compared([night()], night(every, day=2))
    assert compared_runs.nothing_to_compare == "every case in both was measured by different methods"
    assert "Nothing to compare" in comparison(compared_runs)
    assert "No status changed" not in comparison(compared_runs)


def test_where_nothing_of_what_is_left_can_be_tested_no_gate_passes():
    changed = ["latency", "speedup", "memory", "accuracy", "capture"]  # compilation is measured as before
    sides = ComparedRuns("old", (night(),)), ComparedRuns("new", (night(changed, day=2, factor=3.0),))
    compared_runs = compare(*sides)
    assert compared_runs.nothing_to_compare
    assert "nothing is known of the noise" in compared_runs.nothing_to_compare
    assert "No status changed" not in comparison(compared_runs)
    assert not compare(*sides, NOISE).nothing_to_compare, "the history knows the noise of compilation"
