"""The ends of a finer range: between two nightlies, or two pins of a dependency."""

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

# The message of a commit on a nightly branch names the commit of the main branch that it was made from.
_NIGHTLY = re.compile(r"\d{4}-\d\d-\d\d nightly release \(([0-9a-f]{7,64})\)")


@dataclass(frozen=True)
class PinChange:
    """A pin that a commit changes: the old and the new commit of the dependency."""

    pin: Pin
    old: str
    new: str


def main_commit(repo: Path, built_from: str) -> str:
    """The commit of the main branch of a build from `built_from` (torch's git_version).

    A commit of a nightly branch names it in its message; any other is taken for one of main. Raises
    UsageError if the repository lacks it.
    """
    top = find(repo)
    message = subject(top, built_from)
    if message is None:
        raise UsageError(
            f"the build is of {built_from[:10]}, which {top} does not have: fetch the nightly branch there "
            "(git fetch origin nightly) and continue with --resume"
        )
    match = _NIGHTLY.search(message)
    return commit_of(top, match[1] if match else built_from, f"{message!r}: commit")


def commit_in_folder(recipe: Recipe, folder: Path) -> str | None:
    """The commit that an installed version was built from; `folder`: of its BuiltEnvironment."""
    assert recipe.versions
    if not recipe.versions.commit_file:
        return None
    try:
        return _commit_in(recipe, (folder / recipe.versions.commit_file).read_text(errors="replace"))
    except OSError:
        return None


def commit_in_wheel(recipe: Recipe, wheel: Path) -> str | None:
    """The commit that a wheel was built from."""
    assert recipe.versions
    if not recipe.versions.commit_file:
        return None
    try:
        with zipfile.ZipFile(wheel) as archive:
            return _commit_in(recipe, archive.read(recipe.versions.commit_file).decode(errors="replace"))
    except (OSError, KeyError, zipfile.BadZipFile):
        return None


def between(recipe: Recipe, repo: Path, before: Path, after: Path) -> tuple[str, str]:
    """The good and bad commit of the next rung, from the builds around the culprit.

    before, after: the folders of these builds. Raises UsageError.
    """
    commits = []
    for folder in (before, after):
        commit = commit_in_folder(recipe, folder)
        if commit is None:
            assert recipe.versions
            raise UsageError(
                f"the build in {folder} does not say which commit it was built from "
                f"({recipe.versions.commit_file} has no {recipe.versions.commit_pattern})"
            )
        commits.append(main_commit(repo, commit))
    if commits[0] == commits[1]:
        raise UsageError(
            f"both builds are of {commits[0][:10]}: what differs is how they were built, or their "
            "dependencies"
        )
    return commits[0], commits[1]


def pin_changes(pins: Iterable[Pin], repo: Path, culprit: str) -> list[PinChange]:
    """The pins that a commit changes against its first parent, without those that it adds."""
    top = find(repo)
    changes = []
    for pin in pins:
        old, new = _pinned(top, f"{culprit}^", pin), _pinned(top, culprit, pin)
        if old and new and old != new:
            changes.append(PinChange(pin, old, new))
    return changes


def _pinned(repo: Path, commit: str, pin: Pin) -> str | None:
    """The pin's commit in a commit of the repository. None without the pin."""
    try:
        if pin.file:
            text = git("show", "--end-of-options", f"{commit}:{pin.file}", cwd=repo).decode(errors="replace")
            words = text.split()
            return words[0] if words and re.fullmatch(r"[0-9a-f]{7,64}", words[0]) else None
        entry = line("ls-tree", commit, "--", pin.place, cwd=repo).split()
    except GitFailed:
        return None
    return entry[2] if entry and entry[0] == "160000" else None


def _commit_in(recipe: Recipe, text: str) -> str | None:
    assert recipe.versions
    match = re.search(recipe.versions.commit_pattern or r"\b([0-9a-f]{40})\b", text)
    return match[1] if match else None
