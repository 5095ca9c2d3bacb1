"""Run a function in a forked child, so that what it allocates or breaks stays there."""

from __future__ import annotations

import json
import os
import select
from typing import Any, Callable, Optional

from perfdash.worker import failures, linux

_LOOK_MS = 100  # how often to see whether the child has ended


class ChildFailed(Exception):
    """The child's work raised; `failed` is the event that describes it (failures.describe)."""

    def __init__(self, failed: dict[str, Any]) -> None:
        super().__init__(failed["message"])
        self.failed = failed


class ChildDied(Exception):
    """A signal ended the child (`signal`, a number), or it ended without an answer (0)."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"ended by signal {signal}" if signal else "ended without an answer")
        self.signal = signal


def in_child(phase: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The JSON-able dict that `work` returns in a forked child. Raises ChildFailed, ChildDied.

    The parent sleeps meanwhile. No OpenMP pool may exist in the parent at this point:
    libgomp's threads do not survive a fork, and the child would wait for them forever.
    """
    read_end, write_end = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        code = 1
        try:
            linux.die_with_parent(parent)
            try:
                answer = {"ok": work()}
            except BaseException as error:
                answer = {"failed": failures.describe(phase, error)}
            with os.fdopen(write_end, "w") as pipe:
                json.dump(answer, pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    try:
        text, status = _read_until_end(read_end, pid)
    finally:
        os.close(read_end)
    if os.WIFSIGNALED(status):
        raise ChildDied(os.WTERMSIG(status))
    try:
        answer = json.loads(text)
    except ValueError:
        raise ChildDied(0) from None
    if "failed" in answer:
        raise ChildFailed(answer["failed"])
    ok: dict[str, Any] = answer["ok"]
    return ok


def _read_until_end(pipe: int, pid: int) -> tuple[bytes, int]:
    """What a child writes into a pipe, and its exit status.

    The end of the child counts, not only that of the pipe: processes that the child has forked and left
    behind, such as a pool of multiprocessing, hold the pipe open.
    """
    chunks: list[bytes] = []
    status: Optional[int] = None
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while True:
        if poll.poll(0 if status is not None else _LOOK_MS):
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                break
            chunks.append(chunk)
        elif status is not None:
            break
        else:
            ended, of_ended = os.waitpid(pid, os.WNOHANG)
            status = of_ended if ended else None
    if status is None:
        status = os.waitpid(pid, 0)[1]
    return b"".join(chunks), status
