"""INT8 weights as int8_weights has them, compiled by Inductor."""

from __future__ import annotations

from typing import Any, Optional

from perfdash.records import Job
from perfdash.worker.backends import inductor, int8_weights

PACKAGES = int8_weights.PACKAGES
EXTRA = int8_weights.EXTRA
DTYPES = int8_weights.DTYPES
SCENARIOS = int8_weights.SCENARIOS
LOSSY = True


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The copy with INT8 layers, compiled."""
    return inductor.prepare(int8_weights.prepare(module, inputs, job), inputs, job)


def complaints(job: Job) -> list[str]:
    """What of the job's options this torch does not know, each as a message for the user."""
    return inductor.complaints(job)


def vector_isa(job: Job, find_out: bool) -> Optional[str]:
    """The vector instructions that inductor compiles for (inductor.vector_isa)."""
    return inductor.vector_isa(job, find_out)


def held_tensors(model: Any) -> list[Any]:
    """Those of the module that was compiled."""
    return int8_weights.held_tensors(model)


def notes(model: Any) -> list[str]:
    """How many layers there are."""
    return int8_weights.notes(model)
