"""How a revision becomes an environment that the worker can run in; finished ones are kept in a cache.

One file a kind of recipe: commits_builder.py (git), versions_builder.py (packages). What is measured
in an environment, and which revision is tried next, is not known here.
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

from perfdash.bisection.recipes import Recipe
from perfdash.bisection.sources import BuildContext, Revision

KNOWN_NOT_TO_BUILD = math.inf


class Unbuildable(Exception):
    """A revision that cannot be made into an environment, for a reason of its own.

    `reason` is one line; `remembered` where an earlier attempt has shown it.
    """

    def __init__(self, reason: str, log: Path | None = None, remembered: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.log = log
        self.remembered = remembered


class BuildStopped(Exception):
    """A build that was told to stop; the next attempt begins anew."""


@dataclass(frozen=True)
class BuiltEnvironment:
    """An environment: an interpreter, and folders that come before its own packages."""

    revision: Revision
    python: Path
    pythonpath: tuple[Path, ...]
    env: dict[str, str]
    key: str  # digest of all that decides how it came out
    folder: Path  # the worktree, or where the build was installed
    log: Path
    seconds: float  # that building took, then
    reused: bool
    packages: dict[str, str] = field(default_factory=dict)  # other than in the base, normalised names
    compiled_from: str | None = None  # the revision whose build it is laid over
    notes: tuple[str, ...] = ()

    def variables(self) -> dict[str, str]:
        """For the measured process: those of the recipe and PYTHONPATH, the user's own at its end."""
        paths = [*map(str, self.pythonpath), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**self.env, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}


class Builder(Protocol):
    """Makes environments; use as a context manager. Methods may be called from several threads.

    What it has built is held against pruning until it is released, or the builder closed. Other
    processes may build the same at the same time: it is built once.
    """

    def __enter__(self) -> Builder:
        """Itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Lets go of all builds."""

    def build(
        self,
        revision: Revision,
        stop: threading.Event | None = None,
        fresh: bool = False,
        again: bool = False,
    ) -> BuiltEnvironment:
        """The environment, from the cache where it is there; `fresh`: a second one, built independently.

        Raises Unbuildable (`again` tries what has failed before), Stopped when `stop` is set meanwhile,
        and MachineError for what is not the revision's fault.
        """

    def key(self, revision: Revision, fresh: bool = False) -> str:
        """The environment's key, without building it."""

    def known(self, revision: Revision) -> bool:
        """Whether build() would answer at once: it is built, or known not to build."""

    def costs(self, revisions: Sequence[Revision], touched: Sequence[Sequence[str]] = ()) -> list[float]:
        """About how many seconds each would take to build: 0 built, KNOWN_NOT_TO_BUILD where that is so.

        `touched` is what each changes against the one before it in the list (Source.touched).
        """

    def release(self, revision: Revision) -> None:
        """It may be pruned."""


def open_builder(recipe: Recipe, where: BuildContext) -> Builder:
    """The builder that a recipe's kind names. Raises UsageError and MachineError for what is missing."""
    recipe = recipe.with_settings(where.settings) if where.settings else recipe
    module = importlib.import_module(f"perfdash.bisection.environments.{recipe.kind}_builder")
    builder: Builder = module.open_builder(recipe, where)
    return builder
