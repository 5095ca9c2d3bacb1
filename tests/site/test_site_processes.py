"""The map over processes: order, errors, and that none is left behind."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from perfdash.errors import MachineError
from perfdash.site import build
from perfdash.site.build import mapped


@pytest.fixture(autouse=True)
def _for_few(monkeypatch):
    monkeypatch.setattr(build, "_FEWEST", 1)


@pytest.mark.parametrize("jobs", [1, 2, 3, 50])
def test_in_order(jobs):
    offset = 7  # what it closes over need not be sent
    assert mapped(lambda item: (item + offset) * "x", range(20), jobs) == [(n + 7) * "x" for n in range(20)]
    assert mapped(str, [], jobs) == []


def test_in_other_processes():
    assert len(set(mapped(lambda _: os.getpid(), range(4), 2)) - {os.getpid()}) == 2


def test_an_error_is_raised_here():
    def fails(item):
        if item == 3:
            raise OSError(28, "No space left on device", "there")
        return item

    with pytest.raises(OSError, match="No space left"):
        mapped(fails, range(8), 2)


def test_a_killed_process_is_reported():
    def dies(item):
        if item == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    with pytest.raises(MachineError, match="was killed"):
        mapped(dies, range(8), 2)


@pytest.mark.slow
def test_a_killed_build_holds_no_lock(tmp_path):
    """Its children hold what it had open: they end by themselves, and with them the lock."""
    code = f"""
import fcntl, os, time
from perfdash.site import build
build._FEWEST = 1
file = open({str(tmp_path / "lock")!r}, "w")
fcntl.flock(file, fcntl.LOCK_EX)
def slow(item):
    if item < 2:
        os.write(1, b".")
    time.sleep(0.05)
    return "x" * 10_000
build.mapped(slow, range(40), 2)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.read(2) == ".."  # both are at work
        process.kill()
        process.wait()
        with open(tmp_path / "lock", "w") as file:
            for _ in range(8000):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    time.sleep(0.05)
            else:
                pytest.fail("a child holds the lock")
