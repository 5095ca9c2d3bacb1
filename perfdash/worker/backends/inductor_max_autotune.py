"""Inductor that tries several kernels for each matrix product and convolution, and keeps the fastest.

On the CPU that is its own C++ GEMM template against the library's kernel, for weights that are constants:
so they are frozen there, as torch's guide to it has it. On CUDA Triton templates, and the calls go through
CUDA graphs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

from perfdash.records import Job
from perfdash.worker.backends import inductor, inductor_freezing

# Not generation: on CUDA its graphs would be given the cache that they have written over.
SCENARIOS = ("inference", "training")
_MODE = "max-autotune"


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """inductor.prepare in the mode max-autotune; of inference on the CPU with freezing."""
    back_end = inductor_freezing if _freezes(job) else inductor
    return back_end.prepare(module, inputs, replace(job, compile_mode=_MODE))


def held_tensors(model: Any) -> Optional[list[Any]]:
    """What frozen code holds; None where it holds the module's own weights."""
    return inductor_freezing.held_tensors(model) if hasattr(model, "generated_before") else None


def complaints(job: Job) -> list[str]:
    """What of the job's options this torch does not know, or what contradicts the mode."""
    found = inductor.complaints(replace(job, compile_mode=_MODE))
    if job.compile_mode not in (None, _MODE):
        found.append(f"back end inductor-max-autotune is the mode {_MODE}, not {job.compile_mode!r}")
    return found


def vector_isa(job: Job, find_out: bool) -> Optional[str]:
    """The vector instructions that inductor compiles for (inductor.vector_isa)."""
    return inductor.vector_isa(job, find_out)


def _freezes(job: Job) -> bool:
    return job.case.device == "cpu" and job.case.scenario == "inference"
