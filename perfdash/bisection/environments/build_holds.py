"""Hold builds for a bisection, so that nothing prunes them, and nobody else changes exclusive ones.

It knows no cache: the lock of a build is passed in. A build that another bisection has for itself has copies.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence


class Hold:
    """A lock, held until it is released or all processes with `fd` have ended."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def release(self) -> None:
        """Release the lock; call it once."""
        os.close(self.fd)


class BuildHolds:
    """The builds that one bisection holds. Its builders share them: each build is locked once.

    A stage needs builds that the stage above it holds: the base of a merge, the bad end of a revert. With a
    lock of its own it would wait for itself.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._holds: dict[str, tuple[str, Hold]] = {}
        self._users: dict[str, set[object]] = {}

    def take(self, key: str, user: object, lock: Callable[[], tuple[str, Hold]]) -> tuple[str, Hold | None]:
        """Hold a build for a builder: the copy that is held, and its new lock.

        The lock is None if the bisection has it already. `lock` takes the build or a copy: its key and lock.
        """
        with self._guard:
            if key in self._holds:
                self._users[key].add(user)
                return self._holds[key][0], None
        copy, hold = lock()
        with self._guard:
            self._users.setdefault(key, set()).add(user)
            if key in self._holds:  # another thread was faster
                hold.release()
                return self._holds[key][0], None
            self._holds[key] = copy, hold
            return copy, hold

    def release(self, key: str, user: object) -> None:
        """Release a build that a builder holds; its lock goes with its last user."""
        with self._guard:
            self._release([key], user)

    def release_all(self, user: object) -> None:
        """Release all builds that a builder holds."""
        with self._guard:
            self._release([key for key, users in self._users.items() if user in users], user)

    def _release(self, keys: Sequence[str], user: object) -> None:
        for key in keys:
            if key in self._holds:
                self._users[key].discard(user)
                if not self._users[key]:
                    del self._users[key]
                    self._holds.pop(key)[1].release()
