"""The scripts that only Jenkins calls: a cell begun again or ended, what is gathered, the end of a night.

perfdash only pretends. tests/jenkins has the Jenkinsfiles that call them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from perfdash.history.queries import list_runs
from perfdash.history.store import open_store
from perfdash.records import to_json
from tests.ci.nights import CHECKOUT
from tests.ci.stage import Stage
from tests.cli.run_folders import write_run
from tests.report.results import good, info

pytestmark = pytest.mark.slow
CELL = "timm-cpu-float32-1"
# Measures three cases; with the file `hang` it waits after the second. Resumed, it measures what is missing.
# Told to end, it needs a second to save.
PERFDASH = """#!{python} -IS
import json, pathlib, signal, sys, time
home, words = pathlib.Path({home!r}), sys.argv[1:]
def end(*_):
    time.sleep(1)
    (home / "saved").touch()
    sys.exit(130)
signal.signal(signal.SIGTERM, end)
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
    if case in (results.read_text() if results.exists() else ""):
        continue
    with open(results, "a") as lines:
        lines.write(case + "\\n")
    while case == "b" and (home / "hang").exists():
        (home / "hangs").touch()
        time.sleep(0.05)
"""


class Agent:
    """A machine that runs the scripts of one cell, with the variables that Jenkins sets."""

    def __init__(self, home: Path) -> None:
        self.stage = Stage(home)
        self.home = home
        self.night = home / "night"
        self.cell = self.night / "cells" / CELL
        self.env = {
            **self.stage.env, "NIGHT": str(self.night), "CELL": CELL, "STAGE": "measure", "NODE_NAME": "xeon",
            "SUITES": "timm", "PERFDASH_NIGHTLY": str(self.cell), "OUT": str(self.cell / "out"),
            "PERFDASH_DB": str(self.cell / "out/history.db"),
        }  # fmt: skip

    def start(self, script: str, *words: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [CHECKOUT / "ci/nightly" / script, *words], env={**self.env, **more}, cwd=self.home, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def run(self, script: str, *words: str, **more: str) -> tuple[int, str]:
        process = self.start(script, *words, **more)
        out, _ = process.communicate(timeout=300)
        return process.returncode, out

    def hangs(self) -> None:
        """From now on the measurement waits after its second case, and for that this waits."""
        (self.home / "hang").touch()

    def wait_until_it_hangs(self) -> None:
        for _ in range(8000):
            if (self.home / "hangs").exists():
                return
            time.sleep(0.05)
        raise AssertionError("it never measured two cases")

    def results(self) -> str:
        return (self.cell / "out/run1/results.jsonl").read_text()


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


@pytest.fixture
def measuring(agent: Agent) -> Agent:
    perfdash = agent.stage.venv / "bin" / "perfdash"
    perfdash.write_text(PERFDASH.format(python=sys.executable, home=str(agent.home)))
    return agent


def kill(process: subprocess.Popen[str]) -> None:
    """All of its session, as a machine that restarts: `timeout` makes a group of its own."""
    listed = subprocess.run(["ps", "-o", "pid=", "-s", str(process.pid)], capture_output=True, text=True)
    for pid in map(int, listed.stdout.split()):
        os.kill(pid, signal.SIGKILL)
    process.communicate()


def test_a_cell_is_resumed_where_its_workspace_survived(measuring: Agent) -> None:
    assert measuring.run("cell.sh", "prepare")[0] == 0
    assert (measuring.cell / "agent").read_text() == "xeon\n"
    torch = (measuring.cell / "python").stat().st_mtime_ns
    measuring.hangs()
    process = measuring.start("cell.sh")
    measuring.wait_until_it_hangs()
    kill(process)
    (measuring.home / "hang").unlink()
    assert not (measuring.cell / "measured").exists()
    code, out = measuring.run("cell.sh", "prepare", LOST_AGENT="xeon")
    assert (code, "was lost" in out) == (0, False)
    assert (measuring.cell / "python").stat().st_mtime_ns == torch, "another torch was taken"
    code, out = measuring.run("cell.sh", LOST_AGENT="xeon")
    assert code == 0, out
    assert measuring.stage.calls("run") == ["run --suite", "run --resume"]
    assert measuring.results() == "a\nb\nc\n", "nothing was measured again"
    assert (measuring.cell / "measured").exists()


def test_a_cell_whose_workspace_is_lost_begins_anew_and_says_so(measuring: Agent) -> None:
    code, out = measuring.run("cell.sh", "prepare", LOST_AGENT="xeon")
    assert code == 0, out
    assert "The agent xeon was lost, and this workspace has none of its results" in out


def test_what_goes_on_behind_a_lost_connection_is_waited_for(measuring: Agent) -> None:
    measuring.run("cell.sh", "prepare")
    measuring.hangs()
    first = measuring.start("cell.sh")
    measuring.wait_until_it_hangs()
    second = measuring.start("cell.sh")
    assert second.stdout is not None
    assert "An earlier attempt at this cell is still running" in second.stdout.readline()
    (measuring.home / "hang").unlink()
    first.communicate(timeout=300)
    second.communicate(timeout=300)
    assert (first.returncode, second.returncode) == (0, 0)
    assert measuring.stage.calls("run") == ["run --suite"]
    assert measuring.results() == "a\nb\nc\n"


def test_a_cell_that_takes_too_long_is_ended_and_keeps_what_it_measured(measuring: Agent) -> None:
    """Its time is over once the second case is measured."""
    measuring.run("cell.sh", "prepare")
    timeout = measuring.home / "tools" / "timeout"
    over = f'while [ ! -e "{measuring.home}/hangs" ]; do sleep 0.05; done; kill -ALRM $$'
    timeout.write_text(f'#!/bin/sh\n({over}) &\nexec /usr/bin/timeout "$@"\n')
    timeout.chmod(0o755)
    measuring.hangs()
    process = measuring.start("cell.sh", CELL_MINUTES="60", BASE_RUNS="2")
    code = process.wait(300)
    assert (measuring.home / "saved").exists(), "the cell ends after perfdash"
    out, _ = process.communicate()
    assert code == 124, out
    for listed in ("runs", "base"):
        assert (measuring.cell / listed).read_text() == f"{measuring.cell}/out/run1\n"
    assert measuring.stage.calls("run") == ["run --suite"], "nothing else begins"
    assert measuring.results() == "a\nb\n"
    assert not (measuring.cell / "measured").exists()


def folder_of_a_run(agent: Agent, name: str, device: str, **plan: str) -> Path:
    folder = agent.night / "cells" / name / "out" / "run1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"plan": plan, "configuration": {"device": device}}))
    (agent.night / "cells" / name / "python").write_text(f"{sys.executable}\n")
    (agent.night / "cells" / name / "runs").write_text(f"{folder}\n")
    (agent.night / "cells" / name / "measured").touch()
    return folder


def test_what_the_cells_measured_is_gathered_and_confirmed_by_device(agent: Agent) -> None:
    """The list of runs is made on another machine, where the night lies elsewhere."""
    planned = {"SUITES": "timm,own.toml", "DEVICES": "cpu,cuda", "DTYPES": "amp"}
    assert agent.run("cells.sh", "measure", **planned)[0] == 0
    whole = folder_of_a_run(agent, "timm-cpu-amp-1", "cpu")
    shard = folder_of_a_run(agent, "own-cpu-amp-1", "cpu", shard="1/2")
    gpu = folder_of_a_run(agent, "timm-cuda-amp-1", "cuda")
    code, out = agent.run("gather.sh", str(agent.night), PERFDASH_NIGHTLY=str(agent.night))
    assert code == 0, out
    assert set((agent.night / "runs").read_text().split()) == {str(whole), str(shard), str(gpu)}
    (call,) = agent.stage.calls()
    assert call.startswith("history import ")
    assert set(call.split()[2:]) == {str(run.parent) for run in (whole, shard, gpu)}
    elsewhere = "".join(f"/elsewhere/night/{run.relative_to(agent.night)}\n" for run in (whole, gpu))
    (agent.night / "run").write_text(elsewhere)
    found = {"STAGE": "confirm", "DEVICE": "cpu", "PERFDASH_NIGHTLY": str(agent.night / "found-cpu")}
    code, out = agent.run("cell.sh", "prepare", **found)
    assert code == 0, out
    assert (agent.night / "found-cpu" / "run").read_text() == f"{whole}\n"
    assert not (agent.night / "found-cpu" / "measure.failed").exists()
    code, out = agent.run("cell.sh", OUT=str(agent.night / "out"), **found)
    assert code == 0, out
    assert "tonight's is the first" in out
    # A cell that was not measured keeps the good build, also one that left nothing: its agent was lost.
    cell, failed = agent.night / "cells/own-cpu-amp-1", agent.night / "found-cpu/measure.failed"
    for lose in ((cell / "measured").unlink, partial(shutil.rmtree, cell)):
        lose()
        agent.run("cell.sh", "prepare", **found)
        assert failed.read_text() == "3 0\n"
        failed.unlink()
    # A device of which nothing was measured is an error.
    (agent.night / "run").write_text(f"{gpu}\n")
    code, out = agent.run("cell.sh", "prepare", **found)
    assert (code, "no run of tonight on cpu" in out) == (3, True)


def test_the_half_run_of_a_lost_agent_is_set_aside(agent: Agent) -> None:
    """The lost agent gathers the night; another one measured its cell anew."""
    half = folder_of_a_run(agent, CELL, "cpu").rename(agent.cell / "out" / "half")
    whole = folder_of_a_run(agent, CELL, "cpu")
    (agent.cell / "runs").write_text(f"/elsewhere/night/{whole.relative_to(agent.night)}\n")
    ended_early = folder_of_a_run(agent, "own-cpu-float32-1", "cpu")
    (agent.night / "cells/own-cpu-float32-1/measured").unlink()
    for _ in range(2):
        code, out = agent.run("gather.sh", str(agent.night), PERFDASH_NIGHTLY=str(agent.night))
        assert code == 0, out
        assert set((agent.night / "runs").read_text().split()) == {str(whole), str(ended_early)}
        assert not half.exists(), "perfdash imports all of this folder"
    assert (agent.cell / "lost" / "half" / "run.json").exists()


def test_each_run_is_confirmed_with_the_interpreter_that_measured_it(agent: Agent) -> None:
    """Also a run that was merged of shards; one whose environment is on another machine is left out."""
    pythons = {}
    for name in ("a", "b", "good"):
        pythons[name] = agent.home / name / "bin" / "python"
        pythons[name].parent.mkdir(parents=True)
        pythons[name].symlink_to(sys.executable)
    agent.run("cells.sh", "measure", SUITES="timm,huggingface,own.toml", DTYPES="amp")
    runs = {
        name: folder_of_a_run(agent, f"{name}-cpu-amp-1", "cpu") for name in ("timm", "huggingface", "own")
    }
    for name, python in (("timm", pythons["a"]), ("huggingface", pythons["b"]), ("own", "/elsewhere/python")):
        (agent.night / f"cells/{name}-cpu-amp-1/python").write_text(f"{python}\n")
    merged = agent.night / "out" / "whole"
    merged.mkdir(parents=True)
    of_shards = {"plan": {}, "configuration": {"device": "cpu"}, "merged_from": ["shard"]}
    (merged / "run.json").write_text(json.dumps(of_shards))
    runs["timm"].rename(runs["timm"].with_name("shard"))
    # A cell of another workspace, in which an equal environment has another path.
    equal = folder_of_a_run(agent, "torchbench-cpu-amp-1", "cpu")
    equal = equal.rename(equal.with_name("equal"))
    (agent.night / "cells/torchbench-cpu-amp-1/python").write_text("/elsewhere/equal\n")
    for run, commit in ((runs["huggingface"], "b"), (equal, "b"), (runs["own"], "c")):
        known = json.loads((run / "run.json").read_text())
        known["environment"] = {"worker": {"torch_git_version": commit}}
        (run / "run.json").write_text(json.dumps(known))
    runs["own"] = runs["own"].rename(runs["own"].with_name("run-c"))
    runs["huggingface"] = runs["huggingface"].rename(runs["huggingface"].with_name("run-b"))
    told = (merged, runs["huggingface"], equal, runs["own"])
    (agent.night / "run").write_text("".join(f"{run}\n" for run in told))
    good = agent.home / "environments" / "good-nightly"
    good.parent.mkdir(exist_ok=True)
    good.write_text(f"{pythons['good']}\n0\n")
    found = {"STAGE": "confirm", "DEVICE": "cpu", "PERFDASH_NIGHTLY": str(agent.night / "found-cpu")}
    code, out = agent.run("cell.sh", "prepare", **found)
    assert code == 0, out
    code, out = agent.run("cell.sh", OUT=str(agent.night / "out"), **found)
    assert code == 0, out
    calls = [call.split() for call in agent.stage.calls("confirm")]
    assert {call[1]: call[call.index("--python") + 1] for call in calls} == {
        str(merged): str(pythons["a"]),
        str(runs["huggingface"]): str(pythons["b"]),
        str(equal): str(pythons["b"]),
    }
    assert "run-c: its environment is not on this machine" in out
    assert good.read_text().splitlines()[:2] == [str(pythons["good"]), "1"], "what is open keeps the good one"


def test_what_strict_or_the_user_keeps_out_of_the_history_is_not_gathered_into_it(agent: Agent) -> None:
    """With the real perfdash, which says why; so that a shard waits until it is merged."""
    perfdash = agent.stage.venv / "bin" / "perfdash"
    perfdash.write_text(f'#!/bin/sh\nexec {sys.executable} -m perfdash "$@"\n')
    db = agent.home / "history.db"
    whole = info(1)
    runs = {
        "whole": whole,
        "shard": replace(whole, plan={"shard": "2/2"}),
        "refused": replace(whole, noise={"refused": "it is off by 10%"}),
        "ended": replace(whole, noise={"null": {"start": [1.0]}}, configuration={"strict": True}),
        "own": replace(whole, configuration={"no_history": True}),
    }
    for name, of_run in runs.items():
        folder = write_run(agent.night / "cells" / name / "out" / name, [good("m", 2.0, "faster")])
        (folder / "run.json").write_text(json.dumps(to_json(replace(of_run, id=name))))
    code, out = agent.run(
        "gather.sh", str(agent.night), PERFDASH_NIGHTLY=str(agent.night), PERFDASH_DB=str(db)
    )
    assert code == 0, out
    with open_store(str(db)) as store, store.read() as connection:
        assert [run.name for run in list_runs(connection)] == ["whole"]
    for words in (
        "shard: left out: a shard goes in when it is merged",
        "refused: left out: --strict: it is off by 10%",
        "ended: left out: --strict: it ended before its noise was measured at the end",
        "own: left out: it was measured with --no-history",
    ):
        assert words in out


def test_the_list_of_cells_that_jenkins_asks_for(agent: Agent) -> None:
    """Before perfdash is set up."""
    (agent.stage.venv / "bin" / "python").unlink()
    more = {"DEVICES": "cpu", "DTYPES": "amp", "SHARDS": "2"}
    code, out = agent.run("cells.sh", "measure", **more)
    assert code == 0, out
    assert (agent.night / "planned").read_text() == "timm-cpu-amp-1\ntimm-cpu-amp-2\n"
    assert [line.split("\t")[0] for line in out.splitlines()] == [
        "CELL=timm-cpu-amp-1",
        "CELL=timm-cpu-amp-2",
    ]
    # Quick models may be fewer than shards.
    code, out = agent.run("cells.sh", "measure", **more, QUICK="yes")
    assert (code, (agent.night / "planned").read_text()) == (0, "timm-cpu-amp-1\n"), out
    code, out = agent.run("cells.sh", "measure", **{**more, "SHARDS": "PATH[$(touch ran)]"})
    assert (code, (agent.home / "ran").exists()) == (2, False)
    assert agent.run("cells.sh", "mesure")[0] == 2


@pytest.mark.parametrize(("result", "state", "broken"), [
    ("SUCCESS", "ok", False), ("UNSTABLE", "ok", False), ("FAILURE", "partial", True),
])  # fmt: skip
def test_the_end_of_a_night_by_the_result_of_the_build(
    agent: Agent, result: str, state: str, broken: bool
) -> None:
    more = {
        "RESULT": result, "EVERY": "24h", "JOB_NAME": "perf", "BUILD_NUMBER": "7", "BUILD_URL": "https://j/7/",
        "WEBHOOK": "yes", "PERFDASH_NIGHTLY": str(agent.night),
    }  # fmt: skip
    assert agent.run("end.sh", **more)[0] == 0
    (call,) = agent.stage.calls()
    assert call.startswith(f"nightly end --state {state} ")
    (agent.night / "run").write_text("run1\n")
    assert agent.run("end.sh", "tell", **more)[0] == 0
    *first, last = agent.stage.calls("notify")
    assert last.startswith("notify run1 --webhook")
    assert [call.split(" --webhook")[0] for call in first] == [
        "notify --broken perf #7: not all of it was done. https://j/7/"
    ] * broken


def test_the_columns_of_all_runs_are_one_trend(agent: Agent) -> None:
    metrics = ("speedup_geometric_mean", "pass_rate_percent", "compilation_seconds_mean",
               "compression_ratio_geometric_mean")  # fmt: skip
    for folder, text in {"plot-run1": "timm,timm amp\n1.2,\n", "plot-run2": "own\n3\n"}.items():
        for metric in metrics:
            (agent.night / folder).mkdir(parents=True, exist_ok=True)
            (agent.night / folder / f"{metric}.csv").write_text(text)
    for _ in range(2):  # again, after a bisection
        assert agent.run("trend.sh", PERFDASH_NIGHTLY=str(agent.night))[0] == 0
    assert {path.stem for path in (agent.night / "trend").iterdir()} == set(metrics)
    assert (agent.night / "trend" / f"{metrics[0]}.csv").read_text() == "timm,timm amp,own\n1.2,,3\n"


def test_only_a_gate_exits_with_one(agent: Agent) -> None:
    """Jenkins takes 1 for FAIL_ON: whatever else ends so is a failure."""
    (agent.night).mkdir()
    (agent.night / "run").write_text("run1\n")
    (agent.night / "runs").write_text("")
    for name in ("notify", "report"):
        agent.stage.fails(name, 1)
    more = {"WEBHOOK": "yes", "PERFDASH_NIGHTLY": str(agent.night), "FAIL_ON": "regression"}
    assert agent.run("notify.sh", **more)[0] == 3
    assert agent.run("report.sh", **more)[0] == 1
    # Nor is a night without runs reported in silence.
    (agent.night / "run").unlink()
    code, out = agent.run("report.sh", **more)
    assert (code, "nothing was measured: there is nothing to report" in out) == (3, True)


def test_a_list_of_another_agent_names_the_runs_of_this_one(agent: Agent) -> None:
    """Judge and Tell of one night may have two agents of the label perfdash-report."""
    agent.night.mkdir()
    (agent.night / "run").write_text(f"/elsewhere/{agent.night.name}/out/run1\n/elsewhere/runs/run2\n")
    code, out = agent.run("report.sh", PERFDASH_NIGHTLY=str(agent.night))
    assert code == 0, out
    told = {call.split()[1] for call in agent.stage.calls("report")}
    assert told == {str(agent.night / "out" / "run1"), "/elsewhere/runs/run2"}
