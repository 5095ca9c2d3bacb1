"""Builds in turn: what a case's own variables do to those of a build."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.runner.alternating_builds import with_variables
from tests.runner.planned import PLANNED


@pytest.mark.parametrize(("own", "of_build", "both"), [
    ({}, {}, {}),
    ({"A": "case"}, {"A": "build", "B": "build"}, {"A": "case", "B": "build"}),
    ({"PYTHONPATH": "/case"}, {}, {"PYTHONPATH": "/case"}),
    ({}, {"PYTHONPATH": "/build"}, {"PYTHONPATH": "/build"}),
    ({"PYTHONPATH": "/case"}, {"PYTHONPATH": "/build"}, {"PYTHONPATH": "/build:/case"}),
])  # fmt: skip
def test_a_case_s_variables_go_before_a_build_s_but_for_what_is_imported(own, of_build, both):
    assert with_variables(replace(PLANNED, env=own), of_build).env == both
