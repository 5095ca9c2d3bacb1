"""A bisection's journal: one JSON line for each event, on disk before the next step.

It is the only state: a killed bisection continues from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any

from perfdash.bisection.events import BEGUN, SCHEMA, Event
from perfdash.errors import MachineError, UsageError
from perfdash.files import append, dumps, is_full, is_locked, make_dated_folder, mend_last_line, now, try_lock
from perfdash.redaction import redact_all

FILE, LOCK, LOGS = "journal.jsonl", ".lock", "logs"
FOLDER = "bisections"  # below the folder of the runs
# A resume needs the values of these keys unchanged, so they are not redacted. Secrets with names of their own
# were left out when the bisection began, and the user gives them again.
_AS_IT_IS = frozenset(
    {
        "event", "stage", "commit", "id", "label", "parents", "name", "asked", "settings", "planned", "case",
        "metric", "harness", "host_class", "gpu", "recipe", "origin", "question", "more", "environment",
        "status", "log", "way",
    }
)  # fmt: skip


class Journal:
    """The folder of a bisection, locked against other processes."""

    def __init__(self, folder: Path) -> None:
        """Raises UsageError if another process works on it."""
        self.folder = folder
        self.path = folder / FILE
        try:
            (folder / LOGS).mkdir(exist_ok=True)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise MachineError(f"{folder} cannot be written: {error.strerror}") from error
        if not try_lock(self._lock):
            os.close(self._lock)
            raise UsageError(f"{folder} is being worked on by another perfdash; wait for it, or end it")
        try:
            mend_last_line(self.path, lambda line: _event(line) is not None)
        except OSError as error:
            os.close(self._lock)
            raise MachineError(f"{self.path} cannot be written: {error.strerror}") from error

    @classmethod
    def create(cls, out: Path) -> Journal:
        """A new folder `bisections/<UTC time>_<host>` below `out`. Raises UsageError."""
        return cls(make_dated_folder(out, FOLDER, "bisection"))

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def logs(self) -> Path:
        return self.folder / LOGS

    def append(self, event: Event) -> Event:
        """Append an event with its time, without secrets; it is on disk when this returns.

        Returns the event as it will be read. Raises MachineError if it cannot be written; then the file is
        unchanged.
        """
        line = dumps(redact_all({"at": now(), **event}, but=_AS_IT_IS), separators=(",", ":"))
        try:
            append(self.path, f"{line}\n".encode())
        except OSError as error:
            first = "make room, then" if is_full(error) else "when it can be written again,"
            raise MachineError(
                f"{self.path} cannot be written: {error.strerror}; all before is in it: {first} "
                f"perfdash bisect --resume {quote(str(self.folder))}"
            ) from error
        written: Event = json.loads(line)
        return written

    def events(self) -> list[Event]:
        """All events, oldest first. Raises UsageError for a line that is not an event."""
        return read(self.folder)

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def read(folder: Path) -> list[Event]:
    """The events, oldest first, without a torn last line. Raises UsageError."""
    path = folder / FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{folder} is no bisection: {FILE}: {error.strerror}") from error
    events = list(_parsed(path, data))
    if not events or events[0].get("event") != BEGUN:
        raise UsageError(f"{path} does not begin with the start of a bisection, so it cannot be read")
    schema = events[0].get("schema", 0)
    if not isinstance(schema, int) or schema > SCHEMA:
        raise UsageError(f"{path} has schema {schema}, newer than {SCHEMA}: update perfdash")
    return events


def find(name: str, out: Path) -> Path:
    """Find a bisection by path, by name below `out`, or `last`. Raises UsageError that lists the latest."""
    folders = sorted(path.parent for path in (out / FOLDER).glob(f"*/{FILE}"))
    if name == "last" and folders:
        return folders[-1]
    for candidate in (Path(name), out / FOLDER / name):
        if (candidate / FILE).is_file():
            return candidate
    names = ", ".join(folder.name for folder in folders[-5:]) or "none"
    raise UsageError(f"no bisection {name!r}; the latest in {out / FOLDER}: {names}")


def is_being_worked_on(folder: Path) -> bool:
    """Whether a process holds its lock."""
    return is_locked(folder / LOCK)


def _parsed(path: Path, data: bytes) -> Iterator[Event]:
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        event = _event(line)
        if event is None:
            raise UsageError(f"{path}, line {number}: it is no event of a bisection")
        yield event
    last = _event(rest) if rest else None
    if last is not None:  # only the end of the line was lost
        yield last


def _event(line: bytes) -> Event | None:
    try:
        value: Any = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("event"), str) else None
