"""Inductor with the weights frozen into the compiled code as constants: folded, packed, fused."""

from __future__ import annotations

import os
from array import array
from dataclasses import replace
from typing import Any, Optional

from perfdash.records import Job
from perfdash.worker.backends import inductor

DEVICES = ("cpu",)
OPTIONS = inductor.OPTIONS


def effective_job(job: Job) -> Job:
    """The job with freezing on."""
    return replace(job, inductor_config={**job.inductor_config, "freezing": True})


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """inductor.prepare with freezing on."""
    before = len(_generated())
    model = inductor.prepare(module, inputs, effective_job(job))
    # Past the compiled module's own __setattr__, which would set it on the module inside.
    object.__setattr__(model, "generated_before", before)
    return model


def prepare_repeatable(module: Any, inputs: Any, job: Job) -> Any:
    """inductor.prepare_repeatable, frozen as well. held_tensors does not count its constants."""
    model = inductor.prepare_repeatable(module, inputs, effective_job(job))

    def call(*arguments: Any, **keywords: Any) -> Any:
        before = len(_generated())
        outputs = model(*arguments, **keywords)
        for generated in _generated()[before:]:
            generated.is_for_accuracy = True
        return outputs

    return call


def complaints(job: Job) -> list[str]:
    """The job's options that this torch does not know, each as a message for the user."""
    return inductor.complaints(effective_job(job))


def vector_isa(job: Job, find_out: bool) -> Optional[str]:
    """The vector instructions that inductor compiles for (inductor.vector_isa)."""
    return inductor.vector_isa(effective_job(job), find_out)


def held_tensors(model: Any) -> list[Any]:
    """The constants of the timed code, generated since `prepare`: none before the first call.

    Where a kernel takes a packed weight and the plain one (MKL's products), both count. A packed weight is
    returned as a tensor of as many bytes as it really uses: MKL allocates megabytes for any weight.
    """
    import torch

    constants = [
        value
        for module in _generated()[model.generated_before :]
        if not hasattr(module, "is_for_accuracy")
        for value in vars(module).values()
        if isinstance(value, torch.Tensor)
    ]
    return [_stand_in(tensor) if tensor.is_mkldnn else tensor for tensor in constants]


def _stand_in(packed: Any) -> Any:
    import torch

    size = packed.numel() * packed.element_size()
    try:
        size = min(size, _resident_bytes(int(torch.ops.mkldnn.data_ptr(packed)), size))
    except (AttributeError, RuntimeError, OSError):  # another torch or system: the allocated size
        pass
    return torch.empty(size, dtype=torch.uint8)


def _resident_bytes(address: int, size: int) -> int:
    """Bytes in memory of the whole pages from `address` on, by the kernel's page map."""
    page = os.sysconf("SC_PAGE_SIZE")
    first, last = address // page, (address + size - 1) // page
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(8 * first)
        entries = array("Q", pages.read(8 * (last - first + 1)))
    return page * sum(entry >> 63 for entry in entries)


def _generated() -> list[Any]:
    """The Python modules that inductor has generated and loaded in this process, in order."""
    from torch._inductor.codecache import PyCodeCache

    if hasattr(PyCodeCache, "modules"):
        return list(PyCodeCache.modules)
    return list(PyCodeCache.cache.values())  # until torch 2.5
