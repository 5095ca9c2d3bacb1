"""What building has in common for every kind: the cache before it, locks around it, failures remembered."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from perfdash.bisection.environments import KNOWN_NOT_TO_BUILD, BuildStopped, BuiltEnvironment, Unbuildable
from perfdash.bisection.environments.build_command import Commands, TimedOut
from perfdash.bisection.environments.build_reuse import digest
from perfdash.bisection.environments.interpreter import Interpreter, origins
from perfdash.bisection.environments.pip import not_the_revisions_fault
from perfdash.bisection.recipes import Recipe
from perfdash.bisection.sources import BuildContext, Revision
from perfdash.bisection.sources.git_repository import without_credentials
from perfdash.errors import MachineError
from perfdash.files import replaced

GIB = 1 << 30
_LIMIT_GIB = 40.0
_PART_OF_DISK = 0.2
_LOOK_S = 0.05
_FINISHED = "build.json"


class Hold:
    """A lock that is held until let go, or until this process and those given `fd` are gone."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def let_go(self) -> None:
        """Once only."""
        os.close(self.fd)


class Cache:
    """A folder of environments, at most so large as far as they are not in use."""

    def __init__(self, folder: Path | None = None, limit_gib: float | None = None) -> None:
        """Raises MachineError where the folder cannot be made."""
        self.folder = (folder or default_folder()).expanduser().absolute()
        try:
            for part in ("built", "lanes", "locks", "failed", "compiled", "seconds"):
                (self.folder / part).mkdir(parents=True, exist_ok=True)
            disk = shutil.disk_usage(self.folder)
        except OSError as error:
            raise MachineError(
                f"no builds can be kept in {self.folder}: {error.strerror}; "
                "give another folder (PERFDASH_BUILD_CACHE)"
            ) from error
        gib = min(_LIMIT_GIB, disk.total / GIB * _PART_OF_DISK) if limit_gib is None else limit_gib
        self.limit_bytes = int(gib * GIB)

    def place(self, key: str) -> Path:
        """The folder of an environment, finished or not."""
        return self.folder / "built" / key

    def finished(self, key: str) -> dict[str, Any] | None:
        """What was written down of a finished one, and that it is used now; hold it before you ask."""
        file = self.place(key) / _FINISHED
        try:
            said: dict[str, Any] = json.loads(file.read_bytes())
        except (OSError, ValueError):
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        return said

    def is_finished(self, key: str) -> bool:
        """Whether it is there, without counting as a use."""
        return (self.place(key) / _FINISHED).is_file()

    def finish(self, key: str, said: dict[str, Any]) -> None:
        """From here on it is there, also after a power cut."""
        size = _size(self.place(key))
        os.sync()  # its files before the word that they are there
        _write(self.place(key) / _FINISHED, {**said, "bytes": size})
        (self.folder / "failed" / f"{key}.json").unlink(missing_ok=True)

    def failed(self, key: str) -> dict[str, Any] | None:
        """Why an environment is known not to build: {reason, log}."""
        try:
            said: dict[str, Any] = json.loads((self.folder / "failed" / f"{key}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return said

    def failures(self) -> Iterator[dict[str, Any]]:
        """What was written down of every one that does not build."""
        for file in (self.folder / "failed").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                yield json.loads(file.read_bytes())

    def fail(self, key: str, said: dict[str, Any], log: Path) -> Path:
        """Remembers why with its log, and removes what was built; the log's new place."""
        kept = self.folder / "failed" / f"{key}.log"
        with contextlib.suppress(OSError):
            shutil.copyfile(log, kept)
        _write(self.folder / "failed" / f"{key}.json", {**said, "log": str(kept)})
        remove(self.place(key))
        return kept

    def hold(self, key: str, exclusive: bool = False, stop: threading.Event | None = None) -> Hold:
        """Against pruning; `exclusive`: against everyone else who holds it. Raises Stopped."""
        return self._lock(f"{key}.use", fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, stop)

    def make(self, key: str, stop: threading.Event | None = None) -> Hold:
        """The right to build it; waits for whoever has it. Raises Stopped."""
        return self._lock(f"{key}.make", fcntl.LOCK_EX, stop)

    @contextlib.contextmanager
    def lane(self, family: str, stop: threading.Event | None = None) -> Iterator[tuple[Path, Hold]]:
        """A folder for incremental builds, the first of its family that nobody builds in."""
        number = 0
        while (hold := self._try(f"{family}.{number}.lane", fcntl.LOCK_EX)) is None:
            number += 1
        if stop and stop.is_set():
            hold.let_go()
            raise BuildStopped
        try:
            place = self.folder / "lanes" / f"{family}.{number}"
            place.mkdir(exist_ok=True)
            yield place, hold
            os.utime(place)
        finally:
            hold.let_go()

    def compiled(self, name: str) -> dict[str, Any] | None:
        """The build {key, revision} that has what is compiled under a name; hold it, it may be pruned."""
        try:
            said: dict[str, Any] = json.loads((self.folder / "compiled" / f"{name}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return said

    def note_compiled(self, name: str, key: str, revision: str) -> None:
        """That a build, when it is finished, has it."""
        _write(self.folder / "compiled" / f"{name}.json", {"key": key, "revision": revision})

    def make_room(self, needed_bytes: float, what: str) -> None:
        """Prunes to the limit, and further where the disk is short. Raises MachineError before a build."""
        self.prune(self.limit_bytes - int(needed_bytes))
        free = shutil.disk_usage(self.folder).free
        if free < needed_bytes:
            self.prune(max(0, self._total() - int(needed_bytes - free)))
            free = shutil.disk_usage(self.folder).free
        if free < needed_bytes:
            raise MachineError(
                f"no space for {what}: {needed_bytes / GIB:.1f} GiB are needed in {self.folder}, "
                f"{free / GIB:.1f} are free; make room there, or give another folder (PERFDASH_BUILD_CACHE)"
            )

    def prune(self, limit_bytes: int) -> None:
        """Removes what killed builds have left, then the longest unused until the rest is within a limit."""
        items = sorted(self._items(), key=lambda item: item[0])
        total = sum(size for _, size, _ in items)
        for used, size, place in items:
            unfinished = place.parent.name == "built" and used == 0.0
            if (total > max(0, limit_bytes) or unfinished) and self._remove_unused(place):
                total -= size

    def seconds(self, family: str, kind: str) -> list[float]:
        """How long builds of one recipe took, oldest first."""
        try:
            lines = (self.folder / "seconds" / f"{family}.jsonl").read_text().splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # the last one of a full disk
                said = json.loads(line)
                found += [float(said["seconds"])] if said["kind"] == kind else []
        return found

    def remember_seconds(self, family: str, kind: str, seconds: float) -> None:
        """Adds one."""
        with (self.folder / "seconds" / f"{family}.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind, "seconds": round(seconds, 3)}) + "\n")

    def all(self) -> Iterator[dict[str, Any]]:
        """What was written down of every finished environment."""
        for place in (self.folder / "built").iterdir():
            with contextlib.suppress(OSError, ValueError):
                yield json.loads((place / _FINISHED).read_bytes())

    def _total(self) -> int:
        return sum(size for _, size, _ in self._items())

    def _items(self) -> Iterator[tuple[float, int, Path]]:
        """(when it was last used, 0 where it is unfinished; bytes; folder) of each environment and lane."""
        for place in (self.folder / "built").iterdir():
            file = place / _FINISHED
            try:
                yield file.stat().st_mtime, int(json.loads(file.read_bytes())["bytes"]), place
            except (OSError, ValueError, KeyError):
                yield 0.0, 0, place
        for place in (self.folder / "lanes").iterdir():
            with contextlib.suppress(OSError):
                yield place.stat().st_mtime, _size(place), place

    def _remove_unused(self, place: Path) -> bool:
        """Whether nobody needs it; then it is gone."""
        lane = place.parent.name == "lanes"
        holds: list[Hold] = []
        try:
            for kind in ("lane",) if lane else ("use", "make"):
                hold = self._try(f"{place.name}.{kind}", fcntl.LOCK_EX)
                if hold is None:
                    return False
                holds.append(hold)
            (place / _FINISHED).unlink(missing_ok=True)
            remove(place)
            return True
        finally:
            for hold in holds:
                hold.let_go()

    def _lock(self, name: str, kind: int, stop: threading.Event | None) -> Hold:
        while True:
            hold = self._try(name, kind)
            if hold:
                return hold
            if stop and stop.wait(_LOOK_S):
                raise BuildStopped
            if not stop:
                time.sleep(_LOOK_S)

    def _try(self, name: str, kind: int) -> Hold | None:
        fd = os.open(self.folder / "locks" / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return None
        return Hold(fd)


def default_folder() -> Path:
    """PERFDASH_BUILD_CACHE, else in the user's cache folder."""
    own = os.environ.get("PERFDASH_BUILD_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perfdash" / "builds"


def remove(place: Path) -> None:
    """A folder with all in it, also what a build has made read-only."""
    if not place.exists():
        return
    for folder, _, _ in os.walk(place):
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
    shutil.rmtree(place, ignore_errors=True)
    if place.exists():
        raise MachineError(f"{place} cannot be removed; remove it by hand")


def _size(place: Path) -> int:
    """Bytes on disk below a folder; a file with several links is counted by its share."""
    total = 0.0
    for folder, _, files in os.walk(place):
        for name in files:
            with contextlib.suppress(OSError):
                info = os.lstat(os.path.join(folder, name))
                total += info.st_blocks * 512 / info.st_nlink
    return int(total)


def _write(file: Path, said: dict[str, Any]) -> None:
    with replaced(file, durable=True, shared=True) as part:
        part.write_text(json.dumps(said))


_RECENT = 20  # builds whose time is looked at
_MIB = 1 << 20
_FORM = 1  # a higher one with whatever makes environments come out differently


class CachedBuilder(ABC):
    """A builder of one kind: what it adds is the key of a revision, and how it is made."""

    def __init__(self, recipe: Recipe, where: BuildContext, base: Interpreter, thing: str = "") -> None:
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

    def __enter__(self) -> CachedBuilder:
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
    ) -> BuiltEnvironment:
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

    def _built(self, revision: Revision, key: str, said: dict[str, Any], reused: bool) -> BuiltEnvironment:
        place = self.cache.place(key)
        return BuiltEnvironment(
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
