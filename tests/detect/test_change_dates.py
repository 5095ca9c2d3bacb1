from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.detect import alert_evidence, later_nights
from perfdash.detect.alert_evidence import gather
from perfdash.detect.change_dates import date_change, lasting_changes
from perfdash.detect.findings import NetLogs
from perfdash.detect.nightly_judging import judge_new
from perfdash.history import alert_store as kept
from perfdash.history.ingest import take_in
from perfdash.history.queries import cases_by_id, list_runs, panel
from perfdash.metrics import JUDGED
from tests.detect.simulated import farm, judge_last, names, slower
from tests.stores import made_store


@pytest.fixture
def taken(tmp_path):
    def take(runs):
        opened.append(made_store(tmp_path / "history.db"))
        take_in(opened[0], runs)
        return opened[0]

    opened = []
    yield take
    for store in opened:
        store.close()


def test_the_builds_between_which_an_alert_lies(taken):
    runs = farm(40, change=slower("model03", 32, 1.10))
    store = taken(runs)
    judge_last(store, 10)
    with store.read() as connection:
        (evidence,) = gather(connection, kept.load(connection))
    good, bad = evidence.between
    assert (good.name, bad.name) == (names(runs)[31], names(runs)[32])
    assert evidence.case.model == "model03"
    assert evidence.speedup is None, "these nights have no speedup"


@pytest.mark.parametrize("at_once", [1, 3, 50])
@pytest.mark.slow
def test_nights_long_before_an_alert_are_not_read_and_date_nothing(taken, monkeypatch, at_once):
    """As many nights as date an alert tell the same as all of them."""

    def change(night, name, values):
        values = slower("model03", 82, 1.10)(night, name, values)
        return slower("model05", 70, 1.20)(night, name, values)

    store = taken(farm(90, change=change))
    judge_last(store, 25)
    read = []

    def reading(connection, runs, metrics, case_ids):
        read.append((len(runs), len(case_ids)))
        return panel(connection, runs, metrics, case_ids=case_ids)

    def told(item):
        return item.alert.id, item.between, item.interval, item.nights, item.dates, item.speedup

    with store.read() as connection:
        alerts = kept.load(connection)
        assert {alert.case_id for alert in alerts}, "there is something to date"
        monkeypatch.setattr(alert_evidence, "NIGHTS_BEFORE", 1000)
        of_all = gather(connection, alerts)
        monkeypatch.undo()
        monkeypatch.setattr(alert_evidence, "_AT_ONCE", at_once)
        monkeypatch.setattr(alert_evidence, "panel", reading)
        assert [told(item) for item in gather(connection, alerts)] == [told(item) for item in of_all]
    nights = sum(runs for runs, _ in read)
    assert nights <= 20 + 31 + at_once or at_once == 50
    assert read[-1][1] == 1 or at_once == 50, "the younger alert was dated by then"


CHANGED_WITH = {"model00": 6, "model01": 7, "model02": 6, "model03": 7}  # model02, model03: a count


@pytest.mark.parametrize("models", [4, 1], ids=["a late night", "late, of one model: no night"])
def test_failures_and_counts_are_dated_by_a_night_that_was_stored_after_later_ones(taken, models):
    """Night 6 comes when 7 is judged: what it shows moves the first bad night, or the last good one."""

    def is_changed(night, name):
        return night >= CHANGED_WITH[name]

    def change(night, name, values):
        if name in ("model02", "model03") and is_changed(night, name):
            values["graph_breaks"] = 3.0
        return values

    def statuses(night, name):
        return "crash" if name in ("model00", "model01") and is_changed(night, name) else "pass"

    runs = farm(10, 4, change=change, statuses=statuses)
    late = replace(runs[6], rows=runs[6].rows[:models])
    store = taken(runs[:6])
    judge_last(store, 1)
    for night in (runs[7], late, runs[8], runs[9]):
        take_in(store, [night])
        judge_new(store)
    with store.read() as connection:
        evidence = {item.case.model: item for item in gather(connection, kept.load(connection))}
    for model, first in CHANGED_WITH.items():
        days = (first - 1, first) if models == 4 else (5, 7)
        ends = evidence[model].good, evidence[model].bad
        assert [end.name for end in ends] == [runs[day].run.name for day in days], model
        builds = [end.torch_git_version[:10] for end in ends]
        assert evidence[model].changed == [f"torch: 2.15.0 {builds[0]} | 2.15.0 {builds[1]}"], model


def test_a_failure_that_is_over_by_the_next_night_is_dated_by_a_late_night_too(taken):
    """Night 6 comes after 8: model01 passed on it, and model00 failed; both work again on night 9."""

    def statuses(night, name):
        first = {"model00": 6, "model01": 7}.get(name, 99)
        return "crash" if first <= night < 9 else "pass"

    runs = farm(10, 4, statuses=statuses)
    store = taken(runs[:6])
    judge_last(store, 1)
    for night in (runs[7], runs[8], runs[6], runs[9]):
        take_in(store, [night])
        judge_new(store)
    with store.read() as connection:
        fixed = gather(connection, kept.load(connection, states=[kept.FIXED]))
    evidence = {item.case.model: item for item in fixed}
    for model, first in (("model00", 6), ("model01", 7)):
        ends = evidence[model].good.name, evidence[model].bad.name
        assert ends == (runs[first - 1].run.name, runs[first].run.name), model


def test_runs_between_that_did_not_measure_the_case_are_not_compared(taken, monkeypatch):
    """Unmerged shards of a night lie between the runs of each case: thousands of alerts look at them."""
    monkeypatch.setattr(later_nights, "were_nights", None)

    runs = farm(
        8,
        4,
        change=lambda night, name, values: values if int(name[-2:]) % 2 == night % 2 else None,
        statuses=lambda night, name: "crash" if night >= 4 else "pass",
    )
    store = taken(runs)
    judge_last(store, 6)
    with store.read() as connection:
        dates = {(item.good.name, item.bad.name) for item in gather(connection, kept.load(connection))}
    assert dates == {(runs[2].run.name, runs[4].run.name), (runs[3].run.name, runs[5].run.name)}


def test_changes_of_the_whole_history(taken):
    def change(night, name, values):
        values = slower("model03", 20, 1.10)(night, name, values)
        if night >= 40:
            values["compilation_cpu_s"] *= 1.3
        return values

    runs = farm(70, change=change)
    store = taken(runs)
    with store.read() as connection:
        whole = panel(connection, list_runs(connection), JUDGED)
        cases = cases_by_id(connection, whole.case_ids)
        changes = list(lasting_changes(whole))
        shown = [
            (cases[point.case_id].model if point.case_id else None, point.metric, point.first.name)
            for point in changes
        ]
        assert shown == [
            ("model03", "backend_ms", names(runs)[20]),
            (None, "compilation_cpu_s", names(runs)[40]),
        ]
        (number,) = (number for number, case in cases.items() if case.model == "model03")
        bad, net = whole.runs[21].id, NetLogs(whole, [])
        assert date_change(whole, net, number, "backend_ms", bad, 1).first.name == names(runs)[20]
        assert date_change(whole, net, number, "backend_ms", bad, -1) is None
        assert date_change(whole, net, number, "eager_ms", bad, 1) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nights", "steps", "first", "held"),
    [
        (50, [(1.15, 30, 38)], [30], 8),
        (46, [(1.10, 30, 99), (1.10, 38, 99)], [30, 38], 16),
        (46, [(1.10, 30, 99), (1.10, 36, 99)], [30, 36], 16),
    ],
    ids=["fixed since", "two steps", "six nights apart"],
)
def test_the_date_of_a_change_is_that_of_its_own_step(taken, nights, steps, first, held):
    """The levels before and after it are not those of nights beyond another step of the series."""

    def change(night, name, values):
        for factor, *spell in steps:
            values = slower("model03", spell[0], factor, until=spell[-1])(night, name, values)
        return values

    runs = farm(nights, change=change)
    store = taken(runs)
    judge_last(store, nights - 25)
    with store.read() as connection:
        alerts = kept.load(connection, states=kept.STATES)
        evidence = gather(connection, alerts)
    assert [(good.name, bad.name) for good, bad in (item.between for item in evidence)] == [
        (names(runs)[night - 1], names(runs)[night]) for night in first
    ]
    assert evidence[0].nights == held, "nights after its repair do not show it"
