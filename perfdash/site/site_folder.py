"""Own the site's folder: refuse any other, write file by file, remove stale files."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfdash.errors import MachineError, UsageError
from perfdash.files import dumps, encoded, replaced, try_lock

MARKER = ".perfdash-site.json"
STATE = ".perfdash-site"  # what is kept for the next build; no part of what is shown
VERSION = 1
# All in these folders is the site's; beside them only the pages at the top, by name.
OURS = ("assets", "beds")


class Folder:
    """An open site folder; `written` counts the files whose bytes are others than before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self._kept: set[str] = set()

    def write(self, name: str, content: str | bytes) -> bool:
        """Writes a file, whole or not at all; nothing where it is as it should be. Whether it wrote."""
        self._kept.add(name)
        data = encoded(content) if isinstance(content, str) else content
        if put(self.path / name, data):
            self.written += 1
            return True
        return False

    def keep(self, name: str, end: bytes = b"") -> bool:
        """Says that a file belongs to the site as it is; whether it is there, and ends as it should."""
        self._kept.add(name)
        try:
            with open(self.path / name, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - len(end)))
                return size > 0 and file.read() == end
        except OSError:
            return False

    def sweep(self) -> int:
        """Removes what this build neither wrote nor kept; the number of files."""
        removed = 0
        for top in OURS:
            for folder, _, names in os.walk(self.path / top, topdown=False):
                here = Path(folder)
                for name in names:
                    if (here / name).relative_to(self.path).as_posix() not in self._kept:
                        (here / name).unlink(missing_ok=True)
                        removed += 1
                with contextlib.suppress(OSError):  # not empty
                    here.rmdir()
        for path in self.path.glob(".*.part"):
            path.unlink(missing_ok=True)
        return removed


def put(target: Path, data: bytes) -> bool:
    """Writes a file by way of another name; whether there was anything to write."""
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
    """A new or empty folder, or one that holds a site; held by one build at a time.

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
                    f"--out {path}: another `perfdash site` is writing it; wait until it has ended"
                )
            file.seek(0)
            content = dumps({"perfdash": "site", "version": VERSION, "store": store}) + "\n"
            if file.read() != content:
                file.seek(0)
                file.truncate()
                file.write(content)
                file.flush()
            yield Folder(path)
    except OSError as error:
        where = error.filename or path
        raise MachineError(
            f"--out {path}: {where}: {error.strerror}; the next call mends what is there"
        ) from error


def refuse_foreign(path: Path) -> None:
    """Raises UsageError for a folder that is not empty and holds no site of this or an older version."""
    if not path.exists():
        return
    if not path.is_dir():
        raise UsageError(f"--out {path}: it is a file; give a folder")
    try:
        names = os.listdir(path)
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror}") from error
    if not names:
        return
    if MARKER not in names:
        raise UsageError(
            f"--out {path}: the folder is not empty and holds no site of perfdash; give an empty or new one"
        )
    found = _marker(path / MARKER)
    if found and int(found.get("version", 0)) > VERSION:
        raise UsageError(f"--out {path}: the site in it was made by a newer perfdash; update this one")


def _marker(path: Path) -> dict[str, Any]:
    """What the marker says; nothing where a build was killed as it wrote it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("version", 0), int) else {}
