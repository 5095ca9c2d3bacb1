"""An agent that is lost in the middle of a cell: what is resumed, and what the night still does."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.jenkins.controller import ROOT, Built, Controller

pytestmark = pytest.mark.slow
CELL = "timm-cpu-float32-1"
FOLDER = f"runs/nightly/build-1/cells/{CELL}"
# Measures three cases, and waits after the second one: there the agent is lost. A resumed run measures what
# is missing. Each call is a line of `calls`.
PERFDASH = """#!{python} -IS
import json, pathlib, sys, time
home, words = pathlib.Path({home!r}), sys.argv[1:]
with open(home / "calls", "a") as calls:
    calls.write(" ".join(words[:2]) + "\\n")
resumed = "--resume" in words
out = pathlib.Path(words[words.index("--out") + 1])
folder = pathlib.Path(words[words.index("--resume") + 1]) if resumed else out / "run1"
folder.mkdir(parents=True, exist_ok=True)
if not resumed:
    (folder / "run.json").write_text(json.dumps({{"command": words, "plan": {{}}, "configuration": {{}}}}))
results = folder / "results.jsonl"
for case in "abc":
    done = results.read_text() if results.exists() else ""
    if case in done:
        continue
    with open(results, "a") as lines:
        lines.write(case + "\\n")
    if case == "b":
        pathlib.Path("half").touch()
        time.sleep({seconds})
"""


@pytest.fixture
def calls(tmp_path: Path, standins: Path) -> Path:
    """The repository measures with the real measure.sh and a perfdash that pretends; returns its calls."""
    shutil.copy(ROOT / "ci" / "nightly" / "measure.sh", standins / "ci" / "nightly")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    # The environment that cell.sh measures.
    torch = standins / "ci" / "nightly" / "torch.sh"
    torch.write_text(
        f'#!/bin/sh\necho {sys.executable} >"$PERFDASH_NIGHTLY/python"\necho torch >>{tmp_path}/torch\n'
    )
    return tmp_path / "calls"


def build(tmp_path: Path, scm: Path, agents: dict[str, list[str]], seconds: float = 60, **loss: Any) -> Built:
    perfdash = tmp_path / "venv" / "bin" / "perfdash"
    perfdash.write_text(PERFDASH.format(python=sys.executable, home=str(tmp_path), seconds=seconds))
    perfdash.chmod(0o755)
    jenkins = Controller(tmp_path / "jenkins", ROOT / "Jenkinsfile", scm, agents)
    again = loss.pop("again", 0)
    return jenkins.build(
        params={"SUITES": "timm", "CELL_MINUTES": "500"},
        env={"PERFDASH_VENV": str(tmp_path / "venv")},
        losses=[{"during": "ci/nightly/cell.sh", "cell": CELL, "when": "half", **loss}] * (1 + again),
    )


ONE = {"xeon": ["perfdash-cpu"], "desk": ["perfdash-report"]}


@pytest.mark.parametrize("how", ["restarted", "removed"])
def test_its_cell_is_resumed_where_the_workspace_survives(
    tmp_path: Path, standins: Path, calls: Path, how: str
) -> None:
    built = build(tmp_path, standins, ONE, how=how)
    assert built.result == "SUCCESS", built.log
    assert calls.read_text() == "run --suite\nrun --resume\n"
    assert built.artifact(f"{FOLDER}/out/run1/results.jsonl") == "a\nb\nc\n"  # nothing was measured again
    assert (tmp_path / "torch").read_text() == "torch\n"  # nor was another torch taken
    assert f"cpu-1: going on with {tmp_path}" in built.log
    assert built.ran("heartbeat.sh end ok")
    assert not built.mails


def test_its_cell_begins_anew_where_the_workspace_is_lost_and_it_is_reported(
    tmp_path: Path, standins: Path, calls: Path
) -> None:
    built = build(tmp_path, standins, ONE, how="removed", gone=True, seconds=1)
    assert built.result == "SUCCESS", built.log
    assert calls.read_text() == "run --suite\nrun --suite\n"
    assert built.artifact(f"{FOLDER}/out/run1/results.jsonl") == "a\nb\nc\n"
    assert "The agent xeon was lost, and this workspace has nothing that it measured" in built.log


def test_what_goes_on_behind_a_lost_connection_is_waited_for(
    tmp_path: Path, standins: Path, calls: Path
) -> None:
    built = build(tmp_path, standins, ONE, how="disconnected", seconds=4)
    assert built.result == "SUCCESS", built.log
    assert calls.read_text() == "run --suite\n"
    assert "An earlier attempt at this cell is still at work" in built.log
    assert built.artifact(f"{FOLDER}/out/run1/results.jsonl") == "a\nb\nc\n"


def test_an_agent_lost_twice_costs_its_cell_and_ends_nothing_else(
    tmp_path: Path, standins: Path, calls: Path
) -> None:
    built = build(tmp_path, standins, ONE, how="removed", gone=True, again=1)
    assert built.result == "FAILURE", built.log
    assert "The agent (perfdash-cpu) was lost twice" in built.log
    assert len(calls.read_text().splitlines()) == 2
    assert built.stages[f"Measure / {CELL}"] == "FAILURE"
    assert built.ran("report.sh")
    assert built.ran("heartbeat.sh end partial")
