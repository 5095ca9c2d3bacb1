"""What a commit's files say about its build: which come out the same, and which differ in files only."""

from __future__ import annotations

import functools
import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfdash.bisection.recipes import Recipe
from perfdash.bisection.sources.git_repository import git

Entries = Mapping[str, str]  # path: "mode object"

SAME, OVERLAY, BUILD = "same", "overlay", "build"


@dataclass(frozen=True)
class FileChange:
    """A file to copy over a build: where it lies in the repository and in the build; `gone` removes it."""

    path: str
    into: str
    gone: bool


def entries(repo: Path, commit: str) -> dict[str, str]:
    """Every file and submodule of a commit, with its mode and object. Raises GitFailed."""
    found = {}
    for entry in git("ls-tree", "-r", "-z", "--full-tree", commit, cwd=repo).split(b"\0"):
        if entry:
            said, _, path = entry.partition(b"\t")
            mode, _, name = said.split(b" ")
            found[path.decode(errors="surrogateescape")] = f"{mode.decode()} {name.decode()}"
    return found


def of_change(recipe: Recipe, path: str) -> str:
    """What a change of one file asks for: nothing, to be copied over, or a build."""
    if matches(recipe.ignore, path):
        return SAME
    overlay = recipe.overlay
    if overlay and matches(overlay.paths, path) and not matches(overlay.rebuild, path):
        return OVERLAY
    return BUILD


def product_digest(recipe: Recipe, files: Entries) -> str:
    """Equal for commits whose environments are equal: over all files but the ignored."""
    return _digest(files, (path for path in files if of_change(recipe, path) != SAME))


def compiled_digest(recipe: Recipe, files: Entries) -> str:
    """Equal for commits whose builds differ in files that are copied over, at most."""
    return _digest(files, (path for path in files if of_change(recipe, path) == BUILD))


def changes(recipe: Recipe, before: Entries, after: Entries) -> list[FileChange]:
    """The files to copy over a build of `before`, so that it becomes one of `after`."""
    found = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path) and of_change(recipe, path) == OVERLAY:
            into = place_of(recipe, path)
            if into is not None:
                found.append(FileChange(path, into, gone=path not in after))
    return found


def new_tops(recipe: Recipe, before: Entries, changed: Sequence[FileChange]) -> set[str]:
    """Topmost folders of a build that are new: whether a build would install them is not known."""
    had = {(place_of(recipe, path) or "").partition("/")[0] for path in before}
    return {one.into.partition("/")[0] for one in changed if "/" in one.into and not one.gone} - had


def place_of(recipe: Recipe, path: str) -> str | None:
    """Where a file of the repository lies in the build; None where it is not installed."""
    assert recipe.overlay
    for folder, target in sorted(recipe.overlay.into.items(), key=lambda pair: -len(pair[0])):
        folder, target = folder.rstrip("/"), target.rstrip("/")
        if not folder or path.startswith(f"{folder}/"):
            rest = path.removeprefix(f"{folder}/") if folder else path
            return f"{target}/{rest}" if target else rest
    return None


def classes(recipe: Recipe, touched: Sequence[Iterable[str]]) -> list[tuple[int, int]]:
    """(build, environment) of each revision in a row, numbered: equal numbers, equal content.

    From the files that each changes against the one before: an estimate for planning, which does not
    see that a later commit may take back an earlier one.
    """
    build = environment = 0
    found = []
    for paths in touched:
        asked = {of_change(recipe, path) for path in paths}
        build += BUILD in asked
        environment += bool(asked - {SAME})
        found.append((build, environment))
    return found


def matches(patterns: Sequence[str], path: str) -> bool:
    """Whether a whole path fits one of the patterns: `*` within a folder, `**` over folders."""
    compiled = _compiled(tuple(patterns))
    return bool(compiled and compiled.fullmatch(path))


@functools.cache
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(_expression, patterns)), re.DOTALL) if patterns else None


def _expression(pattern: str) -> str:
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    words = re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", pattern)
    return "".join(known.get(word) or re.escape(word) for word in words)


def digest(*parts: Any) -> str:
    """Twenty hexadecimal digits of what parts say; each text or JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


def _digest(files: Entries, paths: Iterable[str]) -> str:
    return digest([(path, files[path]) for path in sorted(paths)])


_LINK, _PROGRAM = "120000", "100755"


def lay_over(below: Path, place: Path, repo: Path, files: Entries, changes: Sequence[FileChange]) -> int:
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
