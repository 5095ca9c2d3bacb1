"""Choose and lock the cores and GPUs that a run measures on.

A lock is a bound socket in Linux's abstract namespace. It needs no file and no permission, every user can
see who holds it, and the kernel releases it when the last process that holds it ends, however it ended.
It holds within one network namespace: containers with a network of their own do not see each other's.
Nor do runs with another value of $PERFDASH_LOCKS: the tests of perfdash have one, so that no run of somebody
else keeps them from measuring.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pwd
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from perfdash import topology
from perfdash.errors import MachineError, UsageError
from perfdash.redaction import mask_secrets
from perfdash.runner.cpu_quota import cpu_limit
from perfdash.runner.gpus import visible_gpus
from perfdash.runner.schedule import duration
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned
from perfdash.topology import format_cores, parse_cores

_POLL_S = 1.0  # between two looks at cores that another run measures on
PATIENCE_S = 10.0  # until the processes that a killed run left behind have ended
T = TypeVar("T")
_ASKERS = 4096  # nobody accepts, so every process that asks for the holder stays queued


@functools.cache
def available_cores() -> list[int]:
    """The cores this process may use, in order, as it was started (see away_from)."""
    return sorted(os.sched_getaffinity(0))


@contextmanager
def away_from(slots: Sequence[Sequence[int]]) -> Iterator[None]:
    """Keep this thread, and those it starts, off the measured cores where possible."""
    before = os.sched_getaffinity(0)
    measured = {core for cores in slots for core in cores}
    whole = {physical_core(core) for core in measured}
    here = set(available_cores())
    # A sibling thread of a measured core would share its units: avoid it, too.
    free = {core for core in here if physical_core(core) not in whole} or here - measured
    if free:
        os.sched_setaffinity(0, free)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


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


def physical_core(core: int) -> int:
    """The lowest-numbered hardware thread of the physical core that `core` belongs to."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    try:
        return min(parse_cores(path.read_text().strip()))
    except (OSError, UsageError):
        return core


def numa_nodes(cores: Sequence[int]) -> list[list[int]]:
    """The cores by NUMA node, in the kernel's order; one node where that is unknown."""
    nodes = []
    for path in sorted(
        Path("/sys/devices/system/node").glob("node[0-9]*/cpulist"),
        key=lambda path: int(path.parent.name.removeprefix("node")),
    ):
        try:
            node_cores = set(parse_cores(path.read_text().strip()))
        except (OSError, UsageError):  # a NUMA node without cores has memory only
            continue
        if members := [core for core in cores if core in node_cores]:
            nodes.append(members)
    in_nodes = {core for node in nodes for core in node}
    outside = [core for core in cores if core not in in_nodes]
    return [*nodes, outside] if outside else nodes


def choose_slots(jobs: int | str, threads: int, asked: str | None) -> list[tuple[int, ...]]:
    """The cores of each slot: `jobs` sets of `threads` cores (`auto`: as many as fit).

    One hardware thread per physical core, no slot across two NUMA nodes as long as one has room,
    the slots spread evenly over the nodes and from the last core down. Without `asked` several slots are
    cores of the fastest kind, so that a case is measured alike on each; where `auto` finds no room for one
    there, it takes one slot of all cores. `auto` leaves the first physical core to the kernel and to perfdash
    itself where the slots have room without it, and takes no more slots than the container's CPU quota keeps
    busy. Raises UsageError where there are not enough.
    """
    if jobs == 1:
        return [choose_cores(threads, asked)]
    if asked is not None:
        here = list(parse_cores(asked))
    else:
        here = topology.fastest_kind(available_cores())
        if jobs == "auto" and len(sibling_groups(here)) < threads and len(here) < len(available_cores()):
            return [choose_cores(threads, None)]
    allowed = available_cores()
    missing = [core for core in here if core not in allowed]
    if missing:
        raise UsageError(f"--cores: core {missing[0]} is not available; there are: {format_cores(allowed)}")
    nodes = [[group[0] for group in sibling_groups(node)] for node in numa_nodes(here)]
    if jobs == "auto":
        first = min(core for node in nodes for core in node)
        if asked is None and sum(map(len, nodes)) > threads:
            nodes = [[core for core in node if core != first] for node in nodes]
        count = max(1, sum(len(node) // threads for node in nodes))
        if (limit := cpu_limit()) is not None:
            count = min(count, max(1, int(limit // threads)))
    else:
        count = int(jobs)
    slots: list[tuple[int, ...]] = []
    while len(slots) < count:
        # Take the node with the most free cores next; of equal nodes the last.
        node = max(nodes, key=lambda node: (len(node), node), default=[])
        if len(node) < threads:
            rest = sorted(core for node in nodes for core in node)
            if len(rest) < threads:
                room = len(slots)
                raise UsageError(
                    f"--jobs {jobs} with --threads {threads}: {format_cores(here)} has room for "
                    f"{room} at a time (one thread per physical core); give --jobs {max(1, room)} or fewer"
                    + (", or cores of any kind by --cores" if len(here) < len(allowed) and not asked else "")
                )
            node = rest
        slots.append(tuple(node[-threads:]))
        taken = set(slots[-1])
        nodes = [[core for core in node if core not in taken] for node in nodes]
    return slots


def every_slot(threads: int) -> list[tuple[int, ...]]:
    """All sets of `threads` cores that can be slots at once, last cores first.

    Raises UsageError where there is room for none.
    """
    nodes = [sibling_groups(node) for node in numa_nodes(topology.fastest_kind(available_cores()))]
    within = sum(len(node) // threads for node in nodes)
    return choose_slots(within, threads, None) if within > 1 else [choose_cores(threads, None)]


def choose_cores(threads: int, asked: str | None) -> tuple[int, ...]:
    """`threads` cores: the first of those asked for, else the last ones, one per physical core first.

    The last, because core 0 does most of the kernel's housekeeping, and of the fastest kind where that has
    room. They lie within one NUMA node if one has so many. Raises UsageError when there are not enough, or
    when a core asked for is not available here.
    """
    here = available_cores()
    if asked is not None:
        cores = parse_cores(asked)
        missing = [core for core in cores if core not in here]
        if missing:
            raise UsageError(f"--cores: core {missing[0]} is not available; there are: {format_cores(here)}")
        if len(cores) < threads:
            raise UsageError(f"--threads {threads} needs {threads} cores, --cores gives {len(cores)}")
        wide_enough = [node for node in numa_nodes(cores) if len(node) >= threads]
        first = min(wide_enough, key=lambda node: cores.index(node[0]), default=cores)
        return tuple(first[:threads])
    if threads > len(here):
        raise UsageError(
            f"--threads {threads}: this process may use {len(here)} cores ({format_cores(here)}); "
            f"give --threads {len(here)} or fewer"
        )
    fast = topology.fastest_kind(here)
    here = fast if len(sibling_groups(fast)) >= threads else here
    nodes = [[group[0] for group in sibling_groups(node)] for node in numa_nodes(here)]
    wide_enough = [node for node in nodes if len(node) >= threads]
    if wide_enough:
        last = max(wide_enough, key=lambda node: node[-1])
        return tuple(sorted(last[-threads:]))
    groups = sibling_groups(here)
    firsts = [group[0] for group in groups]
    siblings = [core for group in groups for core in group[1:]]
    ordered = firsts[::-1] + siblings[::-1]
    return tuple(sorted(ordered[:threads]))


def slots_of(settings: RunSettings) -> list[tuple[int, ...]]:
    """The cores of each slot on this machine; empty where a cluster measures. Raises UsageError."""
    if settings.executor == "dask":
        if not settings.scheduler:
            raise UsageError("--executor dask needs --scheduler ADDRESS (tcp://host:8786)")
        if not re.fullmatch(r"((tcp|tls|ws|wss|ucx)://)?(\[[^\]\s]+\]|[^/:\s]+):\d+", settings.scheduler):
            raise UsageError(f"--scheduler {settings.scheduler!r}: give it as tcp://host:8786")
        if settings.jobs != 1 or settings.cores:
            raise UsageError("--jobs and --cores are for this machine; each Dask worker is one slot")
        if settings.device == "cuda" and "CUDA_VISIBLE_DEVICES" in settings.env:
            raise UsageError(
                "--env CUDA_VISIBLE_DEVICES selects GPUs of this machine; with --executor dask set the "
                "variable where each Dask worker is started"
            )
        return []
    if settings.scheduler:
        raise UsageError("--scheduler needs --executor dask")
    if settings.instances:  # settings.py has chosen the cores, those of each instance beside each other
        return [parse_cores(settings.cores or "")]
    slots = choose_slots(settings.jobs, settings.threads, settings.cores)
    visible = gpus_of(settings)
    if settings.device == "cuda" and len(slots) > max(1, len(visible)):
        if settings.jobs != "auto":
            raise UsageError(
                f"--jobs {settings.jobs}: {len(visible)} GPUs are visible; each slot needs its own"
            )
        slots = slots[: max(1, len(visible))]
    return slots


def slots_needed(settings: RunSettings, planned: Planned) -> tuple[int, bool]:
    """The threads that a case needs, and whether they and its memory are bound."""
    return planned.case.threads, planned.case.options.get("bind_memory", settings.bind_memory)


def by_slots(settings: RunSettings, planned: Sequence[Planned]) -> list[tuple[RunSettings, list[int]]]:
    """The cases by the kind of slot that they need: settings for these slots, and places in `planned`.

    Each number of threads has slots of its own, and so have bound ones. Skipped cases are with the first.
    """
    measured = [case for case in planned if case.skip_reason is None]
    kinds = list(dict.fromkeys(slots_needed(settings, case) for case in measured))
    kinds = kinds or [(settings.threads, settings.bind_memory)]
    needed = [slots_needed(settings, case) if case.skip_reason is None else kinds[0] for case in planned]
    return [
        (with_slots(settings, *kind), [place for place, own in enumerate(needed) if own == kind])
        for kind in kinds
    ]


def with_slots(settings: RunSettings, threads: int, binds: bool) -> RunSettings:
    """The settings with the threads of some cases; --jobs N is for those of the settings themselves."""
    if (threads, binds) == (settings.threads, settings.bind_memory):
        return settings
    jobs = settings.jobs if settings.jobs == "auto" else 1
    update = {"threads": threads, "bind_memory": binds, "jobs": jobs}
    return on_one_socket(settings.model_copy(update=update))


def on_one_socket(settings: RunSettings) -> RunSettings:
    """The settings with the cores of one socket, where they are for as many bound threads."""
    if not settings.bind_memory:
        return settings
    asked = parse_cores(settings.cores) if settings.cores else None
    socket_cores = topology.one_socket(topology.available(asked))
    if len(socket_cores) != settings.threads:
        return settings
    return settings.model_copy(update={"cores": format_cores(socket_cores)})


def compile_cores(slots: Sequence[tuple[int, ...]], settings: RunSettings) -> list[tuple[int, ...]]:
    """The cores that each slot may compile on: its own and a share of those that none measures on.

    Compiling for a GPU by one core would take minutes, and its kernels are the same on more. On the CPU the
    cores of a case say what its compilation latency means, so they are its own alone: empty.

    A slot compiles while the others time. So it takes no sibling thread of their cores, which would share
    the units of these cores, but those of its own cores: it times nothing meanwhile.
    """
    if settings.device == "cpu":
        return [() for _ in slots]
    siblings: dict[int, list[int]] = {}  # by physical core
    for core in available_cores() if settings.cores is None else parse_cores(settings.cores):
        siblings.setdefault(physical_core(core), []).append(core)
    measured = [{physical_core(core) for core in cores} for cores in slots]
    spare = [physical for physical in siblings if not any(physical in own for own in measured)]
    wider = []
    for number, cores in enumerate(slots):
        others = {physical for own in (*measured[:number], *measured[number + 1 :]) for physical in own}
        own_and_share = (measured[number] - others).union(spare[number :: len(slots)])
        threads = {thread for physical in own_and_share for thread in siblings.get(physical, ())}
        wider.append(tuple(sorted(threads.union(cores))))
    return [more if len(more) > len(cores) else () for more, cores in zip(wider, slots, strict=True)]


def gpus_of(settings: RunSettings) -> list[str]:
    """The GPUs that a run may use, by UUID where one is known; empty for a run on the CPU."""
    named = settings.env.get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
    return visible_gpus(named) if settings.device == "cuda" else []


class CoresTaken(MachineError):
    """Another run measures on these cores. `names`: their locks."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names = tuple(names)


def when_free(enter: Callable[[], T], wait_s: float | None, say: Callable[[str], None]) -> T:
    """Call `enter`, which takes cores, again until they are free or `wait_s` seconds have passed.

    `say` gets a line each time that another run is found to measure on them. Raises CoresTaken after that
    time; without one at once. Several who wait take turns by chance.
    """
    deadline = time.monotonic() + (wait_s or 0.0)
    said = ""
    while True:
        try:
            return enter()
        except CoresTaken as error:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise
            if str(error) != said:
                said = str(error)
                say(f"{said.partition(';')[0]}; waiting for up to {duration(left_s)}")
            while (left_s := deadline - time.monotonic()) > 0:
                time.sleep(min(_POLL_S, left_s))
                if (locks := Locks.try_take(error.names)) is not None:
                    locks.close()
                    break


class Locks:
    """Locks that this process holds until close(). A process that was given `fds` holds them longer."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    @classmethod
    def take(cls, names: Iterable[str]) -> Locks:
        """Take all locks or none. Raises CoresTaken, which names the process holding one.

        Where its holder is gone, what that has left is being ended: for that it waits some seconds.
        """
        names = tuple(names)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            locks, taken = cls._try(names)
            if locks:
                return locks
            if _holder_is_alive(taken) or time.monotonic() > deadline:
                by = holder(taken)
                raise CoresTaken(
                    f"{taken} is being measured on by {by}; wait for it (--wait 2h), end it, or "
                    f"{_other_place(taken, names, by)}",
                    names,
                )
            time.sleep(0.1)

    @classmethod
    def try_take(cls, names: Iterable[str]) -> Locks | None:
        """Take all locks or none, without waiting."""
        return cls._try(names)[0]

    @classmethod
    def _try(cls, names: Iterable[str]) -> tuple[Locks | None, str]:
        """The locks, or the name of one that is taken."""
        locks = cls()
        for name in dict.fromkeys(names):
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                lock.bind(_address(name))
                lock.listen(_ASKERS)
            except OSError:
                lock.close()
                locks.close()
                return None, name
            locks._sockets.append(lock)
        return locks, ""

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors for child processes that should hold the locks too (pass_fds)."""
        return tuple(lock.fileno() for lock in self._sockets)

    def close(self) -> None:
        """Release the locks; a process that was given `fds` still holds them."""
        for lock in self._sockets:
            lock.close()
        self._sockets.clear()


def _other_place(taken: str, names: Sequence[str], by: str) -> str:
    """What to do where another run, with its command in `by`, holds the lock `taken` of those in `names`."""
    if taken.startswith("gpu "):
        return "take another GPU (CUDA_VISIBLE_DEVICES)"
    other_cores = "take other cores (--cores)"
    if not (any(name.startswith("gpu ") for name in names) or re.search(r"--device[ =]cuda", by)):
        return other_cores
    return (
        f"{other_cores}. A run on a GPU takes all cores, to compile on them: start that run with --cores, so "
        "that it leaves some"
    )


def core_names(cores: Iterable[int]) -> list[str]:
    """The names of the locks of some cores. Hardware threads of one core share its lock."""
    return [f"core {core}" for core in sorted({physical_core(core) for core in cores})]


def holder(name: str) -> str:
    """Who holds a lock, in words: process, user, command line."""
    pid, uid = _credentials(name)
    if pid is None:
        return "a run that has just ended"
    return f"process {pid} of {_user(uid)} ({_command(pid)})" if pid > 0 else "another run"


def is_held_by_another(name: str) -> bool:
    """Whether another process holds a lock. Asking takes no lock, so it stops nobody from taking it."""
    pid, _ = _credentials(name)
    return pid not in (None, os.getpid())


def _holder_is_alive(name: str) -> bool:
    """False if the process that took a lock has ended, True also if unknown."""
    pid, _ = _credentials(name)
    return pid is not None and (pid <= 0 or Path("/proc", str(pid)).exists())


def _credentials(name: str) -> tuple[int | None, int]:
    """(process id, user id) of a lock's holder; None if free, 0 if unknown."""
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    asking.setblocking(False)
    try:
        asking.connect(_address(name))
        credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", credentials)
    except BlockingIOError:  # the queue of processes that asked is full
        return 0, -1
    except OSError:
        return None, -1
    finally:
        asking.close()
    return pid, uid


def _address(name: str) -> str:
    others = os.environ.get("PERFDASH_LOCKS", "")
    # An address has room for 107 characters.
    own = hashlib.sha256(others.encode()).hexdigest()[:16] + "/" if others else ""
    return f"\0perfdash/{own}{name.replace(' ', '/')}"


def _user(uid: int) -> str:
    try:
        return "you" if uid == os.getuid() else pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "it has ended; its workers are being ended"
    return " ".join(mask_secrets([word.decode(errors="replace") for word in words if word]))[:160]
