"""Alerts of a history that is copied to another, such as one in PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from perfdash.detect import curation
from perfdash.detect.nightly_judging import judge_new
from perfdash.history import acts, alert_store, schema
from perfdash.history.ingest import take_in
from perfdash.history.maintenance import COPIED, NOT_COPIED, merge, prune
from perfdash.history.queries import list_runs
from tests.detect.simulated import farm, judge_last, judge_nights
from tests.stores import made_store

FAILS, SLOWER = 5, 6  # the first nights


def nights(number):
    """Of four models one fails, and one is slower, comes back and is slower again."""

    def change(night, name, values):
        if name == "model01" and (SLOWER <= night < SLOWER + 2 or night >= SLOWER + 4):
            values["graph_breaks"] = 3.0
        return values

    def statuses(night, name):
        return "crash" if name == "model02" and night >= FAILS else "pass"

    return farm(number, 4, change=change, statuses=statuses)


def alerts_of(store):
    """All alerts with their events, with names of runs instead of numbers."""
    with store.read() as connection:
        names = {run.id: run.name for run in list_runs(connection)}
        cases = dict(connection.execute(sa.select(schema.cases.c.id, schema.cases.c.digest)).all())
        alerts = alert_store.load(connection, states=alert_store.STATES)
        return [
            (
                alert.id,
                (alert.kind, alert.state, alert.opened, cases[alert.case_id], alert.metric),
                [names.get(run) for run in (alert.good_run_id, alert.bad_run_id, alert.seen_run_id)],
                [names.get(end) for spell in alert.details.get("spells", []) for end in spell],
                names.get(alert.details.get("born_run_id")),
                alert.details.get("act"),
                alert_store.events(connection, alert.id),
            )
            for alert in alerts
        ]


@pytest.fixture
def old(tmp_path):
    with made_store(tmp_path / "old.db") as opened:
        judge_nights(opened, nights(SLOWER + 6), 5)
        yield opened


@pytest.mark.slow
def test_alerts_and_decisions_about_them_are_copied_into_a_new_history(store, old):
    """A night is judged there as it would be in the old history: nothing is raised anew."""
    curation.acknowledge(old, 1, "known")
    with old.read() as connection:  # the numbers of runs differ then
        first = list_runs(connection)[:2]
    prune(old, first)
    counts = merge(store, old)
    assert (counts[COPIED], counts[NOT_COPIED]) == (2, 0)
    assert alerts_of(store) == alerts_of(old)
    assert any(line[3] for line in alerts_of(store)), "one was fixed and came back"
    with store.read() as connection:
        assert [act.why for act in acts.load(connection)] == ["known"]
    assert judge_new(store) == []
    assert merge(store, old)[COPIED] == 0
    assert merge(store, old)[NOT_COPIED] == 0
    for history in (store, old):
        take_in(history, nights(SLOWER + 7)[-1:])
        assert len(judge_new(history)) == 1
    assert [line[:5] for line in alerts_of(store)] == [line[:5] for line in alerts_of(old)]


@pytest.mark.slow
@pytest.mark.parametrize("known", [0, 4, SLOWER + 6], ids=["none", "some", "all"])
def test_decisions_about_runs_that_are_here_already_are_copied_with_the_alerts(store, old, known):
    """Else the next night is judged against the old level, and raises the accepted change again."""
    with old.read() as connection:
        runs = list_runs(connection)
    curation.accept_level(old, runs[-1].name, "costs this", curation.LevelSelection(alert=2))
    curation.exclude(old, runs[2].name, "the fan was broken")
    curation.rename(old, runs[3].name, "base", None)
    take_in(store, nights(SLOWER + 6)[:known])
    merge(store, old)
    assert merge(store, old)[COPIED] == 0
    with store.read() as connection:
        here = {run.name: run for run in list_runs(connection)}
        made = acts.load(connection)
    assert here[runs[2].name].excluded == "the fan was broken"
    wanted = [(acts.BASELINE, runs[-1].name), (acts.EXCLUDE, runs[2].name)]
    if known < 4:
        wanted.append((acts.RENAME, runs[3].name))
    assert sorted((act.act, act.subject) for act in made) == sorted(wanted)
    assert {act.run_id for act in made if act.act == acts.BASELINE} == {here[runs[-1].name].id}
    assert {act.testbed_id for act in made} == {runs[0].testbed_id}


@pytest.mark.slow
def test_a_change_that_was_fixed_on_a_night_that_was_pruned_keeps_its_last_levels(store, old):
    """A later night is excluded: the run that fixed the earlier spell tells which spell counts."""
    with old.read() as connection:
        runs = list_runs(connection)
    prune(old, runs[: SLOWER + 4])
    merge(store, old)
    for history in (store, old):
        curation.exclude(history, runs[-1].name, "a stray build")
    states = []
    for history in (store, old):
        with history.read() as connection:
            alerts = alert_store.load(connection, states=alert_store.STATES)
        states.append(
            [(alert.state, alert.bad_run_id is None, alert.details.get("returns")) for alert in alerts]
        )
    assert states[0] == states[1]


@pytest.mark.slow
@pytest.mark.parametrize("has_it", ["old", "new"])
def test_a_night_that_was_resumed_and_not_judged_again_takes_its_alerts_back(store, old, has_it):
    """As in the old history: else the alert of what the night showed at first would stay open."""
    *_, last = nights(SLOWER + 6)
    resumed = replace(
        last,
        run=replace(last.run, ended="2026-02-01T00:00:00Z"),
        rows=[replace(one, status="pass") for one in last.rows],
    )
    take_in(old if has_it == "old" else store, [resumed])
    merge(store, old)
    take_in(old, [resumed])
    for history in (store, old):
        judge_new(history)
    assert [line[:5] for line in alerts_of(store)] == [line[:5] for line in alerts_of(old)]
    assert alerts_of(store)[0][1][1] == alert_store.FIXED


def test_a_new_alert_has_the_number_after_those_that_were_copied(store, old):
    merge(store, old)
    with store.write() as connection:
        (alert, *_) = alert_store.load(connection, states=alert_store.STATES)
        fields = {**vars(alert), "id": None}
        assert alert_store.save(connection, alert_store.Alert(**fields)) == 3


@pytest.mark.slow
def test_open_alerts_that_were_not_copied_are_counted(store, old):
    """Here nights were judged: alerts of the same numbers may be here."""
    take_in(store, nights(5))
    judge_last(store, 1)
    counts = merge(store, old)
    assert (counts[COPIED], counts[NOT_COPIED]) == (0, 2)
    judge_new(store)
    assert merge(store, old)[NOT_COPIED] == 0
