"""What a foreign file does not say and its importer is told; and the RunRow that comes of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfdash.errors import UsageError
from perfdash.history.foreign.reading import Where, shown
from perfdash.history.rows import RunRow

BY_FILE = "mtime"  # --started: as the file system has it
UNSPECIFIED = "unspecified"  # where neither the file nor the user says and nothing depends on it


@dataclass(frozen=True)
class Told:
    """What the user says of the files, for what they do not say themselves; each is an option.

    A file that says otherwise is refused: one of the two is wrong.
    """

    host: str | None = None
    host_class: str | None = None
    started: str | None = None
    threads: int | None = None
    suite: str | None = None
    dtype: str | None = None
    amp_dtype: str | None = None
    scenario: str | None = None
    device: str | None = None
    backend: str | None = None

    def agreed(self, option: str, found: str | None, where: Where, hint: str = "") -> str:
        """What the file says, or else the user. Raises UsageError when nobody does, or they differ."""
        told: str | None = getattr(self, option)
        if found is not None and told is not None and found != told:
            raise where.wrong(f"says {option} {shown(found, 60)!r}, but --{option} {told!r}: leave it out")
        value = found if found is not None else told
        if value is None:
            raise where.wrong(f"does not say the {option}: give --{option}{hint and ', or ' + hint}")
        return value


def instant(text: str, what: str) -> str:
    """An ISO 8601 time as UTC to the second; without a zone it is taken as UTC."""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{what} is {shown(text, 60)!r}: give a time like 2026-01-31 or 2026-01-31T04:05:06Z"
        ) from error
    return _text(moment)


def from_seconds(seconds: float, where: Where, what: str) -> str:
    """Seconds since 1970 as such a time."""
    try:
        return _text(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError) as error:
        raise where.wrong(f"{what} is {seconds:g}, no time: give --started") from error


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}".rjust(20, "0")  # %Y is not padded for years before 1000


def run_row(
    origin: str,
    name: str,
    paths: Sequence[Path],
    told: Told,
    *,
    started: tuple[str, str] | None = None,
    host: str | None = None,
    host_class: str | None = None,
    harness: str | None = None,
    environment: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> RunRow:
    """The run of a foreign file. `started` is (time, whence) as far as the file knows it.

    Its setting names the harness, because numbers of two harnesses are never compared: they define
    memory and compile time otherwise. What was assumed stands in environment["import"].
    """
    when, whence = started_of(paths, told, started)
    files = [shown(path.name) for path in paths]
    host = told.host or host or "unknown"
    if host_class is None and host != "unknown":
        host_class = f"host {host}"  # two hosts of unknown kind are not the same kind
    if not (told.host_class or host_class):
        raise Where(paths[0]).wrong("does not say on what it was measured: give --host or --host-class")
    return RunRow(
        name=f"{when.replace(':', '-')}_{shown(name)}",  # a night's files are called as every other night's
        started=when,
        origin=origin,
        source=", ".join(shown(str(path)) for path in paths),
        host=host,
        host_class=told.host_class or host_class or "",
        setting={"harness": harness or origin},
        environment=environment or {},
        imported={"files": files, "name": shown(name), "started": whence, "notes": list(notes)},
    )


def started_of(paths: Sequence[Path], told: Told, known: tuple[str, str] | None) -> tuple[str, str]:
    """When it was measured, and whence that is known. Raises UsageError where nobody says.

    A copied or unpacked file has the time of that, so its own time is only taken on request.
    """
    if told.started not in (None, BY_FILE):
        return instant(str(told.started), "--started"), "told"
    if known is not None:
        return known
    newest = max(paths, key=lambda path: path.stat().st_mtime)
    if told.started is None:
        raise Where(newest).wrong(
            f"does not say when it was measured: give --started 2026-01-31, or --started {BY_FILE} for the "
            "time at which the file was written"
        )
    when = from_seconds(newest.stat().st_mtime, Where(newest), "its modification time")
    return when, f"modification time of {shown(newest.name)}"


def threads(told: Told, where: Where) -> int:
    """The thread count for a format that never tells it. Raises UsageError where the user does not."""
    if told.threads is None:
        raise where.wrong("does not say on how many threads it was measured: give --threads")
    return told.threads
