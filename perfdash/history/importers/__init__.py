"""Importers of foreign files: one module a format, and the file is the registration.

An importer has NAME (RunRow.origin), TITLE (the format in words, for messages),
`recognises(sample) -> bool` (by content, never by name; a folder has an empty head) and
`read(paths, options) -> list[Imported]`, which gets all files of its format at once, and returns all runs
or raises UsageError. Modules without NAME are shared: foreign_files reads files within limits and checks
their numbers and names, import_options holds the user's options, dynamo_vocabulary the statuses and columns
of the dynamo runners.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from perfdash.errors import UsageError
from perfdash.history.importers.foreign_files import FileBeginning, FilePlace, sample
from perfdash.history.importers.import_options import ImportOptions
from perfdash.history.results import Imported

__all__ = ["Importer", "ImportOptions", "importers", "read", "recognise"]


class Importer(Protocol):
    """What a module of this folder with a NAME provides."""

    NAME: str
    TITLE: str

    def recognises(self, sample: FileBeginning) -> bool:
        """Whether a file is of this format, by its content."""

    def read(self, paths: Sequence[Path], options: ImportOptions) -> list[Imported]:
        """The runs in files of this format. Raises UsageError."""


def importers() -> list[Importer]:
    """All importers, by the names of their modules."""
    folder = Path(__file__).parent
    names = sorted(module.name for module in pkgutil.iter_modules([str(folder)]))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [cast(Importer, module) for module in modules if hasattr(module, "NAME")]


def recognise(path: Path) -> Importer:
    """The importer of a file or folder. Raises UsageError unless exactly one recognises it."""
    beginning = sample(path)
    fitting = [importer for importer in importers() if importer.recognises(beginning)]
    if len(fitting) == 1:
        return fitting[0]
    formats = "; ".join(importer.TITLE for importer in fitting or importers())
    if fitting:
        raise FilePlace(path).wrong(f"may be one of several formats: {formats}. Import its parts apart")
    kind = "folder" if beginning.is_folder else "file"
    raise FilePlace(path).wrong(f"no {kind} that can be imported. Known formats: {formats}")


def read(paths: Sequence[Path], options: ImportOptions | None = None) -> list[Imported]:
    """The runs in these files; files that belong together (a CSV pair) make one run.

    Raises UsageError for anything that is wrong in any of them: all are read, or none.
    """
    options = options or ImportOptions()
    if options.threads is not None and not 1 <= options.threads <= 100_000:
        raise UsageError(f"--threads is {options.threads}: give the number of threads, at least 1")
    groups: dict[str, tuple[Importer, list[Path]]] = {}
    resolved: set[Path] = set()
    for path in paths:
        importer = recognise(path)
        if path.resolve() not in resolved:
            resolved.add(path.resolve())
            groups.setdefault(importer.NAME, (importer, []))[1].append(path)
    try:
        return [run for importer, group in groups.values() for run in importer.read(group, options)]
    except OSError as error:  # the file changed after it was recognised
        raise UsageError(f"{error.filename}: cannot be read ({error.strerror}): try again") from error
