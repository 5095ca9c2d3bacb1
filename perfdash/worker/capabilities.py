"""What the measured interpreter can do, asked once before the first case; nothing is measured."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Callable, Optional

import torch

from perfdash.records import Job, Status
from perfdash.worker import compilation, compiler_caches, device, failures, registry


def probe(job: Job, emit: Callable[..., None]) -> None:
    """Emits what stands against the job's device, dtype and options, and the GPUs there are."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    emit(
        "probed",
        complaints=complaints(job),
        cuda=[torch.cuda.get_device_name(index) for index in gpus],
    )


def complaints(job: Job) -> list[str]:
    """What of the job's options, device and dtype this torch does not do, each a message for the user."""
    backend = registry.backend(job.backend)
    of_backend: list[str] = getattr(backend, "complaints", lambda job: [])(job)
    about_dtype = device.complaint(job.case.device, job.case.dtype)
    return [*of_backend, *([about_dtype] if about_dtype else [])]


def refuse(job: Job) -> None:
    """Raises Unmeasurable for a case whose back end is not installed, or cannot do what it is told."""
    backend = registry.backend(job.backend)
    missing = [name for name in getattr(backend, "PACKAGES", ()) if importlib.util.find_spec(name) is None]
    if missing:
        on_gpu = getattr(backend, "EXTRA_ON_GPU", None) if job.case.device == "cuda" else None
        extra = on_gpu or backend.EXTRA
        raise failures.Unmeasurable(
            Status.MISSING_DEPENDENCY,
            f"back end {job.case.backend} needs {', '.join(missing)}: install perfdash[{extra}], or "
            "these beside torch in the interpreter that is measured",
        )
    if found := complaints(job):
        raise failures.Unmeasurable(Status.SKIPPED, "; ".join(found))


def import_packages(job: Job) -> None:
    """What the back end imports, beforehand: it belongs to no case's compilation latency."""
    for name in getattr(registry.backend(job.backend), "PACKAGES", ()):
        importlib.import_module(name)


def isa(job: Job, emit: Callable[..., None]) -> None:
    """Emits what inductor compiles for; on the way it makes the headers that all cases share."""
    use_own_caches(job)
    found = vector_isa(job, find_out=True)
    whole = compiler_caches.make(job.scratch, job.headers) if job.headers else True
    emit("probed", vector_isa=found, whole=whole)


def vector_isa(job: Job, find_out: bool) -> Optional[str]:
    """The vector instructions that the back end compiles for, where it says so."""
    ask: Any = getattr(registry.backend(job.backend), "vector_isa", None)
    return ask(job, find_out) if ask else None


def use_own_caches(job: Job) -> None:
    """Everything that compiling leaves behind goes into the job's scratch folder."""
    compilation.use_caches_in(job.scratch)
    compiler_caches.use_in(job.scratch, job.headers)
