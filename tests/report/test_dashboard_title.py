"""Titles of the dashboard's tables: one core, some threads, one whole socket."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.history.results import from_result
from perfdash.records import Case, Result, Status
from perfdash.report.dashboard_tables import DashboardSetting, by_suite, settings


@pytest.mark.parametrize(
    ("threads", "conditions", "words"),
    [
        (1, {"whole_socket": True}, "Single-core Single-thread"),
        (8, {"whole_socket": False}, "8 threads"),
        (8, {}, "8 threads"),
        (56, {"whole_socket": True}, "Single-socket Multi-threads (56)"),
    ],
)
def test_the_title_says_how_much_of_the_machine_was_used(threads, conditions, words):
    result = Result(Case("timm", "m", threads=threads), "2026-11-24T00:00:00Z", 1.0, Status.PASS)
    row = from_result(replace(result, conditions=conditions))
    assert DashboardSetting.of(row).title == f"Performance Dashboard for float32 precision -- {words}"


def test_models_without_conditions_are_in_the_dashboard_of_the_run():
    """A model that failed before it was timed does not say how much of a socket it had."""
    passed = Result(Case("timm", "m", threads=56), "2026-11-24T00:00:00Z", 1.0, Status.PASS)
    passed = replace(passed, conditions={"whole_socket": True})
    failed = replace(passed, case=Case("timm", "n", threads=56), status=Status.FAIL_TO_RUN, conditions={})
    for results in ([passed, failed], [failed, passed]):
        ((setting, rows),) = settings(map(from_result, results)).items()
        assert "Single-socket Multi-threads (56)" in setting.title
        assert "50%, 1/2" in by_suite(rows)[0][1]
