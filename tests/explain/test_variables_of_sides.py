"""Variables of the shells that two runs were measured in, when both are profiled from one shell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.errors import UsageError
from perfdash.explain.profiling import ProfiledBuild, refuse_same_build, with_own_variables
from perfdash.records import Case
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned

PLANNED = Planned(case=Case("s", "m"), loader="python", target="net.py:make", env={"A": "1"})
BUILD = ProfiledBuild("old", PLANNED, RunSettings(jobs=1), {}, {"OMP_A": "same", "PYTHONPATH": "here"})
NEW = replace(BUILD, run="new", variables={"OMP_A": "same", "MKL_CBWR": "COMPATIBLE", "PYTHONPATH": "there"})


def test_each_side_gets_the_variables_that_the_other_had_otherwise():
    old, new = with_own_variables(BUILD, NEW, {"OMP_A": "other"})
    assert old.planned.env == {"A": "1"}
    assert new.planned.env == {"A": "1", "MKL_CBWR": "COMPATIBLE"}
    refuse_same_build(old, new)


def test_the_same_variables_are_one_build():
    old, new = with_own_variables(BUILD, replace(BUILD, run="new"), {})
    with pytest.raises(UsageError, match="one build to profile"):
        refuse_same_build(old, new)


def test_a_variable_that_is_set_here_and_was_not_set_then_is_refused():
    with pytest.raises(
        UsageError, match="MKL_CBWR is set in this shell, and was not set when old was measured"
    ):
        with_own_variables(BUILD, NEW, {"MKL_CBWR": "COMPATIBLE"})
