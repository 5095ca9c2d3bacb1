"""The page of a cause: the chart of its models over days, and the command that looks for its commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.detect import curation
from perfdash.files import now
from perfdash.history.alert_store import AlertEvent
from perfdash.history.ingest import take_in
from perfdash.site import cause_page, testbed_history
from tests.detect.simulated import add_runs_beside, farm, judge_nights, slower, with_reason
from tests.history.made import with_worker
from tests.site.stored import built
from tests.stores import made_store


def open_views(connection):
    views, _ = cause_page.open_causes(connection, testbed_history.testbeds_with_runs(connection))
    return views


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
            views = open_views(connection)
    (lines,) = [view.lines for view in views if view.lines]
    assert len(lines.times) == 10
    assert lines.median == pytest.approx([1.2] * 10, abs=0.05)


def test_the_median_of_a_cause_is_of_all_its_models_also_of_those_that_are_not_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(cause_page, "_LINES", 1)
    monkeypatch.setattr(cause_page, "_MEMBERS", 1)
    factors = {"model01": 1.6, "model02": 1.2, "model03": 1.2}

    def change(night, name, values):
        return values | {
            "backend_ms": values["backend_ms"] * (factors.get(name, 1.0) if night >= 26 else 1.0)
        }

    with made_store(tmp_path / "history.db") as store:
        judge_nights(store, farm(30, 8, change=change), 26)
        with store.read() as connection:
            (view,) = [view for view in open_views(connection) if view.lines]
    lines = view.lines
    assert len(lines.values) == 1
    assert any(text.startswith("3 members: ") for _, text in view.events), view.events
    assert lines.median[-4:] == pytest.approx([1.2] * 4, abs=0.05)


def of_one_build(night):
    return replace(night, run=with_worker(night.run, torch_git_version="a" * 40))


@pytest.mark.parametrize("changed", ["status", "backend_ms", "vanished"])
@pytest.mark.parametrize("one_build", [False, True], ids=["new builds", "one build"])
def test_a_bisection_is_offered_where_bisect_takes_it(tmp_path, changed, one_build):
    """Of failures too, but not of models that are no longer measured, or within one build."""
    change = slower("model01", 26, 1.4) if changed == "backend_ms" else None
    if changed == "vanished":

        def change(night, name, values):
            return None if name == "model01" and night >= 26 else values

    def statuses(night, name):
        return "crash" if changed == "status" and name == "model01" and night >= 26 else "pass"

    runs = farm(28, 6, change=change, statuses=statuses)
    with made_store(tmp_path / "history.db") as store:
        judge_nights(store, [of_one_build(night) for night in runs] if one_build else runs, 26)
        with store.read() as connection:
            (view,) = open_views(connection)
    assert (view.cause.main[0].metric or "vanished") == changed
    number = view.cause.main[0].alert
    is_offered = changed != "vanished" and not one_build
    assert view.command == (f"perfdash bisect --alert {number}" if is_offered else "")


def test_a_regression_offers_no_bisection_of_an_improvement(tmp_path):
    """Also where one model got better in the same nights, and by much more."""
    shifts = {"model01": 1.08, "model02": 1.08, "model03": 1.08, "model04": 0.5}

    def change(night, name, values):
        return slower(name, 25, shifts.get(name, 1.0))(night, name, values)

    runs = farm(30, 12, change=change)
    with made_store(tmp_path / "history.db") as store:
        judge_nights(store, runs, 25)
        with store.read() as connection:
            (view,) = open_views(connection)
    assert {member.case.model for member in view.members} == set(shifts)
    assert view.command in {f"perfdash bisect --alert {member.alert}" for member in view.cause.main}


@pytest.mark.parametrize("models", [["model01"], ["model01", "model02"]])
def test_a_failure_has_its_reason_as_why(tmp_path, models):
    runs = farm(8, 6, statuses=lambda night, name: "crash" if name in models and night >= 6 else "pass")
    with made_store(tmp_path / "history.db") as store:
        judge_nights(store, [with_reason(night, "LoweringException: no kernel\nmore") for night in runs], 6)
        with store.read() as connection:
            (view,) = open_views(connection)
    reason = "LoweringException: no kernel (in compile)"
    assert view.cause.why == (f"model01: {reason}" if len(models) > 1 else reason)


@pytest.mark.parametrize(
    ("state", "note", "day"),
    [
        ("suspected", None, "2026-11-03"),
        ("fixed", None, "2026-11-03"),
        ("dismissed", "the night after does not show it", "2026-11-03"),
        ("acknowledged", "by ann: known", "2026-11-27"),
        ("invalid", "by ann: noise", "2026-11-27"),
        ("accepted", "by ann: as wished", "2026-11-27"),
        ("reopened", "it was acknowledged until 2026-11-26", "2026-11-27"),
        ("open", "judged again: night3 was excluded: noisy", "2026-11-27"),
        ("confirmed", "confirmed by a re-measurement", "2026-11-27"),
        ("open", "bisected: 1a2b3c4 is the first slow commit", "2026-11-27"),
        ("dismissed", "a rule in [[thresholds]] of perfdash.toml: not judged", "2026-11-27"),
    ],
)
def test_an_event_has_the_day_of_its_night_or_that_of_the_act(state, note, day):
    event = AlertEvent("2026-11-27T09:00:00Z", state, "night", note, "2026-11-03T01:00:00Z")
    assert event.day == day
    assert AlertEvent(event.at, state, None, note).day == "2026-11-27"


def test_what_happened_has_one_day_on_all_pages(tmp_path):
    """One page dated an acknowledgement as its night, another the nights as their judging."""
    runs = farm(28, 3, change=slower("model01", 26, 1.4))
    with made_store(tmp_path / "history.db") as store:
        judge_nights(store, runs, 26)
        with store.read() as connection:
            (view,) = open_views(connection)
        curation.acknowledge(store, view.cause.main[0].alert, "known")
        folder = built(store, tmp_path / "site")
    night, today = runs[26].run.started[:10], now()[:10]
    (page,) = folder.glob("causes/*.html")
    since = page.read_text().partition("What happened since")[2]
    listed = (folder / "regressions.html").read_text()
    for text, begin in ((since, ">"), (listed, "<li>")):
        assert f"{begin}{night}" in text
        assert "acknowledged" in text.partition(f"{begin}{today}")[2][:200]
