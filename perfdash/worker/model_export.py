"""A model as a function from tensors to tensors, and its torch.export.

Tracers and exporters take functions of plain tensors. This module flattens dictionaries, ModelOutput, None
and plain values in a module's inputs and outputs, and rebuilds them from the results.
"""

from __future__ import annotations

import copy
import gc
import os
import re
import time
import traceback
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence

import torch
import torch.utils._pytree as pytree

from perfdash.worker import failures

Tensors = tuple[torch.Tensor, ...]
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# What torch.export says of a model that it cannot capture, and the same in plain words. The first that fits.
_REASONS = (
    (
        r"Could not guard on data-dependent|dynamic control flow|data-dependent branching",
        "a branch depends on the values of a tensor",
    ),
    (r"Could not extract specialized integer", "a size or index depends on the values of a tensor"),
    (r"specialized|[Cc]onstraints violated|Not all values of", "the model fixes a size that should vary"),
    (r"\.numpy\(\)|\.data_ptr|FakeTensor|Cannot convert symbols", "the model leaves torch for other code"),
    (r"no fake impl|no meta|no python implementation|does not have a (fake|meta)",
     "an operator has no rule for shapes without data"),
    (r"has no attribute .*torch\.ops|_OpNamespace|Could not find .*operator", "an operator is missing"),
)  # fmt: skip


class Signature:
    """The containers and plain values around the tensors of a module's inputs and output.

    Inputs are a tuple, or a dict of keywords. The module is called once, without gradients; where it lacks
    memory for that, which a converted model may not need, a copy without data is called instead. Raises
    TypeError if the inputs hold other values than tensors, or the output an object that torch's pytree
    cannot flatten.
    """

    def __init__(self, module: torch.nn.Module, inputs: Any) -> None:
        self.names = list(inputs) if isinstance(inputs, dict) else None
        leaves, self._in_spec = pytree.tree_flatten(self._ordered(inputs))
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                raise TypeError(f"an input is a {type(leaf).__name__}: only tensors can be converted")
        start = time.perf_counter()
        outputs, self._out_spec = pytree.tree_flatten(self._example_output(module, leaves))
        self.seconds = time.perf_counter() - start  # of this call, which is no part of the conversion
        for leaf in outputs:
            if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
                raise TypeError(
                    f"the output holds a {type(leaf).__name__}, which is not made of tensors only"
                )
        self.places = [place for place, leaf in enumerate(outputs) if isinstance(leaf, torch.Tensor)]
        self._plain = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in outputs]
        self.outputs = [(tuple(outputs[place].shape), outputs[place].dtype) for place in self.places]
        del outputs
        if any(leaf.is_cuda for leaf in leaves):  # the library that converts may have another allocator
            torch.cuda.empty_cache()

    def flatten(self, inputs: Any) -> Tensors:
        """Return the tensors of inputs.

        Raises TypeError if the inputs are structured differently from the example.
        """
        leaves, spec = pytree.tree_flatten(self._ordered(inputs))
        if spec != self._in_spec:
            raise TypeError("called with other arguments than it was converted with")
        return tuple(leaves)

    def call(self, module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
        """Call the module with its input tensors and return its own output."""
        values = pytree.tree_unflatten(list(tensors), self._in_spec)
        return module(*values) if self.names is None else module(**dict(zip(self.names, values)))

    def _example_output(self, module: torch.nn.Module, leaves: Sequence[torch.Tensor]) -> Any:
        try:
            with torch.no_grad():
                return self.call(module, leaves)
        except Exception as error:
            if not failures.is_out_of_memory(error):
                raise
            shortage = error.with_traceback(None)  # its frames hold tensors
        gc.collect()
        try:
            return self._output_without_data(module, leaves)
        except Exception as error:  # any operator may have no rule for shapes alone
            raise shortage from error

    def _output_without_data(self, module: torch.nn.Module, leaves: Sequence[torch.Tensor]) -> Any:
        """The output of a copy of the module, in shapes and dtypes alone. Raises where it needs data."""
        from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

        without_data = FakeTensorMode(allow_non_fake_inputs=True)
        with FakeCopyMode(without_data):
            copied = copy.deepcopy(module)
        with without_data, torch.no_grad():
            return self.call(copied, [without_data.from_tensor(leaf) for leaf in leaves])

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Rebuild the module's output from its tensors. Other leaves have the values of the example."""
        leaves = list(self._plain)
        for place, tensor in zip(self.places, tensors):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self._out_spec)

    def _ordered(self, inputs: Any) -> tuple[Any, ...]:
        if self.names is None:
            return tuple(inputs)
        if set(inputs) != set(self.names):
            raise TypeError(f"called with {sorted(inputs)}, but converted with {sorted(self.names)}")
        return tuple(inputs[name] for name in self.names)


class FlatModule(torch.nn.Module):
    """A module as forward(*tensors) -> tuple of tensors, with the module's own parameters."""

    def __init__(self, module: torch.nn.Module, signature: Signature) -> None:
        super().__init__()
        self.module = module
        self.signature = signature
        self.training = module.training

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        leaves = pytree.tree_leaves(self.signature.call(self.module, tensors))
        return tuple(leaves[place] for place in self.signature.places)


class ConvertedModel:
    """A converted model, which is called like the module.

    `run` takes the input tensors and returns the output tensors. Only `run` holds weights. With `shapes`,
    inputs of other shapes raise ValueError.
    """

    def __init__(
        self,
        signature: Signature,
        run: Callable[..., Sequence[torch.Tensor]],
        notes: Sequence[str] = (),
        shapes: Optional[list[tuple[int, ...]]] = None,
    ) -> None:
        self.signature = signature
        self.run = run
        self.notes = list(notes)
        self.shapes = shapes
        self.uncounted_s = signature.seconds  # seconds of the preparation that are no part of the conversion

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        inputs = arguments if self.signature.names is None else keywords
        tensors = self.signature.flatten(inputs)
        if self.shapes is not None and shapes_of(tensors) != self.shapes:
            raise ValueError(f"called with shapes {shapes_of(tensors)}, but converted for {self.shapes} only")
        return self.signature.rebuild(self.run(*tensors))

    def reopened(self) -> ConvertedModel:
        """Return the same model in a second session of `run`."""
        run: Any = self.run
        return ConvertedModel(self.signature, run.again(), self.notes, self.shapes)


def flattened(module: torch.nn.Module, inputs: Any) -> tuple[Signature, FlatModule, Tensors]:
    """Return a module's signature, its FlatModule in eval mode, and its input tensors."""
    signature = Signature(module, inputs)
    return signature, FlatModule(module, signature).eval(), signature.flatten(inputs)


def fixed_batch(
    why_static: Optional[str], tensors: Sequence[torch.Tensor], batch: int
) -> tuple[list[str], Optional[list[tuple[int, ...]]]]:
    """Return a note about the fixed batch size, and the only accepted shapes.

    Returns ([], None) if the batch can vary.
    """
    if why_static is None:
        return [], None
    return [f"exported for batch size {batch} only: {why_static}"], shapes_of(tensors)


def shapes_of(tensors: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Return the shapes of tensors."""
    return [tuple(tensor.shape) for tensor in tensors]


def is_batched(tensors: Sequence[torch.Tensor], batch: int) -> list[bool]:
    """Return for each tensor whether its first dimension has the batch size."""
    return [tensor.dim() > 0 and tensor.shape[0] == batch for tensor in tensors]


def with_batch(tensors: Sequence[torch.Tensor], batch: int, wanted: int) -> Tensors:
    """Resize the tensors' batch from `batch` to `wanted` samples.

    Samples are cut, or repeated from the start. The tensors keep their strides, because AOTInductor compiles
    for them: those whose batch stays are views of the same memory, and what is expanded stays expanded.
    """
    rows = torch.arange(wanted) % batch

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if wanted == batch:
            return tensor.detach()
        expanded = [dim > 0 and stride == 0 for dim, stride in enumerate(tensor.stride())]
        part = tensor[tuple(slice(0, 1) if is_one else slice(None) for is_one in expanded)]
        return part[rows.to(tensor.device)].expand(wanted, *tensor.shape[1:])

    return tuple(
        resized(tensor) if batched else tensor for tensor, batched in zip(tensors, is_batched(tensors, batch))
    )


def root_cause(error: BaseException) -> str:
    """Return type and first lines of the last exception in the chain. Exporters wrap it in advice."""
    chain: list[BaseException] = []
    link: Optional[BaseException] = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    text = str(chain[-1]).replace('For more information, run with TORCH_LOGS="+dynamic".', "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(chain[-1]).__name__}: {' '.join(lines[:2])[:300]}"


class ExportRefused(RuntimeError):
    """torch.export cannot capture the model; the message is one line with the reason."""


def plain_reason(error: BaseException) -> str:
    """Return in plain words why an export failed, and where in the model's code; then torch's own words."""
    words = root_cause(error)
    plain = next((plain for pattern, plain in _REASONS if re.search(pattern, words)), None)
    own = os.sep + os.path.join("perfdash", "worker") + os.sep
    inside = os.path.dirname(torch.__file__) + os.sep
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", inside))
        and own + "model_export" not in frame.filename
        and own + "backends" not in frame.filename
    ]
    where = ""
    if frames:
        where = f" in {os.path.basename(frames[-1].filename)}:{frames[-1].lineno} ({frames[-1].name})"
    return f"{plain}{where} ({words})" if plain else f"{words}{where}"


@dataclass
class Exported:
    """An exported program. why_static says why its batch cannot vary; it is None if the batch can vary."""

    program: Any
    why_static: Optional[str]


def export(flat: FlatModule, tensors: Tensors, batch: int, strict: bool = False) -> Exported:
    """Export `flat`, with a dynamic batch where the model allows it.

    The batch is dimension 0 of the inputs that have `batch` samples there. With `strict`, dynamo captures
    the program, and its nodes name the layer they come from. Raises ExportRefused with the cause.
    """
    batched = is_batched(tensors, batch)
    if any(batched):
        # Views or copies, because torch.export marks dynamic tensors, and torch.compile would obey the mark.
        # A batch of 1 is doubled, because torch.export treats a size of 1 as a constant.
        example = with_batch(tensors, batch, max(batch, 2))
        try:
            dynamic = {0: torch.export.Dim.DYNAMIC}  # new in torch 2.6
            shapes = (tuple(dynamic if is_batch else None for is_batch in batched),)
            return Exported(_export(flat, example, shapes, strict), None)
        except Exception as error:  # the model's code raises any type; a static export may work
            why = root_cause(error)
    else:
        why = f"no input has the batch size {batch} as its first dimension"
    return export_static(flat, tensors, why, strict)


def export_static(flat: FlatModule, tensors: Tensors, why: str, strict: bool = False) -> Exported:
    """Export `flat` for the example's shapes only. Raises ExportRefused with the cause."""
    try:
        return Exported(_export(flat, tensors, None, strict), why)
    except Exception as error:
        raise ExportRefused(f"torch.export cannot capture this model: {plain_reason(error)}") from error


def _export(flat: FlatModule, tensors: Tensors, shapes: Any, strict: bool) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        # torch warns about its own code, and about buffers that a model assigns during the export.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", message="The tensor attributes?.* assigned during export")
        return torch.export.export(flat, tensors, dynamic_shapes=shapes, strict=strict)
