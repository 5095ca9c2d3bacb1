"""A run as its own process, what belongs to it, and a suite of small cases."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.conftest import physical_cores

HERE = Path(__file__).parent
COMPILES = ["compiles0", "compiles1"]
GOOD = [*COMPILES, *(f"small{number}" for number in range(8))]
BAD = ["eats", "eats_shared"]
CASES = len(GOOD) + len(BAD)


# Two hardware threads of one core have one lock: two slots there would wait for each other.
two_cores = pytest.mark.skipif(len(physical_cores()) < 2, reason="needs two physical cores, for two slots")


def write_suite(path: Path) -> Path:
    """Ten models that work, two of which run a C++ compiler, and two that eat memory."""
    # Only what hangs should meet them, also where other tests run beside.
    limits = "eager = 60, compile = 60, accuracy = 60, latency = 60, memory = 60"
    tables = []
    for name in [*GOOD, *BAD]:
        target = name.rstrip("0123456789")
        tables.append(f'[[models]]\nname = "{name}"\ntarget = "{HERE / "models.py"}:{target}"')
        if name in COMPILES:
            tables.append(f"phase_timeout_s = {{ start = 60, load = 180, {limits} }}")
        if name in BAD:
            tables.append("memory_limit_gb = 1.5")
    head = (
        'name = "faults"\nloader = "python"\n[defaults]\n'
        f"phase_timeout_s = {{ start = 60, load = 60, {limits} }}\n"
    )
    path.write_text(head + "\n".join(tables) + "\n")
    return path


class Run:
    """`perfdash ...` in a folder with few samples (tests/few_samples.py), its lines as they come."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.few_samples", *arguments],
            cwd=cwd,
            # A Dask worker takes the number of threads out of its environment, which is part of a run's.
            env={
                **{key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")},
                "PYTHONPATH": str(HERE.parents[1]),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
        self.process.stdout.close()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def until(self, pattern: str, timeout_s: float = 240) -> None:
        """Waits for a line that matches; fails when the run ends first."""
        deadline = time.monotonic() + timeout_s
        while not re.search(pattern, self.text, re.MULTILINE):
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.text}"
            assert self.process.poll() is None, f"ended before {pattern!r}:\n{self.text}"
            time.sleep(0.02)

    def ends(self, timeout_s: float = 400) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.ends()

    # What belongs to it

    def watchdogs(self) -> list[int]:
        return [pid for pid in children(self.process.pid) if is_worker(pid)]

    def fork_parents(self) -> list[int]:
        return [pid for watchdog in self.watchdogs() for pid in children(watchdog)]

    def cases(self) -> list[int]:
        return [pid for parent in self.fork_parents() for pid in children(parent)]

    def strike(
        self, find, until: str, number: int = signal.SIGKILL, within_s: float = 5, timeout_s: float = 240
    ) -> None:
        """Sends a signal to the first process that `find` comes up with, until a new line tells of it.

        A blow may hit a process that has just given its result, or a compiler that only tries out what
        the machine can do: no line tells of those within `within_s`, and the next process is hit.
        """
        line_count, struck = len(self.lines), set()
        deadline = time.monotonic() + timeout_s
        again = 0.0
        while not re.search(until, "\n".join(self.lines[line_count:])):
            assert time.monotonic() < deadline, f"no {until!r} in:\n{self.text}"
            assert self.process.poll() is None, f"ended before {until!r}:\n{self.text}"
            if time.monotonic() > again:
                # One that was only stopped is still there.
                victim = next((pid for pid in find() if pid not in struck and hit(pid, number)), None)
                if victim is not None:
                    struck.add(victim)
                    again = time.monotonic() + within_s
            time.sleep(0.01)


def hit(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def children(parent: int) -> list[int]:
    try:
        tasks = list(Path("/proc", str(parent), "task").iterdir())
        return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    except OSError:
        return []


def is_worker(pid: int) -> bool:
    try:
        return b"perfdash.worker" in Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return False


def below(pid: int) -> list[int]:
    """All descendants."""
    direct = children(pid)
    return [*direct, *(further for child in direct for further in below(child))]


def compilers(pid: int) -> list[int]:
    """The compilers proper among the descendants."""
    processes = []
    for candidate in below(pid):
        try:
            name = Path("/proc", str(candidate), "comm").read_text().strip()
        except OSError:
            continue
        if name.startswith("cc1plus"):
            processes.append(candidate)
    return processes


def left_over(pid: int, among: Collection[int] | None = None, patience_s: float = 60.0) -> list[str]:
    """Command lines of what was started under a run, or of some of it, and still runs after a while."""
    deadline = time.monotonic() + patience_s
    mark = f"PERFDASH_WORKER={pid}.".encode()
    while True:
        processes = []
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or (among is not None and int(entry.name) not in among):
                    continue
                if mark in (entry / "environ").read_bytes():
                    processes.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        if not processes or time.monotonic() > deadline:
            return processes
        time.sleep(0.1)
