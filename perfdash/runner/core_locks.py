"""Exclusive use of a core or GPU, across runs and users of this machine.

A lock is a bound socket in Linux's abstract namespace: it needs no file and no permission, any user
can see that it is taken and by whom, and the kernel releases it when the last process that holds it
is gone, however it ended. It holds within one network namespace: containers with a network of their
own do not see each other's.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
import time
from collections.abc import Iterable
from pathlib import Path

from perfdash.errors import MachineError
from perfdash.runner.cores import physical_core

PATIENCE_S = 10.0  # for what a run that was killed has left to be ended
_ASKERS = 4096  # nobody accepts: each that asks who holds the lock stays in the queue


class Locks:
    """Locks that this process holds; they end with close(), or with the last process given `fds`."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    @classmethod
    def take(cls, names: Iterable[str]) -> Locks:
        """Take all locks or none. Raises MachineError that names the process holding one.

        Where its holder is gone, what that has left is being ended: for that it waits some seconds.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            locks, taken = cls._try(names)
            if locks:
                return locks
            if _holder_is_alive(taken) or time.monotonic() > deadline:
                raise MachineError(
                    f"{taken} is being measured on by {holder(taken)}; wait for it, end it, or take other "
                    "cores (--cores)"
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


def core_names(cores: Iterable[int]) -> list[str]:
    """The locks that measuring on some cores needs: hardware threads of one core share its lock."""
    return [f"core {core}" for core in sorted({physical_core(core) for core in cores})]


def holder(name: str) -> str:
    """Who holds a lock, in words: process, user, command line."""
    pid, uid = _credentials(name)
    if pid is None:
        return "a run that has just ended"
    return f"process {pid} of {_user(uid)} ({_command(pid)})" if pid > 0 else "another run"


def _holder_is_alive(name: str) -> bool:
    """False when the process that took a lock is gone; true also where that cannot be told."""
    pid, _ = _credentials(name)
    return pid is not None and (pid <= 0 or Path("/proc", str(pid)).exists())


def _credentials(name: str) -> tuple[int | None, int]:
    """(process id, user id) of the holder of a lock; None when it is free, 0 when unknown."""
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    asking.setblocking(False)
    try:
        asking.connect(_address(name))
        credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", credentials)
    except BlockingIOError:  # more have asked than its queue holds
        return 0, -1
    except OSError:
        return None, -1
    finally:
        asking.close()
    return pid, uid


def _address(name: str) -> str:
    return f"\0perfdash/{name.replace(' ', '/')}"


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
    return " ".join(word.decode(errors="replace") for word in words if word)[:160]
