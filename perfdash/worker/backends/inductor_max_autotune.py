"""Inductor that tries several kernels for each matrix product and convolution, and keeps the fastest.

On the CPU that is its own C++ GEMM template against the library's kernel; on CUDA Triton templates,
and the calls go through CUDA graphs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

from perfdash.records import Job
from perfdash.worker.backends import inductor

# Not generation: on CUDA its graphs would be given the cache that they have written over.
SCENARIOS = ("inference", "training")
_MODE = "max-autotune"


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """inductor.prepare in the mode max-autotune."""
    return inductor.prepare(module, inputs, replace(job, compile_mode=_MODE))


def complaints(job: Job) -> list[str]:
    """What of the job's options this torch does not know, or what contradicts the mode."""
    found = inductor.complaints(replace(job, compile_mode=_MODE))
    if job.compile_mode not in (None, _MODE):
        found.append(f"back end inductor-max-autotune is the mode {_MODE}, not {job.compile_mode!r}")
    return found


def vector_isa(job: Job, find_out: bool) -> Optional[str]:
    """The vector instructions that inductor compiles for (inductor.vector_isa)."""
    return inductor.vector_isa(job, find_out)
