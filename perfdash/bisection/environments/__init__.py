"""Build a revision into an environment for measurements. Builds are kept in a cache.

One file for each kind of recipe: commits_builder.py (git), versions_builder.py (packages).
"""

from __future__ import annotations

import importlib
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

from perfdash.bisection.environments.build_holds import BuildHolds
from perfdash.bisection.recipes import Recipe
from perfdash.bisection.sources import BuildContext, Revision

KNOWN_NOT_TO_BUILD = math.inf


class Unbuildable(Exception):
    """A revision that cannot be built, because of itself.

    reason: one line. remembered: an earlier attempt failed.
    """

    def __init__(self, reason: str, log: Path | None = None, remembered: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.log = log
        self.remembered = remembered


class BuildStopped(Exception):
    """A build was stopped; the next attempt starts from the beginning."""


@dataclass(frozen=True)
class BuiltEnvironment:
    """A built revision: an interpreter, and folders that it imports from before its own packages."""

    revision: Revision
    python: Path
    pythonpath: tuple[Path, ...]
    env: dict[str, str]
    key: str  # digest of all that decides its content
    folder: Path  # the worktree, or where the build was installed
    log: Path
    seconds: float  # duration of the build
    reused: bool
    packages: dict[str, str] = field(default_factory=dict)  # that differ from the base, by normalised names
    compiled_from: str | None = None  # the revision whose build lies below its overlay
    notes: tuple[str, ...] = ()

    def variables(self) -> dict[str, str]:
        """The measured process's variables: the recipe's, and PYTHONPATH with the user's at its end."""
        paths = [*map(str, self.pythonpath), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**self.env, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}


class Builder(Protocol):
    """Builds revisions. Use as a context manager; methods may be called from several threads.

    Its builds are not pruned until it is closed. If two processes want a revision, it is built once; of one
    that a measurement may change, each bisection has a copy of its own.
    """

    def __enter__(self) -> Builder:
        """Return the builder."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release all builds."""

    def build(
        self,
        revision: Revision,
        stop: threading.Event | None = None,
        fresh: bool = False,
        again: bool = False,
    ) -> BuiltEnvironment:
        """Build a revision, or take it from the cache; `fresh`: a second build, made independently.

        Raises Unbuildable (`again` retries a remembered failure), BuildStopped when `stop` is set meanwhile,
        and MachineError for a failure that is not the revision's.
        """

    def costs(self, revisions: Sequence[Revision], touched: Sequence[Sequence[str]] = ()) -> list[float]:
        """About how many seconds each build takes: 0 if built; KNOWN_NOT_TO_BUILD after a failure.

        touched: the files that each revision changes against the one before it (Source.touched).
        """


def open_builder(recipe: Recipe, context: BuildContext, holds: BuildHolds | None = None) -> Builder:
    """The builder of a recipe's kind. holds: of all builders of a bisection, if it has several.

    Raises UsageError, MachineError.
    """
    recipe = recipe.with_settings(context.settings) if context.settings else recipe
    module = importlib.import_module(f"perfdash.bisection.environments.{recipe.kind}_builder")
    builder: Builder = module.open_builder(recipe, context, holds)
    return builder
