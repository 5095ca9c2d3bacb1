"""perfdash show as typed, on run folders that were never measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from perfdash.cli.show import show
from perfdash.errors import MachineError
from perfdash.records import Case, Result, RunInfo, Status, to_json
from perfdash.runner.run_journal import RunJournal

INFO = RunInfo("r", "2026-11-21T00:00:00Z", "h", ["perfdash"], {}, {}, 1, "0", state="done")


def saved(folder, lines, info=INFO):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(to_json(info)))
    (folder / "results.jsonl").write_text(lines)


def test_a_damaged_run_is_named_and_no_empty_run(called, tmp_path):
    saved(tmp_path / "runs" / "r", '{"schema": 1, "ca')
    result = called("show", "r")
    assert result.code == 3
    assert "results.jsonl, line 1" in result.err
    assert "perfdash run --resume" in result.err
    assert called("history", "import", "runs/r").code == 2


def test_a_run_in_which_nothing_has_finished_yet(called, tmp_path):
    saved(tmp_path / "runs" / "r", "", replace(INFO, state="running"))
    result = called("show", "r")
    assert (result.code, "no case has finished" in result.out) == (0, True)


def test_last_is_that_of_the_history(called, tmp_path):
    whole = json.dumps(to_json(Result(Case("s", "one"), "t", 1.0, Status.CRASH)))
    saved(tmp_path / "runs" / "2026-11-01", f"{whole}\n")
    saved(tmp_path / "runs" / "2026-11-02", "", replace(INFO, state="interrupted"))
    result = called("show")
    assert (result.code, "one" in result.out) == (0, True)
    assert "2026-11-02 has no result yet; the newest run with results is shown" in result.err


def test_the_rest_of_a_torn_run_is_shown(called, tmp_path):
    both = [Result(Case("s", name), "t", 1.0, Status.CRASH) for name in ("one", "two")]
    whole = "\n".join(json.dumps(to_json(result)) for result in both)
    saved(tmp_path / "runs" / "my run", f"{whole}\n{whole[:50]}", replace(INFO, state="running"))
    result = called("show", "my run")
    assert (result.code, "one" in result.out) == (0, True)
    assert "results.jsonl, line 3" in result.err
    assert "Run r (was killed; `perfdash run --resume 'runs/my run'` continues it): " in result.out


@pytest.fixture
def folder(tmp_path):
    journal = RunJournal.create(tmp_path)
    journal.write_info(RunInfo("r", "t", "h", ["perfdash"], {}, {}, 2, "0", state="done"))
    for model in ("resnet18", "resnet50"):
        journal.append(Result(Case("s", model), "t", 1.0, Status.CRASH))
    journal.close()
    return journal.folder


def damage(folder, *numbers):
    path = folder / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(b"{broken\n" if n in numbers else line for n, line in enumerate(lines, 1)))


def test_what_can_be_read_is_shown(folder, tmp_path, capsys):
    damage(folder, 1)
    show(folder.name, out=tmp_path)
    printed = capsys.readouterr()
    assert "resnet50" in printed.out
    assert "resnet18" not in printed.out
    assert f"{folder}/results.jsonl, line 1: " in printed.err
    assert f"its case is left out, perfdash run --resume {folder} measures it again" in printed.err


def test_a_run_of_which_nothing_can_be_read_fails(folder, tmp_path):
    damage(folder, 1, 2)
    with pytest.raises(MachineError, match=r"line 1: .*no other line is one"):
        show(folder.name, out=tmp_path)
