"""Which alerts a nightly bisects, and in what order."""

from __future__ import annotations

import json
import os
import runpy
from datetime import datetime

import pytest

from perfdash import metrics
from tests.ci.nights import NIGHTLY


@pytest.fixture(scope="module")
def to_bisect():
    return runpy.run_path(str(NIGHTLY.parent / "nightly" / "to_bisect.py"))


@pytest.fixture(scope="module")
def chosen(to_bisect):
    """`chosen` on a night of testbed 1."""
    return lambda alerts, most, folders=(): to_bisect["chosen"](alerts, most, {1}, folders)


def night(day):
    return {"started": f"2026-11-{day:02}T01:00:00Z"}


def alert(number, state, model, *, good=20, bad=21, change=0.2, **more):
    return {
        "id": number, "testbed_id": 1, "state": state, "direction": "worse", "kind": "metric",
        "metric": "backend_ms", "change": change, "case": {"suite": "timm", "model": model}, "details": {},
        "good": night(good), "bad": night(bad), **more,
    }  # fmt: skip


DONE = {"details": {"bisected": {"word": "found", "finished": True}}}
BEGUN = {"details": {"bisected": {"word": "not finished", "finished": False}}}


def begin_here(folder, number, model, **more):
    """A bisection of an alert that was not finished, as its journal begins."""
    folder.mkdir()
    at = f"{folder.name[:10]}T03:00:00Z"
    event = {"at": at, "event": "begun", "alert": number, "case": {"model": model}, **more}
    (folder / "journal.jsonl").write_text(json.dumps(event) + "\n")


def fail_here(folder, number, day=22):
    """What a night leaves of a bisection that failed."""
    path, at = folder / f"failed-{number}", datetime.fromisoformat(night(day)["started"]).timestamp()
    path.touch()
    os.utime(path, (at, at))


def numbers(alerts):
    return [alert["id"] for alert in alerts]


def test_older_regressions_follow_those_of_the_night_the_newest_first(chosen):
    alerts = [
        alert(1, "open", "a", good=1, bad=2, change=0.9),
        alert(2, "open", "b", good=10, bad=11),
        alert(3, "confirmed", "c"),
        alert(4, "reopened", "d", change=0.3),
        alert(5, "acknowledged", "e", good=3, bad=4),
        alert(6, "new", "f", good=3, bad=4),
    ]
    assert numbers(chosen(alerts, 3)) == [4, 3, 2]
    assert numbers(chosen(alerts, 9)) == [4, 3, 2, 1]


def test_of_older_regressions_of_the_same_nights_one_is_bisected(chosen):
    many = [alert(number, "open", f"m{number}", good=10, bad=11) for number in range(1, 41)]
    assert numbers(chosen(many, 3)) == [40]
    assert numbers(chosen([*many, alert(41, "open", "z", good=10, bad=11, **DONE)], 3)) == []
    assert numbers(chosen([*many, alert(41, "confirmed", "z", good=10, bad=11)], 3)) == [41]
    failure = alert(42, "open", "y", good=10, bad=11, kind="status", metric=None, change=None)
    assert numbers(chosen([*many, failure], 3)) == [42, 40]


def test_a_bisected_change_of_a_model_hides_no_other_change_of_it(chosen):
    alerts = [
        alert(9, "open", "m01", good=1, bad=2, **DONE),
        alert(10, "open", "m03", good=1, bad=2, metric="eager_ms"),
        alert(90, "open", "m03", good=10, bad=11),
    ]
    assert numbers(chosen(alerts, 3)) == [90]
    assert numbers(chosen(alerts[1:], 3)) == [90], "one a model, its newest"


def test_two_metrics_of_one_older_change_are_one_bisection(chosen):
    alerts = [
        alert(1, "open", "a", good=1, bad=2, metric="eager_ms"),
        alert(2, "open", "a", good=1, bad=2),
        alert(3, "open", "b", good=1, bad=2),
    ]
    assert numbers(chosen(alerts[:2], 3)) == [1]
    assert numbers(chosen(alerts, 3)) == [3]


def test_of_the_nights_of_a_failed_bisection_no_other_is_begun(chosen, tmp_path):
    many = [alert(number, "open", f"m{number}", good=10, bad=11) for number in range(1, 41)]
    fail_here(tmp_path, 40)
    assert numbers(chosen(many, 3, [tmp_path])) == []
    assert numbers(chosen([*many, alert(41, "confirmed", "z", good=10, bad=11)], 3, [tmp_path])) == [41]


def test_only_alerts_of_the_testbeds_of_tonight_are_bisected(chosen, tmp_path):
    """A CPU agent and a GPU agent have one history."""
    begin_here(tmp_path / "2026-11-20_x", 4, "d")
    alerts = [
        alert(1, "open", "a", good=1, bad=2, testbed_id=2),
        alert(2, "confirmed", "b", testbed_id=2),
        alert(3, "open", "c", good=3, bad=4),
        alert(4, "open", "d", good=5, bad=6, testbed_id=2, **BEGUN),
    ]
    assert numbers(chosen(alerts, 3, [tmp_path])) == [3]
    done = alert(5, "open", "e", good=3, bad=4, testbed_id=2, **DONE)
    assert numbers(chosen([*alerts, done], 3)) == [], "on two machines it is one cause"


def test_a_begun_bisection_comes_before_older_ones_and_a_failed_one_is_not_repeated(chosen, tmp_path):
    alerts = [
        alert(1, "open", "a", good=1, bad=2, **BEGUN),
        alert(2, "open", "b", good=3, bad=4),
        alert(3, "open", "c", good=5, bad=6),
        alert(4, "confirmed", "d"),
    ]
    begin_here(tmp_path / "2026-11-20_x", 1, "a")
    fail_here(tmp_path, 3)
    fail_here(tmp_path, 4)
    assert numbers(chosen(alerts, 3, [tmp_path])) == [1, 4, 2]


def test_a_regression_that_returned_is_not_answered_by_the_bisection_of_its_first_time(to_bisect, tmp_path):
    """Nor by one that only measured around the culprit of another alert (`--all-alerts`)."""
    begin_here(tmp_path / "2026-11-20_x", 1, "a")
    returned = alert(1, "reopened", "a", good=22, bad=23)
    assert to_bisect["unfinished"](returned, [tmp_path]) == ""
    begin_here(tmp_path / "2026-11-23_x", 1, "a")
    begin_here(tmp_path / "2026-11-24_x", 1, "a", confirm=False)
    assert to_bisect["unfinished"](returned, [tmp_path]) == str(tmp_path / "2026-11-23_x")


def test_a_bisection_that_failed_before_the_regression_returned_does_not_count(chosen, tmp_path):
    """A night may have had no time for it while it was reopened; on the next one it is open."""
    returned = alert(1, "open", "a", good=22, bad=23)
    fail_here(tmp_path, 1, day=21)
    assert numbers(chosen([returned], 3, [tmp_path])) == [1]
    fail_here(tmp_path, 1, day=24)
    assert numbers(chosen([returned], 3, [tmp_path])) == []


def test_every_judged_metric_that_bisect_can_measure_is_bisected(chosen):
    judged = {**metrics.JUDGED, **metrics.JUDGED_COUNTS}.values()
    alerts = [
        alert(number, "confirmed", metric.column, metric=metric.column)
        for number, metric in enumerate(judged)
    ]
    left_out = {alert["metric"] for alert in alerts} - {alert["metric"] for alert in chosen(alerts, 99)}
    assert left_out == {"eager_peak_bytes", "calls_captured", "fallbacks"}
    assert left_out == {metric.column for metric in judged if not metric.name}
