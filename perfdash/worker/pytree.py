"""Nested inputs and outputs of models: tuples, dicts, dataclasses, objects with tensors and numbers."""

from __future__ import annotations

import copy
import dataclasses
import sys
from typing import Any, Callable, Iterator

import torch


def leaves(value: Any, path: str = "out") -> Iterator[tuple[str, Any]]:
    """(path, leaf) of every tensor and plain value; arrays as tensors, objects by their attributes."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for part in dataclasses.fields(value):
            yield from leaves(getattr(value, part.name, None), f"{path}.{part.name}")
    elif hasattr(value, "__array__") and not isinstance(value, (bool, int, float, complex)):
        yield path, torch.as_tensor(value)
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        for name, item in vars(value).items():
            yield from leaves(item, f"{path}.{name}")
    else:
        yield path, value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a nested value."""
    return (leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor))


def structure(value: Any) -> Any:
    """Container types, keys and lengths, shapes and dtypes, without the values."""
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), str(value.dtype))
    if isinstance(value, dict):
        return (type(value).__name__, [(key, structure(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [structure(item) for item in value])
    inner = [(path, structure(leaf)) for path, leaf in leaves(value) if leaf is not value]
    return (type(value).__name__, inner) if inner else type(value).__name__


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nested value with every tensor changed; containers and objects are copied."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [map_tensors(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):  # ModelOutput and other subclasses keep their type
        made = copy.copy(value)
        for key, item in value.items():
            made[key] = map_tensors(item, change)
        return made
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        made = copy.copy(value)
        for name, item in vars(value).items():
            object.__setattr__(made, name, map_tensors(item, change))
        return made
    return value


def detach(value: Any) -> Any:
    """Copy every tensor, so that a later call cannot overwrite it."""
    return map_tensors(value, lambda tensor: tensor.detach().clone())


def to_float64(value: Any) -> Any:
    """Floating tensors in float64, complex ones in complex128, others as they are."""
    return map_tensors(value, double)


def double(tensor: torch.Tensor) -> torch.Tensor:
    """A floating or complex tensor in double precision; others unchanged."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def cast_module(module: torch.nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change parameters and buffers in place. Module.to(dtype) would make complex ones real."""
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.data = change(tensor.data)


def to_plain(value: Any) -> list[Any]:
    """A nested value as lists of tensors and plain values alone, which a file may hold without any code.

    Raises TypeError for what from_plain could not make again: objects, but for dataclasses that are dicts.
    """
    if type(value) in (torch.Tensor, bool, int, float, complex, str, type(None)):
        return ["value", value]
    if type(value) in (list, tuple):
        return [type(value).__name__, [to_plain(item) for item in value]]
    if isinstance(value, dict) and all(type(key) in (str, int) for key in value):
        kind = type(value)
        items = [[key, to_plain(item)] for key, item in value.items()]
        if kind is dict:
            return ["dict", items]
        if _output_class(kind.__module__, kind.__qualname__) is kind:
            return ["output", kind.__module__, kind.__qualname__, items]
    raise TypeError(f"{type(value).__name__} is not made of tensors and plain values")


def from_plain(plain: list[Any]) -> Any:
    """The value that to_plain was given.

    Raises TypeError, ValueError, KeyError or IndexError for anything else. Nothing is imported: the class of
    an output is one that the model has loaded.
    """
    kind = plain[0]
    if kind == "value":
        return plain[1]
    if kind in ("list", "tuple"):
        items = [from_plain(item) for item in plain[1]]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {key: from_plain(item) for key, item in plain[1]}
    found = _output_class(plain[1], plain[2])
    if kind != "output" or found is None:
        raise TypeError(f"{plain[:3]} is no value of to_plain")
    return found(**{key: from_plain(item) for key, item in plain[3]})


def _output_class(module: str, name: str) -> Any:
    """A loaded class of outputs by its name: a dict that is a dataclass, as in transformers; None without."""
    found = getattr(sys.modules.get(module), name, None)
    is_output = isinstance(found, type) and issubclass(found, dict) and dataclasses.is_dataclass(found)
    return found if is_output else None
