"""Locks of cores, with real other processes and, where we are root, another user."""

import os
import subprocess
import sys
import threading

import pytest

from perfdash.errors import MachineError
from perfdash.runner import cores
from perfdash.runner.cores import CoresTaken, Locks, core_names, holder, physical_core, when_free

NAME = f"test {os.getpid()}"
HOLD = """
import os, sys, time
from perfdash.runner.cores import Locks
name, user, child = sys.argv[1:]
if user != "me":
    os.setuid(int(user))
locks = Locks.take([name])
if child == "with child":
    os.set_inheritable(locks.fds[0], True)
    os.spawnvp(os.P_NOWAIT, "sleep", ["sleep", "30"])
print("held", flush=True)
time.sleep(60)
"""


def hold(user="me", child="alone"):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, NAME, user, child],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "held\n"
    process.stdout.close()
    return process


def test_one_at_a_time_in_one_process():
    first = Locks.take([NAME])
    with pytest.raises(MachineError, match=rf"{NAME} is being measured on by process {os.getpid()} of you"):
        Locks.take([f"{NAME} other", NAME])
    Locks.take([f"{NAME} other"]).close()  # none was kept of those that could be had
    first.close()
    Locks.take([NAME]).close()


def test_a_refusal_on_a_gpu_says_what_leaves_cores_free():
    """A run on a GPU locks all cores, to compile on them, unless it was started with --cores."""
    core, gpu, other = f"core {NAME}", f"gpu {NAME}", f"gpu other {NAME}"

    def refusal(*names):
        with pytest.raises(CoresTaken) as refused:
            Locks.take(names)
        return str(refused.value)

    first = Locks.take([core, gpu])
    assert "start that run with --cores, so that it leaves some" in refusal(core, other)
    assert "take another GPU (CUDA_VISIBLE_DEVICES)" in refusal(gpu)
    assert "take other cores (--cores)" not in refusal(gpu)
    assert refusal(core).endswith("take other cores (--cores)")
    first.close()


def test_of_another_process_however_it_ends():
    process = hold()
    with pytest.raises(MachineError, match=rf"process {process.pid} of you \(.*python"):
        Locks.take([NAME])
    process.kill()
    process.wait()
    Locks.take([NAME]).close()


def test_secrets_in_the_command_line_of_the_holder_are_masked():
    words = ["run", "--env", "API_TOKEN=s3cret-of-ann", "--db", f"postgresql://me:hunter2@{'h' * 150}/x"]
    waits = ["bash", "-c", "echo started; read -r _", *words]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "started\n"
        command = cores._command(process.pid)
        process.kill()
    assert "API_TOKEN=***" in command
    assert "s3cret" not in command
    assert "hunter2" not in command
    assert len(command) <= 160


def test_runs_with_locks_of_their_own_do_not_wait_for_others(monkeypatch):
    """So a test measures also where another run does, on the same core."""
    held = Locks.take([NAME])
    for name in ("tests of somebody else", "x" * 1000):
        monkeypatch.setenv("PERFDASH_LOCKS", name)
        own = Locks.take([NAME])
        with pytest.raises(CoresTaken):
            Locks.take([NAME])
        own.close()
    held.close()


@pytest.mark.slow
def test_what_was_given_the_lock_holds_it_longer(monkeypatch):
    process = hold(child="with child")
    process.kill()
    process.wait()
    assert Locks.try_take([NAME]) is None
    monkeypatch.setattr(cores, "PATIENCE_S", 0.3)
    with pytest.raises(MachineError, match="it has ended; its workers are being ended"):
        Locks.take([NAME])
    monkeypatch.setattr(cores, "PATIENCE_S", 30)
    threading.Timer(0.5, os.killpg, (process.pid, 9)).start()
    Locks.take([NAME]).close()  # it waits for them


def test_every_one_that_asks_is_reported():
    process = hold()
    assert {holder(NAME).split(" (")[0] for _ in range(20)} == {f"process {process.pid} of you"}
    process.kill()
    process.wait()
    assert holder(NAME) == "a run that has just ended"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_of_another_user():
    process = hold("65534")
    with pytest.raises(MachineError, match=rf"process {process.pid} of nobody"):
        Locks.take([NAME])
    process.kill()
    process.wait()


def test_names():
    here = min(os.sched_getaffinity(0))
    assert core_names([here, here]) == [f"core {physical_core(here)}"]


# Waiting for cores


class Taken:
    """Enters when the other run has ended, after so many tries."""

    def __init__(self, tries, names=(NAME,)):
        self.tries, self.names, self.calls = tries, names, 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.tries:
            raise CoresTaken(f"{NAME} is being measured on by process {self.calls}; end it", self.names)
        return "entered"


def test_without_wait_a_core_that_is_taken_is_an_error_at_once():
    lines = []
    with pytest.raises(CoresTaken, match="is being measured on"):
        when_free(Taken(1), None, lines.append)
    assert lines == []


def test_waiting_says_who_holds_the_core_and_enters_when_it_is_free(monkeypatch):
    monkeypatch.setattr(cores, "_POLL_S", 0.01)
    lines, taken = [], Taken(2)  # another run that waited is quicker once
    assert when_free(taken, 7200, lines.append) == "entered"
    assert lines == [
        f"{NAME} is being measured on by process 1; waiting for up to 2.0 h",
        f"{NAME} is being measured on by process 2; waiting for up to 2.0 h",
    ]


def test_the_wait_ends(monkeypatch):
    monkeypatch.setattr(cores, "_POLL_S", 0.01)
    lines = []
    held = Locks.take([NAME])
    with pytest.raises(CoresTaken):
        when_free(lambda: Locks.take([NAME]), 0.05, lines.append)
    held.close()
    assert len(lines) == 1


def test_a_core_is_entered_when_its_holder_lets_it_go(monkeypatch):
    monkeypatch.setattr(cores, "_POLL_S", 0.01)
    held = Locks.take([NAME])
    release = threading.Timer(0.2, held.close)
    release.start()
    locks = when_free(lambda: Locks.take([NAME]), 60, print)
    assert locks.fds
    locks.close()
    release.join()
