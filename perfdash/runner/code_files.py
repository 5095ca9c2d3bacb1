"""The code in a run folder: code/NAME.zip for each case, with one Python file a graph.

models/NAME.zip has the sources of a model of the user's own, so that it can be measured again after it was
edited. No text holds a secret of this process. Equal code makes equal files.
"""

from __future__ import annotations

import base64
import io
import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from perfdash.files import encoded, replaced
from perfdash.history.results import Imported
from perfdash.records import Case

FOLDER, MODELS = "code", "models"
_LEVEL = 9
_MOST_BYTES = 64 << 20  # of one text: the worker reads no more
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write(run: Path, case: Case, graphs: Sequence[str]) -> None:
    """Write the code of a case as the worker sends it: zlib in base64, a text a graph.

    Raises OSError, and ValueError or zlib.error for damaged texts.
    """
    _write(run / FOLDER, case, {f"graph{number}.py": packed for number, packed in enumerate(graphs)})


def write_model(run: Path, case: Case, files: Mapping[str, str]) -> None:
    """Write the sources of a case's model, by path below its folder, as the worker sends them.

    Raises OSError, and ValueError or zlib.error for damaged texts.
    """
    _write(run / MODELS, case, files)


def _write(folder: Path, case: Case, files: Mapping[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for name, packed in files.items():
            inflater = zlib.decompressobj()
            text = inflater.decompress(base64.b64decode(packed), _MOST_BYTES).decode("utf-8", "replace")
            if not inflater.eof:
                raise zlib.error(f"the text of {name} is cut short or too large")
            file.writestr(zipfile.ZipInfo(name, _EPOCH), encoded(text), zipfile.ZIP_DEFLATED)
    with replaced(folder / f"{case.name}.zip") as part:
        part.write_bytes(data.getvalue())


def copy(source: Path, target: Path) -> None:
    """Copy the code of all cases from one run folder to another. Raises OSError."""
    for folder in (FOLDER, MODELS):
        for path in sorted((source / folder).glob("*.zip")):
            (target / folder).mkdir(exist_ok=True)
            shutil.copyfile(path, target / folder / path.name)


def of_folder(run: Path, case: Case) -> dict[str, bytes]:
    """The code of a case in a run folder by file name, compressed; empty where none was kept."""
    return {name: zlib.compress(data, _LEVEL) for name, data in _read(run / FOLDER, case).items()}


def model_of_folder(run: Path, case: Case) -> dict[str, bytes]:
    """The sources of a case's model by path below its folder; empty where none were kept."""
    return _read(run / MODELS, case)


def _is_below(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _read(folder: Path, case: Case) -> dict[str, bytes]:
    """The files of a case's zip whose names are paths below a folder: a run folder may be from elsewhere."""
    try:
        with zipfile.ZipFile(folder / f"{case.name}.zip") as file:
            return {
                entry.filename: file.read(entry)
                for entry in file.infolist()
                if entry.file_size <= _MOST_BYTES and _is_below(entry.filename)
            }
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError):
        return {}


def with_code(imported: Imported, run: Path) -> Imported:
    """The run of a folder with the code of its cases, for the history."""
    rows = tuple(
        replace(row, code=of_folder(run, row.case)) if row.structure else row for row in imported.rows
    )
    return replace(imported, rows=rows)
