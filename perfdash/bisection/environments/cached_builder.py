"""Build each revision once, and keep builds for all bisections of this user.

`built/KEY/` is one build; it is finished if it has a `build.json`, which is written last. The longest unused
builds are pruned first. Each has two locks (flock, gone with their process): `use`, shared by its users, and
`make`, of the process that builds it.
"""

from __future__ import annotations

import contextlib
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
from perfdash.bisection.environments.build_holds import BuildHolds, Hold
from perfdash.bisection.environments.build_reuse import digest
from perfdash.bisection.environments.interpreter import Interpreter, origins
from perfdash.bisection.environments.pip import machine_fault
from perfdash.bisection.recipes import Recipe
from perfdash.bisection.sources import BuildContext, Revision
from perfdash.bisection.sources.git_repository import without_credentials
from perfdash.errors import MachineError
from perfdash.files import is_full, replaced

GIB = 1 << 30
_LIMIT_GIB = 40.0
_PART_OF_DISK = 0.2
_POLL_S = 0.05
_FINISHED = "build.json"


class Cache:
    """A folder of builds with a size limit; builds in use may exceed it."""

    def __init__(self, folder: Path | None = None, limit_gib: float | None = None) -> None:
        """Raises MachineError if the folder cannot be created, or its files cannot be locked."""
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
        self._check_locks()
        gib = min(_LIMIT_GIB, disk.total / GIB * _PART_OF_DISK) if limit_gib is None else limit_gib
        self.limit_bytes = int(gib * GIB)

    def _check_locks(self) -> None:
        """Raise MachineError without locks: bisections would change builds that others measure."""
        try:
            lock = self._try(f"probe.{os.getuid()}", fcntl.LOCK_SH)  # that of another user may be forbidden
        except OSError as error:
            raise MachineError(
                f"no builds can be kept in {self.folder}: no file there can be locked ({error.strerror}); "
                "give another folder (PERFDASH_BUILD_CACHE)"
            ) from error
        if lock:
            lock.release()

    def place(self, key: str) -> Path:
        """The folder of a build, finished or not."""
        return self.folder / "built" / key

    def finished(self, key: str) -> dict[str, Any] | None:
        """The record of a finished build, which counts as a use; hold the build first."""
        file = self.place(key) / _FINISHED
        record = _read(file)
        if record is not None:
            with contextlib.suppress(OSError):
                os.utime(file)
        return record

    def is_finished(self, key: str) -> bool:
        """Whether a build is finished; this is not a use."""
        return (self.place(key) / _FINISHED).is_file()

    def finish(self, key: str, record: dict[str, Any]) -> None:
        """Write the record of a finished build, safe against a power cut."""
        size = _size(self.place(key))
        os.sync()  # the build's files before its record
        _write(self.place(key) / _FINISHED, {**record, "bytes": size})
        (self.folder / "failed" / f"{key}.json").unlink(missing_ok=True)

    def failed(self, key: str) -> dict[str, Any] | None:
        """The remembered failure of a build: {reason, log, ...}."""
        return _read(self.folder / "failed" / f"{key}.json")

    def failures(self) -> Iterator[dict[str, Any]]:
        """All remembered failures."""
        return filter(None, map(_read, (self.folder / "failed").glob("*.json")))

    def fail(self, key: str, record: dict[str, Any], log: Path) -> Path:
        """Remember a failure with its log, and remove the build; the log's new place."""
        kept = self.folder / "failed" / f"{key}.log"
        with contextlib.suppress(OSError):
            shutil.copyfile(log, kept)
        _write(self.folder / "failed" / f"{key}.json", {**record, "log": str(kept)})
        remove(self.place(key))
        return kept

    def hold(self, key: str, stop: threading.Event | None = None) -> Hold:
        """Hold a build against pruning. Raises BuildStopped."""
        return self._lock(f"{key}.use", fcntl.LOCK_SH, stop)

    def hold_alone(self, key: str) -> tuple[str, Hold]:
        """Hold a build also against other users: the key of the first copy that nobody uses, and its lock."""
        copy, number = key, 0
        while (hold := self._try(f"{copy}.use", fcntl.LOCK_EX)) is None:
            number += 1
            copy = f"{key}.{number}"
        return copy, hold

    def make(self, key: str, stop: threading.Event | None = None) -> Hold:
        """Wait for the lock of the process that builds it. Raises BuildStopped."""
        return self._lock(f"{key}.make", fcntl.LOCK_EX, stop)

    @contextlib.contextmanager
    def lane(self, family: str, stop: threading.Event | None = None) -> Iterator[tuple[Path, Hold]]:
        """A folder for incremental builds: the first of its family that is not in use."""
        number = 0
        while (hold := self._try(f"{family}.{number}.lane", fcntl.LOCK_EX)) is None:
            number += 1
        if stop and stop.is_set():
            hold.release()
            raise BuildStopped
        try:
            place = self.folder / "lanes" / f"{family}.{number}"
            place.mkdir(exist_ok=True)
            yield place, hold
            os.utime(place)
        finally:
            hold.release()

    def compiled(self, name: str) -> dict[str, Any] | None:
        """The build {key, revision} with the compiled files of a name. It may be pruned unless held."""
        return _read(self.folder / "compiled" / f"{name}.json")

    def note_compiled(self, name: str, key: str, revision: str) -> None:
        """Record which build has the compiled files of a name."""
        _write(self.folder / "compiled" / f"{name}.json", {"key": key, "revision": revision})

    def make_room(self, needed_bytes: float, what: str) -> None:
        """Prune to the limit, and further if the disk is short. Raises MachineError if it stays full."""
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
        """Remove killed builds, then the longest unused builds, until the rest fits a limit."""
        items = sorted(self._items(), key=lambda item: item[0])
        total = sum(size for _, size, _ in items)
        for used, size, place in items:
            unfinished = place.parent.name == "built" and used == 0.0
            if (total > max(0, limit_bytes) or unfinished) and self._remove_unused(place):
                total -= size

    def seconds(self, family: str, kind: str) -> list[float]:
        """The durations of a recipe's builds, oldest first."""
        try:
            lines = (self.folder / "seconds" / f"{family}.jsonl").read_text().splitlines()
        except OSError:
            return []
        durations = []
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a line cut off by a full disk
                record = json.loads(line)
                durations += [float(record["seconds"])] if record["kind"] == kind else []
        return durations

    def remember_seconds(self, family: str, kind: str, seconds: float) -> None:
        """Add the duration of a build."""
        with (self.folder / "seconds" / f"{family}.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind, "seconds": round(seconds, 3)}) + "\n")

    def all(self) -> Iterator[dict[str, Any]]:
        """The records of all finished builds."""
        return filter(None, (_read(place / _FINISHED) for place in (self.folder / "built").iterdir()))

    def _total(self) -> int:
        return sum(size for _, size, _ in self._items())

    def _items(self) -> Iterator[tuple[float, int, Path]]:
        """(time of the last use, 0 if unfinished; bytes; folder) of each build and lane."""
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
        """Remove a build or lane unless it is in use; whether it was removed."""
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
                hold.release()

    def _lock(self, name: str, kind: int, stop: threading.Event | None) -> Hold:
        while True:
            hold = self._try(name, kind)
            if hold:
                return hold
            if stop and stop.wait(_POLL_S):
                raise BuildStopped
            if not stop:
                time.sleep(_POLL_S)

    def _try(self, name: str, kind: int) -> Hold | None:
        """A lock; None while another has it. Raises OSError if there can be none."""
        fd = os.open(self.folder / "locks" / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        return Hold(fd)


def default_folder() -> Path:
    """The folder of PERFDASH_BUILD_CACHE, else one in the user's cache folder."""
    own = os.environ.get("PERFDASH_BUILD_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perfdash" / "builds"


def remove(place: Path) -> None:
    """Remove a folder with all its files, also read-only ones."""
    if not place.exists():
        return
    for folder, _, _ in os.walk(place):
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
    shutil.rmtree(place, ignore_errors=True)
    if place.exists():
        raise MachineError(f"{place} cannot be removed; remove it by hand")


def _size(place: Path) -> int:
    """The bytes on disk below a folder; of a file with n links 1/n counts."""
    total = 0.0
    for folder, _, files in os.walk(place):
        for name in files:
            with contextlib.suppress(OSError):
                info = os.lstat(os.path.join(folder, name))
                total += info.st_blocks * 512 / info.st_nlink
    return int(total)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return record


def _write(file: Path, record: dict[str, Any]) -> None:
    with replaced(file, durable=True, shared=True) as part:
        part.write_text(json.dumps(record))


_RECENT = 20  # builds whose durations are averaged
_MIB = 1 << 20
_FORM = 1  # part of every key: raise it when builds come out differently


class CachedBuilder(ABC):
    """The base of all builders. A subclass adds a revision's content for the key, and how to build it."""

    def __init__(
        self,
        recipe: Recipe,
        context: BuildContext,
        base: Interpreter,
        holds: BuildHolds | None = None,
        thing: str = "",
    ) -> None:
        """holds: of all builders of the bisection; None if it is the only one.

        thing: the repository or package of the revisions, for the key, without credentials.
        """
        self.recipe = recipe
        self.context = context
        self.base = base
        self.cache = Cache(context.cache, context.cache_limit_gb)
        self._digest = digest(_FORM, recipe.identity(), base.fingerprint, thing)
        self.family = f"{recipe.name}-{digest(self._digest)}"
        self._holds = BuildHolds() if holds is None else holds

    @abstractmethod
    def content(self, revision: Revision) -> str:
        """All that decides a build's content, beside the recipe and the base."""

    @abstractmethod
    def make(
        self, revision: Revision, place: Path, commands: Commands, fresh: bool, until_kept: ExitStack
    ) -> dict[str, Any]:
        """Build in an empty folder: {pythonpath (relative), folder, packages, notes, ...}.

        until_kept: closed once the build is recorded as finished. Raises Unbuildable, MachineError.
        """

    def check_reused(self, revision: Revision, place: Path, record: dict[str, Any], hold: Hold) -> None:
        """Check a build from the cache: the base, or the build's files, may have changed."""
        self._check_origins(record, place)

    @property
    @abstractmethod
    def time_limit_s(self) -> float | None:
        """The time limit of one build."""

    @property
    @abstractmethod
    def needed_bytes(self) -> float:
        """The disk space of one build, until one was measured."""

    @property
    @abstractmethod
    def usual_s(self) -> float:
        """The duration of a build, until one was measured."""

    def __enter__(self) -> CachedBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holds.release_all(self)

    def key(self, revision: Revision, fresh: bool = False) -> str:
        """The key of a revision's build."""
        return digest(self._digest, self.content(revision)) + ("-fresh" if fresh else "")

    def known(self, revision: Revision) -> bool:
        """Whether it is built, or known not to build."""
        key = self.key(revision)
        return self.cache.is_finished(key) or self.cache.failed(key) is not None

    def build(
        self,
        revision: Revision,
        stop: threading.Event | None = None,
        fresh: bool = False,
        again: bool = False,
    ) -> BuiltEnvironment:
        """See Builder."""
        key = self.key(revision, fresh)

        def lock() -> tuple[str, Hold]:
            return self.cache.hold_alone(key) if self.recipe.exclusive else (key, self.cache.hold(key, stop))

        try:
            copy, hold = self._holds.take(key, self, lock)
            place = self.cache.place(copy)
            if record := self.cache.finished(copy):
                if hold:
                    try:
                        self.check_reused(revision, place, record, hold)
                    except BaseException:
                        self._holds.release(key, self)  # so that it is checked again the next time
                        raise
                return self._built(revision, key, place, record, reused=True)
            making = self.cache.make(copy, stop)
            try:
                if record := self.cache.finished(copy):  # another process has built it meanwhile
                    return self._built(revision, key, place, record, reused=True)
                failed = self.cache.failed(copy)
                if failed and not again:
                    raise Unbuildable(failed["reason"], Path(failed["log"]), remembered=True)
                record = self._make(revision, copy, making, stop, fresh)
                return self._built(revision, key, place, record, reused=False)
            finally:
                making.release()
        except OSError as error:
            if is_full(error):
                raise MachineError(
                    f"no space left in {self.cache.folder} while {revision.label} was built"
                ) from error
            raise MachineError(f"{revision.label} cannot be built: {error}") from error

    def costs(self, revisions: Sequence[Revision], touched: Sequence[Sequence[str]] = ()) -> list[float]:
        """Seconds each: 0 built, else the median of those measured."""
        usual = self.usual("full", self.usual_s)
        return [self._cost(self.key(revision), usual) for revision in revisions]

    def usual(self, kind: str, otherwise: float) -> float:
        """The median duration of the last builds of a kind (`full`, `overlay`)."""
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
        remove(place)  # the files of a killed build
        self.cache.make_room(self._needed(), f"a build of {revision.label}")
        place.mkdir(parents=True)
        log = place / "build.log"
        commands = Commands(log, (making.fd,), self.context.cores(), stop, self.time_limit_s)
        began = time.monotonic()
        family = {"revision": revision.id, "recipe": self.recipe.name, "family": self.family}
        with ExitStack() as until_kept:
            until_kept.push(lambda kind, *_: _remove_but(log) if kind else None)
            try:
                try:
                    record = self.make(revision, place, commands, fresh, until_kept)
                    self._check_origins(record, place)
                finally:
                    commands.mask()  # before the log is copied
            except (Unbuildable, TimedOut) as error:
                text = commands.text()
                if why := machine_fault(text):
                    kept = self._keep_log(key, log)
                    raise MachineError(
                        f"{revision.label} could not be built: {why}; the log is {kept}"
                    ) from error
                if isinstance(error, TimedOut):
                    raise Unbuildable(
                        str(error), self._keep_log(key, log)
                    ) from error  # not remembered: it may succeed another day
                reason = without_credentials(error.reason)
                raise Unbuildable(reason, self.cache.fail(key, {**family, "reason": reason}, log)) from error
            seconds = time.monotonic() - began
            record = {"packages": {}, "kind": "full", **record, **family, "seconds": seconds}
            self.cache.finish(key, record)
        self.cache.remember_seconds(self.family, record["kind"], seconds)
        return record

    def _needed(self) -> float:
        """1.5 times the largest build of this recipe so far, or the recipe's figure."""
        sizes = [record["bytes"] for record in self.cache.all() if record.get("recipe") == self.recipe.name]
        return 1.5 * max(sizes) + 16 * _MIB if sizes else self.needed_bytes

    def _keep_log(self, key: str, log: Path) -> Path:
        kept = self.cache.folder / "failed" / f"{key}.log"
        if log.exists():
            kept.write_bytes(log.read_bytes())
        return kept

    def _check_origins(self, record: dict[str, Any], place: Path) -> None:
        """Check that Python imports the build's packages, not others of the base. Raises MachineError."""
        paths = [place / folder for folder in record["pythonpath"]]
        names = sorted({name for path in paths for name in packages_in(path)})
        variables = {"PYTHONPATH": ":".join(map(str, paths))}
        for name, origin in origins(self.base.python, names, variables).items():
            if origin in ("built-in", "frozen"):  # the standard library always comes first
                continue
            if not Path(origin or "/").resolve().is_relative_to(place.resolve()):
                raise MachineError(
                    f"{self.base.python} imports {name} from {origin or 'nowhere'}, not from the build: is "
                    f"it installed there as editable? Remove it (pip uninstall {name}), or give another "
                    "interpreter (--python)"
                )

    def _built(
        self, revision: Revision, key: str, place: Path, record: dict[str, Any], reused: bool
    ) -> BuiltEnvironment:
        notes = record.get("notes", ())
        if place.name != key:
            notes = (*notes, "it is in use by another bisection, so this one has a copy of it")
        return BuiltEnvironment(
            revision=revision,
            python=self.context.python,
            pythonpath=tuple(place / folder for folder in record["pythonpath"]),
            env=dict(self.recipe.env),
            key=key,
            folder=place / record["folder"],
            log=place / "build.log",
            seconds=record["seconds"],
            reused=reused,
            packages=record["packages"],
            compiled_from=record.get("compiled_from"),
            notes=tuple(notes),
        )


def _remove_but(log: Path) -> None:
    """Remove the files of a failed build, but not its log."""
    with suppress(OSError, MachineError):
        for entry in log.parent.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                remove(entry)
            elif entry != log:
                entry.unlink()


def packages_in(folder: Path) -> list[str]:
    """The packages and modules in a folder of PYTHONPATH."""
    if not folder.is_dir():
        return []
    return [
        entry.name.partition(".")[0]
        for entry in folder.iterdir()
        if (entry / "__init__.py").is_file() or (entry.is_file() and entry.suffix in (".py", ".so"))
        if entry.name.partition(".")[0].isidentifier() and entry.name != "setup.py"
    ]
