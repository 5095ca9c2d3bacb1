"""perfdash show as typed, on run folders that were never measured."""

from __future__ import annotations

import json
from dataclasses import replace

from perfdash.records import Case, Result, RunInfo, Status, to_json

INFO = RunInfo("r", "2026-11-21T00:00:00Z", "h", ["perfdash"], {}, {}, 1, "0", state="done")


def saved(folder, lines, info=INFO):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(to_json(info)))
    (folder / "results.jsonl").write_text(lines)


def test_a_damaged_run_is_named_and_no_empty_run(called, tmp_path):
    saved(tmp_path / "runs" / "r", '{"schema": 1, "ca')
    told = called("show", "r")
    assert told.code == 3
    assert "results.jsonl, line 1" in told.err
    assert "perfdash run --resume" in told.err
    assert called("history", "import", "runs/r").code == 2


def test_a_run_in_which_nothing_has_finished_yet(called, tmp_path):
    saved(tmp_path / "runs" / "r", "", replace(INFO, state="running"))
    told = called("show", "r")
    assert (told.code, "no case has finished" in told.out) == (0, True)


def test_the_rest_of_a_torn_run_is_shown(called, tmp_path):
    whole = json.dumps(to_json(Result(Case("s", "one"), "t", 1.0, Status.CRASH)))
    saved(tmp_path / "runs" / "r", f"{whole}\n{whole[:50]}")
    told = called("show", "r")
    assert (told.code, "one" in told.out) == (0, True)
    assert "results.jsonl, line 2" in told.err
