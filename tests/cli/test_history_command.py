"""perfdash history, regressions and compare as typed, on runs that were never measured."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pandas as pd
import pytest

from perfdash import api
from perfdash.history.store import open_store
from tests.cli.run_folders import RUN, write_run
from tests.detect.simulated import add_runs_beside
from tests.report.results import a_night, good

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.mark.slow
def test_regressions_from_first_to_last(command, unjudged):
    quiet = command("regressions", "--run", "last", "--json")
    assert quiet.code == 0, quiet.err
    (alert,) = json.loads(quiet.out)
    assert (alert["case"]["model"], alert["metric"], alert["side"]) == ("model03", "backend_ms", "compiled")
    assert alert["state"] in ("confirmed", "open")
    assert alert["bad"]["started"] == "2026-01-28T01:00:00Z"
    assert alert["good"]["torch_git_version"] != alert["bad"]["torch_git_version"]

    failed = command("regressions", "--fail-on", "regression", "--junit", "j.xml")
    assert failed.code == 1
    assert "timm/model03 bs 1: compiled latency" in failed.err
    assert "timm/model03 bs 1" in failed.out
    assert ET.parse(unjudged / "j.xml").getroot().find("testsuite").get("failures") == "1"

    number = str(alert["id"])
    assert command("regressions", "--acknowledge", number, "--note", "known: <see> #123").code == 0
    assert command("regressions", "--fail-on", "regression").code == 0
    shown = command("regressions", number)
    assert "known: <see> #123" in shown.out
    assert "new" in shown.out

    assert command("regressions", "77").code == 2
    assert command("regressions", "--note", "x").code == 2
    acts = json.loads(command("history", "acts", "--json").out)
    assert [(act["act"], act["why"]) for act in acts] == [("acknowledge", "known: <see> #123")]
    over = command("regressions", "--over", "100", "--json")
    (change,) = json.loads(over.out)
    assert change["change"] == pytest.approx(0.15, abs=0.02)


def test_whoever_may_only_read_the_history_is_told_that_nights_are_not_judged(called, unjudged, monkeypatch):
    monkeypatch.setattr("perfdash.history.store.os.access", lambda *_: False)
    shown = called("regressions")
    assert (shown.code, "No alerts" in shown.out) == (0, True), shown
    assert "not judged yet, and you may only read the history" in shown.err
    report = called("report", "last")
    assert "this night is not judged yet" in report.out
    assert "not judged yet, and you may only read" in report.err
    checked = called("regressions", "--fail-on", "regression")
    assert (checked.code, "you may only read it" in checked.err) == (3, True), checked
    assert "history import" not in checked.err


def test_change_points_are_of_so_many_nights_however_many_runs_a_night_has(command, unjudged):
    with open_store(str(unjudged / "runs" / "history.db")) as store:
        add_runs_beside(store, 2)
    (change,) = json.loads(command("regressions", "--over", "20", "--json").out)
    assert change["bad"]["run"] == "2026-01-28T01-00-00Z_farm"
    assert ": 20 nights up to 2026-01-30" in command("regressions", "--over", "20").out


@pytest.mark.slow
def test_history_listed_shown_exported_pruned_and_merged(command, farmed):
    listed = command("history", "runs", "--latest", "2")
    assert listed.out.count("_farm") == 2
    assert len(json.loads(command("history", "runs", "--json").out)) == 30
    assert "model03" in command("history", "show", "last").out
    shown = json.loads(command("history", "show", "last", "--json").out)["results"]
    assert {(result["remark"], result["clock"]) for result in shown} == {(None, None)}
    assert {str(result["others"]) for result in shown} == {"{}"}
    over_time = command("history", "show", "--model", "model03", "--metric", "backend_ms")
    assert over_time.out.count("_farm") == 30
    near = command("history", "show", "--model", "modle03")
    assert near.code == 2
    assert "model03" in near.err
    assert command("history", "show", "--model", "model03", "--metric", "speed").code == 2

    exported = command("history", "export", "all.parquet", "--since", "2026-01-29")
    assert "48 results of 2 runs" in exported.out
    assert len(pd.read_parquet(farmed / "all.parquet")) == 48
    os.mkfifo(farmed / "pipe")
    reader = os.open(farmed / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    exported = command("history", "export", "pipe", "--format", "csv", "--since", "2026-01-30")
    os.close(reader)
    assert (exported.out, exported.err) == ("", "24 results of 1 runs in pipe\n")
    assert command("history", "export", "all.txt").code == 2
    assert command("history", "export", "none/all.csv").code == 3

    assert "Would remove 10 runs" in command("history", "prune", "--before", "2026-01-11").out
    assert (
        "Removed 240 results of 10 runs" in command("history", "prune", "--before", "2026-01-11", "--yes").out
    )
    assert command("history", "prune", "--before", "yesterday").code == 2
    would = command("history", "prune", "--before", "2026-01-30").out
    assert "\n7 older runs are kept: open alerts are dated by them" in would
    samples = command("history", "prune", "--before", "2026-01-30", "--samples").out
    assert samples == "Would remove the samples of 19 runs; --yes does it\n"
    assert len(json.loads(command("history", "runs", "--json").out)) == 20

    merged = command("history", "merge", "runs/history.db", "--db", "other.db")
    assert merged.out.startswith("20 imported"), merged.err
    assert command("history", "merge", "nothing.db").code == 2


def test_compare_by_dates_and_windows(command, farmed):
    result = command("compare", "2026-01-15..2026-01-26", "2026-01-28..", "--fail-on", "regression")
    assert result.code == 1, result.err
    assert "Changed: 1" in result.out
    assert "--fail-on regression: 1 of 24: timm/model03 bs 1" in result.err
    plain = json.loads(
        command(
            "compare", "2026-01-20..2026-01-26", "2026-01-28..", "--format", "json", "--junit", "c.xml"
        ).out
    )
    assert [entry["case"]["model"] for entry in plain["cases"] if entry["regressed"]] == ["model03"]
    assert ET.parse(farmed / "c.xml").getroot().find("testsuite").get("failures") == "1"
    lines = command("compare", "2026-01-25", "2026-01-26", "--format", "csv").out.splitlines()
    assert len(lines) == 25
    wrong = command("compare", "2020-01-01", "last")
    assert wrong.code == 2
    assert "is no run in the history" in wrong.err
    assert command("compare", "last", "last", "--format", "xml").code == 2


def test_foreign_files(command, tmp_path):
    dashboard = str(FIXTURES / "inductor_cpu_dashboard.md")
    untold = command("history", "import", dashboard)
    assert untold.code == 2
    assert "give --started" in untold.err
    taken = command("history", "import", dashboard, "--started", "2023-02-01")
    assert "imported (dynamo-dashboard, 159 results)" in taken.out
    assert "known" in command("history", "import", dashboard, "--started", "2023-02-01").out
    (tmp_path / "what.txt").write_text("nothing in particular\n")
    wrong = command("history", "import", "what.txt", dashboard, "--started", "2023-02-02")
    assert wrong.code == 2
    assert "what.txt" in wrong.err
    assert len(json.loads(command("history", "runs", "--json").out)) == 1, "all of them, or none"


def test_where_there_is_no_history(command, tmp_path):
    for words in (["regressions"], ["history", "runs"], ["history", "export", "a.csv"]):
        ran = command(*words)
        assert ran.code == 2
        assert "there is no history" in ran.err
    (tmp_path / "bad.db").write_text("x" * 4096)
    assert "no SQLite database" in command("history", "runs", "--db", "bad.db").err
    with sqlite3.connect(tmp_path / "newer.db") as connection:
        connection.execute("create table perfdash_version (version_num text)")
        connection.execute("insert into perfdash_version values ('0999')")
    connection.close()
    assert "newer perfdash" in command("history", "runs", "--db", "newer.db").err


def test_passwords_stay_secret(command):
    result = command("history", "runs", "--db", "postgresql://me:s3cret@127.0.0.1:1/x")
    assert result.code == 2
    assert "PERFDASH_DB" in result.err
    hidden = {"PERFDASH_DB": "postgresql://me:s3cret@127.0.0.1:1/x"}
    failed = command("history", "runs", env=hidden)
    assert failed.code == 3
    shown = command("config", env=hidden)
    assert "postgresql://***@127.0.0.1:1/x" in shown.out
    for ran in (result, failed, shown):
        assert "s3cret" not in ran.out + ran.err


@pytest.mark.slow
def test_a_folder_beyond_ascii_under_an_ascii_python(tmp_path):
    folder = tmp_path / "café"
    write_run(folder / "runs" / RUN, a_night())
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "perfdash", "history", "import", folder / "runs", "--out", folder / "runs"],
        cwd=Path(__file__).parents[2], env={**os.environ, **variables}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{RUN}: imported".encode())
    assert (folder / "runs" / "history.db").is_file()


@pytest.mark.slow
def test_a_run_lands_in_the_history_by_itself(command, tmp_path):
    model = Path(__file__).parents[1] / "truth" / "models.py"
    run = ["run", "--model", f"{model}:itself", "--backend", "aot_eager", "--processes", "1"]
    ran = command(*run, "--junit", "j.xml")
    assert ran.code == 0, ran.err
    (line,) = json.loads(command("history", "runs", "--json").out)
    assert line["name"] == ran.folder.name
    assert line["torch_git_version"]
    assert command("history", "import", "runs").out.startswith(f"{line['name']}: known")
    assert ET.parse(tmp_path / "j.xml").getroot().find("testsuite").get("tests") == "1"

    kept_out = command(*run, "--no-history")
    assert kept_out.code == 0
    assert len(json.loads(command("history", "runs", "--json").out)) == 1
    assert command(*run, "--no-history", "--fail-on", "regression").code == 2


@pytest.mark.slow
def test_a_run_is_excluded_shown_so_and_brought_back(command, farmed):
    wrong = "2026-01-28T01-00-00Z_farm"
    refused = command("history", "exclude", wrong)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "--because" in refused.err
    done = command("history", "exclude", wrong, "--because", "a stray <build>")
    assert done.code == 0, done.err
    assert "Judged again: 2 nights" in done.out
    listed = command("history", "runs", "--latest", "4").out
    assert f"~~{wrong}~~" in listed
    assert f"{wrong} is excluded: a stray <build>" in listed
    assert json.loads(command("history", "runs", "--json").out)[27]["excluded"] == "a stray <build>"
    assert f"{wrong} is excluded: a stray <build>" in command("history", "show", "--model", "model03").out
    assert "Excluded from judging: a stray <build>" in command("history", "show", wrong).out
    again = command("history", "exclude", wrong, "--because", "me too")
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "a stray <build>" in again.err
    assert "--undo" in again.err
    assert "Judged again: 3 nights" in command("history", "exclude", wrong, "--undo").out
    acts = json.loads(command("history", "acts", "--json").out)
    assert [(act["act"], act["subject"], act["why"]) for act in acts] == [
        ("exclude", wrong, "a stray <build>"),
        ("undo exclude", wrong, None),
    ]
    assert "a stray <build>" in command("history", "acts").out


@pytest.mark.slow
def test_last_is_the_same_run_in_every_command(called, tmp_path):
    names = [f"2026-11-{day}T00-00-00Z_host" for day in (19, 20, 21)]
    for name in names:
        file = write_run(tmp_path / "runs" / name, [good("resnet18", 2.0, "faster")]) / "run.json"
        started = f"{name[:10]}T00:00:00Z"
        file.write_text(json.dumps({**json.loads(file.read_text()), "id": name, "started": started}))
    assert called("history", "import", "runs").code == 0
    assert called("history", "exclude", "last", "--because", "the fan").out.startswith(names[2])
    assert names[1] in called("history", "show", "last").out
    line = f"`last` is {names[1]}; excluded from judging: {names[2]} (the fan)"
    for words in (["show", "--json"], ["report"], ["compare", names[0], "last"], ["plot"],
                  ["confirm", "last", "--good-python", "python3"]):  # fmt: skip
        done = called(*words)
        assert done.err.count(line) == 1, (words, done.err)
        assert names[2] not in done.out, words
        assert "is excluded from judging" not in done.out + done.err, words
    assert f"New: {names[1]} " in called("compare", names[0], "last").out
    assert api.load().folder.name == names[1]


@pytest.mark.slow
def test_a_run_is_renamed_and_removed(command, farmed):
    name = "2026-01-10T01-00-00Z_farm"
    assert "is now called before-the-move" in command("history", "rename", name, "before-the-move").out
    would = command("history", "remove", "before-the-move")
    assert (would.code, "24 results" in would.out, "--yes" in would.out) == (0, True, True)
    assert len(json.loads(command("history", "runs", "--json").out)) == 30
    assert "Removed before-the-move" in command("history", "remove", "before-the-move", "--yes").out
    assert len(json.loads(command("history", "runs", "--json").out)) == 29
    for words in (("remove", name), ("exclude", name, "--because", "x"), ("rename", name, "y")):
        missing = command("history", *words)
        assert (missing.code, missing.err.count("\n")) == (2, 1)
        assert "renamed it to 'before-the-move'" in missing.err
    assert "-> before-the-move" in command("history", "acts").out


@pytest.mark.slow
def test_what_people_decide_about_an_alert_is_shown_with_it(command, farmed):
    (alert,) = json.loads(command("regressions", "--json").out)
    number = str(alert["id"])
    until = command("regressions", "--acknowledge", number, "--until", "2999-12-24", "--because", "see #1")
    assert f"Alert {number} is acknowledged until 2999-12-24" in until.out
    assert "acknowledged until 2999-12-24 by " in command("regressions").out
    one = command("regressions", number).out
    assert ": see #1" in one
    assert f"torch between {alert['good']['torch_git_version'][:10]} and " in one
    assert ", p = " in one
    again = command("regressions", "--acknowledge", number)
    assert "had acknowledged it on 20" in again.out

    for words, message in (
        (("--invalid", number), "--because"),
        (("--invalid", "77", "--because", "x"), "there is no alert 77"),
        (("--acknowledge", number, "--until", "tomorrow"), "give one such as 2026-12-24"),
        (("--acknowledge", number, "--until", "2020-01-01"), "is over"),
        (("--until", "2999-01-01"), "--until belongs to --acknowledge"),
        (("--invalid", number, "--acknowledge", number), "cannot be given together"),
        (("--model", "x"), "belong to --baseline-from"),
        (("--baseline-from", "nothing", "--because", "x"), "the history has no run 'nothing'"),
        (("--baseline-from", "last"), "--because"),
        (("--baseline-from", "last", "--model", "x", "--because", "x"), "select none of its series"),
    ):
        refused = command("regressions", *words)
        assert (refused.code, refused.err.count("\n")) == (2, 1), (words, refused.err)
        assert message in refused.err

    run = "2026-01-28T01-00-00Z_farm"
    accepted = command("regressions", number, "--baseline-from", run, "--because", "meant")
    assert f"The level of 1 case is accepted from {run} on; alerts accepted: {number}" in accepted.out
    assert command("regressions").out.strip() == "No alerts"
    assert "accepted by " in command("regressions", "--all").out
    over = command("regressions", "--invalid", number, "--because", "x")
    assert (over.code, over.err.count("\n")) == (2, 1)
    assert "is accepted (" in over.err
    assert ": meant)" in over.err
    listed = command("history", "acts").out
    assert "model model03" in listed
    assert "until 2999-12-24" in listed


@pytest.mark.slow
def test_the_noisiest_series_are_listed(command, farmed):
    (farmed / "perfdash.toml").write_text("[[thresholds]]\nmodel = 'model00'\nminimum_change = 0.3\n")
    listed = json.loads(command("regressions", "--noisiest", "500", "--json").out)
    assert [series["sd"] for series in listed] == sorted((s["sd"] for s in listed), reverse=True)
    assert {s["minimum"] for s in listed if s["case"]["model"] == "model00"} == {0.3}
    assert set(listed[0]["least"]) == {"1", "2", "5"}
    table = command("regressions", "--noisiest", "2").out
    assert "found after 5 nights" in table
    assert table.count("model") == 3


@pytest.mark.slow
def test_thresholds_are_validated_at_start_and_hold(command, unjudged):
    toml = unjudged / "perfdash.toml"
    toml.write_text("[[thresholds]]\nmodle = 'x'\njudge = false\n")
    for words in (("regressions",), ("run", "--suite", "timm", "--dry-run"), ("history", "runs")):
        refused = command(*words)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert (
            "perfdash.toml: [[thresholds]] rule 1 has no key 'modle'; there are: suite, model" in refused.err
        )
    toml.write_text("[[thresholds]]\nmodel = 'model03'\nminimum_change = 0.3\n")
    assert command("regressions", "--all").out.strip() == "No alerts"
