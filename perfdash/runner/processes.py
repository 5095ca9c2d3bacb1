"""Finding and ending processes through /proc: what a case has started must not outlive it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def session_members(session: int) -> list[int]:
    """Process ids of a session (setsid), zombies left out."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_bytes()
            except OSError:
                continue
            fields = stat.rpartition(b")")[2].split()
            if fields[0] != b"Z" and int(fields[3]) == session:
                found.append(int(entry))
    return found


def kill_session(session: int, patience_s: float = 2.0) -> None:
    """SIGKILL to every process of a session until none is left, at most `patience_s`.

    Repeated, since a process that is forking while it is being looked for has a child unseen.
    """
    deadline = time.monotonic() + patience_s
    while members := session_members(session):
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory, on this machine since boot."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
