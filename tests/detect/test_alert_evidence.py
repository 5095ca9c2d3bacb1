"""The evidence of an alert does not depend on how many runs a night consists of, or on its kind."""

from __future__ import annotations

import math

import pytest

from perfdash.detect import alert_evidence
from perfdash.detect.alert_evidence import gather
from perfdash.history import alert_store
from perfdash.history.ingest import take_in
from tests.detect.simulated import add_runs_beside, farm, judge_nights, on_second_machine, slower
from tests.stores import made_store


@pytest.fixture
def quick(tmp_path):
    with made_store(tmp_path / "history.db") as opened:
        yield opened


def test_an_old_alert_is_dated_by_nights_of_twelve_runs_as_by_nights_of_one(quick):
    runs = farm(98, 3, change=slower("model01", 26, 1.15))
    judge_nights(quick, runs[:28], 26)
    take_in(quick, runs[28:])
    with quick.read() as connection:
        alerts = alert_store.load(connection, states=alert_store.SHOWN)
        of_one = gather(connection, alerts)
    add_runs_beside(quick, 11)
    with quick.read() as connection:
        of_twelve = gather(connection, alerts)
    assert [item.before for item in of_one] == [26]
    assert [(item.before, item.nights, item.interval, item.between) for item in of_twelve] == [
        (item.before, item.nights, item.interval, item.between) for item in of_one
    ]


def test_the_speedups_of_a_change_have_no_later_change_in_them(quick):
    def change(night, name, values):
        if name == "model03":
            values["backend_ms"] *= (1.05 if night >= 30 else 1.0) * (1.4 if night >= 40 else 1.0)
        return {**values, "speedup": values["eager_ms"] / values["backend_ms"]}

    judge_nights(quick, farm(42, 12, noise=0.003, change=change), 29)
    with quick.read() as connection:
        evidence = gather(connection, alert_store.load(connection, states=alert_store.SHOWN))
    changes = {item.alert.change: item.speedup[1] / item.speedup[0] for item in evidence if item.speedup}
    assert len(changes) == 2
    for change_of_latency, of_speedup in changes.items():
        assert of_speedup == pytest.approx(math.exp(-change_of_latency), rel=0.01)


@pytest.mark.parametrize("both", [False, True])
def test_a_change_is_as_many_nights_old_as_there_are_days_since(quick, both):
    """A slowdown, a failure and a model that vanished, six nights ago, on one and on two machines."""
    change = slower("model01", 26, 1.2)

    def values(night, name, measured):
        return None if name == "model03" and night >= 26 else change(night, name, measured)

    def statuses(night, name):
        return "crash" if name == "model02" and night >= 26 else "pass"

    nights = farm(32, 6, change=values, statuses=statuses)
    runs = [run for night in nights for run in ((night, on_second_machine(night)) if both else (night,))]
    judge_nights(quick, runs, 26 * (1 + both))
    with quick.read() as connection:
        evidence = gather(connection, alert_store.load(connection, states=alert_store.SHOWN))
    assert sorted((item.alert.kind, item.nights) for item in evidence) == [
        ("metric", 6),
        ("status", 6),
        ("vanished", 6),
    ]


def test_nights_that_did_not_measure_a_failing_case_do_not_count(quick):
    runs = farm(
        9,
        6,
        change=lambda night, name, values: None if name == "model02" and night in (5, 6) else values,
        statuses=lambda night, name: "crash" if name == "model02" and night >= 4 else "pass",
    )
    judge_nights(quick, runs, 4)
    with quick.read() as connection:
        (failure,) = gather(connection, alert_store.load(connection, states=alert_store.SHOWN))
    assert (failure.alert.kind, failure.nights) == ("status", 3)


@pytest.mark.slow
def test_an_alert_that_is_older_than_the_nights_that_date_it_is_as_many_nights_old(quick, monkeypatch):
    monkeypatch.setattr(alert_evidence, "_DATED_IN", 20)
    judge_nights(quick, farm(52, 3, change=slower("model01", 26, 1.2)), 26)
    with quick.read() as connection:
        (item,) = gather(connection, alert_store.load(connection, states=alert_store.SHOWN))
    assert (item.alert.state, item.nights) == ("open", 26)
