"""Digests of the Python modules and shared libraries that this process has loaded.

Two nights with equal digests ran the same code outside of what was generated. A file is read once a machine:
its digest is kept by path, inode, size and times of change, in a folder that the cases of a slot share.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any, Iterable, Iterator, Optional

from perfdash.worker import own_files
from perfdash.worker.structure import packed_text

_MOST_BYTES = 8 << 30  # of files that are read in one process
_CHUNK = 1 << 20
_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_KEPT = "loaded_files.json"


def digests(folder: Optional[str], without: Iterable[str] = ()) -> dict[str, str]:
    """A digest for each shared library, by its name, and for the loaded modules of each Python package.

    `folder`: where digests of files are kept; None: nothing is kept. `without`: folders whose files do not
    count, such as that of generated code. Raises OSError.
    """
    excluded = tuple(os.path.join(path, "") for path in without)
    kept = _read(folder)
    known = dict(kept)
    parts: dict[str, list[str]] = {}
    room = _MOST_BYTES
    for name, path in _files():
        if path.startswith(excluded):
            continue
        try:
            facts = os.stat(path)
        except OSError:  # deleted since it was loaded
            continue
        key = f"{path}\n{facts.st_ino} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}"
        if key not in known:
            room -= facts.st_size
            if room < 0:
                raise OSError(f"more than {_MOST_BYTES >> 30} GiB of loaded files")
            known[key] = _digest(path)
        parts.setdefault(name, []).append(f"{os.path.basename(path)} {known[key]}")
    if folder and len(known) > len(kept):
        _write(folder, known)
    return {name: _of_texts(sorted(texts)) for name, texts in sorted(parts.items())}


def digests_or_note(folder: str, scratch: str, notes: list[str]) -> dict[str, str]:
    """The digests without the case's own files; empty, with a note, where a file cannot be read."""
    try:
        return digests(folder, without=[scratch])
    except Exception as error:  # evidence only: it never costs the case its numbers
        notes.append(f"the loaded files are unreadable: {type(error).__name__}: {error}"[:300])
        return {}


def _files() -> Iterator[tuple[str, str]]:
    """(name that it counts under, path) of every mapped library and every module."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        fields = [line.rstrip("\n").split(maxsplit=5) for line in file]
    standard = os.path.join(sysconfig.get_path("stdlib"), "")
    installed = (os.path.join(standard, "site-packages", ""), os.path.join(standard, "dist-packages", ""))

    def name_of(path: str, name: str) -> str:
        is_standard = path.startswith(standard) and not path.startswith(installed)
        return "standard library of Python" if is_standard else name

    for path in sorted({line[5] for line in fields if len(line) == 6 and "x" in line[1]}):
        if path.startswith("/") and os.path.isfile(path):
            yield name_of(path, os.path.basename(path)), path
    for module_name, module in sorted(sys.modules.items()):
        source = getattr(module, "__file__", None)
        if isinstance(source, str) and source.endswith(".py") and os.path.isabs(source):
            # The worker's own main module has no name that tells where it is from.
            package = "perfdash" if source.startswith(_OWN) else module_name.partition(".")[0]
            yield name_of(source, f"{package} (Python)"), source


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()[:16]


def of_model(loader: Any, job: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """{model_files: digests} of the files a model is made of; the user's own as packed texts, unless no_code.

    Both are empty for the model of a library, which has a version.
    """
    find = getattr(loader, "files", None)
    files: dict[str, str] = find(job) if find else {}
    digests = {name: own_files.digest_of_text(text) for name, text in files.items()}
    if of_perfdash := getattr(loader, "digests", None):
        digests.update(of_perfdash())
    return {"model_files": digests} if digests else {}, {} if job.no_code else {
        name: packed_text(text) for name, text in files.items()
    }


def of_user(loader: Any, job: Any) -> dict[str, str]:
    """Digests of what the user wrote: files of the model, by path from its folder, and of the back end."""
    find = getattr(loader, "files", None)
    texts: dict[str, str] = find(job) if find else {}
    if job.backend.endswith(".py"):
        texts[job.backend] = own_files.source(Path(job.backend))
    return {name: own_files.digest_of_text(text) for name, text in texts.items()}


def _of_texts(texts: list[str]) -> str:
    return own_files.digest_of_text("\n".join(texts))


def copy_kept(source: Optional[str], target: Optional[str]) -> None:
    """Add the digests that one folder keeps to those of another; a disk that is full keeps fewer."""
    known = _read(source)
    if known and target:
        try:
            _write(target, {**_read(target), **known})
        except OSError:
            traceback.print_exc()


def _read(folder: Optional[str]) -> dict[str, str]:
    if not folder:
        return {}
    try:
        with open(os.path.join(folder, _KEPT), encoding="utf-8", errors="surrogateescape") as file:
            plain: Any = json.load(file)
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) else {}


def _write(folder: str, known: dict[str, str]) -> None:
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, _KEPT)
    part = f"{path}.{os.getpid()}"
    with open(part, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(known, file)
    os.replace(part, path)
