"""The page that benchmarks/configurations_night.py makes of a night and of separate runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from perfdash.records import Case, Failure, Result, Speedup, Status

PATH = Path(__file__).parents[2] / "benchmarks" / "configurations_night.py"


@pytest.fixture(scope="module")
def night():
    spec = importlib.util.spec_from_file_location("configurations_night", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(model, configuration, speedup=None, **more):
    case = Case("timm", model, configuration=configuration)
    made = Result(case, "t", 1.0, Status.PASS if speedup else Status.CRASH, **more)
    if speedup:
        made.speedup = Speedup(speedup, speedup - 0.01, speedup + 0.01, "faster", "processes")
        made.compilation_s = 20.0
    return made


def test_means_are_of_what_passed_and_a_failure_has_its_reason(night):
    results = [
        result("a", "default", 1.0),
        result("b", "default", 4.0),
        result("a", "dynamic", error=Failure("E", "no such size\nmore")),
    ]
    lines = night.matrix(results, ["default", "dynamic"])
    assert any(line.startswith("| timm, default | 2/2 | 2.000x [1.9") for line in lines)
    assert "| timm, dynamic | 0/1 | - | - | - |" in lines
    assert "| timm/b bs 1 | 4.000x [3.990, 4.010] | - |" in lines
    assert lines[-1].startswith("- `a`, dynamic: ")
    assert lines[-1].endswith(": no such size")


def test_the_ratio_of_costs_needs_every_separate_run(night):
    costs = {"night": {"cpu_s": 60.0, "wall_s": 70.0}, "default": {"cpu_s": 40.0, "wall_s": 50.0}}
    assert night.cost_rows(costs, ["default", "dynamic"])[-1] == ["default alone", "40", "50"]
    costs["dynamic"] = {"cpu_s": 60.0, "wall_s": 90.0}
    assert night.cost_rows(costs, ["default", "dynamic"])[-1] == ["one night / all alone", "0.600", "0.500"]


def test_it_counts_the_cases_that_share(night):
    shared = result(
        "a", "dynamic", 1.0, memory={"eager": {"shared_from": "x"}}, accuracy={"shared_from": "x"}
    )
    text = night.shared([result("a", "default", 1.0), shared])
    assert text == "Of 2 cases 1 took eager's memory from another case, 1 its outputs."
