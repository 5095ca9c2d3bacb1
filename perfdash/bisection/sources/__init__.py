"""List the revisions that a bisection searches, oldest first.

One file for each kind of recipe: commits_source.py (git), versions_source.py (packages). Sources only read.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from perfdash.bisection.recipes import Pin, Recipe


@dataclass(frozen=True)
class Revision:
    """A commit or a version. id, label: a commit's full name and its start, or the version."""

    id: str
    label: str
    title: str = ""
    author: str = ""
    date: str = ""  # ISO 8601; empty if unknown
    parents: tuple[str, ...] = ()
    link: str | None = None


@dataclass(frozen=True)
class InsidePin:
    """A pinned dependency whose commits are built into one commit of the outer repository.

    fixed: pins between the two (pins in pins), outermost first: (submodule in the outer worktree, commit,
    clone).
    """

    pin: Pin
    repo: Path  # a clone of the pinned repository
    outer: str  # the commit of the outer repository
    folder: str = ""  # in the outer worktree, the submodule that holds the pin; empty: its top
    fixed: tuple[tuple[str, str, Path], ...] = ()

    @property
    def place(self) -> str:
        """The path in the outer worktree that holds the pin's commit."""
        return f"{self.folder}/{self.pin.place}" if self.folder else self.pin.place


@dataclass(frozen=True)
class BuildContext:
    """Where revisions come from, and how they may be built on this machine."""

    python: Path  # the base interpreter, absolute, its symbolic link not followed
    repo: Path | None = None
    links: str | None = None  # folder, page or index of wheels; may hold a password: never write it
    first_parent: bool = True
    cache: Path | None = None
    cache_limit_gb: float | None = None
    cores: Callable[[], tuple[int, ...]] = tuple  # for the build that begins; empty: those of this process
    builders: int = 1  # builds side by side, which share the memory
    inside: InsidePin | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


class Source(Protocol):
    """The revisions of one repository or package."""

    notes: list[str]  # warnings for the user

    def revisions(self, good: str, bad: str) -> list[Revision]:
        """From good to bad, both included. Raises UsageError: unknown, equal, swapped, apart."""

    def inside(self, merge: Revision, parent: int, known: Sequence[str]) -> list[list[Revision]]:
        """The commits that a merge brings by a parent, in parts, the newest part first; may be empty.

        known: revisions whose history is left out: the one before the merge, and the good end. A part begins
        with the commit before its changes: where the branch forked, or where it merged known history.
        """

    def touched(self, revisions: Sequence[Revision]) -> list[tuple[str, ...]]:
        """The files that each revision changes against the one before it; none for the first."""


def open_source(recipe: Recipe, context: BuildContext) -> Source:
    """The source of a recipe's kind. Raises UsageError."""
    recipe = recipe.with_settings(context.settings) if context.settings else recipe
    module = importlib.import_module(f"perfdash.bisection.sources.{recipe.kind}_source")
    source: Source = module.open_source(recipe, context)
    return source
