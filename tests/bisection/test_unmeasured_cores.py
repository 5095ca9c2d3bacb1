"""The cores that builds may use: those on which no other process measures."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

from perfdash.bisection import workbench
from perfdash.bisection.workbench import unmeasured_cores
from perfdash.runner.cores import Locks

HOLDS = """
import sys
from perfdash.runner.cores import Locks
held = Locks.take(sys.argv[1:])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def names(monkeypatch):
    """The names of the locks of three cores, which nothing else uses."""
    unique = uuid.uuid4().hex
    names = [f"core {unique}-{core}" for core in range(3)]
    monkeypatch.setattr(workbench, "core_names", lambda cores: [names[core] for core in cores])
    return names


def test_builds_use_the_cores_on_which_no_other_process_measures(names):
    own = Locks.take(names[1:2])
    words = [sys.executable, "-c", HOLDS, names[2]]
    try:
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout.readline() == b"held\n"
            assert unmeasured_cores((0, 1, 2)) == (0, 1)
            assert unmeasured_cores((2,)) == (2,), "all of them, where all are measured on"
            other.stdin.close()
    finally:
        own.close()
    assert unmeasured_cores((0, 1, 2)) == (0, 1, 2)


def test_asking_takes_no_lock(names, monkeypatch):
    monkeypatch.setattr(Locks, "_try", None)
    assert unmeasured_cores((0, 1, 2)) == (0, 1, 2)
