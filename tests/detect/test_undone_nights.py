"""What alerts are after a night that changed them is excluded or measured again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.detect import curation
from perfdash.detect.nightly_judging import judge_new
from perfdash.history import alert_store
from perfdash.history.queries import list_runs
from tests.detect.simulated import begin, farm, judge_nights, slower
from tests.detect.test_nightly_judging import of_setting
from tests.stores import made_store


@pytest.fixture
def quick(tmp_path):
    with made_store(tmp_path / "history.db") as opened:
        yield opened


def by_methods(runs, other):
    """The nights, of which one (`other`) is measured by another method."""
    methods = [{"latency": 2} if night == other else {} for night in range(len(runs))]
    return [
        replace(night, run=replace(night.run, method=method))
        for night, method in zip(runs, methods, strict=True)
    ]


def alerts(store):
    with store.read() as connection:
        return alert_store.load(connection, states=alert_store.STATES)


def run_names(store, alert):
    with store.read() as connection:
        return [event.run for event in alert_store.events(connection, alert.id)]


@pytest.mark.parametrize("acknowledged", [False, True])
@pytest.mark.parametrize("night", [19, 57], ids=["soon", "45 nights after the change"])
def test_alerts_return_when_the_only_night_of_another_method_is_excluded(quick, night, acknowledged):
    runs = by_methods(farm(night + 3, 4, change=slower("model03", 12, 1.2)), night)
    judge_nights(quick, runs[:18], 11)
    begin(quick, runs[18:night])
    (before,) = alerts(quick)
    if acknowledged:
        curation.acknowledge(quick, before.id, "known")
        (before,) = alerts(quick)
    judge_nights(quick, runs[night : night + 1], 0)
    (superseded,) = alerts(quick)
    assert superseded.state == alert_store.SUPERSEDED
    assert run_names(quick, superseded)[-1] == runs[night].run.name
    curation.exclude(quick, runs[night].run.name, "the wrong perfdash")
    judge_new(quick)
    (after,) = alerts(quick)
    assert replace(after, changed=before.changed) == before
    judge_nights(quick, runs[night + 1 :], 0)
    assert [(alert.id, alert.state) for alert in alerts(quick)] == [(before.id, before.state)]


def test_the_night_of_another_method_may_be_restored(quick):
    runs = by_methods(farm(17, 4, change=slower("model03", 9, 1.2)), 16)
    judge_nights(quick, runs, 9)
    before = [(alert.id, alert.state) for alert in alerts(quick)]
    assert before == [(1, alert_store.SUPERSEDED)]
    curation.exclude(quick, runs[16].run.name, "the wrong perfdash")
    curation.restore(quick, runs[16].run.name)
    judge_new(quick)
    assert [(alert.id, alert.state) for alert in alerts(quick)] == before


KINDS = ("status", "vanished")


@pytest.mark.parametrize("kind", KINDS)
def test_an_alert_goes_back_to_a_run_of_its_own_setting(quick, kind):
    def change(night, name, values):
        return None if (kind, name) == ("vanished", "model01") and night >= 6 else values

    def statuses(night, name):
        return "crash" if (kind, name) == ("status", "model01") and night >= 6 else "pass"

    one, other = farm(9, 4, change=change, statuses=statuses), farm(9, 4)
    nights = [[of_setting(a, 1), of_setting(b, 4)] for a, b in zip(one, other, strict=True)]
    begin(quick, [run for night in nights[:6] for run in night])
    for night in nights[6:]:
        for run in night:
            judge_nights(quick, [run], 0)
    (alert,) = alerts(quick)
    assert (alert.kind, alert.state) == (kind, "open")
    curation.exclude(quick, nights[8][0].run.name, "the fan was broken")
    judge_new(quick)
    (alert,) = alerts(quick)
    with quick.read() as connection:
        (seen,) = list_runs(connection, ids=[alert.seen_run_id])
    assert (alert.state, seen.name) == ("confirmed", nights[7][0].run.name)
    assert run_names(quick, alert)[-1] == nights[7][0].run.name
