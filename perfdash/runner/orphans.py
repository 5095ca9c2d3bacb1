"""Finding and ending processes through /proc: what a case has started must not outlive it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

# Every process below a fork parent has this variable, so that escaped processes can be found.
MARK = "PERFDASH_WORKER"
_numbers = itertools.count()


def session_members(session: int) -> list[int]:
    """Process ids of a session (setsid), zombies left out."""
    return [pid for pid, fields in _all() if fields[0] != b"Z" and int(fields[3]) == session]


def kill_session(session: int) -> None:
    """SIGKILL to every process of a session until none is left, for at most two seconds.

    Repeated, since a process that is forking while it is being looked for has a child unseen.
    """
    deadline = time.monotonic() + 2.0
    while members := session_members(session):
        for pid in members:
            _kill(pid)
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)


def is_frozen(session: int) -> bool:
    """Whether a process of the session is stopped (SIGSTOP, a debugger).

    Its leader counts before it has made the session, too.
    """
    return any(fields[0] in (b"T", b"t") for pid, fields in _all() if session in (pid, int(fields[3])))


def is_stopped(pid: int) -> bool:
    """Whether this one process is stopped; false where it is gone."""
    fields = _stat(pid)
    return fields is not None and fields[0] in (b"T", b"t")


def descendants(root: int) -> list[int]:
    """A process and all below it. Needs the kernel's list of children, as usual kernels have it."""
    processes, todo = [], [root]
    while todo:
        pid = todo.pop()
        processes.append(pid)
        with contextlib.suppress(OSError):
            for task in Path("/proc", str(pid), "task").iterdir():
                with contextlib.suppress(OSError):
                    todo.extend(map(int, (task / "children").read_text().split()))
    return processes


def resident_over(root: int, limit_bytes: int) -> bool:
    """Whether a process and all below it together hold more than `limit_bytes` in memory.

    The cheap sum counts what forks share once for each; only when that is over, the proportional
    sizes, which the kernel takes long to add up, decide.
    """
    members = descendants(root)
    if sum(_anonymous(pid) for pid in members) <= limit_bytes:
        return False
    return sum(_proportional(pid) for pid in members) > limit_bytes


def new_mark() -> str:
    """A value for MARK that names this process, so that its end can be noticed."""
    return f"{os.getpid()}.{_start_time(os.getpid())}.{next(_numbers)}"


def end_marked(mark: str) -> None:
    """Ends every process of this user that was started under a fork parent's mark."""
    variable = f"{MARK}={mark}".encode()
    for pid, variables in _environments():
        if variable in variables:
            _kill(pid)


def end_strays() -> None:
    """End the processes that this user's ended runs have left behind, however those ended."""
    for pid, variables in _environments():
        for variable in variables:
            name, _, mark = variable.partition(b"=")
            if name == MARK.encode():
                runner, start, _ = [*mark.split(b"."), b"", b""][:3]
                if runner.isdigit() and start and _start_time(int(runner)) != int(start):
                    _kill(pid)


def oom_kills() -> int:
    """The number of processes that the kernel killed for lack of memory since boot."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def _all() -> Iterator[tuple[int, list[bytes]]]:
    """(process id, fields 3 onwards of its stat) of every process."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields:
                yield int(entry), fields


def _stat(pid: int) -> list[bytes] | None:
    try:
        return Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


def _start_time(pid: int) -> int:
    """The start of a process in clock ticks since boot. With the pid it is unique."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] != b"Z" else -1


def _environments() -> Iterator[tuple[int, list[bytes]]]:
    """(process id, its environment when it was started) of every other process of this user.

    Only of this pid namespace: in another one (a container) the numbers in a mark mean others.
    """
    namespace = os.readlink("/proc/self/ns/pid")
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            here = Path("/proc", entry)
            with contextlib.suppress(OSError):
                if here.stat().st_uid == os.getuid() and os.readlink(here / "ns" / "pid") == namespace:
                    yield int(entry), (here / "environ").read_bytes().split(b"\0")


def _anonymous(pid: int) -> int:
    """Anonymous and shared memory of a process that is resident, bytes."""
    try:
        text = Path("/proc", str(pid), "status").read_text()
    except OSError:
        return 0
    lines = [line for line in text.splitlines() if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(int(line.split()[1]) * 1024 for line in lines)


def _proportional(pid: int) -> int:
    """Anonymous and shared memory, each page over the number of processes that have it, bytes."""
    try:
        text = Path("/proc", str(pid), "smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(
        int(line.split()[1]) * 1024
        for line in text.splitlines()
        if line.startswith(("Pss_Anon:", "Pss_Shmem:"))
    )


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
