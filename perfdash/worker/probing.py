"""What the measured interpreter can do, asked once before the first case; nothing is measured."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from perfdash.records import Job
from perfdash.worker import compilation, device, headers, registry


def probe(job: Job, emit: Callable[..., None]) -> None:
    """Emits what stands against the job's device, dtype and options, and the GPUs there are."""
    backend = registry.find("backends", job.case.backend)
    complaints: list[str] = getattr(backend, "complaints", lambda job: [])(job)
    about_dtype = device.complaint(job.case.device, job.case.dtype)
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    emit(
        "probed",
        complaints=[*complaints, *([about_dtype] if about_dtype else [])],
        cuda=[torch.cuda.get_device_name(index) for index in gpus],
    )


def isa(job: Job, emit: Callable[..., None]) -> None:
    """Emits what inductor compiles for; on the way it makes the headers that all cases share."""
    use_own_caches(job)
    found = vector_isa(job, find_out=True)
    whole = headers.make(job.scratch, job.headers) if job.headers else True
    emit("probed", vector_isa=found, whole=whole)


def vector_isa(job: Job, find_out: bool) -> Optional[str]:
    """The vector instructions that the back end compiles for, where it says so."""
    ask: Any = getattr(registry.find("backends", job.case.backend), "vector_isa", None)
    return ask(job, find_out) if ask else None


def use_own_caches(job: Job) -> None:
    """Everything that compiling leaves behind goes into the job's scratch folder."""
    compilation.use_caches_in(job.scratch)
    headers.use_in(job.scratch, job.headers)
