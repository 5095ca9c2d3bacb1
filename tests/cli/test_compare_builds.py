"""perfdash compare-builds on real runs: two interpreters stand for two builds, one slower than the other."""

from __future__ import annotations

import json
import signal
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdash.runner import build_comparison
from perfdash.runner.alternating_builds import read_pairs
from tests.cli.two_builds import FAST_MS, MODELS, SLOW_MS, interpreter
from tests.conftest import perfdash

COMPARE = ["compare-builds", "--model", f"{MODELS}:busy", "--backend", "aot_eager"]


def test_what_is_missing_or_does_not_fit_is_refused_before_anything_is_measured(command, tmp_path):
    def refused(*words):
        done = command(*words)
        assert done.code == 2, done.out
        assert not list(tmp_path.glob("runs/*/"))
        return done.err

    assert "--base-python is missing" in refused(*COMPARE)
    done = command(*COMPARE, "--base-python", "none")
    assert (done.code, "none cannot be started" in done.err) == (3, True)
    assert "--base-python belongs to a new comparison" in refused(
        *COMPARE, "--resume", "x", "--base-python", "y"
    )
    (tmp_path / "runs").mkdir()
    assert "no run" in refused("compare-builds", "--resume", "last").lower()


def test_its_base_pairs_and_minutes_are_those_of_the_command(called, tmp_path, monkeypatch):
    handed = []
    comparison = SimpleNamespace(folder=tmp_path / "none", pairs={}, interrupted=False)
    monkeypatch.setattr(
        build_comparison,
        "new_comparison",
        lambda settings, *of_builds: handed.append(of_builds) or comparison,
    )
    monkeypatch.setattr(build_comparison, "measure", lambda _, minutes, notify: handed.append(minutes))
    done = called(*COMPARE, "--base-python", "old", "--pairs", "5", "--minutes", "0.5")
    assert (done.code, handed) == (3, [("old", 5), 0.5]), done.err


def interrupted(program: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command, ended by Ctrl-C as soon as it begins the second pair."""
    process = subprocess.Popen(
        [program, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("pair 2:"):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=580)
    return subprocess.CompletedProcess(words, process.returncode, out, "".join(lines) + err)


@pytest.fixture(scope="module")
def compared(tmp_path_factory, command_server):
    """Interrupted after one pair, then resumed: (home, folder, what the two commands printed)."""
    home = tmp_path_factory.mktemp("compared")
    fast, slow = interpreter(home / "fast", FAST_MS), interpreter(home / "slow", SLOW_MS)
    words = ["--base-python", fast, "--python", slow, "--pairs", "4", "--out", "my runs"]
    program = command_server.environment(home / "client") / "bin" / "perfdash"
    first = interrupted(program, *COMPARE, *words, "--json", cwd=home)
    assert first.returncode == 130, first.stderr
    plain = json.loads(first.stdout)
    assert plain["state"] == "interrupted"
    assert [case["case"]["model"] for case in plain["cases"]] == ["confirmed.busy"]
    folder = home / plain["folder"]
    pairs_before = {case: len(pairs) for case, pairs in read_pairs(folder).items()}
    with (folder / "confirm.jsonl").open("a") as file:
        file.write('{"pair": 9, "si')  # a power cut
    second = perfdash("compare-builds", "--resume", str(folder), cwd=home, quickly=True)
    assert second.code == 0, second.err
    return home, folder, first, second, pairs_before


@pytest.mark.slow
def test_an_interrupted_comparison_is_resumed_and_keeps_its_pairs(compared):
    _, folder, first, second, pairs_before = compared
    (pairs,) = read_pairs(folder).values()
    assert list(pairs_before.values()) < [len(pairs)]
    assert f"--resume '{folder.relative_to(folder.parents[1])}'" in first.stderr
    numbers = [json.loads(line)["pair"] for line in (folder / "confirm.jsonl").read_text().splitlines()]
    assert numbers == sorted(numbers)
    assert len(numbers) == 2 * len(pairs), "no pair was measured twice"
    assert "Saved in" in second.out


@pytest.mark.slow
def test_the_slower_build_is_worse_in_text_json_junit_and_report(compared):
    home, folder, _, second, _ = compared
    assert "compiled latency" in second.out
    assert "worse" in second.out
    base = str(folder / "base")
    words = ["--fail-on", "regression", "--junit", "junit.xml", "--format", "json"]
    done = perfdash("compare", base, str(folder), *words, cwd=home, quickly=True)
    assert done.code == 1, done.err
    (case,) = json.loads(done.out)["cases"]
    latency = case["metrics"]["backend_ms"]
    assert latency["significant"]
    assert 1.5 < latency["ratio"] < 4
    assert latency["pairs"] >= 3
    assert ET.parse(home / "junit.xml").getroot().find(".//failure") is not None
    done = perfdash("report", str(folder), "--baseline", base, "--format", "markdown", cwd=home, quickly=True)
    assert done.code == 0, done.err
    assert "compiled latency" in done.out
    # The other way round it is no comparison of pairs, and one run on each side proves little.
    done = perfdash("compare", str(folder), base, "--format", "json", cwd=home, quickly=True)
    assert "pairs" not in done.out


@pytest.mark.slow
def test_it_is_in_no_history_and_no_run_can_be_made_of_it(compared):
    home, folder, *_ = compared
    assert not (Path(home) / "my runs" / "history.db").exists()
    done = perfdash("run", "--resume", str(folder), cwd=home, quickly=True)
    assert done.code in (0, 2), done.err
