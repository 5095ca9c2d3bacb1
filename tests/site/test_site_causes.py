"""The chart of a cause: its models over days, relative to their level before the change."""

from __future__ import annotations

import pytest

from perfdash.history.ingest import take_in
from perfdash.site import cause_page, testbed_history
from tests.detect.simulated import add_runs_beside, farm, judge_nights, slower
from tests.stores import made_store


@pytest.mark.parametrize("runs_beside", [0, 7], ids=["one run a night", "eight runs a night"])
def test_a_change_before_the_drawn_nights_is_drawn_by_its_level_before(tmp_path, monkeypatch, runs_beside):
    monkeypatch.setattr(cause_page, "NIGHTS", 10)
    runs = farm(42, 3, change=slower("model01", 26, 1.2))
    with made_store(tmp_path / "history.db") as store:
        judge_nights(store, runs[:28], 26)
        take_in(store, runs[28:])
        if runs_beside:
            add_runs_beside(store, runs_beside)
        with store.read() as connection:
            views, _ = cause_page.open_causes(connection, testbed_history.testbeds_with_runs(connection))
    (lines,) = [view.lines for view in views if view.lines]
    assert len(lines.times) == 10
    assert lines.median == pytest.approx([1.2] * 10, abs=0.05)
