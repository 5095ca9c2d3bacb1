"""The generated code in a run folder: code/NAME.zip for each case, with one Python file a graph.

No text holds a secret of this process. Equal code makes equal files.
"""

from __future__ import annotations

import base64
import io
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfdash.files import encoded, replaced
from perfdash.history.results import Imported
from perfdash.records import Case

FOLDER = "code"
_LEVEL = 9
_MOST_BYTES = 64 << 20  # of one text: the worker reads no more
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write(run: Path, case: Case, graphs: Sequence[str]) -> None:
    """Write the code of a case as the worker sends it: zlib in base64, a text a graph.

    Raises OSError, and ValueError or zlib.error for damaged texts.
    """
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for number, packed in enumerate(graphs):
            inflater = zlib.decompressobj()
            text = inflater.decompress(base64.b64decode(packed), _MOST_BYTES).decode("utf-8", "replace")
            if not inflater.eof:
                raise zlib.error(f"the text of graph {number} is cut short or too large")
            file.writestr(zipfile.ZipInfo(f"graph{number}.py", _EPOCH), encoded(text), zipfile.ZIP_DEFLATED)
    with replaced(folder / f"{case.name}.zip") as part:
        part.write_bytes(data.getvalue())


def copy(source: Path, target: Path) -> None:
    """Copy the code of all cases from one run folder to another. Raises OSError."""
    for path in sorted((source / FOLDER).glob("*.zip")):
        (target / FOLDER).mkdir(exist_ok=True)
        shutil.copyfile(path, target / FOLDER / path.name)


def of_folder(run: Path, case: Case) -> dict[str, bytes]:
    """The code of a case in a run folder by file name, compressed; empty where none was kept."""
    try:
        with zipfile.ZipFile(run / FOLDER / f"{case.name}.zip") as file:
            entries = [entry for entry in file.infolist() if entry.file_size <= _MOST_BYTES]
            return {entry.filename: zlib.compress(file.read(entry), _LEVEL) for entry in entries}
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError):
        return {}


def with_code(imported: Imported, run: Path) -> Imported:
    """The run of a folder with the code of its cases, for the history."""
    rows = tuple(
        replace(row, code=of_folder(run, row.case)) if row.structure else row for row in imported.rows
    )
    return replace(imported, rows=rows)
