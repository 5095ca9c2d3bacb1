"""Finished environments on disk, shared by all bisections of this user, oldest use pruned first.

`built/KEY/` is one of them and is finished when it has a `build.json`, which is written last: what a
killed build has left has none, and the next one begins anew. Two locks each (flock, gone with their
process): `use`, shared by whoever needs it, and `make`, of the one that builds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfdash.bisection.environments import Stopped
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
            raise Stopped
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
                raise Stopped
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
