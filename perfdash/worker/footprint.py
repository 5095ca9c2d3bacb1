"""What a side needs of memory: held + transient on the CPU, the allocator's own peak on a GPU."""

from __future__ import annotations

from typing import Any, Callable, ContextManager, Optional

import torch

from perfdash.worker import peak_memory, pytree
from perfdash.worker.accuracy import Compared
from perfdash.worker.device import Cpu, Cuda
from perfdash.worker.eager_and_compiled import Side

Context = Callable[[], ContextManager[None]]


def of_step(step: Callable[[], Any], device: Cpu | Cuda, context: Context) -> dict[str, Optional[int]]:
    """What steady calls need beyond what is held (transient_bytes), or on a GPU the whole peak."""
    if isinstance(device, Cuda):
        return peak_memory.cuda_peak(device, step)
    return peak_memory.transient_bytes(step, context)


def of_backend(
    compared: Compared, held_bytes: int, constants_bytes: int, context: Context
) -> dict[str, Optional[int]]:
    """The event `memory`: held_bytes, constants_bytes and what of_step tells.

    What the back end holds is counted from tensors: those that it names, else the module's before its first
    call (held_bytes) and what came alive in two calls (constants_bytes); where it holds none, by opening
    it once more. The last phase: eager is not called after it.
    """
    backend, own = compared.backend, compared.own
    inputs = list(pytree.tensors_in(own.inputs))
    if getattr(backend, "OPAQUE_ON_GPU", False) and isinstance(compared.device, Cuda):
        return {"held_bytes": None, "constants_bytes": 0, "peak_bytes": None, "reserved_bytes": None}
    if hasattr(backend, "reopen") and compared.device.kind == "cpu":

        def again() -> Callable[[], Any]:
            step: Callable[[], Any] = compared.scenario.make_step(
                backend.reopen(compared.model), own, compared.device
            )
            return step

        grown, figures = peak_memory.reopened_bytes(again, context)
        held = sum(peak_memory.storage_bytes(inputs).values()) + grown
        return {"held_bytes": held, "constants_bytes": 0, **figures}
    held, constants = held_bytes, constants_bytes
    named = backend.held_tensors(compared.model) if hasattr(backend, "held_tensors") else None
    if named is not None:
        held, constants = sum(peak_memory.storage_bytes([*named, *inputs]).values()), 0
    drop_eager(compared.device, compared.baseline, own, compared.eager_step)
    if compared.device.kind == "cuda" and named is not None:  # it has its own weights
        own.state = None
        own.module.to("cpu")
        torch.cuda.empty_cache()
    figures = of_step(compared.backend_step, compared.device, context)
    return {"held_bytes": held, "constants_bytes": constants, **figures}


def drop_eager(device: Cpu | Cuda, baseline: Side, own: Side, eager_step: Any) -> None:
    """On a GPU the allocator's peak is of all that is there: what the back end does not need goes."""
    release = getattr(eager_step, "release", None)
    if release:
        release()
    if not isinstance(device, Cuda):
        return
    if own.inputs is not baseline.inputs:
        for tensor in pytree.tensors_in(baseline.inputs):
            tensor.data = tensor.data.to("cpu")
    if own.module is not baseline.module:
        baseline.state = None  # it holds the buffers that are to go
        baseline.module.to("cpu")
    device.drop_caches()
