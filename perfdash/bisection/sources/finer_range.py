"""From a coarse answer down to a finer one: from two nightlies to commits, from a pin to what it pins."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from perfdash.bisection.recipes import Pin, Recipe
from perfdash.bisection.sources.commits_source import subject
from perfdash.bisection.sources.git_repository import GitFailed, commit_of, find, git, line
from perfdash.errors import UsageError

# The message of a commit on a nightly branch, which names the commit of the main branch that it is of.
_NIGHTLY = re.compile(r"\d{4}-\d\d-\d\d nightly release \(([0-9a-f]{7,64})\)")


@dataclass(frozen=True)
class PinChange:
    """What a commit pins anew: commits of another repository, good and bad for going on inside it."""

    pin: Pin
    old: str
    new: str


def main_commit(repo: Path, built_from: str) -> str:
    """The commit of the main branch that a build of `built_from` (torch's git_version) is of.

    That of a nightly branch says it in its message; any other is taken for one of main itself. Raises
    UsageError where the repository has not got it.
    """
    top = find(repo)
    said = subject(top, built_from)
    if said is None:
        raise UsageError(
            f"the build is of {built_from[:10]}, which {top} has not got: fetch the nightly branch there "
            "(git fetch origin nightly) and go on with --resume"
        )
    found = _NIGHTLY.search(said)
    return commit_of(top, found[1] if found else built_from, f"{said!r}: commit")


def commit_in_folder(recipe: Recipe, folder: Path) -> str | None:
    """The commit that an installed version says it was built from (Built.folder)."""
    assert recipe.versions
    if not recipe.versions.commit_file:
        return None
    try:
        return _found(recipe, (folder / recipe.versions.commit_file).read_text(errors="replace"))
    except OSError:
        return None


def commit_in_wheel(recipe: Recipe, wheel: Path) -> str | None:
    """The same of a wheel that is not installed."""
    assert recipe.versions
    if not recipe.versions.commit_file:
        return None
    try:
        with zipfile.ZipFile(wheel) as archive:
            return _found(recipe, archive.read(recipe.versions.commit_file).decode(errors="replace"))
    except (OSError, KeyError, zipfile.BadZipFile):
        return None


def between(recipe: Recipe, repo: Path, before: Path, after: Path) -> tuple[str, str]:
    """Good and bad for the rung below: the main commits of the two builds around the culprit.

    `before` and `after` are their folders (Built.folder). Raises UsageError.
    """
    names = []
    for folder in (before, after):
        commit = commit_in_folder(recipe, folder)
        if commit is None:
            assert recipe.versions
            raise UsageError(
                f"the build in {folder} does not say which commit it was built from "
                f"({recipe.versions.commit_file} has no {recipe.versions.commit_pattern})"
            )
        names.append(main_commit(repo, commit))
    if names[0] == names[1]:
        raise UsageError(
            f"both builds are of {names[0][:10]}: what differs is how they were built, or their dependencies"
        )
    return names[0], names[1]


def pin_changes(pins: Iterable[Pin], repo: Path, culprit: str) -> list[PinChange]:
    """The pins that a commit sets to another commit than its first parent has; not those that it adds."""
    top = find(repo)
    found = []
    for pin in pins:
        old, new = _pinned(top, f"{culprit}^", pin), _pinned(top, culprit, pin)
        if old and new and old != new:
            found.append(PinChange(pin, old, new))
    return found


def _pinned(repo: Path, commit: str, pin: Pin) -> str | None:
    """What a commit of the repository pins; None where it does not have the pin."""
    try:
        if pin.file:
            text = git("show", "--end-of-options", f"{commit}:{pin.file}", cwd=repo).decode(errors="replace")
            words = text.split()
            return words[0] if words and re.fullmatch(r"[0-9a-f]{7,64}", words[0]) else None
        said = line("ls-tree", commit, "--", pin.place, cwd=repo).split()
    except GitFailed:
        return None
    return said[2] if said and said[0] == "160000" else None


def _found(recipe: Recipe, text: str) -> str | None:
    assert recipe.versions
    found = re.search(recipe.versions.commit_pattern or r"\b([0-9a-f]{40})\b", text)
    return found[1] if found else None
