"""`perfdash nightly` and `perfdash doctor --nightly` as a user calls them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from perfdash.cli.nightly import examined
from perfdash.history.ingest import take_in
from perfdash.history.nightlies import Nightly, begin
from perfdash.history.store import open_store
from tests.history.made import row, run

HOURS = 3600


def put(tmp_path, *nightlies, runs=()):
    address = tmp_path / "runs" / "history.db"
    with open_store(str(address)) as store:
        take_in(store, list(runs))
        with store.write() as connection:
            for nightly in nightlies:
                begin(connection, nightly)
    return str(address)


def ago(hours, state="ok", **other):
    begun = (datetime.now(UTC) - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Nightly(
        "nightly", begun, begun, 24 * HOURS, 3 * HOURS, state, None if state == "running" else begun, **other
    )


def test_a_nightly_from_its_beginning_to_its_end(called):
    ran = called("nightly", "begin", "--every", "24h", "--expect", "timm cpu  float32", "--night", "n1")
    assert ran.code == 0, ran.err
    assert re.fullmatch(r"nightly n1: begun \S+Z, the next is due \S+Z\n", ran.out)
    ran = called("doctor", "--nightly")
    assert (ran.code, ran.out[:7]) == (0, "running")
    ran = called("nightly", "end", "--state", "ok")
    assert ran.code == 0
    assert ran.out == "nightly n1: partial: timm cpu float32 was not measured\n"
    ran = called("doctor", "--nightly")
    assert ran.code == 1
    assert "partial     nightly  n1, begun" in ran.out
    (nightly,) = json.loads(called("nightly", "list", "--json").out)
    assert (nightly["state"], nightly["expected"], nightly["grace_s"]) == (
        "partial",
        ["timm cpu float32"],
        3 * HOURS,
    )
    assert called("nightly", "forget", "nightly").out == "Forgot 1 of nightly\n"
    assert called("nightly", "list").out == "No nightlies\n"


def test_it_warns_where_two_nightlies_are_one_series(called, tmp_path):
    hour = iter(range(1, 9))

    def measured(job, words=(), **more):
        """What a night of a job warns about when it begins; then its run is stored."""
        at = (datetime.now(UTC) - timedelta(hours=9 - next(hour))).strftime("%Y-%m-%dT%H:%M:%SZ")
        night = run("2026-11-01", [row()], name=f"{job} {at}", started=at, ended=at, **more)
        put(tmp_path, runs=[night])
        begun = called("nightly", "begin", "--job", job, "--night", at)
        assert begun.code == 0
        assert called("nightly", "end", "--job", job, "--state", "ok", "--run", night.run.name).code == 0
        return begun.err

    assert measured("main") == measured("feature") == ""
    warning = measured("main")
    assert "the last runs of the nightlies main, feature are nights of one series" in warning
    assert "LINE=NAME" in warning
    assert measured("feature", setting={"line": "feature"}) != ""
    assert measured("main") == measured("feature", setting={"line": "feature"}) == ""
    (first, *_) = json.loads(called("nightly", "list", "--json").out)
    put(tmp_path, replace(ago(100), job="given up", runs=tuple(first["runs"])))
    assert measured("main") == ""


def test_a_run_is_named_by_its_folder(called, tmp_path):
    first = run("2026-11-01", [row()])
    put(tmp_path, runs=[first])
    called("nightly", "begin", "--expect", "timm cpu float32")
    ran = called("nightly", "end", "--state", "ok", "--run", f"somewhere/{first.run.name}/")
    assert ran.out.rstrip().endswith(": ok")


@pytest.mark.parametrize(("nightlies", "code", "message"), [
    ([], 1, "none ever began"),
    ([(2, "ok")], 0, "ok"),
    ([(26, "ok")], 0, "ok"),
    ([(28, "ok")], 1, "late"),
    ([(80, "ok")], 1, "missing"),
    ([(2, "failed")], 1, "no wheel"),
    ([(26, "partial"), (1, "running")], 1, "partial"),
    ([(30, "running")], 1, "never ended"),
])  # fmt: skip
def test_the_doctor(tmp_path, capsys, nightlies, code, message):
    begun = [ago(hours, state, why="no wheel" if state == "failed" else None) for hours, state in nightlies]
    assert examined(None, put(tmp_path, *begun), None) == code
    assert message in capsys.readouterr().out


def test_the_doctor_by_another_clock(tmp_path, capsys):
    db = put(tmp_path, ago(2))
    assert examined("nightly", db, None, datetime.now(UTC) + timedelta(days=3)) == 1
    assert "2 did not come" in capsys.readouterr().out
    assert examined("gpu", db, None) == 1


def test_the_next_comment_says_it(called, tmp_path):
    now = datetime.now(UTC)
    tonight = run("2026-11-03", [row()], started=now.strftime("%Y-%m-%dT%H:%M:%SZ"))
    put(tmp_path, ago(72), ago(0.2, "running"), runs=[tonight])
    first = (now - timedelta(hours=72)).strftime("%Y-%m-%d")
    ran = called("report", tonight.run.name)
    assert ran.code == 0, ran.err
    assert f"\n**Before this nightly: 2 missing after {first}.**\n" in ran.out
    report = json.loads(called("report", tonight.run.name, "--format", "json").out)
    assert "2 missing" in json.dumps(report)


@pytest.mark.parametrize(("words", "why"), [
    (["begin", "--every", "daily"], "24h, 7d or 90m"),
    (["begin", "--every", "0h"], "a minute"),
    (["begin", "--expect", "timm"], "suite, device and dtype"),
    (["begin", "--expect", "timm cpu float32 many"], "suite, device and dtype"),
    (["begin", "--night", "a\nb"], "on one line"),
    (["end", "--state", "good"], "not one of ok, partial, failed"),
    (["end", "--state", "ok"], "there is no history"),
    (["forget", "gpu"], "there is no history"),
])  # fmt: skip
def test_wrong_use(called, words, why):
    ran = called("nightly", *words)
    assert ran.code == 2
    assert why in ran.err


def test_nothing_was_begun(called, tmp_path):
    put(tmp_path)
    assert called("nightly", "end", "--state", "ok").code == 2
    ran = called("nightly", "forget", "gpu")
    assert (ran.code, "there are: none" in ran.err) == (2, True)


def test_one_that_broke_at_once_makes_a_history(called):
    assert called("nightly", "end", "--state", "failed", "--why", "no disk").code == 2  # which one?
    ran = called("nightly", "end", "--state", "failed", "--night", "n1", "--why", "no disk")
    assert (ran.code, ran.out) == (0, "nightly n1: failed: no disk\n")
    assert called("doctor", "--nightly").code == 1


def test_a_history_that_is_not_there(called):
    ran = called("doctor", "--nightly")
    assert ran.code == 2
    assert "there is no history" in ran.err


def test_a_reason_that_is_no_text_is_recorded(called, tmp_path):
    """The last line of a log, cut within a letter; a shell's bytes come as such."""
    put(tmp_path, ago(1, "running"))
    ran = called("nightly", "end", "--state", "partial", "--why", "measure failed: caf\udcc3")
    assert (ran.code, ran.out.endswith(": partial: measure failed: caf?\n")) == (0, True), ran.err


def test_a_reason_has_no_secret(called, tmp_path):
    put(tmp_path, ago(1, "running"))
    ended = ("nightly", "end", "--state", "partial", "--why", "post failed: token ghx_0123456789abc")
    ran = called(*ended, env={"GITHUB_TOKEN": "ghx_0123456789abc"})
    assert "post failed: token ***" in ran.out, ran.err
    assert "ghx_" not in called("nightly", "list", "--json").out
