"""What the measured interpreter can do: back ends, options, dtypes, vector instructions."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import traceback
from typing import Any, Callable, Optional

import torch

from perfdash.records import Job, Status
from perfdash.worker import compiler_caches, device, failures, loaded_files, registry


def probe(job: Job, emit: Callable[..., None]) -> None:
    """Emit the complaints about the job's device, dtype and options, and for a GPU's job the GPUs' names."""
    # Asking for a name starts CUDA, which fails on a broken GPU: that must not end a run on the CPU.
    on_gpu = job.case.device == "cuda" and torch.cuda.is_available()
    gpus = range(torch.cuda.device_count()) if on_gpu else ()
    emit("probed", complaints=complaints(job), cuda=[torch.cuda.get_device_name(index) for index in gpus])


def isa(job: Job, emit: Callable[..., None]) -> None:
    """Emit the vector instructions that inductor compiles for, and make what cases share of its work.

    On a GPU there are no vector instructions, and what is shared is Triton's driver stub.
    """
    kept = compiler_caches.kept_folder() if job.machine_cache else None
    if job.machine_cache:
        compiler_caches.take_kept(kept, job.machine_cache)
    compiler_caches.use_in(job.scratch, job.machine_cache)
    on_gpu = job.case.device == "cuda"
    instructions = None if on_gpu else vector_isa(job, find_out=True)
    whole = True
    if job.machine_cache and on_gpu:
        whole = compiler_caches.make_driver_stub(job.machine_cache)
    elif job.machine_cache:
        compiler_caches.share_vector_tests(job.machine_cache)
        whole = _make_headers(job, job.machine_cache)
    if job.machine_cache and whole:
        compiler_caches.keep(job.machine_cache, kept)
    if job.machine_cache:
        _read_loaded_files(job, kept)
    emit("probed", vector_isa=instructions, whole=whole)


def _make_headers(job: Job, target: str) -> bool:
    """Put the precompiled headers of the job's back end and options into `target`; whether they are whole."""
    of_backend = getattr(registry.backend(job.backend), "compile_sample", None)
    if of_backend is None:
        return compiler_caches.make_headers(job.scratch, target)
    return compiler_caches.make_headers(job.scratch, target, lambda: of_backend(job))


def _read_loaded_files(job: Job, kept: Optional[str]) -> None:
    """Take the digests of what every case loads, so that no case spends time on that."""
    try:
        loaded_files.copy_kept(kept, job.machine_cache)
        loaded_files.digests(job.machine_cache, without=[job.scratch])
        loaded_files.copy_kept(job.machine_cache, kept)
    except Exception:  # evidence only; the log has it, and each case tries for itself
        traceback.print_exc()


def complaints(job: Job) -> list[str]:
    """The job's options, device and dtype that this torch does not support, each as a message."""
    about_dtype = device.dtype_complaint(job.case.device, job.case.dtype)
    return [*_complaints_before_load(job), *([about_dtype] if about_dtype else [])]


def _complaints_before_load(job: Job) -> list[str]:
    """The complaints for which CUDA need not start: a loader may fork, and CUDA is unusable in a fork."""
    backend = registry.backend(job.backend)
    of_backend: list[str] = getattr(backend, "complaints", lambda job: [])(job)
    about_environment = device.environment_complaint(job.case.device)
    return [*of_backend, *([about_environment] if about_environment else [])]


def refuse(job: Job) -> None:
    """Raise Unmeasurable for a case whose back end is not installed, or does not support its options.

    Does not start CUDA. open_device refuses a dtype.
    """
    backend = registry.backend(job.backend)
    missing = [name for name in getattr(backend, "PACKAGES", ()) if importlib.util.find_spec(name) is None]
    if missing:
        on_gpu = getattr(backend, "EXTRA_ON_GPU", None) if job.case.device == "cuda" else None
        extra = on_gpu or backend.EXTRA
        raise failures.Unmeasurable(
            Status.MISSING_DEPENDENCY,
            f"back end {job.case.backend} needs {', '.join(missing)}: install them beside torch in the "
            f"interpreter that is measured (they are in the extra `{extra}` of perfdash's pyproject.toml)",
        )
    if messages := _complaints_before_load(job):
        raise failures.Unmeasurable(Status.SKIPPED, "; ".join(messages))


def open_device(job: Job) -> device.Cpu | device.Cuda:
    """Open the case's device. Raises Unmeasurable if it is missing or does not support the case's dtype."""
    opened = device.open_device(job.case.device, job.case.threads, job.tf32)
    if message := device.dtype_complaint(job.case.device, job.case.dtype):
        raise failures.Unmeasurable(Status.SKIPPED, message)
    return opened


def prepare_backend(job: Job) -> None:
    """Import the back end's modules, and let it test the vector instructions, before compiling is timed.

    Neither belongs to a case's compilation latency. Where a test that passed is shared
    (worker.compiler_caches) this takes no time; torch 2.13 leaves no mark of one, and tests in every process.
    """
    for name in getattr(registry.backend(job.backend), "PACKAGES", ()):
        importlib.import_module(name)
    for name in getattr(registry.backend(job.backend), "MODULES", ()):
        # Another version has other modules, or cannot import one: converting imports what it needs.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if job.case.device == "cpu":
        vector_isa(job, find_out=True)


def has_own_threads(job: Job) -> bool:
    """Whether the back end computes the case in threads that eager does not use."""
    several = job.case.device == "cpu" and job.case.threads > 1
    return several and getattr(registry.backend(job.backend), "OWN_THREADS", False)


def vector_isa(job: Job, find_out: bool) -> Optional[str]:
    """The vector instructions that the back end compiles for, where it knows them."""
    isa_of_backend: Any = getattr(registry.backend(job.backend), "vector_isa", None)
    return isa_of_backend(job, find_out) if isa_of_backend else None
