"""Variables of the shells that two runs were measured in, when both are profiled from one shell."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from perfdash.errors import UsageError
from perfdash.explain import profiling
from perfdash.explain.profiling import ProfiledBuild, refuse_same_build
from perfdash.records import Case
from perfdash.runner.remeasurement import with_variables_of
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned
from tests.report.results import info

PLANNED = Planned(case=Case("s", "m"), loader="python", target="net.py:make", env={"A": "1"})
BUILD = ProfiledBuild("old", PLANNED, RunSettings(jobs=1), {})
FACTS = {"aten_cpu_capability": "default"}
OLD = {"OMP_A": "same", "PYTHONPATH": "here"}
NEW = {"OMP_A": "same", "MKL_CBWR": "COMPATIBLE", "PYTHONPATH": "there"}


def sides(old, new, shell, planned=PLANNED):
    """Both builds, as measured from a shell."""
    return [
        replace(
            BUILD,
            run=run,
            planned=with_variables_of(run, {**FACTS, "variables": recorded}, planned, shell)[0],
        )
        for run, recorded in (("old", old), ("new", new))
    ]


def test_each_side_gets_the_variables_of_its_runs_shell():
    old, new = sides(OLD, NEW, {"OMP_A": "other", "PYTHONPATH": "elsewhere"})
    assert old.planned.env == {"A": "1", "OMP_A": "same"}
    assert new.planned.env == {"A": "1", "OMP_A": "same", "MKL_CBWR": "COMPATIBLE"}
    refuse_same_build(old, new)


def test_a_build_of_a_run_has_the_variables_that_its_run_recorded(tmp_path, monkeypatch):
    recorded = replace(info(1), environment={"variables": OLD})
    monkeypatch.setattr(profiling, "read_info", lambda folder: recorded)
    monkeypatch.setattr(profiling, "planned_of_run", lambda folder, settings: {PLANNED.case: PLANNED})
    build = profiling.build_of(tmp_path, PLANNED.case, {})
    assert build.planned.env == {"A": "1", "OMP_A": "same"}
    with pytest.raises(UsageError, match=f"MKL_CBWR is set .* when {tmp_path.name} was measured"):
        profiling.build_of(tmp_path, PLANNED.case, {"MKL_CBWR": "COMPATIBLE"})


def test_the_same_variables_are_one_build():
    old, new = sides(OLD, OLD, {})
    with pytest.raises(UsageError, match="one build to profile"):
        refuse_same_build(old, new)


@pytest.mark.parametrize("new", [NEW, OLD])
def test_a_variable_that_is_set_here_and_was_not_set_then_is_refused(new):
    with pytest.raises(
        UsageError, match="MKL_CBWR is set in this shell, and was not set when old was measured"
    ):
        sides(OLD, new, {"MKL_CBWR": "COMPATIBLE"})


@pytest.mark.parametrize(("facts", "refused"), [({}, False), (FACTS, True)], ids=["older", "newer"])
def test_a_variable_that_older_runs_did_not_record_is_not_refused(facts, refused):
    with pytest.raises(UsageError, match="ATEN_CPU_CAPABILITY is set") if refused else nullcontext():
        planned, notes = with_variables_of(
            "old", {**facts, "variables": {}}, PLANNED, {"ATEN_CPU_CAPABILITY": "avx2"}
        )
        assert (planned, notes) == (PLANNED, [])


def test_a_variable_of_the_case_itself_goes_before_those_of_both_shells():
    own = replace(PLANNED, env={"OMP_A": "own", "MKL_CBWR": "AVX2"})
    old, new = sides(OLD, NEW, {"OMP_A": "other", "MKL_CBWR": "COMPATIBLE"}, own)
    assert old.planned.env == new.planned.env == {"OMP_A": "own", "MKL_CBWR": "AVX2"}


def test_what_reaches_no_worker_or_names_a_place_is_of_neither_side():
    """OMP_NUM_THREADS in a case's environment would replace --threads."""
    here = {"OMP_NUM_THREADS": "8", "TORCH_WARM_POOL": "1", "HF_HOME": "/hub", "CUDA_VISIBLE_DEVICES": "3"}
    old, new = sides({**OLD, "OMP_NUM_THREADS": "4", "TORCHINDUCTOR_CACHE_DIR": "/gone"}, OLD, here)
    assert old.planned.env == new.planned.env == {"A": "1", "OMP_A": "same"}
