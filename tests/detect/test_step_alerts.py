"""Steps that have parts: what is told of a latency, of a part of it, and for how long."""

from __future__ import annotations

import math

import pytest

from perfdash.detect.findings import Finding, judge, with_parts
from perfdash.detect.nightly_judging import read_night
from perfdash.history import alert_store as kept
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from perfdash.metrics import PARTS
from perfdash.report.alert_text import what
from tests.detect.simulated import farm, judge_nights
from tests.stores import made_store


@pytest.fixture
def quick(tmp_path):
    with made_store(tmp_path / "history.db") as opened:
        yield opened


def steps(from_night, *, forward=1.0, backward=1.0, until=10**6):
    """A model whose step is a fifth forward and four fifths backward, each slower by so much."""

    def change(night, name, values):
        whole = values["backend_ms"]
        parts = {"forward_ms": 0.2 * whole, "backward_ms": 0.8 * whole}
        if name == "model03" and from_night <= night < until:
            parts["forward_ms"] *= forward
            parts["backward_ms"] *= backward
        return values | parts | {"backend_ms": sum(parts.values())}

    return change


def alerts_after(store, runs):
    judge_nights(store, runs)
    with store.read() as connection:
        return kept.load(connection, states=kept.STATES)


@pytest.mark.slow
def test_a_slower_step_says_in_which_part_and_is_one_alert(quick):
    (alert,) = alerts_after(quick, farm(36, change=steps(30, backward=1.3)))
    assert (alert.metric, alert.state) == ("backend_ms", "open")
    assert alert.details["parts"].keys() == {"backward_ms"}
    assert alert.details["parts"]["backward_ms"] == pytest.approx(math.log(1.3), abs=0.03)
    assert what(alert).startswith("compiled latency (backward pass +")


@pytest.mark.slow
def test_a_part_that_the_whole_does_not_show_is_an_alert_of_its_own(quick):
    # Half as long again in a fifth of the step, made up for by the rest: the whole stays where it is.
    (alert,) = alerts_after(quick, farm(36, change=steps(30, forward=1.5, backward=0.875)))[:1]
    alerts = alerts_after(quick, [])
    assert {entry.metric for entry in alerts} == {"forward_ms", "backward_ms"}
    assert {entry.metric: entry.direction for entry in alerts} == {"forward_ms": 1, "backward_ms": -1}
    assert alert.state == "open"


@pytest.mark.slow
def test_nights_of_a_step_that_was_mended_say_nothing_of_its_parts(quick):
    alerts = alerts_after(quick, farm(44, change=steps(28, backward=1.3, until=34)))
    assert [(alert.metric, alert.state) for alert in alerts] == [("backend_ms", "fixed")]


@pytest.mark.slow
def test_a_slower_host_is_no_change_of_parts(quick):
    whole = steps(10**6)

    def change(night, name, values):
        by = 1.10 if night >= 30 else 1.0
        moved = whole(night, name, values | {"backend_ms": by * values["backend_ms"]})
        few = name in ("model01", "model03", "model05")  # too few to tell the host by them
        return moved if few else {key: value for key, value in moved.items() if key not in PARTS}

    moved = alerts_after(quick, farm(36, change=change))
    assert [(alert.kind, alert.metric) for alert in moved] == [("host", "backend_ms")]


@pytest.mark.parametrize(("old", "forward"), [(1.25, 1.15), (0.8, 0.87)])
def test_a_part_that_changes_after_an_accepted_step_is_not_compared_with_the_level_before_it(
    quick, old, forward
):
    def change(night, name, values):
        whole = values["backend_ms"] * (old if name == "model03" and night < 50 else 1.0)
        changes = name == "model03" and night >= 67
        parts = {
            "forward_ms": 0.5 * whole * (forward if changes else 1.0),
            "backward_ms": 0.5 * whole * (2 - forward if changes else 1.0),
        }
        return values | parts | {"backend_ms": whole}

    take_in(quick, farm(70, change=change))
    with quick.read() as connection:
        night = read_night(connection, list_runs(connection)[-1])
    accepted = {(4, name): 50 for name in ("backend_ms", "forward_ms", "backward_ms")}
    findings = [found for found in judge(night, accepted) if found.case_id == 4]
    assert {(found.metric, found.alarm) for found in findings} == {
        ("forward_ms", True),
        ("backward_ms", True),
    }
    (of_forward,) = (found for found in findings if found.metric == "forward_ms")
    assert of_forward.change == pytest.approx(math.log(forward), abs=0.02)
    assert of_forward.bad == 67


def finding(metric, *, alarm=True, kind="metric", case=1, change=0.2):
    return Finding(kind, case, metric, 1, 3, 4, alarm=alarm, change=change)


def test_parts_stand_with_the_whole_that_changed():
    every = [finding("backend_ms"), finding("backward_ms", case=2), finding("eager_ms"),
             finding("forward_ms", change=0.1)]  # fmt: skip
    kept_findings = with_parts(every)
    assert [(entry.metric, entry.case_id) for entry in kept_findings] == [
        ("backend_ms", 1), ("backward_ms", 2), ("eager_ms", 1),
    ]  # fmt: skip
    assert kept_findings[0].details == {"parts": {"forward_ms": 0.1}}
    assert kept_findings[1].details == {}


def test_what_is_certain_of_a_part_is_not_hidden_by_a_guess_about_the_whole():
    kept_findings = with_parts([finding("backend_ms", alarm=False), finding("backward_ms")])
    assert [entry.metric for entry in kept_findings] == ["backend_ms", "backward_ms"]
    assert kept_findings[0].details["parts"] == {"backward_ms": 0.2}


@pytest.mark.parametrize(
    ("state", "direction", "expected"),
    [(kept.NEW, 1, False), (kept.OPEN, 1, True), (kept.OPEN, -1, False), (kept.FIXED, 1, True)],
)
def test_what_an_alert_of_the_whole_tells_or_takes_back_is_not_reported_again(state, direction, expected):
    alert = kept.Alert(
        kind="metric", testbed_id=1, case_id=1, metric="backend_ms", state=state, direction=direction,
        good_run_id=1, bad_run_id=2, seen_run_id=2, opened="", changed="",
    )  # fmt: skip
    assert bool(with_parts([finding("forward_ms")], [alert])) is expected
    assert with_parts([finding("forward_ms", case=2)], [alert])
