"""Is there room for this batch size? One side of the case, loaded and run by itself; nothing is judged."""

from __future__ import annotations

import gc
from typing import Any

from perfdash.worker import capabilities, eager_and_compiled, linux

_STEPS = 2  # the optimiser has its state from the first step on


def of_eager(case: Any) -> None:
    """Eager's step, as often as shows what it needs. `case` is worker.case's."""
    case.begin()
    with case.scenario.context(case.job), case.phase("eager"):
        case.use_threads()
        _run(case, case.eager_step)


def of_backend(case: Any) -> None:
    """The back end's: eager's own model is gone before, unless it is the same."""
    case.begin()
    job = case.job
    with case.scenario.context(job), case.phase("compile"):
        case.use_threads()
        own = case.variant() if job.variant else eager_and_compiled.backend_side(case.baseline, job)
        case.sides, case.baseline, case.eager_step = [own], None, None
        gc.collect()
        linux.malloc_trim()
        capabilities.import_packages(job)
        case.seed()
        _run(case, case.make_step(own, case.backend.prepare(own.module, own.inputs, job)))


def _run(case: Any, step: Any) -> None:
    for _ in range(_STEPS):
        step()
    case.device.synchronize()
    case.emit("done")
