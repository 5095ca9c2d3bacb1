"""LLM.int8() of bitsandbytes (Dettmers et al. 2022): int8 products, outlier features in 16 bits."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from perfdash.records import Job, Status

PACKAGES = ("bitsandbytes",)
EXTRA = "llm-int8"
DTYPES = ("float32", "bfloat16", "float16")
OPTIONS = ()
SCENARIOS = ("inference", "generation")
LOSSY = True
CAPTURES = False

_THRESHOLD = 6.0  # features of larger magnitude are outliers: the paper's value


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """A copy whose linear layers are Linear8bitLt. Raises Unmeasurable for a module without such layers.

    The head that makes the logits stays as it is, as in the paper. GPT-2's Conv1D layers become Linear first.
    """
    import bitsandbytes
    from torch import nn

    from perfdash.worker.backends.int8_weights import with_linear_layers
    from perfdash.worker.failures import Unmeasurable

    if not hasattr(module, "get_output_embeddings"):
        raise Unmeasurable(Status.SKIPPED, f"{type(module).__name__} is no decoder of transformers")
    copied = with_linear_layers(copy.deepcopy(module))
    head, layers, inside = copied.get_output_embeddings(), 0, 0
    whole = sum(parameter.numel() for parameter in copied.parameters())
    for parent in list(copied.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and layer is not head:
                layers += 1
                inside += layer.weight.numel()
                setattr(parent, name, _quantized(layer, bitsandbytes))
    if not layers:
        raise Unmeasurable(Status.SKIPPED, f"{type(module).__name__} has no linear layer to quantise")
    note = f"LLM.int8() in {layers} linear layers, with {inside / whole:.0%} of the parameters"
    object.__setattr__(copied, "int8_note", note)  # past nn.Module's own, which registers attributes
    return copied


def held_tensors(model: Any) -> list[Any]:
    """Parameters, buffers, and the scales that layers keep beside their int8 weights."""
    tensors = [*model.parameters(), *model.buffers()]
    for layer in model.modules():
        state = getattr(layer, "state", None)
        tensors += [tensor for name in ("CB", "SCB") if (tensor := getattr(state, name, None)) is not None]
    return tensors


def notes(model: Any) -> list[str]:
    """How many layers hold int8 weights."""
    return [model.int8_note]


def _quantized(layer: Any, bitsandbytes: Any) -> Any:
    """The layer as Linear8bitLt; moving it to its device quantises the weight."""
    device = layer.weight.device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = bitsandbytes.nn.Linear8bitLt(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            has_fp16_weights=False,
            threshold=_THRESHOLD,
        )
        made.weight = bitsandbytes.nn.Int8Params(
            layer.weight.detach().to("cpu").clone(), requires_grad=False, has_fp16_weights=False
        )
        if layer.bias is not None:
            made.bias = layer.bias
        return made.to(device).eval()
