"""What can be bisected over: revisions of something, oldest first.

One file a kind of recipe: commits_source.py (git), versions_source.py (packages). Nothing here builds,
measures, or changes what it reads.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from perfdash.bisection.recipes import Pin, Recipe


@dataclass(frozen=True)
class Revision:
    """A commit (`id` is its full name, `label` the start of it) or a version (both are the version)."""

    id: str
    label: str
    title: str = ""
    author: str = ""
    date: str = ""  # ISO 8601; empty where it is not known
    parents: tuple[str, ...] = ()
    link: str | None = None


@dataclass(frozen=True)
class InsidePin:
    """A bisection inside a pin: the commits are the pin's, each built into one commit of the outer.

    `fixed` are pins set to other commits than that one says (where pins lie in pins, outermost first).
    """

    pin: Pin
    repo: Path  # a clone of the pinned repository
    outer: str  # the commit of the outer repository
    folder: str = ""  # of the outer worktree in which the pin's place lies: a submodule's, for a pin in a pin
    fixed: tuple[tuple[str, str, Path], ...] = ()  # (submodule in the outer worktree, commit, its clone)

    @property
    def place(self) -> str:
        """Where in the outer worktree the pin's commit is said."""
        return f"{self.folder}/{self.pin.place}" if self.folder else self.pin.place


@dataclass(frozen=True)
class BuildContext:
    """What the user says beside the recipe's name."""

    python: Path  # the base interpreter, absolute, its symbolic link not followed
    repo: Path | None = None
    links: str | None = None  # folder, page or index of wheels; may hold a password: never write it down
    first_parent: bool = True
    cache: Path | None = None
    cache_limit_gb: float | None = None
    cores: tuple[int, ...] = ()  # that builds may use; empty: those of this process
    builders: int = 1  # builds at the same time, which share the memory
    inside: InsidePin | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


class Source(Protocol):
    """Revisions of one thing."""

    notes: list[str]  # what the user should know before a long run

    def revisions(self, good: str, bad: str) -> list[Revision]:
        """From good to bad, both included. Raises UsageError: unknown, equal, swapped, apart."""

    def inside(self, merge: Revision, parent: int = 2) -> list[Revision]:
        """What a merge brought in: where that side forked off, then its commits; empty for no merge."""

    def touched(self, revisions: Sequence[Revision]) -> list[tuple[str, ...]]:
        """The files that each changes against the one before it in the list; nothing for the first."""


def open_source(recipe: Recipe, where: BuildContext) -> Source:
    """The source that a recipe's kind names. Raises UsageError for what is not there."""
    recipe = recipe.with_settings(where.settings) if where.settings else recipe
    module = importlib.import_module(f"perfdash.bisection.sources.{recipe.kind}_source")
    source: Source = module.open_source(recipe, where)
    return source
