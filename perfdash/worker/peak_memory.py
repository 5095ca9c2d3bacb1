"""Peak memory of eager and of the back end: held + transient on the CPU, the allocator's peak on a GPU.

Held bytes are counted from tensors (held_memory.py). Transient bytes are VmHWM - VmRSS over steady calls
of one process: the resident sizes of two processes are never subtracted (docs/method.md).
"""

from __future__ import annotations

import contextlib
import contextvars
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, ContextManager, Optional

import torch

from perfdash.worker import held_memory, linux, pytree
from perfdash.worker.device import Cpu, Cuda
from perfdash.worker.eager_and_compiled import BothSides, ModelSide

Context = Callable[[], ContextManager[None]]
Figures = dict[str, Optional[int]]  # bytes by name; None where they are unknown

_CALLS = 2


def try_steps(step: Callable[[], Any], device: Cpu | Cuda) -> None:
    """Call the step twice: the optimiser allocates its state in the first call."""
    step()
    step()
    device.synchronize()


def of_step(step: Callable[[], Any], device: Cpu | Cuda, context: Context) -> Figures:
    """Bytes that steady calls need beyond what is held; on a GPU the whole peak."""
    return _gpu_peak(device, step) if isinstance(device, Cuda) else transient_bytes(step, context)


def of_compiled(comparison: BothSides, held_bytes: int, constants_bytes: int, context: Context) -> Figures:
    """The event `memory`: held_bytes, constants_bytes and what of_step returns.

    The back end's held bytes are those of the tensors that it names; else of the module before its first
    call (`held_bytes`) and of what two calls left (`constants_bytes`); a back end that holds no tensors is
    opened a second time. Eager is not called in this process after it.
    """
    backend, side, device = comparison.backend, comparison.compiled_side, comparison.device
    inputs = list(pytree.tensors_in(side.inputs))
    if getattr(backend, "OPAQUE_ON_GPU", False) and isinstance(device, Cuda):
        return {"held_bytes": None, "constants_bytes": 0, "peak_bytes": None, "reserved_bytes": None}
    if hasattr(backend, "reopen") and device.kind == "cpu":

        def reopened_step() -> Callable[[], Any]:
            step: Callable[[], Any] = comparison.scenario.make_step(
                backend.reopen(comparison.compiled_model), side, device
            )
            return step

        grown, figures = _in_new_thread(_reopened, reopened_step, context)
        held = sum(held_memory.storage_bytes(inputs).values()) + grown
        return {"held_bytes": held, "constants_bytes": 0, **figures}
    named = backend.held_tensors(comparison.compiled_model) if hasattr(backend, "held_tensors") else None
    if named is not None:
        held_bytes = sum(held_memory.storage_bytes([*named, *inputs]).values())
        constants_bytes = 0
    release_eager(device, comparison.eager_side, side, comparison.eager_step)
    if device.kind == "cuda" and named is not None:  # the back end has its own weights
        side.state = None
        _replace_by_host_copies(side.module)
        torch.cuda.empty_cache()
    figures = of_step(comparison.compiled_step, device, context)
    return {"held_bytes": held_bytes, "constants_bytes": constants_bytes, **figures}


def _replace_by_host_copies(module: torch.nn.Module) -> None:
    """Move a module to the host, without moving tensors that a back end has kept of it.

    Module.to moves parameters in place, and torch.jit.freeze keeps the very parameters that need no gradient.
    """
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        module.to("cpu")
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


def release_eager(device: Cpu | Cuda, eager: ModelSide, compiled: ModelSide, eager_step: Any) -> None:
    """Free what only eager needs: on a GPU the allocator's peak counts everything that is allocated."""
    release = getattr(eager_step, "release", None)
    if release:
        release()
    if not isinstance(device, Cuda):
        return
    if compiled.inputs is not eager.inputs:
        for tensor in pytree.tensors_in(eager.inputs):
            tensor.data = tensor.data.to("cpu")
    if compiled.module is not eager.module:
        eager.state = None  # it holds the buffers that leave the GPU
        eager.module.to("cpu")
    device.drop_caches()


def transient_bytes(step: Callable[[], Any], context: Context) -> Figures:
    """Bytes that a steady call needs beyond what is held, by the kernel's high-water mark.

    One warm-up call; garbage is collected, free pages go back to the kernel and the mark is reset; then two
    calls. transient_bytes is VmHWM - VmRSS, None where the kernel cannot reset the mark; grown_bytes is the
    growth of resident memory with each call. The calls run in a new thread within `context`, which
    sets what torch keeps per thread: the free chunks of the main thread's heap, different in every
    process, hid or added up to a third of the figure.
    """
    figures: Figures = _in_new_thread(_transient, step, context)
    return figures


def _in_new_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call `work` in a thread with a heap of its own, where every large block is mapped by itself."""
    linux.malloc_exact()
    linux.malloc_trim()  # pages that the timing kept for its next call count against a limit as well
    linux.huge_pages(False)
    with ThreadPoolExecutor(max_workers=1) as thread:
        # torch keeps its configuration in context variables, which a thread does not inherit.
        inherited = contextvars.copy_context()
        result = thread.submit(inherited.run, work, *arguments).result()
    linux.huge_pages(True)
    return result


def _reopened(make_step: Callable[[], Callable[[], Any]], context: Context) -> tuple[int, Figures]:
    """Bytes held by a back end whose weights torch cannot see, and its transient bytes.

    The difference in resident size of this process before and after `make_step` made a second session and
    called it once. The first session has loaded the libraries, so the difference is the session alone.
    `file_bytes` of it are pages of the back end's file, which the kernel may drop and read again.
    """
    with context():
        before, file_before = _resident_bytes(), _file_bytes()
        step = make_step()
        step()
        grown = _resident_bytes() - before
        of_file = _file_bytes() - file_before
        figures = _transient(step, contextlib.nullcontext)
        return max(0, grown), {**figures, "file_bytes": max(0, of_file)}


def _resident_bytes() -> int:
    """VmRSS without garbage and free pages."""
    gc.collect()
    linux.malloc_trim()
    return linux.memory_status()["VmRSS"]


def _transient(step: Callable[[], Any], context: Context) -> Figures:
    with context():
        step()
        gc.collect()
        linux.malloc_trim()
        is_reset = linux.reset_high_water_mark()
        before = linux.memory_status()
        for _ in range(_CALLS):  # the same count for both sides: a side that keeps something grows by call
            step()
        peak = linux.memory_status()["VmHWM"]
        grown = _resident_bytes() - before["VmRSS"]
    return {
        "transient_bytes": max(0, peak - before["VmRSS"]) if is_reset else None,
        "high_water_bytes": peak,
        "grown_bytes": max(0, grown) // _CALLS,
    }


def _gpu_peak(device: Cuda, step: Callable[[], Any]) -> Figures:
    """The allocator's peak over two steady calls, what CUDA graphs keep, the reserved peak, the growth.

    First the caches that the other side left are emptied; a warm-up call fills those this side needs. Garbage
    in reference cycles is collected between calls: whether it still lay there would be chance. A replay of a
    CUDA graph allocates nothing, so what its private pool keeps counts as needed; that is known to the size
    of the outputs, which are held while it is counted.
    """
    device.drop_caches()
    step()
    gc.collect()
    device.reset_peak()
    before = device.allocated()
    outputs: Any = None
    for _ in range(_CALLS):
        outputs = None
        gc.collect()
        outputs = step()
    pools = device.graph_pool_bytes()
    allocated, reserved = device.peak()
    del outputs
    gc.collect()
    grown = max(0, device.allocated() - before) // _CALLS
    return {
        "peak_bytes": allocated + pools,
        "graph_pool_bytes": pools,
        "reserved_bytes": reserved,
        "grown_bytes": grown,
    }


def _file_bytes() -> int:
    """Resident pages of files; those of a file in a memory file system count as shared memory."""
    status = linux.memory_status()
    return status["RssFile"] + status.get("RssShmem", 0)
