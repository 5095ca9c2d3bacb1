"""Sockets, physical cores and memory nodes, read from a /sys tree, and which cores a run takes of them.

Reading is one function with the tree as its argument; the rest are functions of values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdash.errors import UsageError

SYS = Path("/sys")
_ALIKE = 0.8  # of the largest capacity of a core, from which cores count as one kind


@dataclass(frozen=True)
class PhysicalCore:
    """A physical core: its hardware threads that may be used, its socket and its memory node."""

    threads: tuple[int, ...]
    socket: int
    node: int | None  # None where the kernel tells no nodes

    @property
    def first(self) -> int:
        """The hardware thread that is measured on; its siblings stay idle."""
        return self.threads[0]


def read_cores(allowed: Iterable[int], root: Path | None = None) -> list[PhysicalCore]:
    """The physical cores among some hardware threads, in the order of their first ones."""
    folder = (root or SYS) / "devices" / "system"
    nodes = {
        thread: int(path.parent.name.removeprefix("node"))
        for path in folder.glob("node/node[0-9]*/cpulist")
        for thread in _numbers(_text(path))
    }
    every = sorted(set(allowed))
    cores: dict[tuple[int, ...], PhysicalCore] = {}
    for thread in every:
        topology = folder / "cpu" / f"cpu{thread}" / "topology"
        siblings = _numbers(_text(topology / "thread_siblings_list")) or (thread,)
        if siblings not in cores:
            socket = _text(topology / "physical_package_id")
            cores[siblings] = PhysicalCore(
                tuple(sibling for sibling in sorted(siblings) if sibling in every),
                int(socket) if re.fullmatch(r"\d+", socket) else 0,
                nodes.get(thread),
            )
    return list(cores.values())


def available(asked: Iterable[int] | None = None) -> list[PhysicalCore]:
    """The physical cores that this process may use, or those among the cores asked for."""
    here = os.sched_getaffinity(0)
    return read_cores(here if asked is None else here & set(asked))


def fastest_kind(cores: Sequence[int], root: Path | None = None) -> list[int]:
    """The fast ones of some cores, where a processor has fast and slow ones; else all.

    Intel's hybrid processors name them in /sys/devices/cpu_core, others the capacity of each core.
    """
    folder = (root or SYS) / "devices"
    fast = set(_numbers(_text(folder / "cpu_core" / "cpus")))
    if not fast:
        texts = {core: _text(folder / "system" / "cpu" / f"cpu{core}" / "cpu_capacity") for core in cores}
        capacities = {core: int(text) for core, text in texts.items() if text.isdigit()}
        most = max(capacities.values(), default=0)
        fast = {core for core, capacity in capacities.items() if capacity >= _ALIKE * most}
    return [core for core in cores if core in fast] or list(cores)


def one_socket(cores: Sequence[PhysicalCore]) -> tuple[int, ...]:
    """One hardware thread of each physical core of one socket.

    The socket with most cores; of equals the last, because the kernel does most of its own work on the first.
    Raises UsageError without cores.
    """
    if not cores:
        raise UsageError("--threads socket: no core is available")
    by_socket: dict[int, list[int]] = {}
    for core in cores:
        by_socket.setdefault(core.socket, []).append(core.first)
    chosen = max(by_socket, key=lambda number: (len(by_socket[number]), number))
    return tuple(sorted(by_socket[chosen]))


def place_instances(cores: Sequence[PhysicalCore], count: int, threads: int) -> list[tuple[int, ...]]:
    """The cores of each of `count` instances with `threads` threads, one hardware thread a physical core.

    No instance crosses two memory nodes. The last socket is filled before another is begun. Raises UsageError
    that says how many instances have room.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for core in cores:
        groups.setdefault((core.socket, -1 if core.node is None else core.node), []).append(core.first)
    places: list[tuple[int, ...]] = []
    for _, free in sorted(groups.items(), reverse=True):
        free = sorted(free)
        spare = len(free) % threads  # the first cores stay idle: the kernel works on them
        places += [tuple(free[start : start + threads]) for start in range(spare, len(free), threads)]
    if len(places) < count:
        sizes = ", ".join(str(len(free)) for _, free in sorted(groups.items()))
        raise UsageError(
            f"--instances {count}x{threads}: there is room for {len(places)} of {threads} physical cores, "
            f"none across two memory nodes (cores by node: {sizes or 'none'}); give fewer or smaller ones"
        )
    return places[:count]


def parse_instances(text: str) -> tuple[int, int]:
    """`4x14` as (4, 14): instances, and threads of each. Raises UsageError for anything else."""
    match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", text.strip())
    if match is None:
        raise UsageError(f"--instances {text!r}: give it as INSTANCESxTHREADS, e.g. 4x14")
    return int(match[1]), int(match[2])


def parse_cores(text: str) -> tuple[int, ...]:
    """`0-3,8` as (0, 1, 2, 3, 8). Raises UsageError for anything else."""
    cores: list[int] = []
    try:
        for part in text.split(","):
            low, dash, high = part.partition("-")
            cores.extend(range(int(low), int(high if dash else low) + 1))
    except ValueError:
        raise UsageError(f"--cores {text!r}: give cores like 0-3,8") from None
    if not cores or len(set(cores)) != len(cores):
        raise UsageError(f"--cores {text!r}: names no core, or one twice")
    return tuple(cores)


def format_cores(cores: Sequence[int]) -> str:
    """Cores in the short form that parse_cores reads."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], core]
        else:
            parts.append([core])
    return ",".join(str(p[0]) if p[0] == p[-1] else f"{p[0]}-{p[-1]}" for p in parts)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _numbers(text: str) -> tuple[int, ...]:
    """`0-3,8` as (0, 1, 2, 3, 8); () for anything else."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            return ()
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(numbers)
