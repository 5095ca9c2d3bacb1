"""Which cores a run measures on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from perfdash.errors import UsageError


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


def available_cores() -> list[int]:
    """The cores this process may use, in order."""
    return sorted(os.sched_getaffinity(0))


def sibling_groups(cores: Sequence[int]) -> list[list[int]]:
    """Hardware threads by physical core (SMT siblings together), as the kernel tells."""
    groups: dict[str, list[int]] = {}
    for core in cores:
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        try:
            groups.setdefault(path.read_text().strip(), []).append(core)
        except OSError:
            groups.setdefault(str(core), []).append(core)
    return list(groups.values())


def choose_cores(threads: int, asked: str | None) -> tuple[int, ...]:
    """`threads` cores: those asked for, else the last ones, one per physical core first.

    The last, because core 0 does most of the kernel's housekeeping. Raises UsageError when there are
    not enough, or when a core asked for is not available here.
    """
    here = available_cores()
    if asked is not None:
        cores = parse_cores(asked)
        missing = [core for core in cores if core not in here]
        if missing:
            raise UsageError(f"--cores: core {missing[0]} is not available; there are: {spell(here)}")
        if len(cores) < threads:
            raise UsageError(f"--threads {threads} needs {threads} cores, --cores gives {len(cores)}")
        return cores[:threads]
    if threads > len(here):
        raise UsageError(
            f"--threads {threads}: this process may use {len(here)} cores ({spell(here)}); "
            f"give --threads {len(here)} or fewer"
        )
    groups = sibling_groups(here)
    firsts = [group[0] for group in groups]
    others = [core for group in groups for core in group[1:]]
    ordered = firsts[::-1] + others[::-1]
    return tuple(sorted(ordered[:threads]))


def spell(cores: Sequence[int]) -> str:
    """Cores in the short form that parse_cores reads."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], core]
        else:
            parts.append([core])
    return ",".join(str(p[0]) if p[0] == p[-1] else f"{p[0]}-{p[-1]}" for p in parts)
