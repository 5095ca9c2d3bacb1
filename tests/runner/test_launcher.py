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
from perfdash.records import Case, Job, Sampling, Status
from perfdash.runner import orphans, worker_limits
from perfdash.runner.case_status import status_of
from perfdash.runner.launcher import ForkParent, Launch, environment
from perfdash.runner.worker_limits import MemoryGroup, RunStopped, Stop

pytestmark = pytest.mark.slow

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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GITHUB_TOKEN", "s3cret")
        patch.setenv("DATABASE_URL", "postgresql://u:s3cret@h/x")
        with ForkParent(LAUNCH) as running:
            yield running


def test_a_model_that_prints_its_environment_tells_no_secret(parent, tmp_path):
    (tmp_path / "tells.py").write_text("import os\n\n\ndef model(batch_size):\n    print(dict(os.environ))\n")
    tells = replace(job(tmp_path, "itself", role="check"), target=f"{tmp_path / 'tells.py'}:model")
    parent.run(tells, tmp_path / "log")
    printed = (tmp_path / "log").read_text()
    assert "OMP_NUM_THREADS" in printed
    assert "s3cret" not in printed


def test_garbage_is_collected_in_a_case_but_none_of_what_was_imported(parent, tmp_path):
    text = (
        "import gc\n\n\ndef model(batch_size):\n    print(gc.isenabled(), gc.get_freeze_count() > 100_000)\n"
    )
    (tmp_path / "tells.py").write_text(text)
    tells = replace(job(tmp_path, "itself", role="check"), target=f"{tmp_path / 'tells.py'}:model")
    parent.run(tells, tmp_path / "log")
    assert "True True" in (tmp_path / "log").read_text()


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
    hang = replace(job(tmp_path, "hangs", timeout_s=2), case=Case("t", "hangs", backend="aot-eager"))
    outcome = parent.run(hang, tmp_path / "log")
    assert outcome.limit == {"what": "time", "scope": "case", "limit": 2, "unit": "s"}
    assert parent.run(job(tmp_path, "itself"), tmp_path / "log").find("done")


def test_a_phase_has_its_own_limit(parent, tmp_path):
    hang = replace(
        job(tmp_path, "hangs", timeout_s=500, phase_timeouts={"load": 300, "compile": 0.5}),
        case=Case("t", "hangs", backend="aot-eager"),
    )
    outcome = parent.run(hang, tmp_path / "log")
    assert outcome.limit == {"what": "time", "scope": "phase", "limit": 0.5, "unit": "s"}
    assert outcome.find("phase")["name"] == "compile"
    assert not outcome.frozen
    assert outcome.find("eager"), "what was measured before is kept"


def test_what_comes_before_the_first_phase_has_one_too(parent, tmp_path):
    """A back end of the user's own is imported there."""
    (tmp_path / "sleeps.py").write_text("import time\n\ntime.sleep(500)\n")
    hang = job(tmp_path, "itself", phase_timeouts={"start": 0.5}, backend_file=str(tmp_path / "sleeps.py"))
    outcome = parent.run(hang, tmp_path / "log")
    assert outcome.limit == {"what": "time", "scope": "phase", "limit": 0.5, "unit": "s"}
    status, where, failure = status_of(outcome)
    assert (status, where) == (Status.TIMEOUT, "start")
    assert failure.message.startswith("phase start took longer than its limit of 0.5 s")


def test_one_that_was_stopped_is_known(parent, tmp_path):
    def stop(event):
        if event == {"event": "phase", "name": "compile"}:
            case = orphans.descendants(parent._process.pid)[-1]
            os.kill(case, signal.SIGSTOP)

    slow = replace(
        job(tmp_path, "itself", phase_timeouts={"compile": 0.5}),
        case=Case("t", "itself", backend="aot-eager"),
    )
    outcome = parent.run(slow, tmp_path / "log", stop)
    assert outcome.limit["what"] == "time"
    assert outcome.frozen


def test_output_has_a_limit(parent, tmp_path):
    outcome = parent.run(job(tmp_path, "chatty", output_limit_bytes=3 << 20), tmp_path / "log")
    assert outcome.limit == {"what": "output", "scope": "case", "limit": 3 << 20, "unit": "bytes"}
    assert 3 << 20 <= (tmp_path / "log").stat().st_size <= 4 << 20
    assert len(outcome.tail) == 20
    assert outcome.tail[-1].startswith("xxx")
    assert parent.run(job(tmp_path, "itself"), tmp_path / "log").find("done")


def test_a_log_that_cannot_be_written_loses_no_measurement(parent, tmp_path):
    outcome = parent.run(job(tmp_path, "itself"), Path("/dev/full"))
    assert outcome.find("done")
    assert parent.run(job(tmp_path, "itself"), tmp_path / "no" / "folder" / "log").find("done")


@pytest.mark.parametrize("grouped", [True, False])
def test_memory_has_a_limit_that_sees_shared_memory_too(parent, tmp_path, monkeypatch, grouped):
    if not grouped:  # as where this user may make no control group
        monkeypatch.setattr(MemoryGroup, "create", lambda limit: None)
    elif MemoryGroup.create(1 << 30) is None:
        pytest.skip("no control group can be made here")
    outcome = parent.run(job(tmp_path, "shares_memory", memory_limit_bytes=1 << 30), tmp_path / "log")
    if grouped:
        assert outcome.oom_killed == "limit"
    else:
        assert outcome.limit == {"what": "memory", "scope": "case", "limit": 1 << 30, "unit": "bytes"}
    assert outcome.find("loaded")
    assert not outcome.find("done")


def test_a_fork_parent_that_does_not_answer_is_lost(tmp_path, monkeypatch, warm_workers):
    monkeypatch.setattr(worker_limits, "FORK_S", 1.0)
    with ForkParent(LAUNCH) as parent:
        _watchdog, fork_parent = orphans.descendants(parent._process.pid)
        os.kill(fork_parent, signal.SIGSTOP)
        outcome = parent.run(job(tmp_path, "itself"), tmp_path / "log")
        assert (outcome.status, outcome.limit) == (None, None)
        assert not parent.alive
    with ForkParent(LAUNCH) as parent:  # gone before it has read the job
        _watchdog, fork_parent = orphans.descendants(parent._process.pid)
        os.kill(fork_parent, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (fork_parent, signal.SIGKILL)).start()
        monkeypatch.setattr(worker_limits, "FORK_S", 60.0)
        outcome = parent.run(job(tmp_path, "itself"), tmp_path / "log")
        assert (outcome.status, outcome.limit) == (None, None)


def test_told_to_stop_it_ends_the_case(tmp_path, warm_workers):
    parent = ForkParent(LAUNCH).__enter__()
    stop = Stop()
    threading.Timer(1.0, stop.set).start()
    slow = replace(job(tmp_path, "hangs"), case=Case("t", "hangs", backend="aot-eager"))
    with pytest.raises(RunStopped):
        parent.run(slow, tmp_path / "log", stop=stop)
    stop.close()
    pid = parent._process.pid
    parent.close()
    parent.close()  # again is nothing
    assert orphans.session_members(pid) == []


def test_the_loss_of_the_fork_parent_is_reported(tmp_path, warm_workers):
    with ForkParent(LAUNCH) as parent:
        pid = parent._process.pid
        threading.Timer(2.0, os.kill, (pid, signal.SIGKILL)).start()
        slow = replace(job(tmp_path, "hangs", timeout_s=60), case=Case("t", "hangs", backend="aot-eager"))
        outcome = parent.run(slow, tmp_path / "log")
        assert outcome.status is None
        assert outcome.limit is None
        assert not parent.alive
        assert not parent.run(job(tmp_path, "itself"), tmp_path / "log").events


def test_nothing_is_left_when_it_closes(warm_workers):
    with ForkParent(LAUNCH) as parent:
        pid = parent._process.pid
        home = Path(parent._home.path)
        assert len(orphans.session_members(pid)) == 2, "the watchdog and the fork parent"
    assert orphans.session_members(pid) == []
    assert not home.exists()


CALLER = (
    "import sys, time\n"
    "from perfdash.runner.launcher import ForkParent, Launch\n"
    f"parent = ForkParent(Launch(sys.executable, {LAUNCH.cores}, 1)).__enter__()\n"
    "print(parent._process.pid, flush=True)\n"
    "time.sleep(600)\n"
)


def test_nothing_is_left_when_the_caller_is_killed():
    with subprocess.Popen([sys.executable, "-c", CALLER], stdout=subprocess.PIPE, text=True) as caller:
        pid = int(caller.stdout.readline())
        caller.kill()
    wait_for(lambda: not orphans.session_members(pid))


def test_nothing_is_left_when_the_caller_is_killed_while_torch_is_imported(tmp_path):
    """The import of this torch does not end, and it has started a process: the watchdog ends both.

    That process has no mark, by which another run would end it.
    """
    begun = tmp_path / "begun"
    (tmp_path / "torch.py").write_text(
        "import pathlib, subprocess, time\n\n"
        "subprocess.Popen(['sleep', '600'], env={}, start_new_session=True)\n"
        f"pathlib.Path({str(begun)!r}).touch()\n"
        "time.sleep(600)\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen(
        [sys.executable, "-c", CALLER], stdout=subprocess.PIPE, text=True, env=env
    ) as caller:
        wait_for(begun.exists)
        _caller, watchdog, fork_parent, started = orphans.descendants(caller.pid)
        assert orphans.session_members(watchdog) == [watchdog, fork_parent]
        caller.kill()
        assert caller.stdout.read() == ""
    try:
        wait_for(lambda: not (orphans.session_members(watchdog) or orphans.session_members(started)))
    finally:
        orphans.kill_session(watchdog)
        orphans.kill_session(started)


def wait_for(condition) -> None:
    """Fails where something does not come true within two minutes."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("victim", ["watchdog", "fork parent", "both"])
def test_what_a_case_has_started_ends_with_the_worker(tmp_path, victim, warm_workers):
    with ForkParent(LAUNCH) as parent:
        slow = replace(job(tmp_path, "hangs"), case=Case("t", "hangs", backend="aot-eager"))
        struck = []

        def strike(event):
            if event == {"event": "phase", "name": "compile"}:
                watchdog, fork_parent, case = orphans.descendants(parent._process.pid)[:3]
                assert [watchdog, fork_parent] == orphans.session_members(watchdog)
                struck.append(case)
                for pid in {"watchdog": [watchdog], "fork parent": [fork_parent]}.get(
                    victim, [watchdog, fork_parent]
                ):
                    os.kill(pid, signal.SIGKILL)

        outcome = parent.run(slow, tmp_path / "log", strike)
        assert outcome.status is None
        assert outcome.limit is None
        assert not parent.alive
    assert orphans.session_members(struck[0]) == []


def test_a_compiler_that_escaped_is_found_by_its_mark(warm_workers):
    with ForkParent(LAUNCH) as parent:
        mark = f"{orphans.MARK}={parent._mark}"
        name, value = mark.split("=")
        escaped = subprocess.Popen(["sleep", "60"], env={name: value}, start_new_session=True)
        other = subprocess.Popen(["sleep", "60"], env={name: f"{value}0"}, start_new_session=True)
    assert escaped.wait(300) == -signal.SIGKILL
    assert other.poll() is None
    gone = subprocess.Popen(["sleep", "60"], env={name: "999999999.1.0"}, start_new_session=True)
    orphans.end_strays()
    assert gone.wait(300) == -signal.SIGKILL, "its run is gone"
    assert other.poll() is None, "its run, which is this process, is not"
    other.kill()
    other.wait()


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
        {"LD_PRELOAD": "/lib/other.so", "PYTHONHOME": "/wrong", "NVIDIA_TF32_OVERRIDE": "1"},
    )
    assert env["OMP_NUM_THREADS"] == "2", "the user's word is the last"
    assert env["MKL_NUM_THREADS"] == "4"
    assert env["LD_PRELOAD"] == "/lib/j.so:/lib/other.so"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["X"] == "y"
    assert "PYTHONHOME" not in env
    assert "NVIDIA_TF32_OVERRIDE" not in env, "--tf32 sets it for all libraries alike"
