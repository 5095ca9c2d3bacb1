"""A control group that limits the memory of a case and of all processes it starts.

Where this user may make one: as root, or below a delegated group (systemd's user sessions). Version
1 and 2 of the kernel's interface. Elsewhere the runner watches what is resident instead (watch.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_numbers = itertools.count()


class MemoryGroup:
    """A control group for one case; a process joins it by writing to the file `procs`."""

    def __init__(self, folder: Path, version: int) -> None:
        self.folder = folder
        self.procs = folder / "cgroup.procs"
        self._events = folder / ("memory.events" if version == 2 else "memory.oom_control")

    @classmethod
    def create(cls, limit_bytes: int, root: Path = _ROOT) -> MemoryGroup | None:
        """A new group with a limit; None where this user may not make one."""
        for parent, version in _parents(root):
            _sweep(parent)
            folder = parent / f"perfdash-{os.getpid()}-{next(_numbers)}"
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
            with contextlib.suppress(OSError):  # without swap, or an older kernel
                (self.folder / name).write_text(value)

    def oom_kills(self) -> int | None:
        """How many of its processes the kernel killed at the limit; None where it is unknown."""
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


def _parents(root: Path) -> list[tuple[Path, int]]:
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
            # Not within our own group: a group with processes has no groups below that are limited.
            for folder in (own, own.parent):
                try:
                    given = (folder / "cgroup.subtree_control").read_text().split()
                except OSError:
                    continue
                if "memory" in given:
                    parents.append((folder, 2))
    return parents


def _sweep(parent: Path) -> None:
    """Removes the empty groups of runs that were killed."""
    with contextlib.suppress(OSError):
        for folder in parent.glob("perfdash-*-*"):
            pid = folder.name.split("-")[1]
            if not Path("/proc", pid).exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()
