"""Phases of a case whose batch grows until memory ends: where eager has no room left, the back end goes on.

Of any other case these are the phases as they are. `case` is worker.case's.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, Callable, Optional

from perfdash.records import Status
from perfdash.worker import failures, footprint
from perfdash.worker.child import ChildFailed


def eager(case: Any) -> None:
    """Eager's own memory may end here, in its child."""
    try:
        case.eager()
        return
    except (ChildFailed, RuntimeError, MemoryError) as error:  # of a GPU it comes from no child
        failed = error.failed if isinstance(error, ChildFailed) else failures.describe("eager", error)
        if not case.job.until_oom or failed["status"] != Status.EAGER_OOM.value:
            raise
    _lose(case, failed)


def repeated(case: Any) -> dict[str, Any]:
    """How two eager runs differ; {differ, unrepeated}: why it is not known, where memory was wanting for
    the copies of two runs. One run may have room all the same.
    """
    found: list[Any] = []
    why = _wanting(case, lambda: found.append(case.differs()))
    if why is None:
        return {"differ": found[0]}
    return {"differ": None, "unrepeated": f"no memory was left to see whether eager repeats itself: {why}"}


def accuracy(case: Any) -> None:
    """Copies that only the check needs are not to end it."""
    why = _wanting(case, case.accuracy)
    if why is not None:
        gc.collect()
        detail = f"no memory was left for the check itself: {why}"
        case.emit("accuracy", status="skipped", detail=detail)


def latency(case: Any) -> None:
    """Eager may have had room by itself, in the child, and have none beside the back end."""
    try:
        case.latency()
        return
    except (RuntimeError, MemoryError) as error:
        # A replica's samples are taken together with those of the main process: of both sides, or not at all.
        alone = case.eager_lost or case.job.role == "replica"
        if not case.job.until_oom or alone or not failures.is_out_of_memory(error):
            raise
        failed = {**failures.describe("eager", error), "status": Status.EAGER_OOM.value}
    _lose(case, failed)
    footprint.drop_eager(case.device, case.baseline, case.own, case.eager_step)
    gc.collect()
    case.latency()


def memory(case: Any) -> None:
    """What was timed had room: memory that only this measurement lacks is not to undo it."""
    why = _wanting(case, case.memory)
    if why is not None:
        gc.collect()
        case.emit("memory", held_bytes=None, constants_bytes=0, transient_bytes=None, lost=why)


def _wanting(case: Any, work: Callable[[], Any]) -> Optional[str]:
    """Does the work; what it says where memory was wanting in a case that climbs, else None."""
    try:
        work()
    except (RuntimeError, MemoryError) as error:
        if not case.job.until_oom or not failures.is_out_of_memory(error):
            raise
        return str(error)[:200]
    return None


def _lose(case: Any, failed: dict[str, Any]) -> None:
    print(failed["traceback"], file=sys.stderr, flush=True)
    case.eager_lost = True
    case.emit("eager_lost", **failed)
