"""Reuse builds between commits: equal files need no build, some are only copied over."""

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
    """A file to copy over a build. path: in the repository. into: in the build. gone: it is removed."""

    path: str
    into: str
    gone: bool


def entries(repo: Path, commit: str) -> dict[str, str]:
    """Every file and submodule of a commit, with its mode and object. Raises GitFailed."""
    files = {}
    for entry in git("ls-tree", "-r", "-z", "--full-tree", commit, cwd=repo).split(b"\0"):
        if entry:
            facts, _, path = entry.partition(b"\t")
            mode, _, name = facts.split(b" ")
            files[path.decode(errors="surrogateescape")] = f"{mode.decode()} {name.decode()}"
    return files


def of_change(recipe: Recipe, path: str) -> str:
    """The effect of a changed file: nothing (SAME), a copy (OVERLAY), or a build (BUILD)."""
    if matches(recipe.ignore, path):
        return SAME
    overlay = recipe.overlay
    if overlay and matches(overlay.paths, path) and not matches(overlay.rebuild, path):
        return OVERLAY
    return BUILD


def product_digest(recipe: Recipe, files: Entries) -> str:
    """A digest of all files but the ignored ones. Equal digests, equal environments."""
    return _digest(files, (path for path in files if of_change(recipe, path) != SAME))


def compiled_digest(recipe: Recipe, files: Entries) -> str:
    """A digest without the files that are copied over. Equal digests, equal compiled files."""
    return _digest(files, (path for path in files if of_change(recipe, path) == BUILD))


def changes(recipe: Recipe, before: Entries, after: Entries) -> list[FileChange]:
    """The files to copy over a build of `before` to get one of `after`."""
    copied = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path) and of_change(recipe, path) == OVERLAY:
            into = place_of(recipe, path)
            if into is not None:
                copied.append(FileChange(path, into, gone=path not in after))
    return copied


def new_tops(recipe: Recipe, before: Entries, changed: Sequence[FileChange]) -> set[str]:
    """New topmost folders: only a build shows whether they are installed."""
    had = {(place_of(recipe, path) or "").partition("/")[0] for path in before}
    return {file.into.partition("/")[0] for file in changed if "/" in file.into and not file.gone} - had


def place_of(recipe: Recipe, path: str) -> str | None:
    """The path of a repository's file in the build; None if it is not installed."""
    assert recipe.overlay
    for folder, target in sorted(recipe.overlay.into.items(), key=lambda pair: -len(pair[0])):
        folder, target = folder.rstrip("/"), target.rstrip("/")
        if not folder or path.startswith(f"{folder}/"):
            rest = path.removeprefix(f"{folder}/") if folder else path
            return f"{target}/{rest}" if target else rest
    return None


def classes(recipe: Recipe, touched: Sequence[Iterable[str]]) -> list[tuple[int, int]]:
    """Number the builds and environments of consecutive revisions: equal numbers, equal content.

    touched: the files that each changes against the one before. It is an estimate for planning: it does not
    notice that a later commit reverts an earlier one.
    """
    build = environment = 0
    numbers = []
    for paths in touched:
        effects = {of_change(recipe, path) for path in paths}
        build += BUILD in effects
        environment += bool(effects - {SAME})
        numbers.append((build, environment))
    return numbers


def matches(patterns: Sequence[str], path: str) -> bool:
    """Whether a whole path matches a pattern: `*` within a folder, `**` across folders."""
    compiled = _compiled(tuple(patterns))
    return bool(compiled and compiled.fullmatch(path))


@functools.cache
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(_expression, patterns)), re.DOTALL) if patterns else None


def _expression(pattern: str) -> str:
    patterns = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    words = re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", pattern)
    return "".join(patterns.get(word) or re.escape(word) for word in words)


def digest(*parts: Any) -> str:
    """A digest of JSON values: 20 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


def _digest(files: Entries, paths: Iterable[str]) -> str:
    return digest([(path, files[path]) for path in sorted(paths)])


_LINK, _PROGRAM = "120000", "100755"


def lay_over(below: Path, place: Path, repo: Path, files: Entries, changes: Sequence[FileChange]) -> int:
    """Copy the build in `below` to `place` and apply the changes. Returns the number of changed files.

    Unchanged files share their disk space with `below` (hard links). A file that the build did not install is
    left out; a new file is added if its topmost folder was installed.
    """
    shutil.copytree(below, place, copy_function=_link, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    count = 0
    installed = {change.into for change in changes if os.path.lexists(place / change.into)}
    for change in changes:
        target = place / change.into
        if change.into not in installed and (change.gone or not _is_installed(below, change.into)):
            continue
        target.unlink(missing_ok=True)  # never written in place: the build below shares the file
        for bytecode in (target.parent / "__pycache__").glob(f"{glob.escape(target.stem)}.*.pyc"):
            bytecode.unlink()  # it may match the new file's time and size
        count += 1
        if not change.gone:
            _write(target, repo, files[change.path])
    for change in changes:
        if change.gone:
            _remove_empty((place / change.into).parent, place)
    return count


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove an empty folder and its empty parents: Python would import it as a package."""
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
