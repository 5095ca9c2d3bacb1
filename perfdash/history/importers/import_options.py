"""The options of `history import`, and the RunRow of a foreign file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfdash.errors import UsageError
from perfdash.history.importers.foreign_files import FilePlace, shown
from perfdash.history.results import RunRow

BY_FILE = "mtime"  # --started: the modification time of the file
UNSPECIFIED = "unspecified"  # an optional setting that neither the file nor the user gives


@dataclass(frozen=True)
class ImportOptions:
    """Settings that the user gives for files that do not contain them.

    A file that contradicts an option is refused, because either the file or the option is wrong.
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

    def agreed(self, option: str, in_file: str | None, where: FilePlace, hint: str = "") -> str:
        """The value in the file, else the option's. Raises UsageError if both are missing or differ."""
        given: str | None = getattr(self, option)
        if in_file is not None and given is not None and in_file != given:
            raise where.wrong(f"says {option} {shown(in_file, 60)!r}, but --{option} {given!r}: leave it out")
        value = in_file if in_file is not None else given
        if value is None:
            raise where.wrong(f"does not say the {option}: give --{option}{hint and ', or ' + hint}")
        return value


def instant(text: str, what: str) -> str:
    """An ISO 8601 time in UTC to the second; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        return _text(moment)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{what} is {shown(text, 60)!r}: give a time like 2026-01-31 or 2026-01-31T04:05:06Z"
        ) from error


def from_seconds(seconds: float, where: FilePlace, what: str) -> str:
    """Seconds since 1970 as an ISO 8601 time in UTC."""
    try:
        return _text(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError) as error:
        raise where.wrong(f"{what} is {seconds:g}, no time: give --started") from error


def _text(moment: datetime) -> str:
    """Raises ValueError for a time before 1970, when nothing was measured that perfdash compares."""
    if moment.year < 1970:
        raise ValueError(f"{moment.year} is before 1970")
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def run_row(
    origin: str,
    name: str,
    paths: Sequence[Path],
    options: ImportOptions,
    *,
    started: tuple[str, str] | None = None,
    host: str | None = None,
    host_class: str | None = None,
    harness: str | None = None,
    environment: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> RunRow:
    """The run of a foreign file. `started` is (time, source of the time) if the file holds one.

    Its setting names the harness, because harnesses define memory and compilation time differently, so that
    their numbers are never compared. RunRow.imported records the assumptions.
    """
    when, whence = started_of(paths, options, started)
    files = [shown(path.name) for path in paths]
    host = options.host or host or "unknown"
    if host_class is None and host != "unknown":
        host_class = f"host {host}"  # hosts of unknown hardware are never one class
    if not (options.host_class or host_class):
        raise FilePlace(paths[0]).wrong("does not say on what it was measured: give --host or --host-class")
    return RunRow(
        name=f"{when.replace(':', '-')}_{shown(name)}",  # files of several nights often have the same name
        started=when,
        origin=origin,
        source=", ".join(shown(str(path)) for path in paths),
        host=host,
        host_class=options.host_class or host_class or "",
        setting={"harness": harness or origin},
        environment=environment or {},
        imported={"files": files, "name": shown(name), "started": whence, "notes": list(notes)},
    )


def started_of(
    paths: Sequence[Path], options: ImportOptions, in_file: tuple[str, str] | None
) -> tuple[str, str]:
    """The time of the measurement and its source. Raises UsageError if no time is given.

    The modification time is used only on request, because copying or unpacking a file changes it.
    """
    if options.started not in (None, BY_FILE):
        return instant(str(options.started), "--started"), "told"
    if in_file is not None:
        return in_file
    newest = max(paths, key=lambda path: path.stat().st_mtime)
    if options.started is None:
        raise FilePlace(newest).wrong(
            f"does not say when it was measured: give --started 2026-01-31, or --started {BY_FILE} for the "
            "time at which the file was written"
        )
    when = from_seconds(newest.stat().st_mtime, FilePlace(newest), "its modification time")
    return when, f"modification time of {shown(newest.name)}"


def threads(options: ImportOptions, where: FilePlace) -> int:
    """The thread count for a format that never holds it. Raises UsageError without --threads."""
    if options.threads is None:
        raise where.wrong("does not say on how many threads it was measured: give --threads")
    return options.threads
