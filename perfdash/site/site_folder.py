"""The site's folder: write changed files, remove stale ones, cache arrays between builds."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdash.errors import MachineError, UsageError
from perfdash.files import dumps, encoded, replaced, try_lock
from perfdash.history.results import digest

MARKER = ".perfdash-site.json"
STATE = ".perfdash-site"  # what is kept for the next build; no part of what is shown
VERSION = 1
# All in these folders is the site's; beside them only the pages at the top, by name.
OURS = ("assets", "beds", "causes")


def state_of(site: Path, state: Path | None) -> Path:
    """The folder of what is kept for the next build of a site; `state`: where a user wants such folders."""
    return state / digest(str(site.resolve()))[:16] if state else site / STATE


class Folder:
    """An open site folder; `written` counts the files whose content changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self._kept: set[str] = set()

    def write(self, name: str, content: str | bytes) -> bool:
        """Write a file atomically unless its content is unchanged; whether it wrote."""
        self._kept.add(name)
        data = encoded(content) if isinstance(content, str) else content
        if put(self.path / name, data):
            self.written += 1
            return True
        return False

    def keep(self, name: str, end: bytes = b"") -> bool:
        """Keep a file of an earlier build; whether it exists and has this ending."""
        self._kept.add(name)
        try:
            with open(self.path / name, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - len(end)))
                return size > 0 and file.read() == end
        except OSError:
            return False

    def sweep(self) -> int:
        """Remove files that this build neither wrote nor kept; returns their number."""
        removed = 0
        for top in OURS:
            for folder, _, names in os.walk(self.path / top, topdown=False):
                directory = Path(folder)
                for name in names:
                    if (directory / name).relative_to(self.path).as_posix() not in self._kept:
                        (directory / name).unlink(missing_ok=True)
                        removed += 1
                with contextlib.suppress(OSError):  # not empty
                    directory.rmdir()
        for path in self.path.glob(".*.part"):
            path.unlink(missing_ok=True)
        return removed


def put(target: Path, data: bytes) -> bool:
    """Write a file atomically; whether its content was new."""
    try:
        if target.stat().st_size == len(data) and target.read_bytes() == data:
            return False
    except OSError:
        pass
    with replaced(target) as part:
        try:
            part.write_bytes(data)
        except FileNotFoundError:
            target.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(data)
    return True


@contextlib.contextmanager
def opened(path: Path, store: str) -> Iterator[Folder]:
    """Open a new folder or an earlier site, for one build at a time.

    Raises UsageError for any other folder; MachineError where it cannot be written, or another build
    is at work in it.
    """
    refuse_foreign(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        marker = path / MARKER
        with open(marker, "a+", encoding="utf-8") as file:
            if not try_lock(file.fileno()):
                raise MachineError(
                    f"--to {path}: another `perfdash site` is writing it; wait until it has ended"
                )
            file.seek(0)
            # A site may be public: the address of the history is not for everybody.
            of = hashlib.sha256(store.encode(errors="replace")).hexdigest()
            content = dumps({"perfdash": "site", "version": VERSION, "store": of}) + "\n"
            if file.read() != content:
                file.seek(0)
                file.truncate()
                file.write(content)
                file.flush()
            yield Folder(path)
    except OSError as error:
        where = error.filename or path
        raise MachineError(
            f"--to {path}: {where}: {error.strerror}; the next call mends what is there"
        ) from error


def refuse_foreign(path: Path) -> None:
    """Raise UsageError for a folder with other files, or a newer version's site."""
    if not path.exists():
        return
    if not path.is_dir():
        raise UsageError(f"--to {path}: it is a file; give a folder")
    try:
        names = os.listdir(path)
    except OSError as error:
        raise UsageError(f"--to {path}: {error.strerror}") from error
    if not names:
        return
    if MARKER not in names:
        raise UsageError(
            f"--to {path}: the folder is not empty and holds no site of perfdash; give an empty or new one"
        )
    marker = _marker(path / MARKER)
    if marker and int(marker.get("version", 0)) > VERSION:
        raise UsageError(f"--to {path}: the site in it was made by a newer perfdash; update this one")


def _marker(path: Path) -> dict[str, Any]:
    """The marker's fields; none where a build was killed while it wrote them."""
    try:
        marker = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) and isinstance(marker.get("version", 0), int) else {}


Arrays = dict[str, NDArray[Any]]
# The second form is left by a killed process, the third was by older versions.
_OURS = re.compile(r"[0-9a-f]{64}\.npz|\.[0-9a-f]{64}\.npz\.\d+\.\d+\.part|[0-9a-f]{64}\.\d+\.part")


class ArrayCache:
    """Keep arrays between two builds of the site, each under a digest of its sources.

    A folder of .npz files that one site alone uses; without a folder nothing is kept. A lost, torn or
    outdated array is computed again. Nothing is ever unpickled: that would run code from a file.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._used: set[str] = set()

    def get(self, key: str) -> Arrays | None:
        """The arrays of a key (a hexadecimal digest); None if missing or damaged."""
        if self.folder is None:
            return None
        name = f"{key}.npz"
        self._used.add(name)
        try:
            # Opened here: numpy leaves a torn file open.
            with open(self.folder / name, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
            return None

    def put(self, key: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep arrays. A full disk is no error: the next build computes them again."""
        if self.folder is None:
            return
        file = io.BytesIO()
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's annotation takes them for its option
        target = self.folder / f"{key}.npz"
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with replaced(target, shared=True) as part:
                part.write_bytes(file.getvalue())

    def tidy(self) -> None:
        """Remove the cached arrays that this build did not use, and no other files."""
        if self.folder is None or not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in self._used:
                with contextlib.suppress(OSError):
                    path.unlink()
