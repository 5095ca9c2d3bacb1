"""Changes of status, count, host or missing models, which have no noise, that come back again and again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.history import alert_store
from tests.detect.simulated import farm, judge_nights
from tests.stores import made_store

KINDS = ("count", "status", "vanished", "host")


@pytest.fixture
def quick(tmp_path):
    with made_store(tmp_path / "history.db") as opened:
        yield opened


def farm_with(kind, nights, bad):
    """Nights of which those in `bad` have a change of this kind."""

    def change(night, name, values):
        if night not in bad:
            return values
        if kind == "host":
            values["backend_ms"] *= 1.3
        elif kind == "count" and name == "model01":
            values["graph_breaks"] = 3.0
        elif kind == "vanished" and name == "model01":
            return None
        return values

    def statuses(night, name):
        return "crash" if kind == "status" and name == "model01" and night in bad else "pass"

    return farm(nights, 24 if kind == "host" else 4, change=change, statuses=statuses)


def the_alert(store):
    with store.read() as connection:
        (alert,) = alert_store.load(connection, states=alert_store.STATES)
        return alert, [event.state for event in alert_store.events(connection, alert.id)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_change_without_noise_that_returns_twice_is_reopened_twice(quick, kind):
    judge_nights(quick, farm_with(kind, 34, {*range(14, 18), *range(22, 26), *range(30, 34)}), 14)
    _, states = the_alert(quick)
    again = ["reopened", "open"]
    assert states == ["new", "confirmed", "open", "fixed", *again, "fixed", *again]


@pytest.mark.parametrize(("until", "states"), [(17, ["fixed"]), (20, ["reopened", "open"])])
@pytest.mark.parametrize("kind", KINDS)
def test_a_change_without_noise_that_an_older_perfdash_left_suspected_is_decided(quick, kind, until, states):
    runs = farm_with(kind, 20, range(14, until))
    judge_nights(quick, runs[:17], 14)
    alert, before = the_alert(quick)
    with quick.write() as connection:
        details = {**alert.details, "returns": 2, "spells": [], "fixed_states": []}
        alert_store.save(connection, replace(alert, state=alert_store.SUSPECTED, details=details))
    for night in runs[17:]:
        judge_nights(quick, [night], 0)
    assert the_alert(quick)[1] == [*before, "suspected", *states]
