"""Which alerts of a history have an issue."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from perfdash.detect.nightly_judging import judge_new
from perfdash.files import dumps
from perfdash.history.ingest import take_in
from perfdash.history.store import open_store
from perfdash.owners import read_owners
from perfdash.publish.issues import ExistingIssue, planned_steps
from perfdash.publish.tracked_regressions import tracked_regressions
from perfdash.report.night import Night
from tests.detect.simulated import begin, farm, slower, with_reason
from tests.explain.sides import kernel, structure
from tests.stores import as_revision_0007, as_revision_0012


def test_a_suspected_change_has_no_issue_until_it_is_confirmed(tmp_path):
    runs = farm(34, change=slower("model03", 30, 1.4))
    address = str(tmp_path / "history.db")
    issues = []
    with open_store(address) as store:
        begin(store, runs[:30])
    for night_run in runs[30:]:
        with open_store(address) as store:
            take_in(store, [night_run])
            judge_new(store)
        issues.append(
            [
                (issue.state, issue.open)
                for issue in tracked_regressions(Night(night_run), address, None).issues
            ]
        )
    assert issues == [[("suspected", None)], [("new", None)], [("confirmed", True)], [("open", True)]]


def several(first, last, night, factor):
    def change(at, name, values):
        if first <= int(name.removeprefix("model")) <= last and at >= night:
            values["backend_ms"] *= factor
        return values

    return change


def tracked(tmp_path, runs, **other):
    address = str(tmp_path / "history.db")
    with open_store(address) as store:
        take_in(store, runs)
        judge_new(store)
    return tracked_regressions(Night(runs[-1]), address, "https://perf.example/", **other).issues


@pytest.mark.slow
def test_one_commit_that_slows_many_models_is_one_issue(tmp_path):
    owners = read_owners({"timm": "org/team", "timm/model03": ["alice", "@bob"]}, "perfdash.toml")
    (issue,) = tracked(tmp_path, farm(36, change=several(2, 7, 28, 1.14)), owners=owners)
    assert issue.open
    assert issue.title.startswith("Regression: 6 timm models 14% slower")
    assert len(issue.alerts) == 6
    assert issue.owners == ("org/team", "alice", "bob")
    assert "@org/team @alice @bob" in issue.body
    assert issue.body.count("| `timm/model0") == 6
    assert "](https://perf.example/causes/" in issue.body
    assert "github.com/pytorch/pytorch/compare/" in issue.body
    assert issue.body.count("perfdash run --suite timm") == 5


def test_the_issue_of_several_failures_has_the_reason_of_the_first(tmp_path):
    def statuses(night, name):
        return "crash" if name in ("model02", "model03") and night >= 4 else "pass"

    runs = [with_reason(night, "no kernel\nmore") for night in farm(8, 6, statuses=statuses)]
    (issue,) = tracked(tmp_path, runs)
    assert issue.title == "Regression: 2 timm models fail: crash"
    assert "| Why | model02: no kernel (in compile) |" in issue.body


def test_the_reason_of_what_failed_after_compiling_is_beside_what_changed(tmp_path):
    def statuses(night, name):
        return "crash" if name in ("model02", "model03") and night >= 4 else "pass"

    runs = []
    for night in farm(8, 6, statuses=statuses):
        rows = tuple(replace(row, structure=structure(kernel("add"))) for row in night.rows)
        runs.append(with_reason(replace(night, rows=rows), "ended by SIGSEGV\nmore", "latency"))
    (issue,) = tracked(tmp_path, runs)
    assert "the status is crash instead of pass: ended by SIGSEGV (in latency). |" in issue.body


def test_past_alerts_are_read_together(tmp_path):
    def statements(broken):
        def statuses(night, name):
            return "crash" if name in broken and night == 2 else "pass"

        executed = []
        folder = tmp_path / str(len(broken))
        folder.mkdir()
        runs = farm(5, 8, statuses=statuses)
        with open_store(str(folder / "history.db")) as store:
            take_in(store, runs)
            judge_new(store)

        def count(*arguments):
            executed.append(arguments)

        sa.event.listen(sa.Engine, "before_cursor_execute", count)
        try:
            issues = tracked_regressions(Night(runs[-1]), str(folder / "history.db"), None).issues
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", count)
        assert [issue.born for issue in issues] == [runs[2].run.name] * len(broken)
        return len(executed)

    assert statements(["model02"]) == statements([f"model0{number}" for number in range(1, 7)])


@pytest.mark.slow
def test_a_cause_on_two_machines_names_the_machine_of_each_change(tmp_path):
    here = farm(36, 6, change=several(2, 3, 28, 1.14))
    there = [
        replace(
            one,
            run=replace(
                one.run, uid=f"{one.run.uid}b", host="farm-b", host_class="EPYC",
                started=one.run.started.replace("T01", "T00"),
            ),
        )
        for one in farm(36, 6, seed=1, change=several(2, 3, 28, 1.14))
    ]  # fmt: skip
    runs = sorted([*here, *there], key=lambda one: one.run.started)
    (issue,) = tracked(tmp_path, runs)
    members = [line for line in issue.body.splitlines() if line.startswith("| `timm/model0")]
    assert len(members) == 4
    assert {name: sum(f"| {name} " in line for line in members) for name in ("EPYC", "Xeon x 100")} == {
        "EPYC": 2,
        "Xeon x 100": 2,
    }


@pytest.mark.slow
def test_fixed_ones_of_a_cause_are_apart_and_have_no_issue_of_their_own(tmp_path):
    slow = several(2, 4, 26, 1.2)

    def change(at, name, values):
        return values if name == "model02" and at >= 32 else slow(at, name, values)

    issues = tracked(tmp_path, farm(40, change=change))
    assert [(issue.open, len(issue.alerts), issue.state) for issue in issues] == [
        (True, 2, "open"),
        (False, 1, "fixed"),
    ]


def test_a_regression_keeps_its_issue_where_its_testbed_loses_the_gpus(tmp_path):
    """The marker of an issue names the testbed: another name would close it and open a second issue."""

    def statuses(night, name):
        return "crash" if name in ("model02", "model03") and night >= 4 else "pass"

    nights = farm(9, 6, statuses=statuses)
    with_gpus = [replace(one, run=replace(one.run, setting={"gpus": ["H100"]})) for one in nights]
    (before,) = tracked(tmp_path, with_gpus[:8])
    with open_store(str(tmp_path / "history.db")) as store:
        as_revision_0012(store)
    (after,) = tracked(tmp_path, [nights[8]])
    assert after.open
    assert after.alerts == before.alerts
    existing = ExistingIssue(1, True, f"{before.marker_line('open')}\n")
    names = [one.run.name for one in nights]
    assert planned_steps([existing], [after], names) == []


def test_a_regression_keeps_its_issue_where_its_run_becomes_a_night_of_a_configuration(tmp_path):
    """The marker names testbed and case, and the migration changes both."""

    def statuses(night, name):
        return "crash" if name in ("model02", "model03") and night >= 4 else "pass"

    nights = farm(9, 6, statuses=statuses)
    options = {"inductor_config": {"freezing": True}}
    by_options = [replace(one, run=replace(one.run, setting={**options, "gpus": ["H100"]})) for one in nights]
    (before,) = tracked(tmp_path, by_options[:8])
    as_revision_0007(tmp_path / "history.db")
    of = {"settings": dumps(options, separators=(",", ":")), "configuration": "freezing"}
    rows = tuple(replace(row, case=replace(row.case, **of)) for row in nights[8].rows)
    (after,) = tracked(tmp_path, [replace(nights[8], rows=rows)])
    assert after.open
    assert after.alerts == before.alerts
    existing = ExistingIssue(1, True, f"{before.marker_line('open')}\n")
    names = [one.run.name for one in nights]
    assert planned_steps([existing], [after], names) == []


def test_each_command_and_message_is_of_the_run_that_shows_the_regression(tmp_path):
    """A night may have several runs, whose models come from suites, from files and from --model."""
    sources = {
        "timm": ("oom", "model00", "--suite timm"),
        "mine": ("crash", "model01", "--suite mine.toml"),
        "own": ("crash", "net.make", "--model net.py:make"),
    }
    runs = []
    for number, night in enumerate(farm(8, 1)):
        for suite, (status, model, source) in sources.items():
            (row,) = night.rows
            row = replace(row, case=replace(row.case, suite=suite, model=model))
            if number >= 4:
                details = {"error": {"type": "Error", "message": f"no room for {model}"}}
                row = replace(row, status=status, details=details)
            name, started = (
                f"{night.run.name}_{suite}",
                night.run.started.replace("00Z", f"{len(runs) % 3}0Z"),
            )
            command = ("perfdash", "run", *source.split())
            one = replace(night.run, name=name, uid=name, started=started, command=command)
            runs.append(replace(night, run=one, rows=(row,)))
    issues = {len(issue.alerts): issue.body for issue in tracked(tmp_path, runs)}
    assert issues.keys() == {1, 2}
    assert "\nperfdash run --suite timm --models model00 " in issues[1]
    assert "\nno room for model00\n" in issues[1]
    assert "\nperfdash run --suite mine.toml --models model01 " in issues[2]
    assert "\nperfdash run --model net.py:make " in issues[2]


def test_the_command_of_a_model_that_vanished_is_that_of_the_last_run_that_measured_it(tmp_path):
    runs = []
    for number, night in enumerate(farm(6, 6)):
        words = "--suite timm --model net.py:make" if number < 4 else "--suite timm"
        case = replace(night.rows[0].case, suite="own", model="net.make")
        rows = (replace(night.rows[0], case=case), *night.rows[1:])[number >= 4 :]
        of_night = replace(night.run, command=("perfdash", "run", *words.split()), expected=len(rows))
        runs.append(replace(night, run=of_night, rows=rows))
    (issue,) = tracked(tmp_path, runs)
    assert "it is no longer measured" in issue.body
    assert "\nperfdash run --model net.py:make " in issue.body
