"""Classify an exception and its phase as a Status, and describe it for the user."""

from __future__ import annotations

import contextlib
import difflib
import errno
import signal
import traceback
from typing import Any, Iterable, Iterator

from perfdash.records import Status
from perfdash.worker import linux

_INFRA_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EIO}
_INFRA_TEXT = (
    "no space left on device",
    "disk quota exceeded",
    "killed signal terminated program",  # gcc, when its compiler proper was killed
    "a process in the process pool was terminated abruptly",  # one of inductor's compile workers
    "gpu is lost",
    "fallen off the bus",
    "uncorrectable ecc error",
    "ecc uncorrectable",
    "uncorrectable nvlink error",
    "devices are busy or unavailable",
    "no cuda-capable device is detected",
    "system not yet initialized",
    "driver/library version mismatch",
    "system has unsupported display driver",  # cudaErrorSystemDriverMismatch
    "unable to determine the device handle",
)
_OOM_TEXT = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "virtual memory exhausted",
    "cannot allocate memory",
    "failed to allocate",  # ONNX Runtime, OpenVINO
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
)
# Errors with several causes, a lack of memory among them: the use of the memory limit decides.
_MAYBE_OOM_TEXT = (
    "could not create a primitive",
    "could not execute a primitive",
    "could not create a memory",
    "can't start new thread",
)
_NEAR = 0.8  # of the limit: a failed call has returned its memory by the time this is read
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

# Advice for what keeps a model from loading, added to the message.
_HINTS = {
    Status.MISSING_DEPENDENCY: "install it beside torch, in the interpreter that is measured",
    Status.NEEDS_NETWORK: "it fetches weights or data: fetch them beforehand, or let it (HF_HUB_OFFLINE=0)",
    Status.MISSING_DATA: "its data are not installed: run `python install.py MODEL` in the checkout",
}


class Unmeasurable(Exception):
    """The case ends with this status; the message is shown to the user."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def blame_eager(error: BaseException) -> None:
    """Mark an error as one of the eager side, in a phase that calls both."""
    with contextlib.suppress(Exception):  # one with slots
        error.is_of_eager = True  # type: ignore[attr-defined]


@contextlib.contextmanager
def of_eager() -> Iterator[None]:
    """Errors within are of the eager side."""
    try:
        yield
    except BaseException as error:
        blame_eager(error)
        raise


def classify(phase: str, error: BaseException) -> Status:
    """The status for an error in a phase of the case; the error's causes count as well."""
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, Unmeasurable):
            return link.status
    if phase == "start" or any(_is_infra(link) for link in chain):
        return Status.INFRA_ERROR
    if any(is_out_of_memory(link) for link in chain):
        return Status.EAGER_OOM if phase in ("load", "eager") else Status.OOM
    if phase == "load":
        if any(_is_network(link) for link in chain):
            return Status.NEEDS_NETWORK
        if any(isinstance(link, ImportError) for link in chain):
            return Status.MISSING_DEPENDENCY
        if any(_is_missing_data(link) for link in chain):
            return Status.MISSING_DATA
        return Status.MODEL_FAIL_TO_LOAD
    # Not so of memory: while both sides are timed, eager may lack what the other one holds.
    is_of_eager = phase == "eager" or getattr(error, "is_of_eager", False)
    return Status.EAGER_FAIL_TO_RUN if is_of_eager else Status.FAIL_TO_RUN


def describe(phase: str, error: BaseException) -> dict[str, Any]:
    """The `failed` event for an error: status, phase, type, message and the traceback as text."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    status = classify(phase, error)
    hint = _HINTS.get(status)
    message = str(error)[:2000] or type(error).__name__
    if message != type(error).__name__ and " " not in message:  # such as the key of a KeyError, a number
        message = f"{type(error).__name__}: {message}"
    return {
        "status": status.value,
        "phase": phase,
        "type": type(error).__name__,
        "message": f"{message} ({hint})" if hint else message,
        "traceback": text,
    }


def unknown_model(library: str, name: str, known: Iterable[str]) -> LookupError:
    """The error for a model that a library does not have, with similar names."""
    near = difflib.get_close_matches(name, list(known), n=4, cutoff=0.6)
    return LookupError(
        f"{library} has no model {name!r}" + (f" (did you mean {', '.join(near)}?)" if near else "")
    )


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
    # subprocess.CalledProcessError of a compiler that was killed, not of one that rejected the code.
    if getattr(error, "returncode", 0) in (-signal.SIGKILL, -signal.SIGTERM):
        return True
    if isinstance(error, OSError) and error.errno in _INFRA_ERRNO:
        return True
    return any(text in str(error).lower() for text in _INFRA_TEXT)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this error itself reports a lack of memory; its causes do not count."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    # Those of ONNX Runtime derive from Exception alone.
    is_of_onnxruntime = type(error).__module__.partition(".")[0] == "onnxruntime"
    if not isinstance(error, (RuntimeError, OSError)) and not is_of_onnxruntime:
        return False
    message = str(error).lower()
    if any(text in message for text in _OOM_TEXT):
        return True
    maybe = any(text in message for text in _MAYBE_OOM_TEXT) and "primitive descriptor" not in message
    return maybe and linux.share_of_data_limit() >= _NEAR


def _is_missing_data(error: BaseException) -> bool:
    """Whether a file is missing that torchbench's install.py puts below `.data` or `input_data`."""
    name = str(getattr(error, "filename", None) or "")
    return isinstance(error, FileNotFoundError) and ("/.data/" in name or "/input_data/" in name)


def _is_network(error: BaseException) -> bool:
    return any(cls.__name__ in _NETWORK_NAMES for cls in type(error).__mro__)
