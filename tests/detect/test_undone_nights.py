"""What alerts are after a night that changed them is excluded or measured again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.detect import confirmation, curation, nightly_judging
from perfdash.detect.nightly_judging import judge_new, judge_run
from perfdash.files import now
from perfdash.history import alert_store
from perfdash.history.ingest import REPLACED, replaced_since_judged, take_in
from perfdash.history.maintenance import merge, prune
from perfdash.history.queries import list_runs
from perfdash.history.store import open_store
from tests.detect.simulated import begin, farm, judge_nights, of_setting, slower
from tests.stores import as_revision_0010, made_store


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


def measured_again(night, statuses, setting=None):
    """A night after its failed cases were retried, or its file was corrected; `setting`: other settings."""
    rows = tuple(
        replace(row, status=statuses.get(row.case.model, row.status), started=night.run.ended)
        if row.case.model in statuses
        else row
        for row in night.rows
    )
    ended = f"{night.run.ended[:10]}T09:00:00Z"
    setting = {**night.run.setting, **(setting or {})}
    return replace(night, run=replace(night.run, ended=ended, setting=setting), rows=rows)


def crashes():
    """Nine nights; two models crash on nights 6 and 7."""

    def statuses(night, name):
        return "crash" if night in (6, 7) and name in ("model01", "model02") else "pass"

    return farm(9, 4, statuses=statuses)


def shard_of(night, *models):
    """The part of a night that measured these models."""
    name = "+".join(models)
    rows = tuple(row for row in night.rows if row.case.model in models)
    return replace(night, run=replace(night.run, name=name, uid=name), rows=rows)


def as_foreign(night):
    return replace(night, run=replace(night.run, origin="dynamo-csv", uid=None))


@pytest.mark.parametrize("prepare", [lambda night: night, as_foreign], ids=["perfdash", "another tool"])
@pytest.mark.parametrize("is_last", [True, False], ids=["the last night", "an earlier night"])
def test_a_night_that_is_measured_again_takes_its_alerts_back(quick, is_last, prepare):
    runs = [prepare(night) for night in crashes()]
    judge_nights(quick, runs[: 7 if is_last else 9], 6)
    states = [alert_store.NEW if is_last else alert_store.FIXED] * 2
    assert [alert.state for alert in alerts(quick)] == states
    first = alerts(quick)[0]
    if is_last:
        curation.acknowledge(quick, first.id, "known")
    both = measured_again(runs[6], {"model01": "pass", "model02": "pass"})
    one = measured_again(runs[6], {"model02": "pass"})
    one = replace(one, run=replace(one.run, ended=f"{one.run.ended[:10]}T07:00:00Z"))
    assert take_in(quick, [one]) == [REPLACED]
    judge_new(quick)
    still = alert_store.ACKNOWLEDGED if is_last else alert_store.FIXED
    assert [(alert.id, alert.state) for alert in alerts(quick)] == [
        (first.id, still),
        (first.id + 1, alert_store.DISMISSED),
    ]
    assert take_in(quick, [both]) == [REPLACED]
    judge_new(quick)
    assert [alert.state for alert in alerts(quick)] == [alert_store.DISMISSED] * 2
    assert judge_new(quick) == []
    with quick.read() as connection:
        notes = [event.note for event in alert_store.events(connection, first.id)]
    assert f"judged again: {runs[6].run.name} was resumed or corrected" in notes


def test_a_resumed_night_with_the_same_results_is_not_judged_again(quick):
    runs = crashes()[:7]
    judge_nights(quick, runs, 6)
    before = alerts(quick)
    assert take_in(quick, [measured_again(runs[6], {})]) == [REPLACED]
    assert judge_new(quick) == []
    assert alerts(quick) == before


@pytest.mark.parametrize("later_nights", [0, 1])
def test_a_resumed_night_that_no_alert_names_dates_the_change(quick, later_nights):
    def statuses(night, name):
        if name != "model01" or night < 6:
            return "pass"
        return "infra_error" if night == 6 else "crash"

    runs = farm(8 + later_nights, 4, statuses=statuses)
    judge_nights(quick, runs, 6)
    (before,) = alerts(quick)
    with quick.read() as connection:
        lines = list_runs(connection)
    assert (before.good_run_id, before.bad_run_id) == (lines[5].id, lines[7].id)
    assert take_in(quick, [measured_again(runs[6], {"model01": "crash"})]) == [REPLACED]
    assert [night.run.id for night in judge_new(quick)] == [line.id for line in lines[6:]]
    (after,) = alerts(quick)
    assert (after.id, after.good_run_id, after.bad_run_id) == (before.id, lines[5].id, lines[6].id)
    assert judge_new(quick) == []


TWO_SLOTS_LEFT = {"side_by_side": 4, "side_by_side_of": {"1 thread": [2, 4]}}


def runs_of(alert):
    return {alert.good_run_id, alert.bad_run_id, alert.seen_run_id} - {None}


@pytest.mark.parametrize("nights", [7, 9], ids=["the last night", "an earlier night"])
@pytest.mark.parametrize("moved", [1, 2], ids=["one night", "two nights"])
def test_a_resumed_night_of_another_testbed_takes_its_alerts_back(quick, nights, moved):
    def statuses(night, name):
        crashed = {"model01": (6,), "model02": (5, 6)}
        return "crash" if night in crashed.get(name, ()) else "pass"

    runs = farm(nights, 4, statuses=statuses)
    judge_nights(quick, runs, 5)
    assert len(alerts(quick)) == 2
    passed = {"model01": "pass", "model02": "pass"}
    again = [measured_again(night, passed, TWO_SLOTS_LEFT) for night in runs[7 - moved : 7]]
    assert take_in(quick, again) == [REPLACED] * moved
    judge_new(quick)
    with quick.read() as connection:
        beds = {line.id: line.testbed_id for line in list_runs(connection)}
    assert len(set(beds.values())) == 2
    for alert in alerts(quick):
        assert {beds[run_id] for run_id in runs_of(alert)} <= {alert.testbed_id}
    # The crash of night 5 stays an alert while no later night of its testbed passes.
    kept = alert_store.NEW if (nights, moved) == (7, 1) else alert_store.DISMISSED
    states = {alert.id: alert.state for alert in alerts(quick)}
    assert states == {1: kept, 2: alert_store.DISMISSED}
    assert judge_new(quick) == []


def test_a_confirmed_change_of_a_night_that_is_judged_later_stays_confirmed(quick):
    runs = farm(16, 6, change=slower("model03", 15, 1.03))
    begin(quick, runs[:15])
    take_in(quick, runs[15:])
    with quick.write() as connection:
        judged = judge_run(connection, list_runs(connection)[-1])
        (finding,) = [found for found in judged.findings if found.metric == "backend_ms"]
        assert not finding.alarm
        numbers = {"pairs": 8, "ratio": 1.03, "low": 1.025, "high": 1.035}
        alert, note = confirmation.alert_after(finding, confirmation.STANDS, numbers, [], judged.panel, now())
        alert_store.save(connection, alert, note)
    judge_new(quick)
    (alert,) = alerts(quick)
    assert alert.state == alert_store.CONFIRMED
    with quick.read() as connection:
        notes = [event.note or "" for event in alert_store.events(connection, alert.id)]
    assert not [note for note in notes if note.startswith("judged again")]


@pytest.mark.parametrize("judged_before", [0, 2])
def test_a_night_that_was_replaced_is_marked_where_its_alerts_are_copied(quick, tmp_path, judged_before):
    """By the testbeds of that history; one with alerts or judged nights of its own gets neither."""
    runs = crashes()[:7]
    judge_nights(quick, runs, 7)
    take_in(quick, [measured_again(runs[6], {"model01": "pass"})])
    with made_store(tmp_path / "other.db") as other:
        judge_nights(other, runs[:judged_before], judged_before)
        merge(other, quick)
        with quick.read() as here, other.read() as there:
            assert list(replaced_since_judged(here)) == [list_runs(here)[6].id]
            last = list_runs(there)[6]
            marked = {} if judged_before else {last.id: [(last.testbed_id, last.started)]}
            assert replaced_since_judged(there) == marked
    judge_new(quick)
    with quick.read() as connection:
        assert replaced_since_judged(connection) == {}


def refute(store):
    """What `perfdash confirm` stores of the last run's suspected change once it has refuted it."""
    (suspected,) = (each for each in alerts(store) if each.state in (alert_store.SUSPECTED, alert_store.NEW))
    with store.write() as connection:
        judged = judge_run(connection, list_runs(connection)[-1])
        (finding,) = (
            found
            for found in judged.findings
            if (found.kind, found.case_id, found.metric) == suspected.series
        )
        alert, note = confirmation.alert_after(
            finding, confirmation.DISMISSED, {"pairs": 8}, [suspected], judged.panel, now()
        )
        alert_store.save(connection, alert, note)
    return alert


def judged_again(store, resumed):
    """The states of all alerts after a night was excluded, then restored, then resumed."""
    name = resumed.run.name
    for act in (
        lambda: curation.exclude(store, name, "the fan was broken"),
        lambda: curation.restore(store, name),
        lambda: take_in(store, [resumed]),
    ):
        act()
        judge_new(store)
        yield [(alert.id, alert.state) for alert in alerts(store)]


def test_what_a_re_measurement_refuted_stays_so_however_often_an_earlier_night_changes(quick):
    runs = farm(28, 6, change=slower("model03", 27, 1.15, until=28))
    judge_nights(quick, runs, 26)
    before = [(refute(quick).id, alert_store.DISMISSED)]
    resumed = measured_again(runs[26], {"model05": "crash"})
    excluded, restored, corrected = judged_again(quick, resumed)
    assert (excluded, restored) == (before, before)
    assert corrected[0] == before[0]


@pytest.mark.parametrize("suspected_on", [25, 26], ids=["two nights before", "the night before"])
@pytest.mark.parametrize("again", [26, 27], ids=["between", "the last night"])
def test_what_was_refuted_on_a_later_night_stays_so_when_that_is_judged_again(quick, suspected_on, again):
    runs = farm(28, 6, change=slower("model03", suspected_on, 1.05))
    judge_nights(quick, runs, 24)
    before = [(refute(quick).id, alert_store.DISMISSED)]
    resumed = measured_again(runs[again], {"model04": "infra_error"})
    for states in judged_again(quick, resumed):
        assert states == before


def slow_on(slow_nights, nights):
    return farm(
        nights,
        6,
        change=lambda night, *case: slower("model03", 0 if night in slow_nights else 99, 1.15)(night, *case),
    )


def test_a_refuted_return_of_a_fixed_change_stays_fixed_when_its_night_is_judged_again(quick):
    runs = slow_on({*range(14, 18), 22}, 23)
    judge_nights(quick, runs, 14)
    before = refute(quick)
    assert before.state == alert_store.FIXED
    resumed = measured_again(runs[22], {"model04": "infra_error"})
    for states in judged_again(quick, resumed):
        assert states == [(before.id, alert_store.FIXED)]


def upgraded_from_an_earlier_perfdash(store, path):
    """Its alerts do not say up to which night a re-measurement refuted them, but for their events."""
    with store.write() as connection:
        for alert in alert_store.load(connection, states=alert_store.STATES):
            details = {name: value for name, value in alert.details.items() if name != "refuted"}
            if "withdrawn" in details:
                details["withdrawn"] = {**details["withdrawn"], "refuted": True}
            alert_store.save(connection, replace(alert, details=details))
    as_revision_0010(store)
    open_store(str(path)).close()


@pytest.mark.parametrize("acts", [0, 1], ids=["before its night is judged again", "in between"])
def test_what_an_earlier_perfdash_refuted_stays_so_after_the_upgrade(quick, tmp_path, acts):
    runs = farm(28, 6, change=slower("model03", 26, 1.05))
    judge_nights(quick, runs, 26)
    refuted = refute(quick)
    again = judged_again(quick, measured_again(runs[27], {"model04": "infra_error"}))
    for _ in range(acts):
        next(again)
    upgraded_from_an_earlier_perfdash(quick, tmp_path / "history.db")
    assert alerts(quick)[0].details["refuted"] == refuted.details["refuted"]
    for states in again:
        assert states == [(refuted.id, alert_store.DISMISSED)]


def test_a_return_that_an_earlier_perfdash_refuted_stays_fixed_after_the_upgrade(quick, tmp_path):
    runs = slow_on({*range(14, 18), 22}, 23)
    judge_nights(quick, runs, 14)
    before = refute(quick)
    upgraded_from_an_earlier_perfdash(quick, tmp_path / "history.db")
    for states in judged_again(quick, measured_again(runs[22], {"model04": "infra_error"})):
        assert states == [(before.id, alert_store.FIXED)]


def test_a_removed_night_that_had_moved_to_another_testbed_takes_its_alerts_back(quick):
    runs = farm(7, 4, statuses=lambda night, name: "crash" if (night, name) == (6, "model01") else "pass")
    judge_nights(quick, runs, 6)
    assert [alert.state for alert in alerts(quick)] == [alert_store.NEW]
    take_in(quick, [measured_again(runs[6], {"model01": "pass"}, TWO_SLOTS_LEFT)])
    with quick.read() as connection:
        last = list_runs(connection)[-1]
    curation.remove(quick, last)
    judge_new(quick)
    assert [alert.state for alert in alerts(quick)] == [alert_store.DISMISSED]


def test_samples_that_return_after_they_were_pruned_make_no_night_another(quick):
    runs = [
        replace(
            night, rows=tuple(replace(row, samples={"backend_ms": [1.0, 2.0, 3.0]}) for row in night.rows)
        )
        for night in farm(9, 4)
    ]
    judge_nights(quick, runs, 7)
    with quick.read() as connection:
        first = list_runs(connection)[0]
    prune(quick, [first], samples_only=True)
    assert take_in(quick, runs)[0] == REPLACED
    assert judge_new(quick) == []


def test_who_judges_while_another_takes_nights_back_judges_these_first(quick, monkeypatch):
    def statuses(night, name):
        return "crash" if night >= 7 and name == "model01" else "pass"

    runs = farm(10, 6, statuses=statuses)
    judge_nights(quick, runs[:9], 6)
    take_in(quick, runs[9:])
    never_judged, waits = nightly_judging._never_judged, [True]

    def meanwhile(*arguments):
        if waits and waits.pop():  # after the waiting nights were read
            take_in(quick, [measured_again(runs[6], {"model02": "crash"})])
            with quick.write() as connection:
                curation.undo_replaced(connection)
        return never_judged(*arguments)

    monkeypatch.setattr(nightly_judging, "_never_judged", meanwhile)
    assert len(judge_new(quick)) == 4
    (state,) = (alert.state for alert in alerts(quick) if alert.id == 1)
    assert state in alert_store.LIVE


def test_a_merged_run_takes_the_alerts_of_its_shards_back(quick):
    def statuses(night, name):
        return "crash" if night == 6 and name in ("model01", "model02") else "pass"

    runs = farm(7, 4, statuses=statuses)
    shards = [shard_of(runs[6], *models) for models in (("model00", "model01"), ("model02", "model03"))]
    judge_nights(quick, [*runs[:6], *shards], 6)
    assert [alert.state for alert in alerts(quick)] == [alert_store.NEW] * 2
    whole = measured_again(runs[6], {"model02": "pass"})
    imported = {"merged_from": ["a", "b"], "merged_keys": [shard.key for shard in shards]}
    assert take_in(quick, [replace(whole, run=replace(whole.run, imported=imported))]) == [REPLACED]
    judge_new(quick)
    assert [alert.state for alert in alerts(quick)] == [alert_store.NEW, alert_store.DISMISSED]
    with quick.read() as connection:
        ids = {line.id for line in list_runs(connection)}
    assert len(ids) == 7
    assert all(run_id in ids for alert in alerts(quick) for run_id in runs_of(alert))
    assert judge_new(quick) == []
