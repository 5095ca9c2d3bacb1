"""What the last build of a site was made from, so that a build with nothing new costs next to nothing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import perfdash
from perfdash.detect.heartbeat import Beat
from perfdash.files import dumps, encoded
from perfdash.history import schema
from perfdash.history.results import digest
from perfdash.site.site_folder import OURS, put

_NAME = "last-build.json"
# Whatever people or perfdash change of these shows on a page.
_WHOLE = (schema.testbeds, schema.hosts, schema.alerts, schema.bisections)
# What `content` is no digest of, and the digest.
_OF_RUNS = ("id", "key", "content", "name", "started", "state", "host_id", "testbed_id", "environment_id",
            "judged", "excluded")  # fmt: skip
# These only grow, or are part of a run's content.
_COUNTED = (schema.cases, schema.environments, schema.alert_events, schema.acts)


@dataclass(frozen=True)
class SiteRecord:
    """A build: `sources`, a digest of what it was made from, and `files`, one of what it left."""

    sources: str
    files: str
    testbeds: int
    pages: int


def sources(connection: sa.Connection, beats: Sequence[Beat], nights: int) -> str:
    """A digest of all that a site is made from: history, the nightlies' state now, and perfdash itself."""
    queries = [sa.select(*schema.runs.c[_OF_RUNS]).order_by(schema.runs.c.id)]
    queries += [sa.select(table).order_by(table.c.id) for table in _WHOLE]
    tables = [hashlib.sha256(_lines(connection, query)).hexdigest() for query in queries]
    for table in _COUNTED:
        query = sa.select(sa.func.count(), sa.func.max(table.c.id))
        tables.append(str(connection.execute(query).one()))
    return digest([tables, [asdict(beat) for beat in beats], nights, _program()])


def _lines(connection: sa.Connection, query: sa.Select[Any]) -> bytes:
    rows = connection.execute(query)
    return "\n".join(repr(tuple(row)) for row in rows).encode("utf-8", "backslashreplace")


def _program() -> str:
    """A digest of perfdash's own files."""
    whole = hashlib.sha256()
    package = Path(perfdash.__file__).parent
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".html", ".css", ".js", ".svg"):
            whole.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return whole.hexdigest()


def files(site: Path) -> str:
    """A digest of names, sizes and times of the files that a site consists of."""
    whole = hashlib.sha256()
    for name, size, changed in sorted(_stamps(site)):
        whole.update(f"{name} {size} {changed}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def _stamps(site: Path) -> Iterator[tuple[str, int, int]]:
    entries: list[os.DirEntry[str]] = [one for one in _scanned(site) if one.name.endswith(".html")]
    folders = [site / name for name in OURS]
    while folders:
        for entry in _scanned(folders.pop()):
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            else:
                entries.append(entry)
    for entry in entries:
        stat = entry.stat(follow_symlinks=False)
        yield entry.path, stat.st_size, stat.st_mtime_ns


def _scanned(folder: Path) -> Iterable[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError:
        return []


def is_as_left(record: SiteRecord, made_of: str, site: Path) -> bool:
    """Whether a build of these sources would leave the site as the recorded one did."""
    return record.sources == made_of and record.files == files(site)


def read_record(state: Path) -> SiteRecord | None:
    """The record of the last build, None where there is none or it is damaged."""
    try:
        fields = json.loads((state / _NAME).read_text(encoding="utf-8"))
        return SiteRecord(str(fields["sources"]), str(fields["files"]), int(fields["testbeds"]),
                           int(fields["pages"]))  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_record(state: Path, record: SiteRecord | None) -> None:
    """Keep the record of a build, or none. A full disk is no error: the next build is then a whole one."""
    path = state / _NAME
    try:
        if record is None:
            path.unlink(missing_ok=True)
            return
        put(path, encoded(dumps(asdict(record)) + "\n"))
    except OSError:
        path.unlink(missing_ok=True)
