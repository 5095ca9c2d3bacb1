"""Runs of a few models by hand, and runs side by side: what they say of the nights after them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.detect.nightly_judging import judge_new
from perfdash.detect.nights import were_nights
from perfdash.history import alert_store
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs, panel
from tests.detect.simulated import begin, by_hand, farm, judge_nights
from tests.stores import made_store


@pytest.fixture
def quick(tmp_path):
    with made_store(tmp_path / "history.db") as opened:
        yield opened


def states(store):
    with store.read() as connection:
        return sorted(
            (alert.kind, alert.case_id, alert.metric, alert.direction, alert.state)
            for alert in alert_store.load(connection, states=alert_store.STATES)
        )


BROKEN = 6


def farm_that_breaks(nights):
    """From night BROKEN on model01 crashes, model02 has graph breaks, and model03 is missing."""

    def change(night, name, values):
        if night >= BROKEN and name == "model03":
            return None
        return {**values, "graph_breaks": 9.0} if night >= BROKEN and name == "model02" else values

    def statuses(night, name):
        return "crash" if night >= BROKEN and name == "model01" else "pass"

    return farm(nights, 8, change=change, statuses=statuses)


@pytest.mark.parametrize("hours", [[12], [12, 13], [12, 13, 14]], ids=["once", "twice", "three times"])
@pytest.mark.parametrize(
    ("models", "torch"),
    [
        (["model01", "model02"], BROKEN),
        (["model04", "model05"], BROKEN),
        (["model01", "model02", "model03"], BROKEN - 1),
    ],
    ids=["models that break", "other models", "before they break"],
)
def test_a_night_after_runs_by_hand_raises_the_same_alerts(quick, tmp_path, hours, models, torch):
    runs = farm_that_breaks(BROKEN + 2)
    before = runs[BROKEN - 1].run
    desk = replace(runs[torch], run=replace(runs[torch].run, started=before.started))
    judge_nights(quick, runs[:BROKEN], BROKEN - 1)
    for hour in hours:
        take_in(quick, [by_hand(desk, hour, models)])
        judge_new(quick)
    with made_store(tmp_path / "without.db") as without:
        judge_nights(without, runs[:BROKEN], BROKEN - 1)
        for night in runs[BROKEN:]:
            for store in (quick, without):
                take_in(store, [night])
                judge_new(store)
        expected = states(without)
    assert [(kind, metric) for kind, _, metric, *_ in expected] == [
        ("count", "graph_breaks"),
        ("status", "status"),
        ("vanished", None),
    ]
    found = [(kind, case, metric, direction) for kind, case, metric, direction, _ in states(quick)]
    assert found == [alert[:4] for alert in expected]
    assert {state for *_, state in states(quick)} <= set(alert_store.LIVE)


def test_runs_by_hand_were_no_nights(quick):
    def grows(night, name, values):
        return values if night >= 3 or name < "model04" else None

    runs = farm(6, 12, change=grows)
    few = [by_hand(runs[3], hour, ["model00", "model05"]) for hour in (12, 13)]
    other = by_hand(runs[4], 12, ["model01"])
    other = replace(other, rows=tuple(replace(r, case=replace(r.case, model="new")) for r in other.rows))
    take_in(quick, [*runs, *few, other])
    with quick.read() as connection:
        lines = list_runs(connection)
        flags = were_nights(panel(connection, lines, ()))
    no_nights = [line.started[8:13] for line, was_night in zip(lines, flags, strict=False) if not was_night]
    # The second run by hand was judged by the first; a run of new models has nothing to be judged by.
    assert no_nights == ["04T12"]


def of_batch_size(night, batch_size, minute):
    """A night's run as one of several side by side, which differ in the batch size alone."""
    rows = tuple(replace(row, case=replace(row.case, batch_size=batch_size)) for row in night.rows)
    name = f"{night.run.name}_{batch_size}"
    started = night.run.started.replace("T01:00", f"T01:{minute:02}")
    return replace(night, run=replace(night.run, name=name, uid=name, started=started), rows=rows)


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_of_runs_side_by_side_without_common_cases_none_is_late(quick, first_to_end):
    def statuses(night, name):
        return "crash" if name == "model03" and night >= 6 else "pass"

    nights = [
        [of_batch_size(night, batch_size, minute) for minute, batch_size in enumerate((1, 32))]
        for night in farm(9, 4, statuses=statuses)
    ]
    begin(quick, [run for night in nights[:6] for run in night])
    for night in nights[6:]:
        for place in (first_to_end, 1 - first_to_end):
            take_in(quick, [night[place]])
            judge_new(quick)
    assert [(kind, state) for kind, *_, state in states(quick)] == [("status", "open")] * 2
