"""Excluded, removed and renamed runs, who did it, and what is judged again."""

from __future__ import annotations

import getpass
import socket
import threading
from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from perfdash.detect import curation
from perfdash.detect.comparison_in_history import noise_before
from perfdash.detect.nightly_judging import judge_new
from perfdash.errors import UsageError
from perfdash.history import acts, alert_store, schema
from perfdash.history.earlier_nights import earlier_processes
from perfdash.history.ingest import KNOWN, REPLACED, take_in
from perfdash.history.maintenance import merge
from perfdash.history.nightlies import Nightly, begin
from perfdash.history.nightlies import load as nightlies
from perfdash.history.queries import (
    case_numbers,
    list_runs,
    read_run,
    series,
    trend,
)
from perfdash.history.run_selection import find_run, select
from perfdash.history.store import open_store
from perfdash.report.night import of_history
from tests.detect.simulated import farm, judge_nights, slower
from tests.effort import trials
from tests.history.made import row, run
from tests.stores import in_sqlite, made_store

FIRST, SECOND, THIRD = (f"2026-11-0{day}T01-00-00Z_farm" for day in (1, 2, 3))


@pytest.fixture
def three(store):
    take_in(store, [run(f"2026-11-0{day}", [row()]) for day in (1, 2, 3)])
    return store


def test_an_act_is_kept_with_who_where_when_and_why(three):
    curation.exclude(three, SECOND, "the fan\nwas broken")
    with three.read() as connection:
        (act,) = acts.load(connection)
    assert (act.act, act.subject, act.why) == ("exclude", SECOND, "the fan was broken")
    assert (act.who, act.host) == (getpass.getuser(), socket.gethostname())
    assert act.at.endswith("Z")


def test_an_excluded_run_is_kept_and_left_out_of_what_is_judged(three):
    curation.exclude(three, SECOND, "the fan was broken")
    with three.read() as connection:
        assert [line.excluded for line in list_runs(connection)] == [None, "the fan was broken", None]
        assert [line.name for line in list_runs(connection, with_excluded=False)] == [FIRST, THIRD]
        assert [line.name for line in select(connection, "2026-11")] == [FIRST, THIRD]
        assert [line.name for line in select(connection, SECOND)] == [SECOND]
        with pytest.raises(UsageError, match="only runs that were excluded"):
            select(connection, "2026-11-02")
        (number,) = case_numbers(connection, 1).values()
        assert [point.excluded for point in series(connection, number, "speedup")][1] == "the fan was broken"
        assert [night["excluded"] for night in trend(connection, "timm")][1] == "the fan was broken"


def test_a_run_stays_excluded_when_it_is_resumed(store):
    take_in(store, [run("2026-11-01", [row()], expected=2, ended=None)])
    curation.exclude(store, FIRST, "half of it")
    assert take_in(store, [run("2026-11-01", [row(), row("vgg16")])]) == [REPLACED]
    with store.read() as connection:
        assert [line.excluded for line in list_runs(connection)] == ["half of it"]


def test_each_act_happens_once(three):
    curation.exclude(three, SECOND, "the fan was broken")
    with pytest.raises(
        UsageError, match=rf"{SECOND} was excluded by .* on 20.*: the fan was broken; .*--undo"
    ):
        curation.exclude(three, SECOND, "again")
    curation.restore(three, SECOND)
    with pytest.raises(UsageError, match=r"is not excluded: .* brought it back on"):
        curation.restore(three, SECOND)


def test_of_two_people_who_remove_a_run_the_second_is_reported_who_did(three):
    with three.read() as connection:
        line = acts.the_run(connection, SECOND)
    curation.remove(three, line, "a test")
    with pytest.raises(UsageError, match=rf"no run '{SECOND}'; .* removed it on 20"):
        curation.remove(three, line)
    with three.read() as connection:
        assert [run_line.name for run_line in list_runs(connection)] == [FIRST, THIRD]
        assert connection.execute(sa.select(sa.func.count()).select_from(schema.results)).scalar() == 2


def test_a_run_that_changed_since_it_was_looked_up_is_not_removed(three):
    with three.read() as connection:
        line = acts.the_run(connection, SECOND)
    curation.exclude(three, SECOND, "wait")
    with pytest.raises(UsageError, match="has changed since it was looked up"):
        curation.remove(three, line)


def test_a_name_that_several_runs_have_needs_an_id(store):
    take_in(store, [run("2026-11-01", [row()], host="a"), run("2026-11-01", [row()], host="b")])
    with store.read() as connection:
        with pytest.raises(UsageError, match=rf"'{FIRST}' means 2 runs; .*id:1 .* on a, .*; id:2 .* on b"):
            acts.the_run(connection, FIRST)
        assert acts.the_run(connection, "id:2").host == "b"
        for missing in ("id:9", "id:99999999999999", "nothing"):
            with pytest.raises(UsageError, match="the latest are"):
                acts.the_run(connection, missing)


def test_a_new_name_stays_when_the_run_is_imported_again(three):
    with three.write() as connection:
        begin(connection, Nightly("farm", "n1", "2026-11-02T00:00:00Z", 86400, 60, runs=(SECOND,)))
    curation.rename(three, SECOND, "before-the-upgrade")
    assert take_in(three, [run("2026-11-02", [row()])]) == [KNOWN]
    assert take_in(three, [run("2026-11-02", [row(), row("vgg16")])]) == [REPLACED]
    with three.read() as connection:
        assert [line.name for line in list_runs(connection)] == [FIRST, "before-the-upgrade", THIRD]
        assert nightlies(connection)[0].runs == ("before-the-upgrade",)
        with pytest.raises(UsageError, match="renamed it to 'before-the-upgrade' on"):
            acts.the_run(connection, SECOND)
    with pytest.raises(UsageError, match="is the name of the run that started"):
        curation.rename(three, FIRST, THIRD)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "last",
        "2026-11-01",
        "2026",
        "a,b",
        "../x",
        "abcdef0",
        "torch==2.9",
        "a..b",
        "-x",
        "id:3",
        "a\n",
        "2.14.0",
    ],
)
def test_a_name_that_means_something_else_is_refused(three, name):
    with pytest.raises(UsageError, match="cannot be the name of a run"):
        curation.rename(three, FIRST, name)


@settings(max_examples=trials(30))
@given(name=st.text(max_size=30) | st.from_regex(r"[\w.@+:=-]{1,12}", fullmatch=True))
def test_any_name_that_is_taken_selects_that_run_alone(tmp_path_factory, name):
    with made_store(tmp_path_factory.mktemp("db") / "h.db") as opened:
        take_in(opened, [run(f"2026-11-0{day}", [row()]) for day in (1, 2)])
        try:
            curation.rename(opened, FIRST, name)
        except UsageError:
            return
        with opened.read() as connection:
            assert [line.id for line in select(connection, name)] == [1]


def test_merging_brings_what_people_did_with_the_runs(three, tmp_path):
    curation.exclude(three, SECOND, "the fan was broken")
    curation.rename(three, FIRST, "first")
    with made_store(tmp_path / "other.db") as target:
        merge(target, three)
        merge(target, three)
        with target.read() as connection:
            assert [line.excluded for line in list_runs(connection)] == [None, "the fan was broken", None]
            assert sorted(act.act for act in acts.load(connection)) == ["exclude", "rename"]
            assert acts.given_name(connection, acts.the_run(connection, "first").id) == "first"


def test_a_reason_holds_no_secret(three, monkeypatch):
    monkeypatch.setenv("FARM_TOKEN", "hunter2hunter2hunter2")
    curation.exclude(three, SECOND, "FARM_TOKEN=hunter2hunter2hunter2")
    with three.read() as connection:
        assert "hunter2" not in str(acts.load(connection)) + str(list_runs(connection)[1].excluded)


def alerts(store, *states):
    """Number, metric and state of the alerts, and the day since which each is seen."""
    with store.read() as connection:
        runs = {line.id: line.started[:10] for line in list_runs(connection)}
        return [
            (alert.id, alert.metric, alert.state, runs.get(alert.bad_run_id))
            for alert in alert_store.load(connection, states=states or alert_store.STATES)
        ]


def name_of(runs, night):
    return runs[night].run.name


@in_sqlite
def test_an_alert_that_a_wrong_night_raised_is_dismissed_when_the_night_is_excluded(store):
    runs = farm(31, statuses=lambda night, name: "crash" if (night, name) == (30, "model05") else "pass")
    judge_nights(store, runs)
    ((number, *_, state, since),) = alerts(store)
    assert (state, since) == ("new", "2026-01-31")
    _, nights = curation.exclude(store, name_of(runs, 30), "a stray build on the host")
    judge_new(store)
    assert nights == 0
    assert [alert[2] for alert in alerts(store)] == ["dismissed"]
    with store.read() as connection:
        notes = [event.note for event in alert_store.events(connection, number)]
    assert notes[-1].endswith("was excluded: a stray build on the host")
    curation.restore(store, name_of(runs, 30))
    judge_new(store)
    assert alerts(store) == [(number, "status", "new", "2026-01-31")]


@pytest.mark.slow
def test_judging_again_without_a_night_tells_what_a_history_without_it_would_have(store, tmp_path):
    def change(night, name, values):
        if night == 27:  # a wrong night: everything of some models is off
            values["backend_ms"] *= 1.5 if name < "model08" else 1
        return slower("model03", 29, 1.2)(night, name, values)

    runs = farm(34, change=change)
    judge_nights(store, runs)
    _, nights = curation.exclude(store, name_of(runs, 27), "wrong")
    assert nights == 6
    judge_new(store)
    with made_store(tmp_path / "without.db") as without:
        judge_nights(without, [*runs[:27], *runs[28:]])
        expected = alerts(without, *alert_store.LIVE)
    assert [alert[1:] for alert in alerts(store, *alert_store.LIVE)] == [
        alert_row[1:] for alert_row in expected
    ]
    with store.read() as connection:
        assert [line.name for line in list_runs(connection) if line.judged is None and line.id > 25] == [
            name_of(runs, 27)
        ]


@in_sqlite
@pytest.mark.slow
def test_what_a_person_acknowledged_stays_so_when_it_is_raised_again(store):
    runs = farm(34, change=slower("model03", 29, 1.3))
    judge_nights(store, runs)
    ((number, *_),) = alerts(store)
    curation.acknowledge(store, number, "known")
    for night in (29, 28):
        curation.exclude(store, name_of(runs, night), "wrong")
        judge_new(store)
        assert [alert[:3] for alert in alerts(store)] == [(number, "backend_ms", "acknowledged")]
    with store.read() as connection:
        (alert,) = alert_store.load(connection)
    assert alert.details["act"]["why"] == "known"


@in_sqlite
def test_a_withdrawn_alert_says_nothing_of_a_failure_of_months_later(store):
    """A run with a wrong clock is in the history, by whose date the alert could be raised again."""
    nights = farm(9, 4, statuses=lambda night, name: "crash" if night in (6, 8) else "pass")
    ahead = replace(nights[5].run, name="ahead", uid="ahead", started="2999-01-01T01:00:00Z")
    judge_nights(store, nights[:7], first=5)
    with store.read() as connection:
        alerts = alert_store.load(connection)
    for alert in alerts:
        curation.acknowledge(store, alert.id)
    take_in(store, [replace(nights[5], run=ahead)])
    curation.exclude(store, nights[6].run.name, "flaky")
    for night in nights[7:]:
        take_in(store, [night])
        judge_new(store)
    with store.read() as connection:
        states = [alert.state for alert in alert_store.load(connection, states=alert_store.STATES)]
    assert states == ["dismissed"] * 4 + ["new"] * 4


@pytest.mark.slow
def test_exclude_and_undo_leave_the_alerts_as_they_were(store):
    runs = farm(34, change=slower("model03", 29, 1.2))
    judge_nights(store, runs)
    before = alerts(store)
    assert [alert[2] for alert in before] == ["open"]
    curation.exclude(store, name_of(runs, 28), "why not")
    judge_new(store)
    curation.restore(store, name_of(runs, 28))
    judge_new(store)
    assert alerts(store) == before


def returns(store):
    """The alerts with how often each came back, and the days between which it was there before."""
    with store.read() as connection:
        days = {line.id: line.started[:10] for line in list_runs(connection)}
        return [
            (
                alert.state,
                days.get(alert.bad_run_id),
                alert.details.get("returns", 0),
                [[days[end] for end in spell] for spell in alert.details.get("spells", [])],
            )
            for alert in alert_store.load(connection, states=alert_store.STATES)
        ]


@in_sqlite
@pytest.mark.parametrize("night", [27, 31, 34], ids=["while it was new", "while fixed", "after its return"])
@pytest.mark.slow
def test_judging_again_counts_a_return_once(store, tmp_path, night):
    def change(night, name, values):
        bad = 26 <= night < 29 or night >= 33
        return slower("model05", 0 if bad else 10**6, 1.4)(night, name, values)

    runs = farm(37, 6, change=change)
    judge_nights(store, runs)
    before = returns(store)
    assert [alert[::2] for alert in before] == [("open", 1)]
    curation.exclude(store, name_of(runs, night), "wrong")
    judge_new(store)
    with made_store(tmp_path / "without.db") as without:
        judge_nights(without, [*runs[:night], *runs[night + 1 :]])
        assert returns(store) == returns(without)
    if night == 31:
        assert returns(store) == before
        curation.restore(store, name_of(runs, night))
        judge_new(store)
        assert returns(store) == before


def remove(store, name, why):
    with store.read() as connection:
        line = acts.the_run(connection, name)
    curation.remove(store, line, why)


@pytest.mark.parametrize("leave_out", [curation.exclude, remove])
@pytest.mark.slow
def test_an_alert_stays_open_without_the_first_night_of_its_change(store, monkeypatch, leave_out):
    monkeypatch.setattr(curation, "LATEST", 5)  # as where a night consists of several runs
    runs = farm(40, 6, change=slower("model05", 30, 1.15))
    judge_nights(store, runs[:38], first=30)
    assert [alert[1:] for alert in alerts(store)] == [("backend_ms", "open", "2026-01-31")]
    for night, since in ((30, "2026-02-01"), (29, "2026-02-01"), (31, "2026-02-02")):
        leave_out(store, name_of(runs, night), "the fan was broken")
        judge_new(store)
        assert [alert[1:] for alert in alerts(store)] == [("backend_ms", "open", since)]
    for night in runs[38:]:
        take_in(store, [night])
        judge_new(store)
    assert [alert[2] for alert in alerts(store)] == ["open"]
    with store.read() as connection:
        (alert,) = alert_store.load(connection)
        days = {line.id: line.started[:10] for line in list_runs(connection)}
    assert days[alert.good_run_id] == "2026-01-29"
    assert "fixed" not in states_of(store, alert.id)


def states_of(store, number):
    with store.read() as connection:
        return [event.state for event in alert_store.events(connection, number)]


@in_sqlite
@pytest.mark.slow
def test_without_the_last_good_night_the_levels_are_those_of_another(store, monkeypatch):
    """On that night the whole host was slower, which the levels of the alert contain."""
    monkeypatch.setattr(curation, "LATEST", 5)

    def change(night, name, values):
        values["backend_ms"] *= 1.06 if night == 29 else 1.0
        return slower("model05", 30, 1.09)(night, name, values)

    runs = farm(43, change=change)
    judge_nights(store, runs[:40], first=30)
    level = [of_night.rows[5].values["backend_ms"] for of_night in runs[:29]]

    def before():
        with store.read() as connection:
            (alert,) = (one for one in alert_store.load(connection) if one.kind == "metric")
        return alert.before / np.median(level)

    assert before() == pytest.approx(1.06, abs=0.02)
    curation.exclude(store, name_of(runs, 29), "the fan was broken")
    judge_new(store)
    assert before() == pytest.approx(1.0, abs=0.02)
    for night in runs[40:]:
        take_in(store, [night])
        judge_new(store)
    ((number, *_),) = (alert for alert in alerts(store) if alert[3] == "2026-01-31")
    assert "fixed" not in states_of(store, number)


@in_sqlite
@pytest.mark.slow
def test_excluded_nights_are_no_noise(store):
    """Ten wrong nights hide a change of 20 %; without them it is found."""
    wrong = range(8, 28, 2)

    def change(night, name, values):
        if night in wrong:
            values["backend_ms"] *= 1.3 if (night + int(name[-2:])) % 4 < 2 else 1 / 1.3
        return slower("model03", 30, 1.2)(night, name, values)

    runs = farm(33, change=change)
    judge_nights(store, runs, first=30)
    assert alerts(store, *alert_store.LIVE) == []
    for night in wrong:
        curation.exclude(store, name_of(runs, night), "wrong")
    judge_new(store)
    with store.read() as connection:
        (alert,) = alert_store.load(connection)
    assert alert.metric == "backend_ms"
    assert alert.details["sd"] < 0.02


def test_two_who_judge_at_once_judge_a_night_once(store):
    runs = farm(31, change=slower("model05", 30, 1.4))
    judge_nights(store, runs, first=30)
    assert judge_new(store) == []


def test_of_people_who_exclude_a_run_at_once_one_does_and_the_others_are_reported(three, address):
    outcomes = []

    def act(number):
        with open_store(address) as opened:
            try:
                curation.exclude(opened, SECOND, f"reason {number}")
                outcomes.append(None)
            except UsageError as error:
                outcomes.append(str(error))

    threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(None) == 1
    with three.read() as connection:
        (made,) = acts.load(connection)
    assert all(outcome is None or f"was excluded by {made.person}" in outcome for outcome in outcomes)
    assert all(outcome is None or str(made.why) in outcome for outcome in outcomes)


STEPS = st.lists(st.tuples(st.booleans(), st.integers(25, 31)), min_size=1, max_size=5)


@pytest.mark.slow
@settings(max_examples=trials(2), phases=[Phase.explicit, Phase.generate])
@example(steps=[(True, 28), (True, 29), (False, 28)])
@example(steps=[(True, 31), (True, 27), (False, 31), (False, 27)])
@given(steps=STEPS)
def test_after_any_corrections_the_alerts_are_those_of_a_history_without_the_excluded_nights(
    tmp_path_factory, steps
):
    def change(night, name, values):
        if night == 27 and name in ("model01", "model02"):
            values["backend_ms"] *= 1.5
        return slower("model03", 28, 1.3)(night, name, values)

    def status(night, name):
        return (
            "crash"
            if (name == "model05" and night in (27, 28)) or (name, night) == ("model04", 31)
            else "pass"
        )

    runs = farm(32, models=6, change=change, statuses=status)
    folder = tmp_path_factory.mktemp("db")
    excluded = set()
    with (
        made_store(folder / "corrected.db") as corrected,
        made_store(folder / "other.db") as without,
    ):
        judge_nights(corrected, runs)
        for exclude, night in steps:
            if exclude and night not in excluded:
                curation.exclude(corrected, name_of(runs, night), "wrong")
                excluded.add(night)
            elif not exclude and night in excluded:
                curation.restore(corrected, name_of(runs, night))
                excluded.remove(night)
            judge_new(corrected)
        judge_nights(without, [run for place, run in enumerate(runs) if place not in excluded])
        states = (*alert_store.LIVE, alert_store.FIXED)
        assert sorted(alert[1:3] for alert in alerts(corrected, *states)) == sorted(
            alert[1:3] for alert in alerts(without, *states)
        )


@in_sqlite
def test_what_an_excluded_run_would_say_of_noise_and_changes_is_not_heard(store):
    runs = farm(31, models=3, noise=0.01, change=slower("model01", 20, 3.0, until=24))
    take_in(store, runs)
    for night in range(20, 24):
        curation.exclude(store, name_of(runs, night), "wrong")
    with store.read() as connection:
        noise = noise_before(connection, [runs[-1]])
        assert all(series.sd < 0.02 for series in noise["backend_ms"].values())
        imported = read_run(connection, find_run(connection, name_of(runs, 21)))
        assert of_history(connection, imported).untold == "this run was excluded from judging: wrong"
        assert find_run(connection, "last").name == name_of(runs, 30)
    curation.exclude(store, "last", "wrong")
    with store.read() as connection:
        assert find_run(connection, "last").name == name_of(runs, 29)


def test_processes_of_an_excluded_night_do_not_widen_an_interval(store):
    processes = {"processes": {"ratios": [1.0, 2.0], "within": 0.01}}
    take_in(store, [run(f"2026-11-0{day}", [replace(row(), details=processes)]) for day in (1, 2, 3)])
    curation.exclude(store, FIRST, "wrong")
    with store.read() as connection:
        third = list_runs(connection)[2]
        (nights,) = earlier_processes(connection, third, [row().case]).values()
    assert len(nights) == 1
