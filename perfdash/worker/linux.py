"""What the worker asks of the Linux kernel and of glibc: one function a request, no policy."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import resource
import signal
from typing import Iterable, List

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_THP_DISABLE = 41

# glibc malloc.h
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4

_libc = ctypes.CDLL(None, use_errno=True)
_KEPT_MAPPINGS: List[mmap.mmap] = []  # a mapping ends with its object


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent ends; ends at once if `parent` is gone already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Descendants whose own parent ends become children of this process, so that none escapes."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def preferred_victim() -> None:
    """When the machine runs out of memory the kernel ends this process, not the one that watches it."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as adjust:
        adjust.write("1000")


def join_group(procs: str) -> None:
    """This process, and all it will start, into a control group, given by its cgroup.procs."""
    with open(procs, "w") as group:
        group.write("0")


def shift_addresses() -> None:
    """Moves what this process will allocate, so that forks of one parent differ in their addresses.

    The kernel draws the places of heap and mappings when a program starts; forks inherit them. So the heap
    grows by up to 2 MiB that stay untouched, and a mapping without pages pushes later ones down.
    """
    draw = random.SystemRandom()  # the generators that a model uses stay as they are
    _libc.malloc.restype = ctypes.c_void_p
    for _ in range(draw.randrange(20)):
        _libc.malloc(ctypes.c_size_t(16 * draw.randrange(2048, 6144)))
    with contextlib.suppress(OSError, ValueError):
        _KEPT_MAPPINGS.append(mmap.mmap(-1, mmap.PAGESIZE * draw.randrange(1, 1 << 14), prot=0))


def huge_pages(allowed: bool) -> None:
    """Transparent huge pages for this process on or off; off makes resident memory exact to a page."""
    _libc.prctl(_PR_SET_THP_DISABLE, 0 if allowed else 1, 0, 0, 0)


def has_mallopt() -> bool:
    """Whether the C library is glibc (musl has no mallopt)."""
    return hasattr(_libc, "mallopt") and hasattr(_libc, "malloc_trim")


def malloc_steady() -> None:
    """Fixed, very large malloc thresholds: memory once obtained is kept, calls fault no pages.

    glibc refuses an M_MMAP_THRESHOLD above 32 MiB in some versions, so mmap is also switched off.
    """
    if has_mallopt():
        _libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        _libc.mallopt(_M_MMAP_MAX, 0)
        _libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        _libc.mallopt(_M_TOP_PAD, 256 << 20)


def malloc_exact() -> None:
    """Every block of 32 KiB or more is mapped for itself and given back when it is freed.

    glibc's own default of 128 KiB moves with what is freed; here it stays, so that what is resident
    is what is in use.
    """
    if has_mallopt():
        _libc.mallopt(_M_MMAP_MAX, 65536)
        _libc.mallopt(_M_MMAP_THRESHOLD, 32 << 10)
        _libc.mallopt(_M_TRIM_THRESHOLD, 128 << 10)
        _libc.mallopt(_M_TOP_PAD, 0)


def malloc_trim() -> None:
    """Gives every free page of the heap back to the kernel."""
    if has_mallopt():
        _libc.malloc_trim(0)


def memory_status() -> dict[str, int]:
    """VmHWM, VmRSS, VmData and RssAnon of this process in bytes (/proc/self/status)."""
    found = {}
    with open("/proc/self/status") as status:
        for line in status:
            key, _, rest = line.partition(":")
            if key in ("VmHWM", "VmRSS", "VmData", "RssAnon"):
                found[key] = int(rest.split()[0]) * 1024
    return found


def reset_high_water_mark() -> bool:
    """VmHWM starts again from the present VmRSS (proc(5), clear_refs, 5); False where it cannot."""
    try:
        with open("/proc/self/clear_refs", "w") as clear_refs:
            clear_refs.write("5")
    except OSError:
        return False
    return True


def limit_data(limit_bytes: int) -> None:
    """Private writable memory of this process and of each it starts is at most `limit_bytes`."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def share_of_data_limit() -> float:
    """How much of limit_data's limit this process has taken; 0 without one."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return 0.0 if limit == resource.RLIM_INFINITY else memory_status()["VmData"] / limit


def is_mapped(library: str) -> bool:
    """Whether a shared library with this in its name is loaded into this process."""
    with open("/proc/self/maps") as maps:
        return any(library in line.rpartition("/")[2] for line in maps)


def children_of(parent: int) -> list[int]:
    """Process ids whose parent is `parent`, zombies included."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields and int(fields[1]) == parent:
                found.append(int(entry))
    return found


def end_children() -> None:
    """Kills and reaps every child until none is left; orphans below have become children too."""
    while left := children_of(os.getpid()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def tree_cpu_s(root: int) -> float:
    """CPU seconds, user and system, of a process, of all its live descendants and reaped children."""
    ticks = 0
    todo = [root]
    while todo:
        pid = todo.pop()
        fields = _stat(pid)
        if fields:
            ticks += sum(int(fields[index]) for index in (11, 12, 13, 14))
            todo.extend(children_of(pid))
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_stall_s() -> float | None:
    """Seconds that some task of the machine has waited for a CPU (pressure stall), None if unknown."""
    try:
        with open("/proc/pressure/cpu") as pressure:
            return int(pressure.readline().rsplit("=", 1)[1]) / 1e6
    except (OSError, ValueError, IndexError):
        return None


def stolen_ticks(cores: Iterable[int]) -> tuple[int, int]:
    """Clock ticks that the hypervisor gave to others while these cores wanted to run, and all ticks.

    Since boot (proc(5), /proc/stat, steal); 0 of 0 where the kernel does not say.
    """
    wanted = {f"cpu{core}" for core in cores}
    stolen = total = 0
    with contextlib.suppress(OSError, ValueError), open("/proc/stat") as stat:
        for line in stat:
            name, *fields = line.split()
            if name in wanted and len(fields) >= 8:
                ticks = [int(field) for field in fields[:8]]  # guest time is part of user time
                stolen, total = stolen + ticks[7], total + sum(ticks)
    return stolen, total


def waited_s() -> dict[int, float]:
    """By thread of this process the seconds that it could have run and had no core; those that it can tell.

    /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst).
    """
    found = {}
    for thread in os.listdir("/proc/self/task"):
        path = f"/proc/self/task/{thread}/schedstat"
        with contextlib.suppress(OSError, ValueError, IndexError), open(path) as schedstat:
            found[int(thread)] = int(schedstat.read().split()[1]) / 1e9
    return found


def _stat(pid: int) -> list[str] | None:
    """Fields 3 onwards of /proc/pid/stat (index 0 is the state, 1 the parent), None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None
