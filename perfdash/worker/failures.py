"""From an exception and the phase it came in to the one word that the row ends with."""

from __future__ import annotations

import errno
import signal
import traceback
from typing import Any, Iterator

from perfdash.records import Status

_INFRA_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EIO}
_INFRA_TEXT = (
    "no space left on device",
    "disk quota exceeded",
    "killed signal terminated program",  # gcc, when its compiler proper was killed
    "a process in the process pool was terminated abruptly",  # one of inductor's compile workers
    "gpu is lost",
    "fallen off the bus",
    "uncorrectable ecc error",
    "devices are busy or unavailable",
)
_OOM_TEXT = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "virtual memory exhausted",
    "cannot allocate memory",
)
# Exceptions of the HTTP clients under the model hubs, by class name: none of them may be imported.
_NETWORK_NAMES = {
    "LocalEntryNotFoundError",
    "OfflineModeIsEnabled",
    "ConnectionError",
    "ConnectError",
    "ConnectTimeout",
    "ReadTimeout",
    "MaxRetryError",
    "NewConnectionError",
    "NameResolutionError",
    "ProxyError",
    "URLError",
    "gaierror",
}


class Unmeasurable(Exception):
    """Raised where the status is already known; message as shown to the user."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def classify(phase: str, error: BaseException) -> Status:
    """The status for an error in a phase of the case; the causes of the error count as well."""
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, Unmeasurable):
            return link.status
    if phase == "start" or any(_is_infra(link) for link in chain):
        return Status.INFRA_ERROR
    if any(_is_oom(link) for link in chain):
        return Status.EAGER_OOM if phase in ("load", "eager") else Status.OOM
    if phase == "load":
        if any(_is_network(link) for link in chain):
            return Status.NEEDS_NETWORK
        if any(isinstance(link, ImportError) for link in chain):
            return Status.MISSING_DEPENDENCY
        return Status.MODEL_FAIL_TO_LOAD
    return Status.EAGER_FAIL_TO_RUN if phase == "eager" else Status.FAIL_TO_RUN


def describe(phase: str, error: BaseException) -> dict[str, Any]:
    """The `failed` event for an error: status, phase, type, message and the traceback as text."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {
        "status": classify(phase, error).value,
        "phase": phase,
        "type": type(error).__name__,
        "message": str(error)[:2000] or type(error).__name__,
        "traceback": text,
    }


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        link = todo.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            yield link
            todo += [link.__cause__, link.__context__]


def _is_infra(error: BaseException) -> bool:
    # subprocess.CalledProcessError of a compiler that was killed, not one that found a fault.
    if getattr(error, "returncode", 0) in (-signal.SIGKILL, -signal.SIGTERM):
        return True
    if isinstance(error, OSError) and error.errno in _INFRA_ERRNO:
        return True
    return any(text in str(error).lower() for text in _INFRA_TEXT)


def _is_oom(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(
        text in str(error).lower() for text in _OOM_TEXT
    )


def _is_network(error: BaseException) -> bool:
    return any(cls.__name__ in _NETWORK_NAMES for cls in type(error).__mro__)
