"""What building has in common for every kind: the cache before it, locks around it, failures remembered."""

from __future__ import annotations

import errno
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from perfdash.bisection.environments import KNOWN_NOT_TO_BUILD, Built, Unbuildable
from perfdash.bisection.environments.build_cache import Cache, Hold, remove
from perfdash.bisection.environments.build_command import Commands, TimedOut
from perfdash.bisection.environments.build_reuse import digest
from perfdash.bisection.environments.interpreter import Interpreter, origins
from perfdash.bisection.environments.pip import not_the_revisions_fault
from perfdash.bisection.recipes import Recipe
from perfdash.bisection.sources import Revision, Where
from perfdash.bisection.sources.git_repository import without_credentials
from perfdash.errors import MachineError

_RECENT = 20  # builds whose time is looked at
_MIB = 1 << 20
_FORM = 1  # a higher one with whatever makes environments come out differently


class KeptBuilder(ABC):
    """A builder of one kind: what it adds is the key of a revision, and how it is made."""

    def __init__(self, recipe: Recipe, where: Where, base: Interpreter, thing: str = "") -> None:
        """`thing` is what the revisions are of, for the key: without credentials."""
        self.recipe = recipe
        self.where = where
        self.base = base
        self.cache = Cache(where.cache, where.cache_limit_gb)
        self._digest = digest(_FORM, recipe.identity(), base.fingerprint, thing)
        self.family = f"{recipe.name}-{digest(self._digest)}"
        self._holds: dict[str, Hold] = {}
        self._guard = threading.Lock()

    @abstractmethod
    def content(self, revision: Revision) -> str:
        """What decides how a revision's environment comes out, beside the recipe and the base."""

    @abstractmethod
    def make(
        self, revision: Revision, place: Path, commands: Commands, fresh: bool, until_kept: ExitStack
    ) -> dict[str, Any]:
        """Builds in an empty folder; {pythonpath (relative), folder, packages, notes, ...}.

        `until_kept` is closed when the build has been written down as finished.

        Raises Unbuildable, MachineError.
        """

    def taken_again(self, revision: Revision, place: Path, said: dict[str, Any], hold: Hold) -> None:
        """Looks at a finished build of another time: the base may be another, or a person was there."""
        self._check_origins(said, place)

    @property
    @abstractmethod
    def time_limit_s(self) -> float | None:
        """For one build."""

    @property
    @abstractmethod
    def needed_bytes(self) -> float:
        """On disk for one build, while none was measured."""

    @property
    @abstractmethod
    def usual_s(self) -> float:
        """How long a build takes, while none was measured."""

    def __enter__(self) -> KeptBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._guard:
            for hold in self._holds.values():
                hold.let_go()
            self._holds.clear()

    def key(self, revision: Revision, fresh: bool = False) -> str:
        """The environment's key."""
        return digest(self._digest, self.content(revision)) + ("-fresh" if fresh else "")

    def known(self, revision: Revision) -> bool:
        """Whether it is built, or known not to build."""
        key = self.key(revision)
        return self.cache.is_finished(key) or self.cache.failed(key) is not None

    def release(self, revision: Revision) -> None:
        """It may be pruned, and its fresh build too."""
        key = self.key(revision)
        self._let_go(key)
        self._let_go(f"{key}-fresh")

    def _let_go(self, key: str) -> None:
        with self._guard:
            if hold := self._holds.pop(key, None):
                hold.let_go()

    def build(
        self,
        revision: Revision,
        stop: threading.Event | None = None,
        fresh: bool = False,
        again: bool = False,
    ) -> Built:
        """See Builder."""
        key = self.key(revision, fresh)
        try:
            first = self._hold(key, stop)
            if said := self.cache.finished(key):
                if first:
                    try:
                        self.taken_again(revision, self.cache.place(key), said, self._holds[key])
                    except BaseException:
                        self._let_go(key)  # the next time it is looked at again
                        raise
                return self._built(revision, key, said, reused=True)
            making = self.cache.make(key, stop)
            try:
                if said := self.cache.finished(key):  # somebody has built it while we waited
                    return self._built(revision, key, said, reused=True)
                failed = self.cache.failed(key)
                if failed and not again:
                    raise Unbuildable(failed["reason"], Path(failed["log"]), remembered=True)
                return self._built(
                    revision, key, self._make(revision, key, making, stop, fresh), reused=False
                )
            finally:
                making.let_go()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise MachineError(
                    f"no space left in {self.cache.folder} while {revision.label} was built"
                ) from error
            raise MachineError(f"{revision.label} cannot be built: {error}") from error

    def costs(self, revisions: Sequence[Revision], touched: Sequence[Sequence[str]] = ()) -> list[float]:
        """Seconds each: 0 built, else the median of those measured."""
        usual = self.usual("full", self.usual_s)
        return [self._cost(self.key(revision), usual) for revision in revisions]

    def usual(self, kind: str, otherwise: float) -> float:
        """How long builds of a kind (`full`, `overlay`) take here: the median of the last ones."""
        measured = self.cache.seconds(self.family, kind)[-_RECENT:]
        return statistics.median(measured) if measured else otherwise

    def _cost(self, key: str, otherwise: float) -> float:
        if self.cache.is_finished(key):
            return 0.0
        return KNOWN_NOT_TO_BUILD if self.cache.failed(key) else otherwise

    def _make(
        self, revision: Revision, key: str, making: Hold, stop: threading.Event | None, fresh: bool
    ) -> dict[str, Any]:
        place = self.cache.place(key)
        remove(place)  # what a killed build has left
        self.cache.make_room(self._needed(), f"a build of {revision.label}")
        place.mkdir(parents=True)
        log = place / "build.log"
        commands = Commands(log, (making.fd,), self.where.cores, stop, self.time_limit_s)
        began = time.monotonic()
        family = {"revision": revision.id, "recipe": self.recipe.name, "family": self.family}
        with ExitStack() as until_kept:
            until_kept.push(lambda kind, *_: _remove_but(log) if kind else None)
            try:
                said = self.make(revision, place, commands, fresh, until_kept)
                self._check_origins(said, place)
            except (Unbuildable, TimedOut) as error:
                text = commands.text()
                if why := not_the_revisions_fault(text):
                    kept = self._keep_log(key, log)
                    raise MachineError(
                        f"{revision.label} could not be built: {why}; the log is {kept}"
                    ) from error
                if isinstance(error, TimedOut):
                    raise Unbuildable(
                        str(error), self._keep_log(key, log)
                    ) from error  # another day it may do
                reason = without_credentials(error.reason)
                raise Unbuildable(reason, self.cache.fail(key, {**family, "reason": reason}, log)) from error
            finally:
                commands.mask()
            seconds = time.monotonic() - began
            said = {"packages": {}, "kind": "full", **said, **family, "seconds": seconds}
            self.cache.finish(key, said)
        self.cache.remember_seconds(self.family, said["kind"], seconds)
        return said

    def _needed(self) -> float:
        """The largest build of this recipe so far and half of it again, or what the recipe says."""
        sizes = [said["bytes"] for said in self.cache.all() if said.get("recipe") == self.recipe.name]
        return 1.5 * max(sizes) + 16 * _MIB if sizes else self.needed_bytes

    def _keep_log(self, key: str, log: Path) -> Path:
        kept = self.cache.folder / "failed" / f"{key}.log"
        if log.exists():
            kept.write_bytes(log.read_bytes())
        return kept

    def _check_origins(self, said: dict[str, Any], place: Path) -> None:
        """That the build's packages are what is imported: a base may have its own way of importing them."""
        paths = [place / folder for folder in said["pythonpath"]]
        names = sorted({name for path in paths for name in packages_in(path)})
        variables = {"PYTHONPATH": ":".join(map(str, paths))}
        for name, origin in origins(self.base.python, names, variables).items():
            if origin in ("built-in", "frozen"):  # a name of the standard library, which always comes first
                continue
            if not Path(origin or "/").resolve().is_relative_to(place.resolve()):
                raise MachineError(
                    f"{self.base.python} imports {name} from {origin or 'nowhere'}, not from the build: is "
                    f"it installed there as editable? Remove it (pip uninstall {name}), or give another "
                    "interpreter (--python)"
                )

    def _hold(self, key: str, stop: threading.Event | None) -> bool:
        """Whether it was not held before."""
        with self._guard:
            if key in self._holds:
                return False
        hold = self.cache.hold(key, self.recipe.exclusive, stop)
        with self._guard:
            if key in self._holds:  # another thread was faster
                hold.let_go()
                return False
            self._holds[key] = hold
            return True

    def _built(self, revision: Revision, key: str, said: dict[str, Any], reused: bool) -> Built:
        place = self.cache.place(key)
        return Built(
            revision=revision,
            python=self.where.python,
            pythonpath=tuple(place / folder for folder in said["pythonpath"]),
            env=dict(self.recipe.env),
            key=key,
            folder=place / said["folder"],
            log=place / "build.log",
            seconds=said["seconds"],
            reused=reused,
            packages=said["packages"],
            compiled_from=said.get("compiled_from"),
            notes=tuple(said.get("notes", ())),
        )


def _remove_but(log: Path) -> None:
    """What a build has left that did not come to its end; its log may be asked for."""
    with suppress(OSError, MachineError):
        for entry in log.parent.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                remove(entry)
            elif entry != log:
                entry.unlink()


def packages_in(folder: Path) -> list[str]:
    """The packages and modules that a folder on PYTHONPATH brings."""
    if not folder.is_dir():
        return []
    return [
        entry.name.partition(".")[0]
        for entry in folder.iterdir()
        if (entry / "__init__.py").is_file() or (entry.is_file() and entry.suffix in (".py", ".so"))
        if entry.name.partition(".")[0].isidentifier() and entry.name != "setup.py"
    ]
