"""The INT8 weights of int8_weights.py, compiled by inductor."""

from __future__ import annotations

from typing import Any

from perfdash.records import Job
from perfdash.worker.backends import inductor, int8_weights

PACKAGES = int8_weights.PACKAGES
EXTRA = int8_weights.EXTRA
DTYPES = int8_weights.DTYPES
SCENARIOS = int8_weights.SCENARIOS
OPTIONS = inductor.OPTIONS
LOSSY = True
complaints = inductor.complaints
vector_isa = inductor.vector_isa
held_tensors = int8_weights.held_tensors
notes = int8_weights.notes


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The copy with INT8 layers, compiled."""
    return inductor.prepare(int8_weights.prepare(module, inputs, job), inputs, job)
