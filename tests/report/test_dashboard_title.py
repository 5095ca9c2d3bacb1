"""Titles of the dashboard's tables: one core, some threads, one whole socket."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.history.results import from_result
from perfdash.records import Case, Result, Status
from perfdash.report.dashboard_tables import DashboardSetting


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
