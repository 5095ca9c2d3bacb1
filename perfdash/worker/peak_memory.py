"""Peak memory of a model: held + transient, by the kernel's high-water mark (docs/method.md).

Held is counted from tensors; transient is VmHWM - VmRSS over steady calls. No process's resident
size is ever subtracted from another's.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import gc
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, Callable, ContextManager, Iterable, Optional

import torch

from perfdash.worker import linux, pytree
from perfdash.worker.device import Cuda

_CALLS = 2


def storage_bytes(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Bytes by address of the storages behind tensors: shared and tied ones count once.

    Packed tensors (mkldnn) have no storage; they count by their elements, under their identity.
    """
    found: dict[int, int] = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        except (RuntimeError, NotImplementedError):
            found[-id(tensor)] = tensor.numel() * tensor.element_size()
    found.pop(0, None)
    return found


def weights(module: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers, and what quantised layers keep packed instead of them."""
    return [*module.parameters(), *module.buffers(), *_packed(module)]


def _packed(module: torch.nn.Module) -> list[torch.Tensor]:
    """Copies of the weights and biases of torch.ao's quantised layers: what is packed has no tensor.

    A linear layer asks a layer inside it, which is the one that counts.
    """
    found: list[torch.Tensor] = []
    for layer in module.modules():
        inside = [inner for inner in layer.modules() if inner is not layer]
        if hasattr(layer, "_weight_bias") and not any(hasattr(inner, "_weight_bias") for inner in inside):
            found += pytree.tensors_in(layer._weight_bias())
    return found


def attributes(module: torch.nn.Module) -> list[torch.Tensor]:
    """Tensors that a module holds and has not registered: in attributes, in containers and objects there.

    Also those of modules in plain lists, and what its functions have closed over.
    """
    registered = ("_parameters", "_buffers", "_modules")
    found: list[torch.Tensor] = []
    todo = [
        value for layer in module.modules() for name, value in vars(layer).items() if name not in registered
    ]
    seen: dict[int, Any] = {}  # and kept, so that no address is given out twice meanwhile
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            todo += value
        elif isinstance(value, functools.partial):
            todo += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, MethodType):
            todo.append(value.__self__)
        elif isinstance(value, FunctionType):
            cells = value.__closure__ or ()
            todo += [cell.cell_contents for cell in cells if cell != CellType()]
        elif hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)):
            todo += vars(value).values()
    return [tensor for tensor in found if tensor.device.type != "meta"]


def live_storages() -> dict[int, int]:
    """storage_bytes of every real tensor that Python holds now (fake and meta ones hold nothing).

    Garbage counts too: collect it before.
    """
    real = []
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type != "meta":
            real.append(thing)
    return storage_bytes(real)


def owned_since(before: dict[int, int]) -> int:
    """Bytes of the tensors that came alive since `before`: constants that a compiled artefact owns."""
    return sum(size for address, size in live_storages().items() if address not in before)


def transient_bytes(
    step: Callable[[], Any], context: Callable[[], ContextManager[None]]
) -> dict[str, Optional[int]]:
    """Bytes that a steady call needs beyond what is held.

    One warm-up call, garbage collection, every free page given back, the high-water mark reset;
    then two calls: VmHWM - VmRSS, None where the kernel cannot reset the mark; and by how much memory
    has grown with each of them (grown_bytes). They run in a thread of their own, within
    `context` (what torch keeps per thread): a new thread has a heap of its own, while the free chunks of
    the main one, different in every process, hid or added up to a third.
    """
    figures: dict[str, Optional[int]] = _in_a_new_thread(_transient, step, context)
    return figures


def reopened_bytes(
    make_step: Callable[[], Callable[[], Any]], context: Callable[[], ContextManager[None]]
) -> tuple[int, dict[str, Optional[int]]]:
    """Bytes held by what keeps its weights out of torch's sight, and its transient_bytes.

    The resident size of this process before and after `make_step` has made a second one just like the
    first and called it once. The libraries are in memory by then, and so is nothing else of the first
    that the second shares.
    """
    found: tuple[int, dict[str, Optional[int]]] = _in_a_new_thread(_reopened, make_step, context)
    return found


def _in_a_new_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work` returns, in a thread with a heap of its own, every large block mapped by itself."""
    linux.malloc_exact()
    linux.malloc_trim()  # what the timing kept for its next call counts to a limit as well
    linux.huge_pages(False)
    with ThreadPoolExecutor(max_workers=1) as thread:
        # torch keeps its configuration in context variables, which a thread does not inherit.
        inherited = contextvars.copy_context()
        found = thread.submit(inherited.run, work, *arguments).result()
    linux.huge_pages(True)
    return found


def _reopened(
    make_step: Callable[[], Callable[[], Any]], context: Callable[[], ContextManager[None]]
) -> tuple[int, dict[str, Optional[int]]]:
    with context():
        gc.collect()
        linux.malloc_trim()
        before = linux.memory_status()["VmRSS"]
        step = make_step()
        step()
        gc.collect()
        linux.malloc_trim()
        grown = linux.memory_status()["VmRSS"] - before
        return max(0, grown), _transient(step, contextlib.nullcontext)


def _transient(
    step: Callable[[], Any], context: Callable[[], ContextManager[None]]
) -> dict[str, Optional[int]]:
    with context():
        step()
        gc.collect()
        linux.malloc_trim()
        known = linux.reset_high_water_mark()
        before = linux.memory_status()
        for _ in range(_CALLS):  # as many for all: a side that keeps something would keep more
            step()
        after = linux.memory_status()
        gc.collect()
        linux.malloc_trim()
        grown = linux.memory_status()["VmRSS"] - before["VmRSS"]
    return {
        "transient_bytes": max(0, after["VmHWM"] - before["VmRSS"]) if known else None,
        "high_water_bytes": after["VmHWM"],
        "grown_bytes": max(0, grown) // _CALLS,
    }


def cuda_peak(device: Cuda, step: Callable[[], Any]) -> dict[str, Optional[int]]:
    """torch.cuda.max_memory_allocated over two steady calls, the reserved peak beside it, and the growth.

    What the other side left in caches goes first; a warm-up call makes again what this side needs.
    """
    device.drop_caches()
    step()
    gc.collect()
    device.reset_peak()
    before = device.allocated()
    for _ in range(_CALLS):
        step()
    allocated, reserved = device.peak()
    gc.collect()
    grown = max(0, device.allocated() - before) // _CALLS
    return {"peak_bytes": allocated, "reserved_bytes": reserved, "grown_bytes": grown}
