"""An environment made from a finished build and the files that differ from it, without building."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from perfdash.bisection.builds.content import Change, Entries
from perfdash.bisection.revisions.repository import git

_LINK, _PROGRAM = "120000", "100755"


def lay_over(below: Path, place: Path, repo: Path, files: Entries, changes: Sequence[Change]) -> int:
    """Makes `place` of the build in `below` with changes applied; the number of files that were.

    What is not changed shares its disk space with `below` (hard links). A file that the build did not
    install stays out; a new one comes in where its topmost folder has been installed.
    """
    shutil.copytree(below, place, copy_function=_link, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    count = 0
    installed = {change.into for change in changes if os.path.lexists(place / change.into)}
    for change in changes:
        target = place / change.into
        if change.into not in installed and (change.gone or not _is_installed(below, change.into)):
            continue
        target.unlink(missing_ok=True)  # never written in place: the build below has the same file
        for bytecode in (target.parent / "__pycache__").glob(f"{glob.escape(target.stem)}.*.pyc"):
            bytecode.unlink()  # it may fit the new file's time and size
        count += 1
        if not change.gone:
            _write(target, repo, files[change.path])
    for change in changes:
        if change.gone:
            _remove_empty((place / change.into).parent, place)
    return count


def _remove_empty(folder: Path, top: Path) -> None:
    """An empty folder, and those above it: it would be imported as a package without files."""
    while folder != top and folder.is_dir() and {path.name for path in folder.iterdir()} <= {"__pycache__"}:
        shutil.rmtree(folder)
        folder = folder.parent


def _is_installed(below: Path, into: str) -> bool:
    top, _, rest = into.partition("/")
    return not rest or (below / top).is_dir()


def _write(target: Path, repo: Path, entry: str) -> None:
    mode, name = entry.split(" ")
    data = git("cat-file", "blob", name, cwd=repo)
    target.parent.mkdir(parents=True, exist_ok=True)
    if mode == _LINK:
        target.symlink_to(os.fsdecode(data))
        return
    target.write_bytes(data)
    if mode == _PROGRAM:
        target.chmod(0o755)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another disk, or too many links
        shutil.copy2(source, target, follow_symlinks=False)
