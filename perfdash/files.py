"""Files: atomic writes, lines that survive a power cut, locks, temporary folders, JSON, bundled data.

What readers get (`write`) holds no secret of this process; what perfdash itself reads again is kept as it is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import math
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from perfdash.errors import MachineError, UsageError
from perfdash.redaction import redact

_PACKAGE = Path(__file__).resolve().parent
_TEMPORARY_PREFIX = "perfdash-scratch-"
_HELD = ".held"  # locked by the process that made the folder, until it ends


def bundled(kind: str) -> Path:
    """The folder of data that ships with perfdash, e.g. `suites` or `bisect`.

    In a wheel it lies inside the package (pyproject.toml, force-include), in a checkout beside it.
    """
    installed = _PACKAGE / "_bundled" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def finite(value: Any) -> Any:
    """A copy of a JSON value with None for NaN and infinities, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def dumps(value: Any, **options: Any) -> str:
    """`value` as JSON text without NaN; options are those of json.dumps."""
    return json.dumps(finite(value), allow_nan=False, **options)


def encoded(text: str) -> bytes:
    """Text as it may leave the program: UTF-8, without any secret of this process."""
    return redact(text).encode("utf-8", "replace")


def write(path: Path, content: str | bytes) -> None:
    """Write a file for readers. They see the old content or the new, never half of it.

    Text is encoded as above. Bytes are written as they are: they are pictures, whose words were redacted
    when they were drawn. Raises OSError; then the file is as it was before.
    """
    with written(path) as file:
        file.write(encoded(content) if isinstance(content, str) else content)


def is_special(path: Path) -> bool:
    """Whether a path is a pipe, a device or an open file (/dev/stdout), which is written to directly."""
    return _descriptor(path) is not None or (path.exists() and not (path.is_file() or path.is_dir()))


def _descriptor(path: Path) -> int | None:
    """The descriptor of an open file of this process, by its name: 1 for /dev/stdout and /dev/fd/1."""
    name = os.path.abspath(path)
    name = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}.get(name, name)
    match = re.fullmatch(rf"/(?:dev|proc/(?:self|{os.getpid()}))/fd/(\d+)", name)
    return int(match[1]) if match else None


@contextlib.contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A file for readers, open for writing: `path` itself if it is special, else as `replaced`.

    A link stays a link, and its target is replaced.
    """
    if is_special(path):
        # Opened by its name, the file behind /dev/stdout would lose what others write to it.
        number = _descriptor(path)
        with open(path if number is None else os.dup(number), "wb") as file:
            yield file
    else:
        target = path.resolve()
        _remove_abandoned(target)
        with replaced(target, shared=True) as part, part.open("wb") as file:
            yield file


def _remove_abandoned(path: Path) -> None:
    """Remove what writers of this file left when they were killed, a day ago or longer."""
    with contextlib.suppress(OSError):
        for part in path.parent.glob(f".{glob.escape(_short(path))}.*.part"):
            if part.stat().st_mtime < time.time() - 86_400:
                part.unlink()


def _short(path: Path) -> str:
    """The name, of 200 bytes at most."""
    return os.fsdecode(os.fsencode(path.name)[:200])


@contextlib.contextmanager
def replaced(path: Path, *, durable: bool = False, shared: bool = False) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place once the block has written it.

    `durable` returns only when the content would survive a power cut; `shared` is for files that several
    processes, threads or machines write at once. After an error the temporary file is removed, and `path`
    is as it was.
    """
    writer = f".{os.getpid()}.{secrets.randbits(64)}" if shared else ""
    part = path.with_name(f".{_short(path)}{writer}.part")
    try:
        yield part
        if durable:
            _sync(part, os.O_RDONLY)
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    if durable:
        _sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)


def append(path: Path, data: bytes) -> None:
    """Append whole lines to a file; they are on the disk when this returns.

    Raises OSError when the disk refuses; then the file is as it was before.
    """
    is_new = not path.exists()
    with path.open("ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):  # half a line would damage the next one
                file.truncate(before)
            raise
    if is_new:  # a new name survives a power cut only once its folder is synced
        _sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)


def mend_last_line(path: Path, is_whole: Callable[[bytes], bool]) -> None:
    """Repair the last line after a power cut: cut off half, or add a newline."""
    if not path.exists():
        return
    data = path.read_bytes()
    last = data.rpartition(b"\n")[2]
    if not last:
        return
    with path.open("r+b") as file:
        if is_whole(last):
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
        else:
            file.truncate(len(data) - len(last))
        file.flush()
        os.fsync(file.fileno())


def is_full(error: OSError) -> bool:
    """Whether a disk or quota is full, rather than read-only, forbidden or gone."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def try_lock(fd: int) -> bool:
    """Lock an open file for this process alone; False when another process has it.

    On a file system without locks it answers True: nothing can be protected there. It tries again, since
    is_locked() of another process takes the lock for a moment.
    """
    for pause_s in (0.01, 0.05, 0.0):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(pause_s)
        except OSError:
            return True
        else:
            return True
    return False


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock of a file; False where there is no file.

    It may be the file of another user, which this one may only read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # NFS gives a file that is open for reading a shared lock only.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # as in try_lock
        return False
    else:
        return False
    finally:
        os.close(fd)


def make_dated_folder(out: Path, below: str = "", kind: str = "run") -> Path:
    """A new folder `<UTC time>_<host>` in `out`, or in a folder `below` it.

    `kind` names its content in messages. Raises UsageError where the folder cannot be made.
    """
    stamp = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
    host = socket.gethostname().split(".")[0] or "host"
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        folder = out / below / f"{stamp}_{host}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if folder.parent.is_dir():
                continue
            raise UsageError(f"--out {out}: it is a file; give a folder") from None
        except OSError as error:
            raise UsageError(f"--out {out}: no {kind} folder can be made there: {error.strerror}") from error
        return folder
    raise UsageError(f"--out {out}: a hundred {kind}s began there this second")


class TemporaryFolder:
    """A temporary folder that is removed at the end: a context manager, or call remove().

    A killed process leaves its folder behind; remove_abandoned_folders() of a later run removes it. The
    caches of one case and the precompiled headers take some hundred megabytes.
    """

    def __init__(self) -> None:
        """Raises MachineError where there is no room for one."""
        while True:
            try:
                self.path = tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX)
                self._held = os.open(os.path.join(self.path, _HELD), os.O_CREAT | os.O_RDWR, 0o600)
            except OSError as error:
                raise MachineError(
                    f"no temporary folder in {tempfile.gettempdir()}: {error.strerror}; "
                    "make room there or set TMPDIR"
                ) from error
            with contextlib.suppress(OSError):  # a file system without locks; there no folder is abandoned
                fcntl.flock(self._held, fcntl.LOCK_EX)
            if _is_linked(self._held):
                return
            os.close(self._held)  # another process removed the folder before it was locked

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Removes the folder with all in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._held)


def remove_abandoned_folders() -> None:
    """Remove temporary folders whose process has ended, as far as this user may."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY_PREFIX}*"):
        try:
            held = os.open(folder / _HELD, os.O_RDWR)
        except OSError:  # under construction, or of another user
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_linked(held):  # otherwise its process removed it, and the name may be in use again
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(held)


def _is_linked(fd: int) -> bool:
    """Whether an open file still has a name."""
    return os.fstat(fd).st_nlink > 0


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
