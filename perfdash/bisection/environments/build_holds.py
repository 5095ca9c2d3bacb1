"""Hold builds for a bisection, so that nothing prunes them, and nobody else changes exclusive ones.

It knows neither the cache nor its keys: a build is its folder, and its lock is passed in.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path


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
        self._holds: dict[Path, Hold] = {}
        self._users: dict[Path, set[object]] = {}

    def take(self, place: Path, user: object, lock: Callable[[], Hold]) -> Hold | None:
        """Hold a build for a builder: the new lock, or None if the bisection has it already."""
        with self._guard:
            if place in self._holds:
                self._users[place].add(user)
                return None
        hold = lock()
        with self._guard:
            self._users.setdefault(place, set()).add(user)
            if place in self._holds:  # another thread was faster
                hold.release()
                return None
            self._holds[place] = hold
            return hold

    def release(self, place: Path, user: object) -> None:
        """Release a build that a builder holds; its lock goes with its last user."""
        with self._guard:
            self._release([place], user)

    def release_all(self, user: object) -> None:
        """Release all builds that a builder holds."""
        with self._guard:
            self._release([place for place, users in self._users.items() if user in users], user)

    def _release(self, places: Sequence[Path], user: object) -> None:
        for place in places:
            if place in self._holds:
                self._users[place].discard(user)
                if not self._users[place]:
                    del self._users[place]
                    self._holds.pop(place).release()
