from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from datetime import date

import numpy as np
import pytest

from perfdash.detect import alert_states, curation, later_nights, nightly_judging
from perfdash.detect import nights as nights_of_history
from perfdash.detect.comparison_in_history import noise_before
from perfdash.detect.findings import NetLogs
from perfdash.detect.nightly_judging import judge_new, read_night
from perfdash.detect.nights import JUDGED_NIGHTS
from perfdash.history import alert_store as kept
from perfdash.history.ingest import take_in
from perfdash.history.queries import cases_by_id, list_runs
from tests.detect.simulated import begin, farm, judge_nights, of_setting, slower
from tests.stores import in_sqlite, made_store


@pytest.fixture
def quick(tmp_path):
    """One kind of store is enough where it only holds what is judged."""
    with made_store(tmp_path / "history.db") as opened:
        yield opened


def judged(store, runs):
    """Takes the runs in, the first 25 at once and then one by one, as nights do; all alerts there were."""
    judge_nights(store, runs)
    return alerts(store)


def alerts(store):
    with store.read() as connection:
        alert_rows = kept.load(connection, states=kept.STATES)
        cases = cases_by_id(connection, [alert.case_id for alert in alert_rows if alert.case_id])
        return [
            (
                cases[alert.case_id].model if alert.case_id else None,
                alert.kind,
                alert.metric,
                alert.direction,
                [event.state for event in kept.events(connection, alert.id)],
            )
            for alert in alert_rows
        ]


@pytest.mark.slow
def test_two_lines_of_builds_in_one_history_are_each_judged_as_if_alone(quick):
    """Every other night is of a branch with one slower model; main loses as much on its 25th night."""

    def change(night, name, values):
        if name == "model01" and (night % 2 or night >= 48):
            values["backend_ms"] *= 1.12
        return values

    nights = farm(62, 3, change=change)
    for place in range(1, len(nights), 2):
        branch = nights[place]
        nights[place] = replace(branch, run=replace(branch.run, setting={"line": "feature"}))
    judge_nights(quick, nights, first=20)
    with quick.read() as connection:
        lines = {run.testbed_id: run.setting.get("line") for run in list_runs(connection)}
        assert sorted(lines.values(), key=str) == [None, "feature"]
        found = [
            (lines[alert.testbed_id], alert.state, alert.metric, alert.direction)
            for alert in kept.load(connection, states=kept.STATES)
        ]
    assert found == [(None, "open", "backend_ms", 1)]


@pytest.mark.slow
def test_noise_stays_silent(quick):
    assert judged(quick, farm(40, noise=0.02, seed=3)) == []


@pytest.mark.slow
def test_a_compiled_regression_is_reported_confirmed_and_stays_open(store):
    alert_rows = judged(store, farm(36, change=slower("model03", 30, 1.10)))
    assert alert_rows == [("model03", "metric", "backend_ms", 1, ["suspected", "new", "confirmed", "open"])]
    with store.read() as connection:
        (alert,) = kept.load(connection)
    assert alert.change == pytest.approx(0.0953, abs=0.02)
    assert alert.before * 1.1 == pytest.approx(alert.after, rel=0.02)
    assert [line.split(":")[0] for line in alert.details["changed"]] == ["torch"]


def test_eager_that_got_faster_is_an_alert_of_eager(quick):
    alert_rows = judged(quick, farm(34, change=slower("model07", 30, 0.9, "eager_ms")))
    assert [alert[:4] for alert in alert_rows] == [("model07", "metric", "eager_ms", -1)]


@pytest.mark.slow
def test_a_change_that_is_mended_is_fixed_and_reopened_when_it_comes_again(quick):
    def change(night, name, values):
        bad = 28 <= night < 34 or night >= 42
        return slower("model05", 0 if bad else 10**6, 1.15)(night, name, values)

    alert_rows = judged(quick, farm(48, change=change))
    states = ["suspected", "new", "confirmed", "open", "fixed", "suspected", "reopened", "open"]
    assert alert_rows == [("model05", "metric", "backend_ms", 1, states)]


def test_a_lone_outlier_is_suspected_for_a_night(quick):
    alert_rows = judged(quick, farm(34, change=slower("model05", 30, 1.4, until=31)))
    assert alert_rows == [("model05", "metric", "backend_ms", 1, ["suspected", "dismissed"])]


def test_a_case_that_was_not_measured_stays_suspected(quick):
    def change(night, name, values):
        if name == "model05" and night in (31, 32):
            return None
        return slower("model05", 30, 1.4)(night, name, values)

    ((*_, states),) = [row for row in judged(quick, farm(35, change=change)) if row[1] == "metric"]
    assert states == ["suspected", "new", "confirmed"]


@pytest.mark.parametrize("models", [1, 3, 24])
def test_a_large_step_is_suspected_at_once_and_an_alert_on_the_second_night(quick, models):
    runs = farm(32, models, change=slower("model00", 30, 1.4))
    take_in(quick, runs)
    judge_new(quick, latest=2)
    assert [row[4] for row in alerts(quick)] == [["suspected", "new"]]
    with quick.read() as connection:
        (alert,) = kept.load(connection)
        assert [event.run for event in kept.events(connection, alert.id)] == [
            runs[night].run.name for night in (30, 31)
        ]


@pytest.mark.slow
def test_a_series_that_jumps_to_and_fro_raises_one_alert(quick):
    """It is reopened once, as a change that is reverted and lands again; then only suspected."""

    def change(night, name, values):
        bad = night >= 28 and (night - 28) % 12 < 6
        return slower("model05", 0 if bad else 10**6, 1.15)(night, name, values)

    ((*_, states),) = [row for row in judged(quick, farm(74, change=change)) if row[1] == "metric"]
    assert states[:4] == ["suspected", "new", "confirmed", "open"]
    assert states[4:8] == ["fixed", "suspected", "reopened", "open"]
    assert states[8:] == ["fixed", "suspected", "fixed", "suspected", "fixed"]


@pytest.mark.slow
def test_a_series_that_jumps_is_an_alert_by_re_measurement_only_also_after_one_dismissed_it(quick):
    def change(night, name, values):
        bad = night >= 28 and (night - 28) % 12 < 6
        return slower("model05", 0 if bad else 10**6, 1.15)(night, name, values)

    runs = farm(84, 12, change=change)
    judged(quick, runs[:54])
    with quick.write() as connection:
        (suspected,) = kept.load(connection, states=[kept.SUSPECTED])
        dismissed = alert_states.dismissed(suspected, "2026-02-23T12:00:00Z")
        assert dismissed.state == kept.FIXED
        assert dismissed.details["fixed_run_id"] < suspected.bad_run_id, "tonight fixed nothing"
        kept.save(connection, dismissed)
    for night in runs[54:]:
        take_in(quick, [night])
        judge_new(quick)
    ((*_, states),) = [row for row in alerts(quick) if row[1] == "metric"]
    assert set(states[8:]) == {"suspected", "fixed"}


@in_sqlite
def test_a_status_that_changes_is_reported_at_once_and_infra_errors_are_not(store):
    def statuses(night, name):
        if name == "model01" and night >= 27:
            return "fail_accuracy"
        if name == "model02" and night == 27:
            return "infra_error"
        return "pass"

    alert_rows = judged(store, farm(30, statuses=statuses))
    assert alert_rows == [("model01", "status", "status", 1, ["new", "confirmed", "open"])]


def test_a_pass_that_captures_nothing_any_more_is_a_change_of_status(quick):
    def change(night, name, values):
        if name == "model04" and night >= 27:
            values["calls_captured"] = 0.0
        return values

    alert_rows = judged(quick, farm(29, change=change))
    assert alert_rows == [("model04", "status", "status", 1, ["new", "confirmed"])]


@pytest.mark.parametrize(
    ("count", "worse"),
    [("graph_breaks", 3.0), ("fallbacks", 2.0), ("recompiles", 1.0), ("calls_captured", 90.0)],
)
def test_a_count_that_gets_worse_and_goes_back(quick, count, worse):
    def change(night, name, values):
        values.setdefault(count, 0.0)
        if name == "model04" and 27 <= night < 29:
            values[count] = worse
        return values

    alert_rows = judged(quick, farm(31, change=change))
    assert alert_rows == [("model04", "count", count, 1, ["new", "confirmed", "fixed"])]


def test_a_model_that_vanishes(quick):
    def change(night, name, values):
        return None if name == "model09" and night >= 27 else values

    alert_rows = judged(quick, farm(30, change=change))
    assert alert_rows == [("model09", "vanished", None, 1, ["new", "confirmed", "open"])]


def test_a_model_that_an_interrupted_night_lacks_has_not_vanished(quick):
    runs = farm(28)
    last = runs[-1]
    cut = replace(last, run=replace(last.run, state="interrupted"), rows=last.rows[:30])
    assert judged(quick, [*runs[:-1], cut]) == []


def test_a_step_of_the_whole_host_is_reported_once_with_what_changed_there(quick):
    def change(night, name, values):
        if night >= 28:
            values["backend_ms"] *= 1.08
            values["eager_ms"] *= 1.08
        return values

    facts = {True: {"microcode": "0x2"}, False: {"microcode": "0x1"}}
    alert_rows = judged(quick, farm(34, change=change, facts=lambda night: facts[night >= 28]))
    assert [row[:4] for row in alert_rows] == [(None, "host", "eager_ms", 1), (None, "host", "backend_ms", 1)]
    with quick.read() as connection:
        for alert in kept.load(connection):
            assert "microcode: 0x1 | 0x2" in alert.details["changed"]


@pytest.mark.slow
def test_drifts_of_many_models_at_once_are_only_suspected(quick):
    """Each by another amount, so that it is no shift of the host that would be taken off."""

    def change(night, name, values):
        values["backend_ms"] *= 1 + 0.0002 * int(name.removeprefix("model")) * max(0, night - 30)
        return values

    take_in(quick, farm(100, models=24, noise=0.005, change=change))
    judge_new(quick, latest=8)
    found = [alert for alert in alerts(quick) if alert[1] == "drift"]
    assert len(found) > 6
    assert all(states[0] == "suspected" for *_, states in found)
    assert not any(state in ("new", "confirmed", "open") for *_, states in found for state in states)


@pytest.mark.slow
def test_a_slow_drift_is_told_against_a_fixed_reference(quick):
    def change(night, name, values):
        if name == "model06":
            values["backend_ms"] *= 1 + 0.0005 * night
        return values

    take_in(quick, farm(100, models=24, noise=0.005, change=change))
    judge_new(quick, latest=8)
    assert [alert[:4] for alert in alerts(quick)] == [("model06", "drift", "backend_ms", 1)]


@pytest.mark.slow
def test_a_run_of_two_models_before_the_first_night_of_a_week_does_not_replace_the_drift_test(quick):
    def change(night, name, values):
        if name == "model06":
            values["backend_ms"] *= 1 + 0.0005 * night
        return values

    runs = farm(100, models=24, noise=0.005, change=change)
    *_, sunday = (one for one in runs if date.fromisoformat(one.run.started[:10]).isoweekday() == 7)
    started = sunday.run.started.replace("T01", "T00")
    desk = replace(sunday.run, name="desk", uid="desk", started=started, expected=2)
    take_in(quick, [*runs, replace(sunday, run=desk, rows=sunday.rows[:2])])
    judge_new(quick, latest=10)
    assert [alert[:4] for alert in alerts(quick)] == [("model06", "drift", "backend_ms", 1)]


@pytest.mark.slow
def test_drifts_are_tested_once_a_week_and_setting_while_a_shift_of_the_host_is_open(quick, monkeypatch):
    def change(night, name, values):
        by = 1.1 if night >= 28 else 1.0
        return values | {metric: by * values[metric] for metric in ("eager_ms", "backend_ms")}

    tested = []
    monkeypatch.setattr(nightly_judging, "drifts", lambda night, *rest: tested.append(night.runs[-1]) or [])
    nights = farm(44, change=change)
    take_in(quick, [of_setting(night, threads) for night in nights for threads in (1, 2)])
    judge_new(quick, latest=18)
    assert {alert[1] for alert in alerts(quick)} == {"host"}
    sundays = [night.run.started[:10] for night in nights[-18:]]
    sundays = [day for day in sundays if date.fromisoformat(day).isoweekday() == 7]
    assert len(sundays) >= 2
    assert [run.name for run in tested] == [
        f"{night.run.name}_{threads}" for night in nights for threads in (1, 2)
        if night.run.started[:10] in sundays
    ]  # fmt: skip


def test_a_desk_run_of_a_few_models_is_no_night(quick):
    runs = farm(30)
    few = replace(
        runs[-1],
        run=replace(runs[-1].run, name="desk", started="2026-01-30T12:00:00Z", state="done", expected=3),
        rows=runs[-1].rows[:3],
    )
    assert judged(quick, [*runs, few]) == []


def test_a_night_that_is_judged_again_changes_nothing(quick):
    one, other = slower("model03", 29, 1.10), slower("model05", 29, 1.15)
    runs = farm(31, change=lambda night, name, values: one(night, name, other(night, name, values)))
    before = judged(quick, runs)
    assert [alert[0] for alert in before] == ["model03", "model05"]
    later = replace(runs[-1], run=replace(runs[-1].run, ended="2026-01-31T06:00:00Z"))
    take_in(quick, [later])
    judge_new(quick)
    assert alerts(quick) == before


@pytest.mark.slow
def test_history_that_comes_late_raises_no_alert(quick):
    runs = farm(40, change=slower("model03", 20, 1.10))
    take_in(quick, runs[30:])
    judge_new(quick)
    take_in(quick, runs[:30])
    judge_new(quick, latest=100)
    assert alerts(quick) == []


def test_what_got_better_and_is_lost_again_is_a_regression(quick):
    def statuses(night, name):
        return "crash" if name == "model03" and not 27 <= night < 32 else "pass"

    alert_rows = judged(quick, farm(36, statuses=statuses))
    assert [row[3] for row in alert_rows] == [-1, 1]
    assert alert_rows[0][4][-1] == "fixed"
    assert alert_rows[1][4][0] == "new"
    with quick.read() as connection:
        assert [alert.direction for alert in kept.load(connection)] == [1]


def test_graph_breaks_that_grow_further_are_reported(quick):
    def change(night, name, values):
        if name == "model04":
            values["graph_breaks"] = 0.0 if night < 27 else 1.0 if night < 29 else 9.0
        return values

    alert_rows = judged(quick, farm(31, change=change))
    assert [row[:4] for row in alert_rows] == [("model04", "count", "graph_breaks", 1)]
    with quick.read() as connection:
        (alert,) = kept.load(connection)
        assert (alert.before, alert.after) == (0.0, 9.0)
        assert "now 9" in [event.note for event in kept.events(connection, alert.id)]


def test_a_suite_that_grows_is_judged_all_the_same(quick):
    def change(night, name, values):
        return values if night >= 27 or name < "model08" else None

    def statuses(night, name):
        return "crash" if name == "model03" and night >= 27 else "pass"

    alert_rows = judged(quick, farm(29, change=change, statuses=statuses))
    assert [alert[:4] for alert in alert_rows] == [("model03", "status", "status", 1)]


def test_a_desk_run_moves_no_alert(quick):
    runs = farm(31, change=slower("model05", 30, 1.4))
    before = judged(quick, runs)
    take_in(
        quick,
        [
            replace(
                runs[0],
                run=replace(runs[0].run, name="desk", uid="desk", started="2026-01-31T12:00:00Z", expected=3),
                rows=runs[0].rows[:3],
            )
        ],
    )
    (desk,) = judge_new(quick)
    assert desk.unlike
    assert alerts(quick) == before


def test_a_night_that_comes_after_a_desk_run_is_not_late(quick):
    def statuses(night, name):
        return "crash" if name == "model03" and night == 29 else "pass"

    runs = farm(30, statuses=statuses)
    judged(quick, runs[:-1])
    desk = replace(runs[0].run, name="desk", uid="desk", started="2026-01-30T12:00:00Z", expected=3)
    take_in(quick, [replace(runs[0], run=desk, rows=runs[0].rows[:3])])
    judge_new(quick)
    take_in(quick, runs[-1:])
    judge_new(quick)
    assert [alert[:3] for alert in alerts(quick)] == [("model03", "status", "status")]


@pytest.mark.slow
def test_the_hosts_own_shift_neither_fixes_nor_hides_an_alert(quick):
    def change(night, name, values):
        values = slower("model05", 28, 1.10)(night, name, values)
        if night >= 34:
            values["backend_ms"] *= 0.9
        return values

    alert_rows = judged(quick, farm(40, change=change))
    of_model = [alert for alert in alert_rows if alert[0] == "model05"]
    assert [alert[1] for alert in of_model] == ["metric"]
    assert of_model[0][4][-1] == "open"
    assert (None, "host", "backend_ms", -1) in [alert[:4] for alert in alert_rows]


@pytest.mark.slow
def test_all_runs_of_the_latest_nights_are_judged(quick):
    """Twelve a night: what fails from the first of three nights on would be compared with itself."""

    def statuses(night, name):
        return "crash" if name == "model01" and night >= 5 else "pass"

    healthy = [farm(8, 2, seed=job) for job in range(1, 12)]
    jobs = [farm(8, 2, statuses=statuses), *healthy]
    nights = [of_setting(run, job) for night in zip(*jobs, strict=True) for job, run in enumerate(night, 1)]
    begin(quick, nights[: 5 * 12])
    take_in(quick, nights[5 * 12 :])
    assert len(judge_new(quick)) == 36
    assert [alert[:2] for alert in alerts(quick)] == [("model01", "status")]


def test_the_numbers_of_a_judged_night_are_not_kept(quick, monkeypatch):
    """A large night reads 40 MB, and after `history exclude` thirty nights are judged."""
    numbers = []

    def read(*night):
        numbers_of_night = read_night(*night)
        numbers.append(weakref.ref(numbers_of_night))
        return numbers_of_night

    monkeypatch.setattr(nightly_judging, "read_night", read)
    take_in(quick, farm(4, models=2))
    judged_nights = judge_new(quick)
    gc.collect()
    assert len(judged_nights) == 4
    assert [reference() for reference in numbers] == [None] * 4


def test_nights_that_are_too_many_to_be_judged_are_named(quick):
    nights = farm(6, models=4)
    begin(quick, nights[:2])
    take_in(quick, nights[2:])
    warnings = []
    judge_new(quick, latest=2, warn=warnings.append)
    (warning,) = warnings
    assert warning.startswith("Not judged: 2 runs on ")
    assert "from 2026-01-03 to 2026-01-04" in warning
    judge_new(quick, latest=2, warn=warnings.append)
    assert len(warnings) == 1, "said once"


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_run_that_ends_after_a_later_one_of_another_setting_is_not_late(quick, order):
    def statuses(night, name):
        return "crash" if name == "model03" and night >= 6 else "pass"

    nights = farm(8, models=4, statuses=statuses)
    begin(quick, [of_setting(night, threads) for night in nights[:6] for threads in order])
    for night in nights[6:]:
        for threads in order:
            take_in(quick, [of_setting(night, threads)])
            judge_new(quick)
    assert alerts(quick) == [("model03", "status", "status", 1, ["new", "confirmed"])] * 2


@pytest.mark.parametrize("judged_in", [None, "2999-10-21T05:00:00Z"])
def test_a_run_that_begins_in_the_future_is_no_night(quick, judged_in):
    """`judged_in`: it may have been judged by the clock that was wrong."""
    nights = farm(26, models=4, change=slower("model03", 21, 1.5))
    ahead = replace(nights[20].run, name="a head", uid="ahead", started="2999-10-21T01:00:00Z")
    begin(quick, nights[:20])
    take_in(quick, [replace(nights[20], run=ahead)])
    if judged_in:
        with quick.write() as connection:
            kept.set_judged(connection, [list_runs(connection)[-1].id], judged_in)
    warnings = []
    for night in nights[21:]:
        take_in(quick, [night])
        judge_new(quick, warn=warnings.append)
    assert [alert[:3] for alert in alerts(quick)] == [("model03", "metric", "backend_ms")]
    assert len(warnings) == 5
    assert warnings[0].startswith("a head begins in the future (2999-10-21)")
    assert """`perfdash history exclude 'a head' --because "wrong clock"`""" in warnings[0]
    with quick.read() as connection:
        (line,) = list_runs(connection, name="a head")
    assert (line.judged, line.excluded) == (judged_in, None)


def use_clock(monkeypatch, day):
    """Judge as on a day."""
    for module in (nightly_judging, nights_of_history, curation):
        monkeypatch.setattr(module, "now", lambda: f"{day}T12:00:00Z")


def test_what_an_excluded_run_of_the_future_told_is_told_by_the_real_nights(quick, monkeypatch):
    """The clock that was wrong judged the run, too; its alert began on the last night before it."""
    nights = farm(8, 4, statuses=lambda night, name: "crash" if night >= 4 and name == "model03" else "pass")
    begin(quick, nights[:4])
    ahead = replace(nights[4].run, name="ahead", uid="ahead", started="2027-01-05T01:00:00Z")
    use_clock(monkeypatch, "2027-01-05")
    take_in(quick, [replace(nights[4], run=ahead)])
    judge_new(quick)
    with quick.read() as connection:
        assert [alert.state for alert in kept.load(connection)] == [kept.NEW]
    for night in nights[5:]:
        use_clock(monkeypatch, night.run.started[:10])
        if night is nights[5]:
            curation.exclude(quick, "ahead", "wrong clock")
        take_in(quick, [night])
        judge_new(quick)
    with quick.read() as connection:
        (alert,) = kept.load(connection, states=kept.STATES)
        assert [run.name for run in list_runs(connection, ids=[alert.bad_run_id])] == [nights[5].run.name]
    assert alert.state == kept.OPEN


def test_an_excluded_run_of_the_future_is_no_night_when_its_date_comes(quick, monkeypatch):
    nights = farm(10, 4, statuses=lambda night, name: "crash" if night >= 5 and name == "model03" else "pass")
    begin(quick, nights[:4])
    ahead = replace(nights[3].run, name="ahead", uid="ahead", started="2026-01-09T00:30:00Z")
    for night in (replace(nights[3], run=ahead), *nights[4:]):
        use_clock(monkeypatch, night.run.started[:10] if night.run.uid != "ahead" else "2026-01-04")
        take_in(quick, [night])
        judge_new(quick)
        if night is nights[4]:
            curation.exclude(quick, "ahead", "wrong clock")
    assert [alert[4] for alert in alerts(quick)] == [["new", "confirmed", "open"]]


@pytest.mark.parametrize(("day", "named"), [(2, 5), (5, 2), (6, 1)])
def test_a_clock_that_is_behind_excludes_no_night(quick, monkeypatch, day, named):
    nights = farm(9, 4)
    judge_nights(quick, nights[:8], first=5)
    use_clock(monkeypatch, f"2026-01-0{day}")
    behind = replace(nights[8].run, name="behind", uid="behind", started=f"2026-01-0{day}T02:00:00Z")
    take_in(quick, [replace(nights[8], run=behind)])
    warnings = []
    judge_new(quick, warn=warnings.append)
    assert len(warnings) == named
    with quick.read() as connection:
        assert len(list_runs(connection, with_excluded=False)) == 9


def test_a_run_of_another_setting_says_nothing_of_a_model_that_vanished(quick):
    def change(night, name, values):
        return None if name == "model03" and night >= 6 else values

    one, other = farm(8, models=4, change=change), farm(8, models=4)
    both = zip(one[:6], other, strict=False)
    begin(quick, [of_setting(night, threads) for nights in both for threads, night in enumerate(nights, 1)])
    for night, threads, states in (
        (one[6], 1, ["new"]),
        (other[6], 2, ["new"]),
        (one[7], 1, ["new", "confirmed"]),
    ):
        take_in(quick, [of_setting(night, threads)])
        judge_new(quick)
        assert alerts(quick) == [("model03", "vanished", None, 1, states)]


@pytest.mark.slow
def test_a_night_of_twelve_runs_has_as_long_a_baseline_as_one_of_one(quick):
    nights = farm(40, models=4)
    take_in(quick, [of_setting(night, threads) for night in nights for threads in range(1, 13)])
    with quick.read() as connection:
        last = list_runs(connection)[-1]
        night = read_night(connection, last)
        assert [run.name for run in night.runs] == [f"{night.run.name}_12" for night in nights]
        assert np.isfinite(night.values["backend_ms"]).all()
        past = noise_before(connection, [of_setting(nights[39], 12)])
        assert {case.threads for case in past["backend_ms"]} == {12}
        assert min(noise.df for noise in past["backend_ms"].values()) > 15


def test_the_drift_test_alone_reads_all_nights(quick):
    runs = farm(130, models=2)
    take_in(quick, runs)
    with quick.read() as connection:
        lines = list_runs(connection)
        weekdays = [(date.fromisoformat(line.started[:10]).toordinal() % 7, line) for line in lines[-7:]]
        counts = {day: len(read_night(connection, line).runs) for day, line in weekdays}
    assert counts.pop(0) > 100
    assert set(counts.values()) == {JUDGED_NIGHTS + 1}


def test_a_run_of_a_new_setting_is_no_night_of_the_others(quick):
    nights = farm(6, models=4)
    take_in(quick, nights[:5])
    take_in(quick, [of_setting(nights[5], 7)])
    *_, last = judge_new(quick)
    assert last.unlike
    assert alerts(quick) == []


@pytest.mark.slow
def test_a_night_that_only_looks_like_a_fixed_change_leaves_the_alert_as_it_was(quick):
    """Its nights stay out of the baseline, and what is known of it stays."""

    def change(night, name, values):
        bad = 28 <= night < 34 or night == 42
        return slower("model05", 0 if bad else 10**6, 1.4)(night, name, values)

    runs = farm(46, change=change)
    judged(quick, runs[:42])
    with quick.write() as connection:
        (fixed,) = kept.load(connection, states=[kept.FIXED])
        fixed = replace(fixed, details={**fixed.details, "bisected": {"word": "found"}})
        kept.save(connection, fixed)
    for night in runs[42:]:
        take_in(quick, [night])
        judge_new(quick)
    with quick.read() as connection:
        (alert,) = kept.load(connection, states=kept.STATES)
        assert [event.state for event in kept.events(connection, alert.id)][-2:] == ["suspected", "fixed"]
        assert (alert.bad_run_id, alert.change, alert.details) == (
            fixed.bad_run_id,
            fixed.change,
            fixed.details,
        )
        panel = alert_states.without_fixed(read_night(connection, list_runs(connection)[-1]), [alert])
        assert np.flatnonzero(np.isnan(panel.values["backend_ms"][5])).tolist() == list(range(28, 34))


@pytest.mark.slow
def test_all_spells_of_a_change_that_came_back_stay_out_of_the_baseline(quick):
    def change(night, name, values):
        bad = 28 <= night < 34 or 42 <= night < 48
        return slower("model05", 0 if bad else 10**6, 1.4)(night, name, values)

    judged(quick, farm(52, change=change))
    with quick.read() as connection:
        (alert,) = kept.load(connection, states=[kept.FIXED])
        panel = alert_states.without_fixed(read_night(connection, list_runs(connection)[-1]), [alert])
    masked = np.flatnonzero(np.isnan(panel.values["backend_ms"][5])).tolist()
    assert masked == [*range(28, 34), *range(42, 48)]


@pytest.mark.slow
def test_a_case_that_comes_back_after_long_is_no_alert_by_the_nights_before_it(quick):
    def change(night, name, values):
        if name == "model05" and 31 <= night < 31 + JUDGED_NIGHTS:
            return None
        return slower("model05", 30, 1.4)(night, name, values)

    runs = farm(32 + JUDGED_NIGHTS, 12, change=change)
    judged(quick, runs[:31])
    take_in(quick, runs[31:])
    judge_new(quick, latest=1)
    with quick.read() as connection:
        alert = next(a for a in kept.load(connection, states=kept.STATES) if a.metric == "backend_ms")
        night = read_night(connection, list_runs(connection)[-1])
        net = NetLogs(night, [alert])
        levels = later_nights.alert_levels(alert, night, net, {})
        later = later_nights.later_nights(alert, night, net, levels)
    assert len(later) == 1


@pytest.mark.slow
def test_a_regression_stays_open_when_most_other_models_get_slower_later(quick):
    """The step of the others is none of its own: it is not back where it was."""

    def change(night, name, values):
        number = int(name.removeprefix("model"))
        if number < 6 and night >= 28:
            values["backend_ms"] *= 1.09
        if number >= 10 and night >= 34:
            values["backend_ms"] *= 1.14
        return values

    alert_rows = judged(quick, farm(42, 24, change=change))
    early = {row[0]: row[4][-1] for row in alert_rows if row[0] and int(row[0].removeprefix("model")) < 6}
    assert early == {f"model{number:02}": "open" for number in range(6)}
