"""The fork parent, for real: a worker under this interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.errors import MachineError
from perfdash.records import Case, Job, Sampling
from perfdash.runner import processes
from perfdash.runner.launcher import ForkParent, Launch, environment

MODELS = Path(__file__).parents[1] / "truth" / "models.py"
LAUNCH = Launch(sys.executable, cores=(min(os.sched_getaffinity(0)),), threads=1)


def job(tmp_path: Path, function: str, **change) -> Job:
    return Job(
        case=Case("t", function, backend="eager"),
        loader="python",
        target=f"{MODELS}:{function}",
        scratch=str(tmp_path),
        sampling=Sampling(min_pairs=6, min_s=0, max_pairs=6),
        **change,
    )


@pytest.fixture(scope="module")
def parent():
    with ForkParent(LAUNCH) as running:
        yield running


def test_it_says_what_it_is(parent):
    import torch

    assert parent.hello["torch"] == torch.__version__
    assert parent.hello["packages"]["torch"]
    assert parent.hello["cuda_initialized"] is False
    assert parent.hello["threads"] == 1, "a fork with threads can deadlock"


def test_one_case_after_another_without_an_import(parent, tmp_path):
    seen = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        outcome = parent.run(job(tmp_path / name, "itself"), tmp_path / "log", seen.append)
        assert outcome.status == 0
        assert outcome.find("done")
        assert outcome.find("latency")["cores"] == list(LAUNCH.cores)
        assert outcome.find("latency")["torch_threads"] == 1
    phases = [event["name"] for event in seen if event["event"] == "phase"]
    assert phases == ["load", "eager", "compile", "accuracy", "latency", "memory"] * 2


def test_a_time_limit_ends_it_and_the_next_case_runs(parent, tmp_path):
    start = time.monotonic()
    hang = replace(job(tmp_path, "hangs", timeout_s=2), case=Case("t", "hangs", backend="aot-eager"))
    outcome = parent.run(hang, tmp_path / "log")
    assert outcome.timed_out
    assert time.monotonic() - start < 20
    assert outcome.find("phase")["name"] == "compile"
    assert parent.run(job(tmp_path, "itself"), tmp_path / "log").find("done")


def test_the_loss_of_the_fork_parent_is_told(tmp_path):
    with ForkParent(LAUNCH) as parent:
        pid = parent._process.pid
        threading.Timer(2.0, os.kill, (pid, signal.SIGKILL)).start()
        slow = replace(job(tmp_path, "hangs", timeout_s=60), case=Case("t", "hangs", backend="aot-eager"))
        outcome = parent.run(slow, tmp_path / "log")
        assert outcome.status is None
        assert not outcome.timed_out
        assert not parent.alive
        assert not parent.run(job(tmp_path, "itself"), tmp_path / "log").events


def test_nothing_is_left_when_it_closes():
    with ForkParent(LAUNCH) as parent:
        pid = parent._process.pid
        home = Path(parent._home.name)
        assert processes.session_members(pid) == [pid]
    assert processes.session_members(pid) == []
    assert not home.exists()


def test_nothing_is_left_when_the_caller_is_killed(tmp_path):
    code = (
        "import sys, os, time\n"
        "from perfdash.runner.launcher import ForkParent, Launch\n"
        "parent = ForkParent(Launch(sys.executable, (0,), 1)).__enter__()\n"
        "print(parent._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(caller.stdout.readline())
    caller.kill()
    caller.wait()
    caller.stdout.close()
    deadline = time.monotonic() + 5
    while processes.session_members(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes.session_members(pid) == []


def test_an_interpreter_that_is_not_one():
    with pytest.raises(MachineError, match="cannot be started"):
        ForkParent(replace(LAUNCH, python="/nowhere/python")).__enter__()
    with pytest.raises(MachineError, match="did not start"):
        ForkParent(replace(LAUNCH, python="/bin/false")).__enter__()


def test_an_interpreter_without_torch(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    with pytest.raises(MachineError, match=r"torch does not import .*pip install torch"):
        ForkParent(replace(LAUNCH, python=str(tmp_path / "bare" / "bin" / "python"))).__enter__()


def test_environment():
    env = environment(
        replace(LAUNCH, threads=4, env=(("OMP_NUM_THREADS", "2"), ("X", "y")), allocator_library="/lib/j.so"),
        {"LD_PRELOAD": "/lib/other.so", "PYTHONHOME": "/wrong"},
    )
    assert env["OMP_NUM_THREADS"] == "2", "the user's word is the last"
    assert env["MKL_NUM_THREADS"] == "4"
    assert env["LD_PRELOAD"] == "/lib/j.so:/lib/other.so"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["X"] == "y"
    assert "PYTHONHOME" not in env
