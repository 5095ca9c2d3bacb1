"""Memory nodes and pinned threads: the kernel's view of where this process computes and keeps its data."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import platform
import re
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

_SYS = "/sys/devices/system"
_MPOL_BIND = 2
# System call numbers of set_mempolicy(2), for which the C library has no function.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261, "riscv64": 237, "s390x": 270}


def nodes(root: str = _SYS) -> Dict[int, Tuple[int, ...]]:
    """The hardware threads of each memory node; {} where the kernel tells none."""
    return {
        int(path.split("/node")[-1].split("/")[0]): _numbers(_text(path))
        for path in glob.glob(f"{root}/node/node[0-9]*/cpulist")
    }


def nodes_of(cores: Iterable[int], root: str = _SYS) -> Tuple[int, ...]:
    """The memory nodes of some hardware threads."""
    wanted = set(cores)
    return tuple(sorted(node for node, threads in nodes(root).items() if wanted & set(threads)))


def bind_memory(cores: Iterable[int], root: str = _SYS) -> Tuple[int, ...]:
    """Bind this thread's memory, and that of threads that it starts, to the nodes of some cores.

    Returns the nodes. On a machine with one node there is nothing to bind. Raises OSError where the kernel
    refuses: containers forbid it without the capability SYS_NICE.
    """
    every, bound = nodes(root), nodes_of(cores, root)
    if len(every) > 1 and bound:
        _set_mempolicy(bound)
    return bound


def _set_mempolicy(bound: Sequence[int]) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(f"set_mempolicy is not known for {platform.machine()}")
    words = 1 + max(bound) // 64
    mask = (ctypes.c_ulong * words)()
    for node in bound:
        mask[node // 64] |= 1 << (node % 64)
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is told.
    if libc.syscall(number, _MPOL_BIND, mask, ctypes.c_ulong(64 * words + 1)):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot bind memory to node {', '.join(map(str, bound))}: {os.strerror(code)}")


def new_threads(action: Callable[[], object]) -> List[int]:
    """The ids of the threads that an action has started in this process."""
    before = set(os.listdir("/proc/self/task"))
    action()
    return sorted(int(name) for name in os.listdir("/proc/self/task") if name not in before)


def pin(threads: Sequence[int], cores: Sequence[int]) -> bool:
    """Pin each thread to a core of its own; False, and nothing is pinned, where the numbers differ."""
    if len(threads) != len(cores):
        return False
    for thread, core in zip(threads, cores):
        os.sched_setaffinity(thread, {core})
    return True


@contextlib.contextmanager
def pinned(pool: Sequence[int], count: int) -> Iterator[bool]:
    """Pin this thread and those of `pool` to one of `count` cores each; whether they are.

    Only for as long as something is timed: the compiler's processes need all cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    threads = [0, *pool]  # 0 is this thread
    is_pinned = pin(threads, cores[:count])
    try:
        yield is_pinned
    finally:
        for thread in threads:
            os.sched_setaffinity(thread, cores)


def is_whole_socket(cores: Iterable[int], root: str = _SYS) -> Optional[bool]:
    """Whether some hardware threads are on all physical cores of exactly one socket; None if unknown."""
    wanted = set(cores)
    sockets: Dict[str, List[Tuple[int, ...]]] = {}
    for path in glob.glob(f"{root}/cpu/cpu[0-9]*/topology/physical_package_id"):
        siblings = _numbers(_text(os.path.join(os.path.dirname(path), "thread_siblings_list")))
        sockets.setdefault(_text(path), []).append(siblings)
    if not sockets:
        return None
    used = [groups for groups in sockets.values() if any(wanted & set(group) for group in groups)]
    return len(used) == 1 and all(wanted & set(group) for group in used[0])


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _numbers(text: str) -> Tuple[int, ...]:
    """`0-3,8` as (0, 1, 2, 3, 8); () for anything else."""
    numbers: List[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            return ()
        numbers += range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1)
    return tuple(numbers)
