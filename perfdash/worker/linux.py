"""The worker's requests to the Linux kernel and to glibc: one function each, no policy."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import threading
import time
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
    """Have the kernel kill this process when its parent ends; end at once if `parent` is gone already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none escapes."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def preferred_victim() -> None:
    """Have the kernel end this process when memory runs out, not the process that watches it."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as adjust:
        adjust.write("1000")


def join_group(procs: str) -> None:
    """Put this process, and all it will start, into the control group of this cgroup.procs."""
    with open(procs, "w") as group:
        group.write("0")


def shift_addresses() -> None:
    """Move this process's future allocations, so that forks of one parent differ in their addresses.

    Latency depends on addresses (cache sets, aliasing). The kernel draws the places of heap and mappings when
    a program starts, and forks inherit them. So the heap grows by up to 2 MiB that stay untouched, and a
    mapping without pages pushes later mappings down.
    """
    import random  # which a command of a build, under the same watchdog, need not wait for

    draw = random.SystemRandom()  # the generators that a model uses stay as they are
    _libc.malloc.restype = ctypes.c_void_p
    for _ in range(draw.randrange(20)):
        _libc.malloc(ctypes.c_size_t(16 * draw.randrange(2048, 6144)))
    with contextlib.suppress(OSError, ValueError):
        _KEPT_MAPPINGS.append(mmap.mmap(-1, mmap.PAGESIZE * draw.randrange(1, 1 << 14), prot=0))


def huge_pages(allowed: bool) -> None:
    """Turn transparent huge pages on or off for this process; off makes resident memory exact to a page."""
    _libc.prctl(_PR_SET_THP_DISABLE, 0 if allowed else 1, 0, 0, 0)


def has_mallopt() -> bool:
    """Whether the C library is glibc (musl has no mallopt)."""
    return hasattr(_libc, "mallopt") and hasattr(_libc, "malloc_trim")


def malloc_steady() -> None:
    """Set very large fixed malloc thresholds: freed memory is kept, so that calls fault no pages.

    glibc refuses an M_MMAP_THRESHOLD above 32 MiB in some versions, so mmap is also switched off.
    """
    if has_mallopt():
        _libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        _libc.mallopt(_M_MMAP_MAX, 0)
        _libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        _libc.mallopt(_M_TOP_PAD, 256 << 20)


def malloc_exact() -> None:
    """Map every block of 32 KiB or more by itself, to be returned to the kernel when it is freed.

    glibc's default of 128 KiB grows with the blocks that are freed; a fixed threshold makes resident memory
    equal to the memory in use.
    """
    if has_mallopt():
        _libc.mallopt(_M_MMAP_MAX, 65536)
        _libc.mallopt(_M_MMAP_THRESHOLD, 32 << 10)
        _libc.mallopt(_M_TRIM_THRESHOLD, 128 << 10)
        _libc.mallopt(_M_TOP_PAD, 0)


def malloc_trim() -> None:
    """Return every free page of the heap to the kernel."""
    if has_mallopt():
        _libc.malloc_trim(0)


def memory_status() -> dict[str, int]:
    """VmHWM, VmRSS, VmData, RssAnon, RssFile and RssShmem of this process in bytes (/proc/self/status)."""
    figures = {}
    with open("/proc/self/status") as status:
        for line in status:
            key, _, rest = line.partition(":")
            if key in ("VmHWM", "VmRSS", "VmData", "RssAnon", "RssFile", "RssShmem"):
                figures[key] = int(rest.split()[0]) * 1024
    return figures


def available_bytes() -> int:
    """Memory that can still be had without swapping (proc(5), MemAvailable)."""
    with open("/proc/meminfo") as facts:
        return next(int(line.split()[1]) * 1024 for line in facts if line.startswith("MemAvailable:"))


def has_open(path: str) -> bool:
    """Whether this process has a file open whose path begins so."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(path):
                return True
    return False


def bind_threads(cores: Iterable[int]) -> None:
    """Bind all threads of this process to cores; what it starts later inherits that."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            os.sched_setaffinity(int(thread), cores)


def reset_high_water_mark() -> bool:
    """Reset VmHWM to the present VmRSS (proc(5), clear_refs, 5); False where the kernel refuses."""
    try:
        with open("/proc/self/clear_refs", "w") as clear_refs:
            clear_refs.write("5")
    except OSError:
        return False
    return True


def limit_data(limit_bytes: int) -> None:
    """Limit the private writable memory of this process, and of each child, to `limit_bytes`."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def share_of_data_limit() -> float:
    """The share of limit_data's limit that this process uses; 0 without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return 0.0 if limit == resource.RLIM_INFINITY else memory_status()["VmData"] / limit


def is_mapped(library: str) -> bool:
    """Whether a shared library with this in its name is loaded into this process."""
    with open("/proc/self/maps") as maps:
        return any(library in line.rpartition("/")[2] for line in maps)


def children_of(parent: int) -> list[int]:
    """Process ids whose parent is `parent`, zombies included."""
    pids = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields and int(fields[1]) == parent:
                pids.append(int(entry))
    return pids


def end_children() -> None:
    """Kill and reap every child until none is left; orphans below have become children too."""
    while children := children_of(os.getpid()):
        for pid in children:
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


def stolen_ticks(cores: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Clock ticks since boot that the hypervisor took from each core, and all its ticks.

    From steal in /proc/stat (proc(5)); without the cores of which the kernel does not report it.
    """
    wanted = {f"cpu{core}": core for core in cores}
    found = {}
    with contextlib.suppress(OSError, ValueError), open("/proc/stat") as stat:
        for line in stat:
            name, *fields = line.split()
            if name in wanted and len(fields) >= 8:
                ticks = [int(field) for field in fields[:8]]  # guest time is part of user time
                found[wanted[name]] = ticks[7], sum(ticks)
    return found


def waited_s() -> dict[int, float]:
    """Seconds that each thread of this process was runnable without a core, by thread id.

    /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst). Empty where the kernel does not
    count them: there is no such file, or it is all zeros.
    """
    seconds = {}
    for thread in os.listdir("/proc/self/task"):
        path = f"/proc/self/task/{thread}/schedstat"
        with contextlib.suppress(OSError, ValueError), open(path) as schedstat:
            ran, waited, _ = schedstat.read().split()
            if int(ran):
                seconds[int(thread)] = int(waited) / 1e9
    return seconds


def await_idle_threads(longest_s: float) -> None:
    """Sleep until no other thread of this process runs or wants a core, at most `longest_s`."""
    end = time.monotonic() + longest_s
    while any(_is_running(thread) for thread in os.listdir("/proc/self/task")) and time.monotonic() < end:
        time.sleep(0.0005)


def _is_running(thread: str) -> bool:
    """Whether another thread of this process is in state R (proc_pid_stat(5))."""
    if int(thread) == threading.get_native_id():
        return False
    with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()[0] == b"R"
    return False


def _stat(pid: int) -> list[str] | None:
    """Fields 3 onwards of /proc/pid/stat (index 0 is the state, 1 the parent), None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None
