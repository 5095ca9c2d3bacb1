"""Importers: one module a format, and the file is the registration.

A module here has NAME (what RunRow.origin says), TITLE (the format in words for a message),
`recognises(sample) -> bool` (by content, never by name; a folder has an empty head) and
`read(paths, told) -> list[Imported]`, which gets all files of its format at once, returns all of them
or raises UsageError.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from perfdash.errors import UsageError
from perfdash.history.foreign.reading import Sample, Where, sample
from perfdash.history.foreign.telling import Told
from perfdash.history.rows import Imported

__all__ = ["Importer", "Told", "importers", "read", "recognise"]


class Importer(Protocol):
    """What a module of this folder is."""

    NAME: str
    TITLE: str

    def recognises(self, sample: Sample) -> bool:
        """Whether a file is of this format, by its content."""

    def read(self, paths: Sequence[Path], told: Told) -> list[Imported]:
        """The runs in files of this format. Raises UsageError."""


def importers() -> list[Importer]:
    """All of them, by name."""
    folder = Path(__file__).parent
    names = sorted(module.name for module in pkgutil.iter_modules([str(folder)]))
    return [cast(Importer, importlib.import_module(f"{__name__}.{name}")) for name in names]


def recognise(path: Path) -> Importer:
    """The importer of a file or folder. Raises UsageError when there is none, or it is not one's alone."""
    begun = sample(path)
    found = [importer for importer in importers() if importer.recognises(begun)]
    if len(found) == 1:
        return found[0]
    known = "; ".join(importer.TITLE for importer in found or importers())
    if found:
        raise Where(path).wrong(f"may be one of several formats: {known}. Import its parts apart")
    what = "folder" if begun.is_folder else "file"
    raise Where(path).wrong(f"no {what} that can be imported. Known formats: {known}")


def read(paths: Sequence[Path], told: Told | None = None) -> list[Imported]:
    """The runs in these files; files that belong together (a CSV pair) make one run.

    Raises UsageError for anything that is wrong in any of them: all are read, or none.
    """
    told = told or Told()
    if told.threads is not None and not 1 <= told.threads <= 100_000:
        raise UsageError(f"--threads is {told.threads}: give the number of threads, at least 1")
    groups: dict[str, tuple[Importer, list[Path]]] = {}
    seen: set[Path] = set()
    for path in paths:
        importer = recognise(path)
        if path.resolve() not in seen:
            seen.add(path.resolve())
            groups.setdefault(importer.NAME, (importer, []))[1].append(path)
    try:
        return [run for importer, group in groups.values() for run in importer.read(group, told)]
    except OSError as error:  # gone or changed between looking and reading
        raise UsageError(f"{error.filename}: cannot be read ({error.strerror}): try again") from error
