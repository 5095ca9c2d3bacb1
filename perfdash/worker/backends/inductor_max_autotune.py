"""Inductor that tries several kernels for each matrix product and convolution, and keeps the fastest.

On the CPU its own C++ GEMM template competes with the library's kernel, for constant weights only: so they
are frozen there, as torch's guide advises. On CUDA Triton templates compete, and calls go through CUDA
graphs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

from perfdash.records import Job
from perfdash.worker.backends import inductor, inductor_freezing

# Not generation: on CUDA its graphs would read a cache that they have overwritten.
SCENARIOS = ("inference", "training")
OPTIONS = inductor.OPTIONS
_MODE = "max-autotune"
vector_isa = inductor.vector_isa


def effective_job(job: Job) -> Job:
    """The job in the mode max-autotune; with freezing for inference on the CPU."""
    in_mode = replace(job, compile_mode=_MODE)
    return inductor_freezing.effective_job(in_mode) if _is_frozen(job) else in_mode


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """inductor.prepare of the effective job."""
    return _back_end(job).prepare(module, inputs, effective_job(job))


def prepare_repeatable(module: Any, inputs: Any, job: Job) -> Any:
    """The same with the random numbers that eager draws: for the accuracy check."""
    return _back_end(job).prepare_repeatable(module, inputs, effective_job(job))


def held_tensors(model: Any) -> Optional[list[Any]]:
    """The constants of frozen code; None where the code uses the module's own weights."""
    return inductor_freezing.held_tensors(model) if hasattr(model, "generated_before") else None


def complaints(job: Job) -> list[str]:
    """The job's options that this torch does not know, or that contradict the mode."""
    messages = inductor.complaints(effective_job(job))
    if job.compile_mode not in (None, _MODE):
        messages.append(f"back end inductor-max-autotune is the mode {_MODE}, not {job.compile_mode!r}")
    return messages


def _back_end(job: Job) -> Any:
    return inductor_freezing if _is_frozen(job) else inductor


def _is_frozen(job: Job) -> bool:
    return job.case.device == "cpu" and job.case.scenario == "inference"
