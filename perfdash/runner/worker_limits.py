"""Enforce the limits of a running case: time, memory and output. A case that exceeds one is ended.

CaseMonitor reads the case's events and output, and ends it with every process that it started. It never
spins: it sleeps in poll until the case writes or ends, a limit is near, or the run is stopped.

MemoryGroup is a control group with a memory limit for the case and its processes. It needs root or a
delegated group (systemd's user sessions); versions 1 and 2 of the kernel's interface work. Elsewhere
CaseMonitor compares the resident memory with the limit.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from perfdash.records import Job
from perfdash.runner import orphans
from perfdash.runner.messages import ProcessOutcome
from perfdash.runner.run_journal import read_json

GRACE_S = 10.0  # until a killed process has ended
FORK_S = 60.0  # until the fork parent has forked
_TAIL_BYTES = 16 << 10
_RESIDENT_EVERY_S = 0.5
_STOPPED_EVERY_S = 5.0  # how often to look for a stopped process; two looks in a row count
MAX_MESSAGE = 1 << 22
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_group_numbers = itertools.count()
OnEvent = Callable[[dict[str, Any]], None]


def ready_of(fds: Iterable[int], timeout_s: float) -> list[int]:
    """The descriptors that can be read, or have closed, within a time. (select ends at 1024 files.)"""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    wait_ms = max(0, math.ceil(min(timeout_s, 3600.0) * 1000))
    return [fd for fd, _ in poller.poll(wait_ms)]


class RunStopped(Exception):
    """The run was stopped; the case under way has no result."""


class Stop:
    """Tells every thread that watches a case to end it: readable for ever once set."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        """Ends all that is watched with it, now and later."""
        os.eventfd_write(self.fd, 1)

    def is_set(self) -> bool:
        """Whether set() has been called."""
        return bool(ready_of([self.fd], 0))

    def close(self) -> None:
        """Close it once no thread watches with it."""
        os.close(self.fd)


class CaseMonitor:
    """One job that a fork parent has been sent. `case_pid` is known once it has answered."""

    def __init__(
        self,
        control: socket.socket,
        job: Job,
        *,
        events: int,
        output: int,
        log: Path,
        group: MemoryGroup | None,
        on_event: OnEvent,
        stop: Stop | None,
    ) -> None:
        self.case_pid: int | None = None
        self.outcome = ProcessOutcome(memory_limit_bytes=job.memory_limit_bytes)
        self._control = control
        self._job = job
        self._events = events
        self._output = output
        self._group = group
        self._on_event = on_event
        self._stop = stop
        self._log = _Log(log)
        self._phase = "start"
        self._was_stopped = False
        self._buffer = b""

    def run(self) -> ProcessOutcome:
        """Watch until the case has ended. Raises RunStopped when `stop` is set, after ending it."""
        self._case_deadline = time.monotonic() + self._job.timeout_s
        self._next_look = time.monotonic() + _STOPPED_EVERY_S
        self._phase_deadline = self._end_deadline = math.inf
        pid_deadline = time.monotonic() + FORK_S
        watches_memory = self._group is None and self._job.memory_limit_bytes is not None
        open_sources = {self._control.fileno(), self._events, self._output}
        try:
            while self._events in open_sources or self._waits_for_exit(open_sources):
                now = time.monotonic()
                deadlines = (self._case_deadline, self._phase_deadline, self._end_deadline, self._next_look)
                wait = min(deadlines) - now
                if self.case_pid is None:
                    wait = min(wait, pid_deadline - now)
                if watches_memory and self._phase != "latency":
                    wait = min(wait, _RESIDENT_EVERY_S)
                ready = ready_of([*open_sources, *([self._stop.fd] if self._stop else [])], wait)
                if self._stop and self._stop.fd in ready:
                    self._kill()
                    raise RunStopped
                for source in ready:
                    if not self._read(source):
                        open_sources.discard(source)
                        self._closed(source)
                if time.monotonic() >= self._end_deadline:
                    break  # killed but still there: stuck in the kernel; the launcher ends the fork parent
                if self.case_pid is None and time.monotonic() >= pid_deadline:
                    break  # the fork parent is frozen: the launcher ends it
                self._check_time()
                self._check_stopped()
                if watches_memory and self._phase != "latency":
                    self._check_memory()
            self._drain()
        finally:
            self._log.close()
            os.close(self._events)
            os.close(self._output)
        self.outcome.tail = self._log.tail()
        return self.outcome

    def _waits_for_exit(self, open_sources: set[int]) -> bool:
        return self._control.fileno() in open_sources and self.outcome.status is None

    def _read(self, source: int) -> bool:
        """Read from a source that is ready; False when it has closed."""
        if source == self._control.fileno():
            try:
                data = self._control.recv(MAX_MESSAGE)
            except OSError:  # connection reset: the fork parent ended before it read the job
                data = b""
            if data:
                message = json.loads(data)
                if "pid" in message:
                    self.case_pid = message["pid"]
                    if self.outcome.limit:  # the limit was exceeded before the pid was known
                        self._kill()
                    elif self._phase == "start":  # a case may hang before its first phase, too
                        self._limit_phase()
                self.outcome.status = message.get("exit", self.outcome.status)
            return bool(data)
        chunk = os.read(source, 1 << 16)
        if source == self._output:
            self._log.write(chunk)
            if self._log.written > self._job.output_limit_bytes:
                self._pass("output", "case", self._job.output_limit_bytes, "bytes")
            return bool(chunk)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            self._take(read_json(line))
        return bool(chunk)

    def _take(self, event: dict[str, Any]) -> None:
        self.outcome.events.append(event)
        if event["event"] == "phase":
            self._phase = event["name"]
            self._limit_phase()
        elif event["event"] == "phase_end":
            self._phase_deadline = math.inf
        self._on_event(event)

    def _limit_phase(self) -> None:
        self._phase_deadline = time.monotonic() + self._job.phase_timeouts.get(self._phase, math.inf)

    def _closed(self, source: int) -> None:
        if source == self._control.fileno():  # the fork parent is gone, and its watchdog has ended the case
            self._end_deadline = min(self._end_deadline, time.monotonic() + GRACE_S)
            self._kill()
        elif source == self._events:  # the case has ended; without an exit status the fork parent is stuck
            self._end_deadline = min(self._end_deadline, time.monotonic() + GRACE_S)

    def _check_time(self) -> None:
        now = time.monotonic()
        if now >= self._phase_deadline:
            self._pass("time", "phase", self._job.phase_timeouts[self._phase], "s")
        elif now >= self._case_deadline:
            self._pass("time", "case", self._job.timeout_s, "s")

    def _check_stopped(self) -> None:
        """End a case that has a stopped process at two looks in a row.

        A debugger stops a process for a shorter time."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _STOPPED_EVERY_S
        if self.case_pid is None or self._end_deadline < math.inf:
            return
        # While latency is sampled, look at the case's own process only: a longer look would disturb it.
        look = orphans.is_stopped if self._phase == "latency" else orphans.is_frozen
        before, self._was_stopped = self._was_stopped, look(self.case_pid)
        if before and self._was_stopped:
            self.outcome.frozen = True
            self._case_deadline = self._phase_deadline = math.inf
            self._end_deadline = now + GRACE_S
            self._kill()

    def _check_memory(self) -> None:
        limit = self._job.memory_limit_bytes
        if limit is not None and self.case_pid and orphans.resident_over(self.case_pid, limit):
            self._pass("memory", "case", limit, "bytes")

    def _pass(self, what: str, scope: str, limit: float, unit: str) -> None:
        """End the case because it exceeded a limit; the first limit is reported."""
        if self.outcome.limit is None:
            self.outcome.limit = {"what": what, "scope": scope, "limit": limit, "unit": unit}
            self.outcome.frozen = self.case_pid is not None and orphans.is_frozen(self.case_pid)
            self._end_deadline = time.monotonic() + GRACE_S
        self._case_deadline = self._phase_deadline = math.inf
        self._kill()

    def _kill(self) -> None:
        if self.case_pid is not None:
            orphans.kill_session(self.case_pid)

    def _drain(self) -> None:
        """Read the output left in the pipe. An escaped process may hold its other end open."""
        os.set_blocking(self._output, False)
        with contextlib.suppress(BlockingIOError):
            while (chunk := os.read(self._output, 1 << 16)) and (
                self._log.written <= self._job.output_limit_bytes
            ):
                self._log.write(chunk)


class _Log:
    """A case's log. A disk that refuses loses the log, not the measurement; the tail is in memory."""

    def __init__(self, path: Path) -> None:
        self.written = 0
        self._last: deque[bytes] = deque()
        self._last_bytes = 0
        self._file: IO[bytes] | None = None
        with contextlib.suppress(OSError):
            self._file = path.open("ab", buffering=0)

    def write(self, chunk: bytes) -> None:
        self.written += len(chunk)
        self._last.append(chunk)
        self._last_bytes += len(chunk)
        while self._last_bytes - len(self._last[0]) > _TAIL_BYTES:
            self._last_bytes -= len(self._last.popleft())
        if self._file:
            try:
                self._file.write(chunk)
            except OSError:
                self.close()

    def tail(self) -> list[str]:
        text = b"".join(self._last).decode(errors="replace")
        return [line[:1000] for line in text.splitlines()[-20:]]

    def close(self) -> None:
        if self._file:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


class MemoryGroup:
    """A control group for one case. A process joins it by writing to the file `procs`."""

    def __init__(self, folder: Path, version: int) -> None:
        self.folder = folder
        self.procs = folder / "cgroup.procs"
        self._events = folder / ("memory.events" if version == 2 else "memory.oom_control")

    @classmethod
    def create(cls, limit_bytes: int, root: Path = _CGROUP_ROOT) -> MemoryGroup | None:
        """A new group with a limit; None where this user may not make one."""
        for parent, version in _parent_groups(root):
            _remove_empty_groups(parent)
            folder = parent / f"perfdash-{os.getpid()}-{next(_group_numbers)}"
            try:
                folder.mkdir()
            except OSError:
                continue
            group = cls(folder, version)
            try:
                group._limit(limit_bytes, version)
                if group.oom_kills() is not None and os.access(group.procs, os.W_OK):
                    return group
            except OSError:
                pass
            group.close()
        return None

    def _limit(self, limit_bytes: int, version: int) -> None:
        if version == 1:
            (self.folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
            return
        (self.folder / "memory.max").write_text(str(limit_bytes))
        for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            with contextlib.suppress(OSError):  # a machine without swap, or an older kernel
                (self.folder / name).write_text(value)

    def oom_kills(self) -> int | None:
        """The number of its processes that the kernel killed at the limit; None if unknown."""
        try:
            match = re.search(r"^oom_kill (\d+)$", self._events.read_text(), re.MULTILINE)
        except OSError:
            return None
        return int(match.group(1)) if match else None

    def close(self, patience_s: float = 2.0) -> None:
        """Removes the group once its processes are gone; one that stays is swept up later."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                self.folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.01)


def _parent_groups(root: Path) -> list[tuple[Path, int]]:
    """Groups in which one of ours may be made, with the version of their interface."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    parents: list[tuple[Path, int]] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            own = root / "memory" / path.strip("/")
            parents += [(folder, 1) for folder in (own, root / "memory") if folder.is_dir()]
        elif controllers == "":
            own = root / path.strip("/")
            # Not in our own group: in version 2 a group with processes cannot limit groups below it.
            for folder in (own, own.parent):
                try:
                    given = (folder / "cgroup.subtree_control").read_text().split()
                except OSError:
                    continue
                if "memory" in given:
                    parents.append((folder, 2))
    return parents


def _remove_empty_groups(parent: Path) -> None:
    """Removes the empty groups of runs that were killed."""
    with contextlib.suppress(OSError):
        for folder in parent.glob("perfdash-*-*"):
            pid = folder.name.split("-")[1]
            if not Path("/proc", pid).exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()
