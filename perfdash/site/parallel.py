"""A map over several processes, for pages: each is made of values that are there before the fork."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from perfdash.errors import MachineError

T = TypeVar("T")
R = TypeVar("R")

_FEWEST = 200  # items that are worth a process


def mapped(function: Callable[[T], R], items: Sequence[T], jobs: int | None = None) -> list[R]:
    """function(item) of each, in order; `function` reads no database, since a connection is no child's.

    Each process has its share from the start and ends with it, so that none outlives this one for long
    if it is killed. Raises what `function` raises; MachineError where a process was killed.
    """
    jobs = min(jobs or cores(), len(items) // _FEWEST)
    if jobs < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return [function(item) for item in items]
    context = multiprocessing.get_context("fork")
    readers: list[Connection] = []
    processes = []
    found: list[Any] = [None] * len(items)
    try:
        for place in range(jobs):
            reader, writer = context.Pipe(duplex=False)
            readers.append(reader)
            share = function, items[place::jobs], writer, readers
            processes.append(context.Process(target=_work, args=share, daemon=True))
            processes[-1].start()
            writer.close()
        for place, reader in enumerate(readers):
            try:
                answer = reader.recv()
            except EOFError:
                raise MachineError(
                    "a process that makes pages was killed (short of memory?); --jobs 1 needs the least"
                ) from None
            if isinstance(answer, BaseException):
                raise answer
            found[place::jobs] = answer
    finally:
        for process in processes:
            process.terminate()
            process.join()
        for reader in readers:
            reader.close()
    return found


def _work(
    function: Callable[[Any], Any], items: Sequence[Any], writer: Connection, readers: Sequence[Connection]
) -> None:
    for reader in readers:  # else this process would hold its own pipe open when nobody reads any more
        reader.close()
    try:
        answer: Any = [function(item) for item in items]
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        answer = error
    try:
        writer.send(answer)
    except BrokenPipeError:
        os._exit(1)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
