"""Temporary folders of a run. What a killed one has left is removed by the next: a case's caches and the
precompiled headers are some hundred megabytes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from perfdash.errors import MachineError

_PREFIX = "perfdash-scratch-"
_HELD = ".held"  # locked by the process that made the folder, for as long as it lives


class Scratch:
    """A temporary folder, removed at the end; use as a context manager, or remove() it."""

    def __init__(self) -> None:
        """Raises MachineError where there is no room for one."""
        while True:
            try:
                self.path = tempfile.mkdtemp(prefix=_PREFIX)
                self._held = os.open(os.path.join(self.path, _HELD), os.O_CREAT | os.O_RDWR, 0o600)
            except OSError as error:
                raise MachineError(
                    f"no temporary folder in {tempfile.gettempdir()}: {error.strerror}; "
                    "make room there or set TMPDIR"
                ) from error
            fcntl.flock(self._held, fcntl.LOCK_EX)
            if _is_linked(self._held):
                return
            os.close(self._held)  # the sweep of another process came before the lock

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Removes the folder with all in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._held)


def sweep() -> None:
    """Removes the folders whose makers are gone, as far as this user may."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            held = os.open(folder / _HELD, os.O_RDWR)
        except OSError:  # just being made, or another user's
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_linked(held):  # else its maker has removed it, and the name may be another's
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(held)


def _is_linked(fd: int) -> bool:
    """Whether an open file still has a name."""
    return os.fstat(fd).st_nlink > 0
