"""What changed by the history, as each night of it is told."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from perfdash.cli import app
from perfdash.detect import nightly_judging
from perfdash.detect.alert_states import dismissed
from perfdash.detect.comparison import ComparedRuns, Delta, compare
from perfdash.detect.nightly_judging import judge_new
from perfdash.history import alert_store, nightlies, queries
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from perfdash.history.results import Imported
from perfdash.history.store import open_store
from perfdash.report import night as night_report
from perfdash.report.cause_text import counts, of_changes
from perfdash.report.changes import (
    APPEARED,
    NEW_FAILURE,
    REGRESSION,
    REPAIRED,
    SUSPECTED,
    VANISHED,
    ChangeEnd,
    RunChange,
)
from perfdash.report.comment import comment
from perfdash.report.gates import night_gate
from perfdash.report.junit import document
from perfdash.report.night import (
    against,
    headline,
    machines_of_testbeds,
    nightlies_before,
    of_history,
)
from perfdash.report.night_export import to_plain
from perfdash.report.weekly_digest import weekly_digest
from tests.detect.simulated import (
    begin,
    by_hand,
    farm,
    judge_last,
    judge_nights,
    of_setting,
    on_second_machine,
    slower,
)
from tests.history.made import case, row, run
from tests.stores import made_store

FREEZING = '{"inductor_config":{"freezing":true}}'


def changed_values(night, model, values):
    """model03 is slower on nights 26 to 31, model05 vanishes on 29 to 34, model07 is new on the 30th."""
    values = slower("model03", 26, 1.2, until=32)(night, model, values)
    if (model == "model05" and 29 <= night < 35) or (model == "model07" and night < 30):
        return None
    return values


def fails(night, model):
    if model == "model03" and night == 29:
        return "infra_error"  # which says nothing of the model
    return "fail_accuracy" if model == "model09" and night in (28, 29) else "pass"


@pytest.fixture(scope="module")
def history_nights(tmp_path_factory):
    """{night: what is told of it}, after all 36 nights were judged one by one."""
    nights = farm(36, models=24, change=changed_values, statuses=fails)
    with made_store(tmp_path_factory.mktemp("history") / "h.db") as store:
        judge_nights(store, nights)
        with store.read() as connection:
            yield {number: of_history(connection, nights[number]) for number in (0, *range(25, 36))}


def of(night, group):
    return [
        (change.case.model if change.case else None, change.what)
        for change in night.changes
        if change.group == group
    ]


@pytest.mark.slow
def test_a_night_that_nobody_judged_says_so(tmp_path):
    nights = farm(34, models=4)
    with made_store(tmp_path / "h.db") as store:
        take_in(store, nights)
        judge_new(store)
        with store.read() as connection:
            old, new = (of_history(connection, nights[place]) for place in (3, 33))
    assert "not judged" in old.untold
    assert headline(old) == "Not compared with other runs"
    assert headline(new) == "Nothing changed"


def test_a_run_that_begins_in_the_future_says_so(tmp_path):
    nights = farm(5, models=4)
    nights[4] = replace(nights[4], run=replace(nights[4].run, started="2999-01-01T01:00:00Z"))
    with made_store(tmp_path / "h.db") as store:
        take_in(store, nights)
        judge_new(store)
        with store.read() as connection:
            night = of_history(connection, nights[4])
    assert night.untold == "this run begins in the future, because the clock was wrong"


def test_a_night_that_is_judged_after_a_later_one_says_so(tmp_path, monkeypatch):
    nights = farm(8, models=4, statuses=lambda night, model: "crash" if night == 6 else "pass")
    warnings = []
    with made_store(tmp_path / "h.db") as store:
        for imported, clock in ([*nights[:6], nights[7]], "09"), (nights[6:7], "10"):
            take_in(store, imported)
            monkeypatch.setattr(nightly_judging, "now", lambda at=f"2026-01-{clock}T00:00:00Z": at)
            *_, last = judge_new(store)
        with store.read() as connection:
            late, later = (of_history(connection, night) for night in nights[6:])
    assert last.later == nights[7].run.name
    assert headline(late) == "No case passes, no change was found in what could be compared"
    assert late.caution == (
        f"changes that began with this run, because {nights[7].run.name} was judged before it"
    )
    assert night_gate(late, warnings.append) == 0
    assert "not checked" in warnings[0]
    assert (headline(later), later.caution) == ("Nothing changed", None)


def test_a_run_whose_clock_was_years_behind_is_not_called_the_first_of_its_kind(tmp_path, monkeypatch):
    nights = farm(5, models=4)
    behind = {"name": "behind", "uid": "behind", "started": "2001-01-01T00:05:00Z"}
    nights[4] = replace(nights[4], run=replace(nights[4].run, **behind, ended="2001-01-01T01:05:00Z"))
    with made_store(tmp_path / "history.db") as store:
        take_in(store, nights[:4])
        with monkeypatch.context() as earlier:
            earlier.setattr(nightly_judging, "now", lambda: "2026-01-05T00:00:00Z")
            judge_new(store)
        take_in(store, nights[4:])
    result = CliRunner().invoke(app, ["regressions", "--db", str(tmp_path / "history.db")])
    with open_store(str(tmp_path / "history.db")) as store, store.read() as connection:
        night = of_history(connection, nights[4])
    assert night.untold == (
        "this run began before all others of its kind, on 2001-01-01, but "
        f"{nights[3].run.name} was judged before it (if the clock of this run was wrong, exclude it)"
    )
    assert '`perfdash history exclude behind --because "wrong clock"`' in result.stderr


def test_the_machine_that_ends_last_says_that_its_numbers_are_not_judged(tmp_path, monkeypatch):
    """Of two machines that measure side by side, it began first: the other one is judged before it."""
    first = farm(8, 4, statuses=lambda night, model: "crash" if night == 7 else "pass")
    second = [on_second_machine(night) for night in farm(8, 4)]
    with made_store(tmp_path / "h.db") as store:
        begin(store, [*first[:7], *second[:7]])
        for imported, hour in (second[7], "04"), (first[7], "05"):
            take_in(store, [imported])
            monkeypatch.setattr(nightly_judging, "now", lambda at=f"2026-01-08T{hour}:00:00Z": at)
            judge_new(store)
        with store.read() as connection:
            failed, passed = (of_history(connection, night) for night in (first[7], second[7]))
    assert failed.caution == (
        f"changes of numbers that began with this run, because {second[7].run.name} was judged before it"
    )
    assert headline(failed) == "No case passes, 4 new failures"
    assert passed.caution is None


def test_the_first_night_of_two_machines_has_no_wrong_clock(tmp_path, monkeypatch):
    (first,) = farm(1, 4)
    with made_store(tmp_path / "h.db") as store:
        for imported, hour in (on_second_machine(first), "04"), (first, "05"):
            take_in(store, [imported])
            monkeypatch.setattr(nightly_judging, "now", lambda at=f"2026-01-01T{hour}:00:00Z": at)
            judge_new(store)
        with store.read() as connection:
            night = of_history(connection, first)
    assert night.untold == "first run of this kind, nothing to compare it with"


@pytest.mark.parametrize("kind", ["status", "count", "vanished"])
def test_a_failure_of_one_of_two_machines_is_only_in_the_reports_of_that_machine(tmp_path, kind):
    def is_broken(night, model):
        return model == "model03" and night in (4, 5)

    def statuses(night, model):
        return "crash" if kind == "status" and is_broken(night, model) else "pass"

    def change(night, model, values):
        if kind == "vanished" and is_broken(night, model):
            return None
        return {**values, "graph_breaks": 2.0 * (kind == "count" and is_broken(night, model))}

    passes = farm(7, 4)
    fails = [on_second_machine(night) for night in farm(7, 4, statuses=statuses, change=change)]
    runs = [run for pair in zip(passes, fails, strict=True) for run in pair]
    with made_store(tmp_path / "h.db") as store:
        judge_nights(store, runs[:12], first=8)
        with store.read() as connection:
            passed, failed = (of_history(connection, night[5]) for night in (passes, fails))
        judge_nights(store, runs[12:], first=0)
        with store.read() as connection:
            passed_once, failed_once, passed_now, fixed = (
                of_history(connection, run) for run in (passes[5], fails[5], *runs[12:])
            )
    for night in (passed, passed_once, passed_now):
        assert (headline(night), night_gate(night, print)) == ("Nothing changed", 0)
    assert [len(night.changes) for night in (failed, failed_once, fixed)] == [1, 1, 1]
    assert (night_gate(failed, print), night_gate(fixed, print)) == (1, 0)


def test_the_first_nights_have_little_to_compare_with(tmp_path):
    nights = farm(3, models=4, change=slower("model01", 1, 3.0))
    with made_store(tmp_path / "h.db") as store:
        for night_run in nights:
            take_in(store, [night_run])
            judge_new(store)
        with store.read() as connection:
            first, second, _ = (of_history(connection, night) for night in nights)
    assert "first run of this kind" in first.untold
    assert second.caution == "numbers of all cases, which need 3 nights before (there are at most 1)"
    assert headline(second) == "No change was found in what could be compared"


@pytest.mark.parametrize(
    ("models", "host_of", "nights"),
    [
        (24, lambda night: "farm2" if night >= 28 else "farm", [28]),
        (4, lambda night: "farm2" if night >= 28 else "farm", [28, 29]),
        (24, lambda night: "farm" if 3 <= night < 28 else "farm2", []),
        (24, lambda night: f"container-{night}", []),
    ],
    ids=["new", "new, few models", "back after 25 nights", "containers"],
)
def test_the_first_nights_of_a_machine_say_that_its_numbers_are_not_judged(tmp_path, models, host_of, nights):
    runs = [
        replace(night, run=replace(night.run, host=host_of(place)))
        for place, night in enumerate(farm(31, models))
    ]
    with made_store(tmp_path / "h.db") as store:
        begin(store, runs)
        with store.read() as connection:
            told = {place: of_history(connection, runs[place]) for place in (28, 29, 30)}
    cautioned = {place: night for place, night in told.items() if night.caution}
    assert list(cautioned) == nights
    for night in cautioned.values():
        assert night.caution == (
            f"numbers of {models} of {models} cases, which need more nights before on farm2"
        )
        assert headline(night) == "No change was found in what could be compared"


def test_a_case_that_is_seldom_measured_is_at_the_level_of_its_machine_as_all_others(tmp_path):
    """That level is known from them."""
    measured = {5, 18, 33, 46, 59}
    nights = [
        replace(night, run=replace(night.run, host="ab"[place % 2]))
        for place, night in enumerate(
            farm(
                60,
                change=lambda night, name, values: values if name != "model03" or night in measured else None,
            )
        )
    ]
    with made_store(tmp_path / "h.db") as store:
        begin(store, nights)
        with store.read() as connection:
            assert of_history(connection, nights[-1]).caution is None


@pytest.mark.parametrize("jobs", [12, 25])
@pytest.mark.slow
def test_of_a_night_of_many_runs_each_is_compared_with_the_runs_of_its_setting(tmp_path, jobs):
    changed = farm(7, models=2, change=slower("model01", 6, 1.5))
    healthy = farm(7, models=2, seed=1)
    with made_store(tmp_path / "h.db") as store:
        for number in range(7):
            nights = [changed[number], *[healthy[number]] * (jobs - 1)]
            take_in(store, [of_setting(night, job) for job, night in enumerate(nights, 1)])
        judge_new(store, latest=1)
        with store.read() as connection:
            night = of_history(connection, of_setting(changed[6], 1))
    assert (night.untold, night.caution) == (None, None)
    assert night.against.startswith("the 6 runs before it")
    assert [change.case.model for change in night.changes] == ["model01"]


def in_two_configurations(night, models, slow=()):
    """A night that measured each model again with freezing; `slow` ones are three times as slow there."""
    rows = [
        replace(
            one,
            case=replace(one.case, configuration="freezing", settings=FREEZING),
            values={
                **one.values,
                "backend_ms": one.values["backend_ms"] * (3 if one.case.model in slow else 1),
            },
        )
        for one in night.rows
        if one.case.model in models
    ]
    return replace(night, rows=(*night.rows, *rows))


def test_a_new_configuration_is_not_judged_before_its_third_night(tmp_path):
    nights = farm(7, models=4)
    models = [f"model{number:02}" for number in range(4)]
    for number, night_run in enumerate(nights[3:], 3):
        nights[number] = in_two_configurations(night_run, models, slow=models[1:2] if number >= 4 else ())
    with made_store(tmp_path / "h.db") as store:
        take_in(store, nights)
        judge_new(store)
        with store.read() as connection:
            shown = [of_history(connection, night) for night in nights[3:]]
    message = "numbers of 4 of 8 cases, which need 3 nights before"
    assert [night.caution for night in shown] == [message, message, message, None]
    assert headline(shown[1]) == "No change was found in what could be compared"


def test_runs_by_hand_before_the_second_night_are_no_three_nights(tmp_path):
    nights = farm(2, models=4, change=slower("model01", 1, 3.0))
    by_bob = [by_hand(nights[0], hour, ["model03"]) for hour in (12, 13)]
    with made_store(tmp_path / "h.db") as store:
        for night_run in (nights[0], *by_bob, nights[1]):
            take_in(store, [night_run])
            judge_new(store)
        with store.read() as connection:
            night = of_history(connection, nights[1])
    assert night.caution == "numbers of 3 of 4 cases, which need 3 nights before"
    assert headline(night) == "No change was found in what could be compared"


@pytest.mark.parametrize("is_known", [True, False], ids=["known models", "new models"])
def test_a_night_says_that_an_hourly_job_of_few_models_needs_a_line_of_its_own(tmp_path, is_known):
    """Three days of it are more runs than a night is judged by."""
    models = ["model01", "model02"]
    nights = farm(8, 8, change=lambda night, name, values: values if is_known or name in models else None)
    nights[7:] = farm(8, 8)[7:]
    hourly = [by_hand(night, hour, models) for night in nights[4:7] for hour in range(24)]
    hourly = [
        replace(run, run=replace(run.run, name=f"hourly-{place}", uid=f"hourly-{place}"))
        for place, run in enumerate(hourly)
    ]
    with made_store(tmp_path / "h.db") as store:
        begin(store, [*nights[:4], *hourly, nights[7]])
        with store.read() as connection:
            night = of_history(connection, nights[7])
    few = "numbers of 6 of 8 cases, which need 3 nights before"
    advice = " among the last 69 runs: give the job of fewer cases a line of its own (`--line`)"
    assert night.caution == few + advice * is_known


@pytest.mark.parametrize("hours", [[12], [12, 13]], ids=["one run", "two runs"])
def test_a_run_of_few_models_by_hand_is_not_the_run_before_a_night(tmp_path, hours):
    nights = farm(6, models=12)
    by_bob = [by_hand(nights[4], hour, ["model03"]) for hour in hours]
    with made_store(tmp_path / "h.db") as store:
        for night_run in (*nights[:5], *by_bob, nights[5]):
            take_in(store, [night_run])
            judge_new(store)
        with store.read() as connection:
            night = of_history(connection, nights[5])
            by_hand_again = of_history(connection, by_bob[-1])
    assert night.baseline.runs[-1].run.name == nights[4].run.name
    assert f"previous run: {nights[4].run.name}" in night.against
    # Another run of this model is comparable with the first one alone.
    assert bool(by_hand_again.untold) == (len(hours) == 1)


def test_a_night_by_a_new_method_says_what_is_not_compared_yet(tmp_path):
    nights = farm(9, models=4, change=slower("model01", 5, 3.0))
    for place, night_run in enumerate(nights):
        nights[place] = replace(
            night_run, run=replace(night_run.run, method={"latency": 2} if place >= 5 else {})
        )
    with made_store(tmp_path / "h.db") as store:
        for night_run in nights:
            take_in(store, [night_run])
            judge_new(store)
        with store.read() as connection:
            shown = [of_history(connection, night) for night in nights[4:]]
    assert [night.changes for night in shown] == [()] * 5
    message = "changes of latency (measured by a new method since 2026-01-06), which need 3 nights before"
    assert [night.caution for night in shown] == [None, message, message, message, None]
    assert headline(shown[1]) == "No change was found in what could be compared"


@pytest.mark.parametrize(("threads", "is_named"), [(2, True), (1, False)])
def test_a_night_says_that_back_ends_with_own_threads_are_not_judged_yet(tmp_path, threads, is_named):
    nights = [
        replace(
            night,
            run=replace(night.run, method={"own_threads": 2} if place >= 5 else {}),
            rows=tuple(
                replace(row, case=replace(row.case, backend="openvino", threads=threads))
                for row in night.rows
            ),
        )
        for place, night in enumerate(farm(9, models=2))
    ]
    with made_store(tmp_path / "h.db") as store:
        take_in(store, nights)
        judge_new(store)
        with store.read() as connection:
            cautions = [of_history(connection, night).caution for night in nights[4:]]
    message = (
        "changes of latency beside threads of a back end's own (measured by a new method since 2026-01-06), "
        "which need 3 nights before"
    )
    assert cautions == ([None, message, message, message, None] if is_named else [None] * 5)


def test_statuses_by_a_new_method_are_held_against_the_night_before(tmp_path):
    nights = farm(7, models=4)
    method = {"accuracy": 2, "memory": 2}
    for place, night_run in enumerate(nights):
        nights[place] = replace(night_run, run=replace(night_run.run, method=method if place >= 4 else {}))
    with made_store(tmp_path / "h.db") as store:
        take_in(store, nights)
        judge_new(store)
        with store.read() as connection:
            shown = [of_history(connection, night).caution for night in nights[4:6]]
    memory = "changes of memory (measured by a new method since 2026-01-05), which need 3 nights before"
    accuracy = "changes of accuracy (measured by a new method since 2026-01-05), which need a night before"
    assert shown == [f"{accuracy}; {memory}", memory]


@pytest.mark.slow
def test_a_night_with_a_run_for_each_setting(tmp_path):
    """Six runs a night on one testbed: each is told of by its own kind."""

    def of(night_run, threads):
        rows = tuple(replace(row, case=replace(row.case, threads=threads)) for row in night_run.rows)
        name = f"{night_run.run.name}_{threads}"
        started = night_run.run.started.replace("T01", f"T{threads + 1:02}")
        return Imported(replace(night_run.run, name=name, started=started, uid=name), rows)

    nights = farm(12, models=4, change=slower("model01", 9, 1.5))
    runs = [of(night, threads) for night in nights for threads in range(1, 7)]
    with made_store(tmp_path / "h.db") as store:
        for night_run in runs:
            take_in(store, [night_run])
            judge_new(store)
        with store.read() as connection:
            last = [of_history(connection, night_run) for night_run in runs[-6:]]
    for threads, night in enumerate(last, 1):
        cases = {change.case for change in night.changes if change.group == REGRESSION}
        assert {(case.model, case.threads) for case in cases} == {("model01", threads)}


@pytest.mark.slow
def test_a_quiet_night(history_nights):
    assert headline(history_nights[25]) == "Nothing changed"
    assert "25 runs before it" in history_nights[25].against


@pytest.mark.slow
def test_a_regression_has_its_size_its_interval_and_its_builds(history_nights):
    ((model, description),) = of(history_nights[28], REGRESSION)
    assert (model, description) == ("model03", "compiled latency")
    (entry,) = [change for change in history_nights[28].changes if change.group == REGRESSION]
    low, high = entry.interval
    assert low < math.log(1.2) < high
    assert (entry.good.started[:10], entry.bad.started[:10]) == ("2026-01-26", "2026-01-27")
    assert not entry.fresh


def test_it_is_reported_of_every_night_that_has_it_and_of_none_after(history_nights):
    slow = ("model03", "compiled latency")
    ill = [number for number, night in history_nights.items() if slow in of(night, REGRESSION)]
    fixed = [number for number, night in history_nights.items() if slow in of(night, REPAIRED)]
    assert len(fixed) == 1
    assert 32 <= fixed[0] <= 34
    # On its first night it may not be certain yet; until it is surely gone it stands.
    assert ill[0] in (26, 27)
    assert ill == list(range(ill[0], fixed[0]))


def test_a_failure_is_new_and_then_fixed(history_nights):
    assert of(history_nights[28], NEW_FAILURE) == [("model09", "status")]
    (entry,) = [change for change in history_nights[28].changes if change.group == NEW_FAILURE]
    assert (entry.before, entry.after, entry.fresh) == ("pass", "fail_accuracy", True)
    assert not of(history_nights[27], NEW_FAILURE)
    assert ("model09", "status") in of(history_nights[30], REPAIRED)


def test_cases_that_came_and_went(history_nights):
    assert of(history_nights[29], VANISHED) == [("model05", "no longer measured")]
    assert of(history_nights[30], APPEARED) == [("model07", "not measured before")]
    assert not of(history_nights[31], APPEARED)
    assert of(history_nights[34], VANISHED) == [("model05", "no longer measured")]
    assert ("model05", "measured again") in of(history_nights[35], REPAIRED)


def test_a_named_baseline():
    old = run("2026-11-01", [row("same"), row("gone"), row("broke")])
    new = run("2026-11-02", [row("same"), row("broke", "crash"), row("came")])
    night = against(new, compare(ComparedRuns("old", (old,)), ComparedRuns("new", (new,))))
    assert night.against == old.run.name
    assert of(night, NEW_FAILURE) == [("broke", "status")]
    assert of(night, VANISHED) == [("gone", "no longer measured")]
    assert of(night, APPEARED) == [("came", "not measured before")]


def test_a_speedup_is_reported_only_where_its_sides_could_not_be_tested():
    def nights(first, factor):
        return tuple(
            run(f"2026-11-{day:02}", [row("a", eager_ms=20.0 + day / 100, backend_ms=ms, speedup=2 / factor)])
            for day in range(first, first + 5)
            for ms in [factor * (10 + day / 100)]
        )

    night = against(
        nights(6, 1.3)[-1], compare(ComparedRuns("old", nights(1, 1.0)), ComparedRuns("new", nights(6, 1.3)))
    )
    assert of(night, REGRESSION) == [("a", "compiled latency")]
    (entry,) = [change for change in night.changes if change.group == REGRESSION]
    assert entry.interval[0] < entry.change < entry.interval[1]


def test_speedups_that_moved_with_eager_are_announced_to_programs_and_by_the_gate():
    old, new = (
        ComparedRuns(str(day), (run(f"2026-11-0{day}", [row("a", eager_ms=ms)]),))
        for day, ms in ((1, 10.0), (2, 12.0))
    )
    night = against(new.runs[0], compare(old, new))
    warnings = []
    night_gate(night, warnings.append)
    assert to_plain(night)["eager"].startswith("Eager itself took 20% longer")
    assert any("Eager itself took 20% longer" in warning for warning in warnings)
    assert to_plain(against(old.runs[0], compare(old, old)))["eager"] is None


def test_what_could_not_be_tested_is_not_called_unchanged():
    old = run("2026-11-01", [row("a", eager_ms=20.0, backend_ms=10.0)])
    new = run("2026-11-02", [row("a", eager_ms=20.0, backend_ms=30.0)])
    night = against(new, compare(ComparedRuns("old", (old,)), ComparedRuns("new", (new,))))
    assert "1 of 1 cases could not be tested" in night.caution
    # Two builds that were measured in turn: the pairs decide, or say that they cannot.
    (case,) = [row.case for row in new.rows]
    for undecided, caution in ((False, None), (True, "numbers of 1 of 1 cases are not decided yet")):
        delta = Delta(10.0, 11.0, 0.095, None, not undecided, 0.2, pairs=4, undecided=undecided)
        sides = ComparedRuns("old", (old,)), ComparedRuns("new", (new,))
        night = against(new, compare(*sides, paired={case: {"backend_ms": delta}}))
        assert (night.caution or "").startswith(caution or "")
        assert bool(night.caution) == undecided
        assert len(night.changes) == (0 if undecided else 1)
    assert headline(night) == "No change was found in what could be compared"


def test_a_few_models_at_a_desk_make_nothing_vanish():
    old = run("2026-11-01", [row(name) for name in "abcd"])
    new = run("2026-11-02", [row("a")])
    night = against(new, compare(ComparedRuns("old", (old,)), ComparedRuns("new", (new,))))
    assert not of(night, VANISHED)
    words = "3 of 4 cases of the old side are missing from the new one, as it has less than half of the cases"
    assert words in night.caution


WAYS = {"default": case(""), "freezing": case("", configuration="freezing", settings='{"mode": "x"}'),
        "dynamic": case("", dynamic=True)}  # fmt: skip


def of_ways(day, ways, models="abcd", **other):
    """The run of a night: these models in these configurations."""
    cases = [replace(WAYS[way], model=model) for way in ways for model in models]
    return ComparedRuns(str(day), (run(f"2026-11-0{day}", [row(of=of) for of in cases], **other),))


def test_a_configuration_that_the_run_did_not_measure_has_not_vanished():
    old, new = of_ways(1, WAYS), of_ways(2, ["default"], "abc")
    night = against(new.runs[0], compare(old, new))
    assert of(night, VANISHED) == [("d", "no longer measured")]
    words = (
        "8 of 12 cases of the old side are missing from the new one, as it did not run their configuration"
    )
    assert words in night.caution


def test_a_run_of_another_setting_on_the_old_side_says_nothing_of_what_vanished():
    """Two runs a night, of one and of two threads: the new side is one of them."""
    (one,), (new,) = of_ways(1, ["default"]).runs, of_ways(2, ["default"], "abc").runs
    rows = [replace(each, case=replace(each.case, threads=2)) for each in one.rows]
    both = ComparedRuns("2026-11-01", (one, run("2026-11-01", rows)))
    night = against(new, compare(both, ComparedRuns("new", (new,))))
    assert of(night, VANISHED) == [("d", "no longer measured")]
    assert "4 of 8 cases of the old side are missing" in night.caution


@pytest.mark.parametrize(
    ("later", "host", "is_gone"),
    [("abcdh", "farm", False), ("abc", "farm", True), ("ab", "farm", False), ("efg", "farm", False),
     ("ABCDH", "farm", False), ("abc", "farm2", False)],
    ids=["with it", "without it", "by hand", "another shard", "another configuration", "another machine"],
)  # fmt: skip
def test_a_case_that_the_old_side_lost_before_its_last_run_has_not_vanished_since(later, host, is_gone):
    """It was removed in the middle of a window. A run of few or of other cases does not tell that."""

    def rows(names):
        ways = [WAYS["freezing" if name.isupper() else "default"] for name in names]
        return [row(of=replace(way, model=name.lower())) for way, name in zip(ways, names, strict=True)]

    first = run("2026-11-01", rows("abcdhABCDH"))
    old = ComparedRuns("week", (first, run("2026-11-02", rows(later), host=host)))
    new = run("2026-11-03", rows("abcefghABCDH"))
    night = against(new, compare(old, ComparedRuns("new", (new,))))
    assert of(night, VANISHED) == ([] if is_gone else [("d", "no longer measured")])
    words = "is missing from the new one, as later complete runs of the old side had no such case"
    assert (words in (night.caution or "")) == is_gone


def test_runs_of_one_name_are_told_apart(tmp_path):
    nights = [
        run(f"2026-11-{day:02}", [row("a")], name="nightly", uid=None, origin="dynamo-csv")
        for day in (1, 2, 3)
    ]
    with made_store(tmp_path / "h.db") as store:
        take_in(store, nights)
        judge_new(store)
        with store.read() as connection:
            assert "first run of this kind" in of_history(connection, nights[0]).untold
            assert "the 2 runs before it" in of_history(connection, nights[2]).against


def test_a_failed_nightly_is_reported_however_busy_other_jobs_are(tmp_path):
    def begun(job, begun, state, run=()):
        return nightlies.Nightly(job, begun, begun, 86400, 10800, state, begun, runs=run)

    after = run("2026-11-02")
    times = [f"2026-11-01T{hour:02}:{minute:02}:00Z" for hour in range(12, 22) for minute in range(0, 60, 2)]
    nights = [
        begun("gpu", "2026-11-01T01:00:00Z", nightlies.FAILED),
        *(begun("busy", time, nightlies.OK) for time in times),
        begun("gpu", "2026-11-02T01:00:00Z", nightlies.OK, (after.run.name,)),
    ]
    with made_store(tmp_path / "h.db") as store, store.write() as connection:
        for nightly in nights:
            nightlies.copy_nightly(connection, nightly)
        assert nightlies_before(connection, after) == "Before this nightly: 2026-11-01 failed"


def test_a_run_that_the_history_does_not_have(tmp_path):
    with made_store(tmp_path / "h.db") as store, store.read() as connection:
        assert of_history(connection, run()).untold == "this run is not in the history"


def elsewhere(runs):
    """The same builds on another kind of machine, four hours later."""
    return [
        Imported(
            replace(
                one.run, name=one.run.name + "_b", uid=one.run.uid + "b", host="farm-b", host_class="EPYC",
                started=one.run.started.replace("T01", "T05"),
            ),
            one.rows,
        )
        for one in runs
    ]  # fmt: skip


def on_two_machines(tmp_path, here, there):
    """The night of the second machine's last run."""
    second = elsewhere(there)
    with made_store(tmp_path / "h.db") as store:
        take_in(store, sorted([*here, *second], key=lambda one: one.run.started))
        judge_last(store, 12)
        with store.read() as connection:
            return of_history(connection, second[-1])


def checked(night):
    """The exit code of `--fail-on regression`, and the number of failed tests that JUnit adds for it."""
    code = night_gate(night, lambda message: None)
    return code, document(night.run.name, (), night.changes).count("<failure")


@pytest.mark.slow
def test_alerts_of_other_machines_fail_no_check(tmp_path):
    """The build slowed a model of both; on the second machine it is only suspected yet."""
    change = slower("model03", 30, 1.2)
    night = on_two_machines(tmp_path, farm(36, 6, change=change), farm(31, 6, seed=1, change=change))
    assert {(change.state, change.of_run) for change in night.changes} == {
        ("suspected", True),
        ("open", False),
    }
    assert headline(night) == "1 suspected regression"
    assert checked(night) == (0, 0)
    assert "seen on 2 machines" in comment(night)


@pytest.mark.slow
def test_the_comment_names_the_machine_of_each_change_and_links_to_its_page(tmp_path):
    change = slower("model03", 28, 1.2)
    night = on_two_machines(tmp_path, farm(36, 6, change=change), farm(36, 6, seed=1, change=change))
    lines = [
        line
        for line in comment(night, site_url="https://perf.example").splitlines()
        if line.startswith("| [`timm/model03")
    ]
    here = run(host_class="Xeon x 100").run.testbed_digest
    for name, testbed in (("EPYC", night.testbed), ("Xeon x 100", here)):
        (line,) = [line for line in lines if f"| {name} " in line]
        assert f"https://perf.example/beds/{testbed[:10]}/models/" in line


def test_machines_of_one_class_are_named_with_their_settings(tmp_path):
    with made_store(tmp_path / "h.db") as store:
        others = [{"setting": {"side_by_side": 4}}, {"host_class": "EPYC", "setting": {"tf32": True}}]
        take_in(
            store, [run(f"2026-11-0{day}", [row()], **other) for day, other in enumerate([{}, *others], 1)]
        )
        with store.read() as connection:
            names = sorted(machine.name for machine in machines_of_testbeds(connection).values())
    assert names == ["EPYC", "Xeon x 100", "Xeon x 100 (side_by_side 4)"]


@pytest.mark.slow
def test_an_improvement_that_shares_a_cause_with_another_machines_regression_fails_no_check(tmp_path):
    here = farm(36, 6, change=slower("model03", 28, 1.2))
    there = farm(36, 6, seed=1, change=slower("model05", 28, 0.8))
    night = on_two_machines(tmp_path, here, there)
    assert [(change.case.model, change.of_run) for change in night.changes] == [
        ("model03", False),
        ("model05", True),
    ]
    assert headline(night) == "1 improvement"
    assert checked(night) == (0, 0)


@pytest.mark.slow
def test_an_alert_acknowledged_here_fails_no_check_while_another_machines_is_open(tmp_path):
    change = slower("model03", 28, 1.2)
    night = on_two_machines(tmp_path, farm(36, 6, change=change), farm(36, 6, seed=1, change=change))
    (cause,) = night.causes
    members = [
        replace(member, state=alert_store.ACKNOWLEDGED) if member.of_run else member
        for member in cause.members
    ]
    acknowledged = replace(night, causes=(replace(cause, members=tuple(members)),))
    assert headline(acknowledged) == "Nothing changed but what is acknowledged"
    unsure = replace(acknowledged, caution="latencies of 2 of 6 cases, which other programs disturbed")
    assert headline(unsure) == "No change but what is acknowledged was found in what could be compared"
    assert checked(acknowledged) == (0, 0)


@pytest.mark.slow
def test_an_alert_that_another_machine_shares_fails_its_check_once(tmp_path):
    change = slower("model03", 28, 1.2)
    runs = farm(36, 6, change=change), farm(36, 6, seed=1, change=change)
    night = on_two_machines(tmp_path, *runs)
    assert len(night.changes) == 2
    assert headline(night) == "1 regression (none new)"
    assert checked(night) == (1, 1)


@pytest.mark.slow
def test_what_is_new_on_this_machine_is_new_whatever_others_have(tmp_path):
    def crash(night, model):
        return "crash" if model == "model03" and night == 30 else "pass"

    runs = farm(31, 6, statuses=crash), farm(31, 6, seed=1, statuses=crash)
    night = on_two_machines(tmp_path, *runs)
    assert len(night.changes) == 2
    assert headline(night) == "1 new failure"
    assert "1 case failing, 1 since the run before" in comment(night)


@pytest.mark.slow
def test_a_case_that_failed_before_is_not_failing_since_the_run_before(tmp_path):
    def crash(night, model):
        return "crash" if model == "model03" and night >= 27 else "pass"

    nights = farm(31, 6, statuses=crash)
    with made_store(tmp_path / "h.db") as store:
        take_in(store, nights)
        judge_new(store)
        with store.read() as connection:
            night = of_history(connection, nights[-1])
    assert headline(night) == "1 failing (none new)"
    assert "<summary>1 case failing</summary>" in comment(night)


def test_a_failure_that_returned_is_new_on_the_night_of_its_return_alone(tmp_path):
    def statuses(night, model):
        if model != "model02":
            return "pass"
        return "crash" if night in (2, 3, 5) else "not_tonight" if night == 6 else "pass"

    nights = farm(7, 3, statuses=statuses)
    with made_store(tmp_path / "h.db") as store:
        take_in(store, nights)
        judge_new(store)
        with store.read() as connection:
            headlines = [headline(of_history(connection, night)) for night in nights[5:]]
    assert headlines == ["1 new failure", "1 failing (none new)"]


def test_failing_cases_are_counted_one_by_one_by_whether_they_are_new():
    def change(number, fresh):
        return RunChange(NEW_FAILURE, case(f"m{number}"), "status", "pass", "crash", fresh=fresh)

    changes = [change(number, number > 0) for number in range(11)]
    assert counts(of_changes(changes)) == ["11 failing (10 new)"]
    apart = [*of_changes(changes[:1]), *of_changes(changes[1:])]
    assert counts(apart) == ["11 failing (10 new)"]
    assert counts(of_changes(changes[1:])) == ["10 new failures"]


def test_a_case_and_a_model_are_counted_once():
    fixed = [
        RunChange(REPAIRED, case("m1"), metric, change=-0.69, metric=metric)
        for metric in ("eager_ms", "backend_ms", "graph_breaks")
    ]
    assert counts(of_changes(fixed)) == ["1 fixed"]
    slower_and_larger = [
        RunChange(
            REGRESSION, case(model), metric, change=0.18, metric=metric,
            good=ChangeEnd(f"2026-01-{day:02}T01:00:00Z"), bad=ChangeEnd(f"2026-01-{day + 1:02}T01:00:00Z"),
        )
        for metric, day in (("backend_ms", 1), ("backend_peak_bytes", 2))
        for model in ("m1", "m2")
    ]  # fmt: skip
    assert counts(of_changes(slower_and_larger)) == ["2 regressions"]


def test_the_first_run_of_other_settings_is_compared_with_nothing(tmp_path):
    """A nightly of two cells: the first night of the second has none of the cases of the first."""
    first, second = farm(2, 12)
    other = Imported(
        replace(first.run, name="other", uid="other", started=first.run.started.replace("T01", "T02")),
        tuple(replace(row, case=replace(row.case, suite="huggingface")) for row in first.rows),
    )
    few = replace(second, rows=second.rows[:1])
    with made_store(tmp_path / "h.db") as store:
        for night in (first, other, few):
            take_in(store, [night])
            judge_new(store)
        with store.read() as connection:
            told = [of_history(connection, night).untold for night in (first, other, few)]
    assert told[:2] == ["first run of this kind, nothing to compare it with"] * 2
    assert told[2] == "it has too few of the cases of the runs before it"


def test_what_is_not_new_is_called_so_beside_a_suspicion():
    changes = [
        RunChange(VANISHED, case("m1"), "status", fresh=False),
        RunChange(SUSPECTED, case("m2"), "backend_ms", change=0.18, metric="backend_ms"),
    ]
    assert counts(of_changes(changes)) == ["1 vanished (none new)", "1 suspected regression"]


@pytest.mark.slow
def test_a_fixed_change_that_a_re_measurement_refuted_is_not_open(tmp_path):
    """Its return was only suspected: the night shows nothing, and the nights since its fix neither."""

    def change(night, name, values):
        is_slow = 28 <= night < 34 or night == 42
        return slower("model03", 0 if is_slow else 10**6, 1.4)(night, name, values)

    nights = farm(43, 6, change=change)
    with made_store(tmp_path / "h.db") as store:
        judge_nights(store, nights)
        with store.write() as connection:
            (alert,) = alert_store.load(connection, states=[alert_store.SUSPECTED])
            alert_store.save(connection, dismissed(alert, "2026-02-12T12:00:00Z"))
        with store.read() as connection:
            headlines = [headline(of_history(connection, nights[place])) for place in (32, 34, 38, 42)]
    assert headlines == ["1 regression (none new)", "1 fixed", "Nothing changed", "Nothing changed"]


@pytest.mark.slow
def test_a_lost_improvement_is_one_failure_and_fixes_nothing(tmp_path):
    def statuses(night, model):
        return "crash" if model == "model03" and not 27 <= night < 32 else "pass"

    nights = farm(33, 6, statuses=statuses)
    with made_store(tmp_path / "h.db") as store:
        take_in(store, nights)
        judge_new(store)
        with store.read() as connection:
            assert [alert.state for alert in alert_store.load(connection, states=[alert_store.FIXED])]
            lost = of_history(connection, nights[32])
            week = weekly_digest(connection, datetime(2026, 2, 4, 8))
    assert headline(lost) == "1 new failure"
    assert checked(lost) == (1, 1)
    assert "Fixed" not in week.mail()


def test_the_week_counts_each_fix(tmp_path):
    def statuses(night, model):
        broken = {"model01": (2, 3), "model02": (2, 3), "model03": (3, 4)}
        return "crash" if night in broken.get(model, ()) else "pass"

    nights = farm(6, 4, statuses=statuses)
    with made_store(tmp_path / "h.db") as store:
        take_in(store, nights)
        judge_new(store)
        with store.read() as connection:
            week = weekly_digest(connection, datetime(2026, 1, 6, 8))
    assert week.title.endswith(": 0 came, 3 fixed, 0 open")
    assert [line for line in week.lines if "works again" in line or "work again" in line] == [
        "- 2 timm models work again",
        "- timm/model03 bs 1 works again",
    ]


@pytest.mark.slow
def test_a_change_came_in_the_week_of_the_night_that_first_showed_it(tmp_path):
    nights = farm(10, 4)
    with made_store(tmp_path / "h.db") as store:
        take_in(store, nights)
        with store.write() as connection:
            ids = [line.id for line in list_runs(connection)]
            # It began on the 6th, and was found on the 9th by a night that ended at 5 o'clock.
            alert = alert_store.Alert(
                "status", 1, 1, "status", alert_store.OPEN, 1, ids[4], ids[5], ids[9], "t", "t",
                details={"before": "pass", "after": "crash", "born_run_id": ids[8]},
            )  # fmt: skip
            alert_store.save(connection, alert)
        with store.read() as connection:
            weeks = [
                weekly_digest(connection, datetime(2026, 1, day, hour))
                for day, hour in ((9, 8), (15, 8), (16, 4), (16, 8), (23, 8))
            ]
    assert ["Came:" in week.lines for week in weeks] == [True, True, True, False, False]
    assert ["Open for longer:" in week.lines for week in weeks] == [False, False, False, True, True]


@pytest.mark.parametrize(("day", "is_listed"), [(9, True), (24, False)], ids=["merged later", "an archive"])
@pytest.mark.slow
def test_a_night_that_the_history_got_after_the_digest_is_in_the_next_one(tmp_path, day, is_listed):
    """The night of the 9th ended at 5 o'clock; `day`: when the history got it, at 9 o'clock."""
    nights = farm(10, 4)
    with made_store(tmp_path / "h.db") as store:
        take_in(store, nights)
        with store.write() as connection:
            ids = [line.id for line in list_runs(connection)]
            at = f"2026-01-{day:02}T09:00:00Z"
            for case, state, run in ((1, alert_store.OPEN, "born"), (2, alert_store.FIXED, "fixed")):
                alert = alert_store.Alert(
                    "status", 1, case, "status", state, 1, ids[7], ids[8], ids[8], at, at,
                    details={"before": "pass", "after": "crash", f"{run}_run_id": ids[8]},
                )  # fmt: skip
                alert_store.save(connection, alert)
        with store.read() as connection:
            weeks = [weekly_digest(connection, datetime(2026, 1, day, 8)) for day in (16, 23, 30)]
    assert ["Came:" in week.lines for week in weeks] == [is_listed, False, False]
    assert ["Fixed:" in week.lines for week in weeks] == [is_listed, False, False]


def test_a_change_whose_first_nights_were_pruned_is_older_than_the_week(tmp_path):
    with made_store(tmp_path / "h.db") as store:
        take_in(store, farm(10, 4, change=slower("model03", 0, 1.2)))
        with store.write() as connection:
            opened = "2025-12-01T05:00:00Z"
            last = list_runs(connection)[-1]
            alert = alert_store.Alert(
                "metric", 1, 4, "backend_ms", alert_store.OPEN, 1, None, None, last.id, opened, opened,
                before=20.0, after=24.0, change=math.log(1.2), details={"born_run_id": 999, "sd": 0.01},
            )  # fmt: skip
            alert_store.save(connection, alert)
        with store.read() as connection:
            week = weekly_digest(connection, datetime(2026, 1, 11, 8))
    assert week.title.endswith(": 0 came, 0 fixed, 1 open")
    assert week.lines[:3] == ("6 runs ended in this time.", "", "Open for longer:")
    assert week.lines[3].startswith("- 41 days: timm/model03 bs 1 20% slower")
    assert "held 10 nights" in week.lines[3]


def gpu_nightly(night, state, why=None):
    started, ended = f"{night}T01:00:00Z", None if state == nightlies.RUNNING else f"{night}T05:00:00Z"
    return nightlies.Nightly("gpu", night, started, 86400, 10800, state, ended, why)


@pytest.mark.parametrize(
    ("last", "day", "line"),
    [
        (
            gpu_nightly("2026-01-10", nightlies.FAILED, "stage torch failed: /home/lab: no wheel"),
            11,
            "Nightly gpu failed: 2026-01-10, begun 2026-01-10T01:00:00Z (stage torch failed).",
        ),
        (
            gpu_nightly("2026-01-10", nightlies.RUNNING),
            13,
            "Nightly gpu never ended: 2026-01-10, begun 2026-01-10T01:00:00Z.",
        ),
        (
            gpu_nightly("2026-01-10", nightlies.OK),
            17,
            "Nightly gpu missing: 7 did not come, the first was due 2026-01-11 01:00 UTC.",
        ),
    ],
    ids=["failed", "never ended", "missing"],
)
def test_the_week_names_broken_nightlies_and_counts_its_runs(tmp_path, last, day, line):
    with made_store(tmp_path / "h.db") as store:
        with store.write() as connection:
            nightlies.copy_nightly(connection, gpu_nightly("2026-01-09", nightlies.OK))
            nightlies.copy_nightly(connection, last)
        with store.read() as connection:
            week = weekly_digest(connection, datetime(2026, 1, day, 8, tzinfo=UTC))
    assert week.lines[:2] == ("No run ended in this time.", line)
    assert week.lines[-1] == "Nothing came, nothing is open."


def test_the_week_names_nightlies_that_are_followed_by_good_ones(tmp_path):
    with made_store(tmp_path / "h.db") as store:
        with store.write() as connection:
            for day in (1, 4, 6):
                state = nightlies.PARTIAL if day == 4 else nightlies.OK
                nightlies.copy_nightly(connection, gpu_nightly(f"2026-01-{day:02}", state))
        with store.read() as connection:
            week = weekly_digest(connection, datetime(2026, 1, 6, 8, tzinfo=UTC))
    assert week.lines[1:-1] == (
        "Nightly gpu missing: 2 did not come, the first was due 2026-01-02 01:00 UTC.",
        "Nightly gpu partial: 2026-01-04, begun 2026-01-04T01:00:00Z.",
        "Nightly gpu missing: 1 did not come, the first was due 2026-01-05 01:00 UTC.",
    )


def test_the_week_counts_what_is_acknowledged(tmp_path):
    with made_store(tmp_path / "h.db") as store:
        take_in(store, farm(3, 4))
        with store.write() as connection:
            ids, at = [line.id for line in list_runs(connection)], "2026-01-03T05:00:00Z"
            for case in (1, 2):
                alert = alert_store.Alert(
                    "status", 1, case, "status", alert_store.ACKNOWLEDGED, 1, ids[case - 1], ids[case],
                    ids[2], at, at, details={"before": "pass", "after": "crash"},
                )  # fmt: skip
                alert_store.save(connection, alert)
        with store.read() as connection:
            week = weekly_digest(connection, datetime(2026, 1, 20, 8))
    assert week.title.endswith(": 0 came, 0 fixed, 0 open, 2 acknowledged")
    assert week.lines == (
        "No run ended in this time.",
        "Nothing came, nothing is open but what is acknowledged.",
    )


@pytest.mark.slow
def test_the_noise_of_a_machine_that_is_gone_is_not_in_the_week(tmp_path):
    old = [
        replace(night, run=replace(night.run, started=started, ended=started, name=started, uid=started))
        for night in elsewhere(farm(5, 1, noise=0.2))
        for started in [night.run.started.replace("2026", "2025")]
    ]
    with made_store(tmp_path / "h.db") as store:
        take_in(store, [*old, *farm(5, 1)])
        with store.read() as connection:
            then, now = (weekly_digest(connection, datetime(year, 1, 6, 8)) for year in (2025, 2026))

    def noise(week):
        return max(float(line.rpartition(", ")[2].rstrip("%")) for line in week.lines if "model00" in line)

    assert noise(then) > 5 > noise(now) > 0


def test_the_noise_of_a_night_that_began_before_the_day_is_in_its_digest(tmp_path):
    with made_store(tmp_path / "h.db") as store:
        take_in(store, farm(5, 1))
        with store.read() as connection:
            last = list_runs(connection)[-1]
            day = weekly_digest(connection, datetime(2026, 1, 6, 3), 1)
    assert last.started < "2026-01-05T03" < (last.ended or "")
    assert day.lines[:3] == (
        "1 run ended in this time.",
        "",
        "Noisiest series, with the noise of a night:",
    )


def test_one_day_is_no_days(tmp_path):
    with made_store(tmp_path / "h.db") as store:
        take_in(store, farm(3, 4))
        with store.write() as connection:
            ids = [line.id for line in list_runs(connection)]
            alert = alert_store.Alert(
                "status", 1, 1, "status", alert_store.OPEN, 1, ids[0], ids[1], ids[1], "t", "t",
                details={"before": "pass", "after": "crash", "born_run_id": ids[1]},
            )  # fmt: skip
            alert_store.save(connection, alert)
        with store.read() as connection:
            day = weekly_digest(connection, datetime(2026, 1, 3, 8), 1)
    assert day.title.startswith("perfdash: 1 day to 2026-01-03:")
    assert day.lines[0] == "1 run ended in this time."
    assert any(line.startswith("- 1 day: ") for line in day.lines)


@pytest.mark.slow
def test_a_change_whose_first_nights_were_pruned_is_not_part_of_a_new_one(tmp_path):
    with made_store(tmp_path / "h.db") as store:
        judge_nights(store, farm(30, 24, change=slower("model01", 26, 1.3)), 20)
        with store.write() as connection:
            opened = "2025-01-01T05:00:00Z"
            last = list_runs(connection)[-1]
            old = alert_store.Alert(
                "metric", 1, 4, "backend_ms", alert_store.OPEN, 1, None, None, last.id, opened, opened,
                before=20.0, after=24.0, change=math.log(1.2), details={"born_run_id": 999, "sd": 0.01},
            )  # fmt: skip
            alert_store.save(connection, old)
        with store.read() as connection:
            week = weekly_digest(connection, datetime(2026, 1, 31, 8))
    assert week.title.endswith(": 1 came, 0 fixed, 2 open")
    assert [line.partition(" slower")[0] for line in week.lines if " slower" in line] == [
        "- timm/model01 bs 1 29%",
        "- 395 days: timm/model03 bs 1 20%",
    ]


def test_the_report_of_a_night_reads_no_more_runs_the_older_the_history_is(tmp_path, monkeypatch):
    monkeypatch.setattr(night_report, "_REFERENCE_RUNS", 12)
    nights = farm(60, models=2)
    read, made = [], queries._run_line
    monkeypatch.setattr(queries, "_run_line", lambda columns: read.append(1) or made(columns))
    with made_store(tmp_path / "h.db") as store:
        counts = []
        for first, last in ((0, 30), (30, 60)):
            take_in(store, nights[first:last])
            judge_last(store, 1)
            read.clear()
            with store.read() as connection:
                night = of_history(connection, nights[last - 1])
            assert night.against.startswith(f"the {last - 1} runs before it")
            assert night.baseline.runs[-1].run.name == nights[last - 2].run.name
            counts.append(len(read))
    assert counts[0] == counts[1] < 2 * 12 + 10


def lost(night, model):
    return "infra_error" if night == 6 or (night, model) == (5, "model01") else "pass"


def test_the_headline_counts_what_the_machine_lost(tmp_path):
    """A night without a number is no night on which nothing changed."""
    with made_store(tmp_path / "h.db") as store:
        nights = farm(7, models=3, statuses=lost)
        for night_run in nights:
            take_in(store, [night_run])
            judge_new(store)
        with store.read() as connection:
            shown = [headline(of_history(connection, night)) for night in nights[4:]]
    assert shown == [
        "Nothing changed",
        "1 case failed because of the machine, nothing changed",
        "Nothing was measured: 3 cases failed because of the machine",
    ]


def test_a_night_that_other_programs_disturbed_is_not_called_unchanged(tmp_path):
    nights = farm(6, models=4, statuses=lambda night, model: "crash" if model == "model03" else "pass")
    quiet, *others = nights[5].rows
    nights[5] = replace(nights[5], rows=(quiet, *(replace(row, verdict="disturbed") for row in others)))
    warnings = []
    with made_store(tmp_path / "h.db") as store:
        take_in(store, nights)
        judge_new(store)
        with store.read() as connection:
            before, disturbed = (of_history(connection, night) for night in nights[4:])
    assert (headline(before), before.caution) == ("Nothing changed", None)
    assert headline(disturbed) == "No change was found in what could be compared"
    assert disturbed.caution == "latencies of 2 of 3 cases, which other programs disturbed"
    assert (night_gate(disturbed, warnings.append), len(warnings)) == (0, 1)
    assert f"not checked: {disturbed.caution}" in warnings[0]


def test_the_reports_of_the_nights_before_a_change_returned_stay_as_they_were(tmp_path):
    def statuses(night, model):
        return "crash" if model == "model02" and night in (2, 3, 5, 6, 8) else "pass"

    nights = farm(9, 3, statuses=statuses)
    new, held, fixed = ("1 new failure", (1, 1)), ("1 failing (none new)", (1, 1)), ("1 fixed", (0, 0))
    with made_store(tmp_path / "h.db") as store:

        def told(places):
            with store.read() as connection:
                reports = [of_history(connection, nights[place]) for place in places]
            return [(headline(night), checked(night)) for night in reports]

        take_in(store, nights[:5])
        judge_new(store)
        assert told(range(2, 5)) == [new, held, fixed]
        take_in(store, nights[5:])
        judge_new(store)
        assert told(range(2, 9)) == [new, held, fixed, new, held, fixed, new]


def test_the_mean_speedup_is_compared_with_all_runs_of_the_named_baseline():
    """The last of them was slower, and of another machine."""
    old = [
        run(f"2026-11-0{day}", [row("a", backend_ms=ms, speedup=20 / ms)], host=host)
        for day, ms, host in ((1, 10.0, "farm"), (2, 10.0, "farm"), (3, 12.5, "farm2"))
    ]
    new = run("2026-11-09", [row("a", backend_ms=10.0, speedup=2.0), row("b", "crash")])
    compared = compare(ComparedRuns("abc", tuple(old)), ComparedRuns("x", (new,)))
    change = next(means.ratio[0] for means in compared.means if means.metric == "speedup") - 1
    assert 0 <= change < 0.1
    text = comment(against(new, compared))
    assert "| against the baseline |" in text
    assert f"| 2.000x | {change:+.1%} (1) |" in text
