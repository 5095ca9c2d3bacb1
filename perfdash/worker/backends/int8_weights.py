"""INT8 weights in the linear layers of a decoder (torchao): read as integers, multiplied as floats."""

from __future__ import annotations

import copy
from typing import Any

from perfdash.records import Job, Status

PACKAGES = ("torchao",)
EXTRA = "torchao"
DTYPES = ("float32", "bfloat16", "float16")
OPTIONS = ()
SCENARIOS = ("inference", "generation")
LOSSY = True
CAPTURES = False


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """A copy of the module with int8 weights. Raises Unmeasurable for a module without linear layers."""
    from perfdash.worker.failures import Unmeasurable

    try:
        return to_int8(module)
    except ValueError as error:
        raise Unmeasurable(Status.SKIPPED, str(error)) from error


def to_int8(module: Any) -> Any:
    """A copy whose linear layers hold int8 weights, symmetric with one scale a row; `int8_note` counts them.

    GPT-2's Conv1D layers become Linear first. The head that makes the logits stays as it is: it is tied to
    the embedding in these models, and the reference's int8 (Dettmers et al. 2022) leaves it out too.
    Raises ValueError where no layer is left.
    """
    import torch
    from torch import nn
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    from perfdash.worker import process_settings

    if not hasattr(module, "get_output_embeddings"):
        raise ValueError(f"{type(module).__name__} is no decoder of transformers")
    copied = with_linear_layers(copy.deepcopy(module))
    head = copied.get_output_embeddings()

    def is_quantised(layer: Any, name: str) -> bool:
        return isinstance(layer, nn.Linear) and layer is not head

    layers = [layer for name, layer in copied.named_modules() if is_quantised(layer, name)]
    if not layers:
        raise ValueError(f"{type(module).__name__} has no linear layer to quantise")
    inside = sum(layer.weight.numel() for layer in layers)
    whole = sum(parameter.numel() for parameter in copied.parameters())
    precision = process_settings.read("get_float32_matmul_precision")
    quantize_(copied, Int8WeightOnlyConfig(), filter_fn=is_quantised)
    # torchao before 0.18 may set it, for eager as well.
    if precision and process_settings.read("get_float32_matmul_precision") != precision:
        torch.set_float32_matmul_precision(precision)
    note = f"int8 weights in {len(layers)} linear layers, with {inside / whole:.0%} of the parameters"
    object.__setattr__(copied, "int8_note", note)  # past nn.Module's own, which registers attributes
    return copied


def with_linear_layers(module: Any) -> Any:
    """The module with its Conv1D layers replaced by equal Linear layers: the weight transposed."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, Conv1D):
                linear = nn.Linear(*layer.weight.shape, device="meta")
                linear.weight = nn.Parameter(layer.weight.detach().t().contiguous())
                linear.bias = layer.bias
                setattr(parent, name, linear)
    return module


def held_tensors(model: Any) -> list[Any]:
    """Parameters and buffers, those of torchao as the plain tensors inside."""
    return [plain for tensor in (*model.parameters(), *model.buffers()) for plain in _plain_tensors(tensor)]


def notes(model: Any) -> list[str]:
    """How many layers hold int8 weights."""
    return [model.int8_note]


def _plain_tensors(tensor: Any) -> list[Any]:
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [plain for name in names for plain in _plain_tensors(getattr(tensor, name))]
