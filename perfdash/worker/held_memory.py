"""Bytes that a model holds between calls, counted from its tensors."""

from __future__ import annotations

import functools
import gc
from collections import deque
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, Iterable

import torch

from perfdash.worker import pytree


def storage_bytes(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Bytes of the storages behind tensors, by address: shared and tied tensors count once.

    Packed tensors (mkldnn) have no storage; their elements count, under the tensor's identity.
    """
    sizes: dict[int, int] = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        except (RuntimeError, NotImplementedError):
            sizes[-id(tensor)] = tensor.numel() * tensor.element_size()
    sizes.pop(0, None)  # the address of an empty storage
    return sizes


def weights(module: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters, buffers and the packed weights of quantised layers."""
    return [*module.parameters(), *module.buffers(), *_packed_weights(module)]


def _packed_weights(module: torch.nn.Module) -> list[torch.Tensor]:
    """Copies of the weights and biases of torch.ao's quantised layers, whose packed form is no tensor.

    A quantised linear layer delegates to a layer inside it, and that layer is the one that counts.
    """
    tensors: list[torch.Tensor] = []
    for layer in module.modules():
        inside = [inner for inner in layer.modules() if inner is not layer]
        if hasattr(layer, "_weight_bias") and not any(hasattr(inner, "_weight_bias") for inner in inside):
            tensors += pytree.tensors_in(layer._weight_bias())
    return tensors


def unregistered_tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    """Tensors in a module's plain attributes, and in the containers, objects and closures there.

    Modules in plain lists count too.
    """
    registered = ("_parameters", "_buffers", "_modules")
    tensors: list[torch.Tensor] = []
    todo = [
        value for layer in module.modules() for name, value in vars(layer).items() if name not in registered
    ]
    seen: dict[int, Any] = {}  # holds the objects, so that no address is reused meanwhile
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            tensors.append(value)
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
    return [tensor for tensor in tensors if tensor.device.type != "meta"]


def live_storages() -> dict[int, int]:
    """storage_bytes of every real tensor that Python holds now; fake and meta tensors hold nothing.

    Garbage counts: collect it first.
    """
    return storage_bytes(
        thing
        for thing in gc.get_objects()
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type != "meta"
    )


def bytes_since(before: dict[int, int]) -> int:
    """Bytes of the live tensors that are not in `before`: constants that a compiled artefact owns."""
    return sum(size for address, size in live_storages().items() if address not in before)
