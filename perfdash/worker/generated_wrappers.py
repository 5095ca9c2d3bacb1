"""Clocks around the kernels and library calls of the wrappers that inductor generates.

A wrapper looks its kernels up among the globals of its module at every call. The clocks are put there after
compiling, and taken out again, so that the code with clocks is to the byte the code without.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Callable

import torch

from perfdash.worker import pytree, structure

# What a wrapper calls of torch's libraries, by the names that it has for them.
_LIBRARIES = ("extern_kernels", "aten", "inductor_ops", "_quantized")
_ALLOCATORS = ("empty_strided_cpu", "empty_strided_cuda", "empty_strided_xpu")
_MOST_CONSTANT_BYTES = 1 << 20  # of one integer tensor whose values are kept
_SHAPES = 3  # tensors whose shapes are in the label of a library call

Around = Callable[[str, Callable[..., Any], "tuple[Any, ...]", "dict[str, Any]"], Any]


def loaded() -> list[ModuleType]:
    """The wrappers that inductor has loaded in this process, oldest first; none where torch has no list."""
    codecache = sys.modules.get("torch._inductor.codecache")
    modules = getattr(getattr(codecache, "PyCodeCache", None), "modules", None) or []
    return [module for module in modules if hasattr(module, "call") and _is_wrapper(module)]


class Calls:
    """What a step calls: each call goes through `around`, which the mode chooses."""

    def __init__(self, mark: Callable[[], Any]) -> None:
        """`mark` is a point in time, as of device.Cpu."""
        self._mark = mark
        self.around: Around = self.run
        self.marks: list[tuple[str, Any, Any]] = []  # name, start and end of each timed call
        self.described: list[dict[str, Any]] = []
        self.tensors: list[dict[str, Any]] = []
        self.constants: dict[str, torch.Tensor] = {}  # values of integer tensors, by number in `tensors`
        self.buffers: list[dict[str, Any]] = []  # those that wrappers allocate, with who writes them
        self._numbers: dict[Any, int] = {}
        self._unwritten: dict[int, int] = {}

    @staticmethod
    def run(name: str, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call it, and nothing else."""
        return function(*args, **keywords)

    def timed(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Call it between two marks."""
        start = self._mark()
        result = function(*args, **keywords)
        self.marks.append((name, start, self._mark()))
        return result

    def traced(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Call it within a range that torch.profiler shows; who first gets a new buffer writes it."""
        for tensor in pytree.tensors_in([list(args), keywords]):
            number = self._unwritten.pop(_address(tensor), None)
            if number is not None:
                self.buffers[number]["name"] = name
        with torch.autograd.profiler.record_function(name):
            return function(*args, **keywords)

    def describe(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Note the arguments, then call it."""
        self.described.append(
            {
                "name": name,
                "arguments": [self._specification(value) for value in args],
                "keywords": {key: self._specification(value) for key, value in keywords.items()},
            }
        )
        return function(*args, **keywords)

    def allocate(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Allocate a buffer within a range that says which one it is."""
        if self.around != self.traced:
            return function(*args)
        number = len(self.buffers)
        with torch.autograd.profiler.record_function(f"{BUFFER}{number}"):
            tensor = function(*args)
        self.buffers.append({"name": None, "shape": list(tensor.shape), "dtype": str(tensor.dtype)})
        self._unwritten[_address(tensor)] = number
        return tensor

    def _specification(self, value: Any) -> dict[str, Any]:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return {"list": [self._specification(item) for item in value]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"value": value} if value == value and value not in (float("inf"), -float("inf")) else {
                "code": f"float('{value}')"
            }  # fmt: skip
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return {"code": str(value)}
        if isinstance(value, torch.device):
            return {"code": f"torch.device({str(value)!r})"}
        return {"opaque": type(value).__name__}

    def _tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            return {"opaque": f"{tensor.layout} tensor {tuple(tensor.shape)}"}
        item = tensor.element_size()
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.tensors)
            self.tensors.append(
                {
                    "shape": list(tensor.shape),
                    "stride": list(tensor.stride()),
                    "dtype": str(tensor.dtype),
                    "device": tensor.device.type,
                    # From its first element to the end of its memory: a kernel may reach beyond a view.
                    "elements": max(0, tensor.untyped_storage().nbytes() // item - tensor.storage_offset()),
                    "exact": False,  # its values are kept
                }
            )
            exact = not tensor.is_floating_point() and not tensor.is_complex()
            if exact and tensor.numel() * item <= _MOST_CONSTANT_BYTES:
                self.constants[str(number)] = tensor.detach().to("cpu", copy=True)
                self.tensors[number]["exact"] = True
        return {"tensor": number}


BUFFER = "perfdash::buffer "


class Instrumented:
    """The loaded wrappers with clocks in them; a context manager that takes them out again."""

    def __init__(self, calls: Calls, modules: list[ModuleType]) -> None:
        self._calls = calls
        self._modules = modules
        self._originals: list[tuple[ModuleType, dict[str, Any]]] = []
        self._replaced: list[tuple[ModuleType, dict[str, Any]]] = []
        self.kernels: dict[str, dict[str, Any]] = {}  # by label: {name, kind, code}
        names: dict[str, int] = {}
        for number, module in enumerate(modules):
            source = _source(module)
            parsed = structure.parse([source]).kernels if source else []
            originals: dict[str, Any] = {}
            replaced: dict[str, Any] = {}
            for kernel in parsed:
                if not hasattr(module, kernel.name):
                    continue
                label = kernel.name if kernel.name not in names else f"{kernel.name} of graph {number}"
                names[kernel.name] = number
                start = source.find(f"{kernel.name} = async_compile.")
                end = source.find("\n", source.find(kernel.source, start) + len(kernel.source))
                self.kernels[label] = {
                    "name": kernel.name, "kind": kernel.kind, "code": source[start:end],
                }  # fmt: skip
                originals[kernel.name] = getattr(module, kernel.name)
                replaced[kernel.name] = _Through(calls, label, originals[kernel.name], is_kernel=True)
            for name in _LIBRARIES:
                if hasattr(module, name):
                    originals[name] = getattr(module, name)
                    replaced[name] = _Through(calls, name, originals[name])
            if hasattr(module, "torch"):
                originals["torch"] = module.torch
                replaced["torch"] = _Torch(calls, module.torch)
            for name in _ALLOCATORS:
                if hasattr(module, name):
                    originals[name] = getattr(module, name)
                    replaced[name] = _allocator(calls, originals[name])
            self._originals.append((module, originals))
            self._replaced.append((module, replaced))

    def __enter__(self) -> Instrumented:
        for module, values in self._replaced:
            vars(module).update(values)
        return self

    def __exit__(self, *_: object) -> None:
        for module, values in self._originals:
            vars(module).update(values)


class _Through:
    """A function, kernel or namespace of functions whose calls go through `Calls.around`."""

    def __init__(self, calls: Calls, name: str, target: Any, is_kernel: bool = False) -> None:
        self._calls, self._name, self._target, self._is_kernel = calls, name, target, is_kernel

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._calls.around(self._name, self._target, args, keywords)

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._target, name)
        if self._is_kernel and name != "run":  # a kernel of Triton is launched by its method
            return inner
        if not callable(inner) and not isinstance(inner, ModuleType):
            return inner
        label = self._name if self._is_kernel else f"{self._name}.{name}"
        through = _Through(self._calls, label, inner)
        setattr(self, name, through)  # found at once from now on
        return through


class _Torch:
    """The module torch as a wrapper sees it: the operators below torch.ops go through `Calls.around`."""

    def __init__(self, calls: Calls, original: Any) -> None:
        self._original = original
        self.ops = _Through(calls, "torch.ops", original.ops)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._original, name)
        setattr(self, name, value)
        return value


def _allocator(calls: Calls, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: calls.allocate(function, args)


def _source(module: ModuleType) -> str:
    try:
        with open(str(module.__file__), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _is_wrapper(module: ModuleType) -> bool:
    """Whether a module with a `call` is the model's code, as it is where its file is gone.

    How many candidates autotuning has loaded beside it is chance, and a kernel's label has its module's
    number.
    """
    source = _source(module)
    return not source or structure.is_wrapper(source)


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return -1


def label(call: dict[str, Any], tensors: list[dict[str, Any]]) -> str:
    """The name of a library call with the shapes of its first tensors: two products are two lines."""
    name = str(call["name"]).replace("torch.ops.", "")
    shapes = [
        "x".join(map(str, tensors[value["tensor"]]["shape"])) or "()"
        for value in call["arguments"]
        if "tensor" in value
    ]
    return f"{name} ({', '.join(shapes[:_SHAPES])})"
