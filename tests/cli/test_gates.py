"""What a run refuses before it measures, and what becomes of a run that its history does not take."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfdash import api
from perfdash.cli import run as cli_run
from perfdash.detect.curation import rename
from perfdash.history.ingest import take_in
from perfdash.history.store import open_store
from perfdash.records import Case, Result, RunInfo, Status
from perfdash.report import gates
from perfdash.report.night import of_history
from perfdash.runner.run_recording import record
from perfdash.settings import RunSettings, resolve
from tests.detect.simulated import farm

RUN = ["run", "--suite", "timm", "--models", "lcnet_050"]


@pytest.fixture
def unusable(tmp_path, monkeypatch):
    """Addresses of histories that cannot be written; measuring is an error."""

    def measured(*_):
        pytest.fail("it measures")

    monkeypatch.setattr("perfdash.runner.run.measure", measured)
    (tmp_path / "folder.db").mkdir()
    (tmp_path / "notes.db").write_text("not a database, " * 100)
    with sqlite3.connect(tmp_path / "songs.db") as connection:
        connection.execute("create table songs (title text)")
    connection.close()
    open_store(str(tmp_path / "broken.db")).close()
    with (tmp_path / "broken.db").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 4096)


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("db", "code", "words"),
    [
        ("folder.db", 2, "it is a folder"),
        ("notes.db", 2, "no SQLite database"),
        ("broken.db", 3, "broken.db is damaged"),
        ("songs.db", 2, "a database of another program"),
        ("notes.db/history.db", 3, "no file can be made in"),
        ("mysql://host/name", 2, "mysql is not known"),
        ("postgresql://me@127.0.0.1:1/x", 3, "cannot be opened"),
    ],
)
def test_an_unusable_history_is_found_before_measuring(called, unusable, tmp_path, db, code, words, dry):
    result = called(*RUN, "--db", db, *dry)
    assert result.code == code
    assert words in result.err
    assert "--no-history" in result.err
    assert not (tmp_path / "runs").exists()


def test_looking_makes_no_history(called, tmp_path):
    assert called(*RUN, "--dry-run").code == 0
    assert not list(tmp_path.iterdir())


def test_a_run_that_stays_out_needs_no_history(called, unusable):
    assert called(*RUN, "--db", "folder.db", "--no-history", "--dry-run").code == 0
    assert called(*RUN, "--models", "hrnet_w18", "--db", "folder.db", "--shard", "1/2", "--dry-run").code == 0


def test_a_history_that_takes_nothing_any_more(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = resolve({"db": "h.db"}, {}, tmp_path)[0]
    gates.check_settings(settings)
    (tmp_path / "h.db").mkdir()
    info = RunInfo("r", "2026-11-21T00:00:00Z", "h", ["perfdash"], {}, {}, 1, "0", state="done")
    results = [Result(Case("s", "one"), "t", 1.0, Status.CRASH)]
    assert record(settings, info, results, tmp_path / "r", print) == 3
    assert f"perfdash history import {tmp_path / 'r'}" in capsys.readouterr().out


@pytest.mark.parametrize(("damage", "advice"), [
    (b"not a database, " * 100, "perfdash history import {folder} --db FILE"),
    (b"SQLite format 3\0" + b"\xff" * 4096, "perfdash history import {folder} --db FILE"),
])  # fmt: skip
def test_a_broken_history_is_not_what_it_is_to_be_imported_into(tmp_path, capsys, damage, advice):
    (tmp_path / "history.db").write_bytes(damage)
    settings = RunSettings(out=tmp_path)
    info = RunInfo("r", "2026-01-01T00:00:00Z", "h", ["perfdash"], {}, {}, 1, "0")
    results = [Result(Case("s", "m"), "2026-01-01T00:00:00Z", 1.0, Status.PASS)]
    assert record(settings, info, results, tmp_path / "run", print) == 3
    output = capsys.readouterr().out
    assert "The run is saved, but not in the history" in output
    assert output.strip().endswith(advice.format(folder=tmp_path / "run"))


def test_a_gate_says_what_it_could_not_judge(tmp_path, capsys):
    nights = farm(6, models=2)
    last = replace(nights[-1], run=replace(nights[-1].run, method={**nights[-1].run.method, "latency": 99}))
    settings, _ = resolve({"db": str(tmp_path / "h.db")})
    with open_store(settings.history) as store:
        take_in(store, [*nights[:-1], last])
    assert gates.alerts_of_run(settings.history, last, print) == []
    message = "regression: not checked: changes of latency (measured by a new method since 2026-01-06)"
    assert message in capsys.readouterr().out


def test_the_gate_of_a_run_names_the_threads_and_the_dtype():
    cases = [Case("s", "net", threads=4), Case("s", "net", dtype="bfloat16")]
    results = [Result(case, "2026-01-01T00:00:00Z", 1.0, Status.CRASH) for case in cases]
    messages = []
    assert gates.result_gate(results, ["failure"], messages.append) == 1
    assert messages == ["--fail-on failure: 2 of 2: s/net bs 1 4 threads, s/net bs 1 bfloat16"]


def test_both_gates_fail_a_night_that_left_out_a_failing_model(tmp_path):
    def statuses(night, model):
        return {4: "crash", 5: "crash", 6: "not_tonight"}.get(night, "pass") if model == "model01" else "pass"

    nights = farm(7, models=3, statuses=statuses)
    history = str(tmp_path / "h.db")
    with open_store(history) as store:
        take_in(store, nights)
    messages = []
    alerts = gates.alerts_of_run(history, nights[-1], messages.append)
    assert gates.alert_gate(alerts, messages.append) == 1
    with open_store(history) as store, store.read() as connection:
        assert gates.night_gate(of_history(connection, nights[-1]), messages.append) == 1
    assert messages == ["--fail-on regression: 1: timm/model01 bs 1: pass -> crash",
                        "--fail-on regression: 1: timm/model01 bs 1: status"]  # fmt: skip


def test_neither_gate_fails_a_run_by_hand_for_what_a_night_showed(tmp_path):
    def statuses(night, model):
        return "crash" if model == "model01" and night in (4, 5) else "pass"

    nights = farm(7, models=6, statuses=statuses)
    last = replace(nights[-1], rows=tuple(row for row in nights[-1].rows if row.case.model == "model01"))
    history = str(tmp_path / "h.db")
    with open_store(history) as store:
        take_in(store, [*nights[:-1], last])
    messages = []
    assert gates.alert_gate(gates.alerts_of_run(history, last, messages.append), messages.append) == 0
    with open_store(history) as store, store.read() as connection:
        assert gates.night_gate(of_history(connection, last), messages.append) == 0
    assert len(set(messages)) == 1, messages
    assert "not checked: it has too few of the cases of the runs before it" in messages[0]


def test_a_run_that_was_renamed_in_the_history_has_its_alerts(tmp_path):
    nights = farm(
        4, models=3, statuses=lambda night, model: "crash" if (night, model) == (3, "model01") else "pass"
    )
    history = str(tmp_path / "h.db")
    with open_store(history) as store:
        take_in(store, nights)
        rename(store, nights[-1].run.name, "before-upgrade")
    moved = replace(nights[-1], run=replace(nights[-1].run, source="another/folder"))
    (alert,) = gates.alerts_of_run(history, moved, print)
    assert alert.case.model == "model01"


def test_a_run_that_is_in_no_history_is_more_than_a_gate_that_failed(tmp_path, monkeypatch):
    """A nightly takes 1 for a run that is complete, and never tries again to record it."""
    info = RunInfo("r", "2026-11-21T00:00:00Z", "h", ["perfdash"], {}, {}, 1, "0", state="done")
    recorded = api.Run(tmp_path, info, [Result(Case("s", "one"), "t", 1.0, Status.CRASH)])
    monkeypatch.setattr(api, "measure_run", lambda *_: replace(recorded, exit_code=3))
    prepared = SimpleNamespace(settings=RunSettings(fail_on=("failure",), junit=tmp_path / "junit.xml"))
    assert cli_run._measure(prepared, wide=False, as_json=False) == 3
    assert (tmp_path / "junit.xml").exists()
    monkeypatch.setattr(api, "measure_run", lambda *_: recorded)
    assert cli_run._measure(prepared, wide=False, as_json=False) == 1


def test_a_run_whose_every_case_the_machine_lost_ends_with_3(tmp_path, monkeypatch):
    lost = Result(Case("s", "one"), "t", 1.0, Status.INFRA_ERROR)
    info = RunInfo("r", "2026-11-21T00:00:00Z", "h", ["perfdash"], {}, {}, 1, "0", state="done")
    prepared = SimpleNamespace(
        settings=RunSettings(no_history=True), info=info, results=[lost], interrupted=False,
        journal=SimpleNamespace(folder=tmp_path),
    )  # fmt: skip
    monkeypatch.setattr("perfdash.runner.run.measure", lambda *_: None)
    notes = []
    assert api.measure_run(prepared, None, notes.append).exit_code == 3
    assert notes == ["Nothing was measured: 1 case failed because of the machine"]
    prepared.results.append(replace(lost, status=Status.PASS))
    assert api.measure_run(prepared, None, notes.append).exit_code == 0


@pytest.mark.parametrize(("noise", "taken"), [
    ({"null": {"start": [1.0], "end": [1.0]}}, True),
    ({"null": {"start": [1.0]}}, False),  # Ctrl-C
    ({"null": {"start": [1.0], "end": [1.0]}, "refused": "at the end of the run it is off by 8%"}, False),
    ({}, True),  # every case was skipped
])  # fmt: skip
def test_the_history_gets_no_run_that_strict_refuses(tmp_path, noise, taken):
    settings = RunSettings(suite=["timm"], db=str(tmp_path / "history.db"), strict=True)
    configuration = settings.model_dump(mode="json", exclude={"db"})
    info = RunInfo("r", "2026-01-01T00:00:00Z", "h", [], configuration, {}, 1, "0", noise=noise)
    messages = []
    code = record(settings, info, [Result(Case("s", "m"), "t", 1.0, Status.PASS)], tmp_path, messages.append)
    assert code == (0 if taken else 3)
    assert (tmp_path / "history.db").exists() is taken
    assert taken or "not put into the history: --strict" in messages[0]


@pytest.mark.parametrize("option", [["--fail-on", "regression"], ["--junit", "x.xml"]])
def test_one_alert_is_no_check(called, option):
    """It would pass whatever the alert is."""
    shown = called("regressions", "12", *option)
    assert (shown.code, "are for the list of alerts: leave out 12" in shown.err) == (2, True)


def test_regressions_of_a_night_between_the_first_and_the_last_of_an_alert_fail_the_check(called, tmp_path):
    def statuses(night, model):
        return "crash" if model == "model01" and night >= 3 else "pass"

    nights = farm(7, models=3, statuses=statuses)
    with open_store(str(tmp_path / "h.db")) as store:
        take_in(store, nights)
    by_night = [
        called("regressions", "--db", "h.db", "--run", night.run.name, "--fail-on", "regression")
        for night in (*nights[2:5], nights[6])
    ]
    assert [listed.code for listed in by_night] == [0, 1, 1, 1]
    assert all("model01" in listed.out for listed in by_night[1:])
    assert by_night[0].out == "No alerts\n"


def test_regressions_of_a_run_that_no_night_was_judged_by_says_so(called, tmp_path):
    nights = farm(6, models=6, statuses=lambda night, model: "crash" if night >= 3 else "pass")
    few = replace(nights[-1], rows=nights[-1].rows[:1])
    with open_store(str(tmp_path / "h.db")) as store:
        take_in(store, [*nights[:-1], few])
    listed = called("regressions", "--db", "h.db", "--run", few.run.name, "--fail-on", "regression")
    assert (listed.code, listed.out) == (0, "No alerts\n")
    assert "not checked: it has too few of the cases of the runs before it" in listed.err
