"""What decoder models of the transformers package need: their least memory, and their INT8 form.

No model is run here, and none need hold real memory: the estimate takes modules on the meta device.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import nn

from perfdash.worker.greedy_decoding import keeps_last_logits

# Tensors of the inner size (4 x hidden) that live at once in the eager activation. The approximate GELU
# written out: GPT-2's "gelu_new" and BLOOM's own; any other activation is one kernel, input and output.
_INNER_WRITTEN_OUT = {"gelu_new": 4, "bloom": 5}
_INNER_ONE_KERNEL = 2


# Whose eager code was read for what lives at once: the estimate of others is no lower bound.
_KNOWN = frozenset({"gpt2", "gpt_bigcode", "bloom"})


def is_known(module: Any) -> bool:
    """Whether `estimate` and `cache_bytes` are lower bounds for this module."""
    return getattr(getattr(module, "config", None), "model_type", None) in _KNOWN


def estimate(module: Any, batch: int, prompt: int, new_tokens: int, dtype: torch.dtype) -> int:
    """Bytes that eager greedy decoding needs at least, at its peak.

    Weights, keys and values of all positions (a dynamic cache's), and the larger of what prefill and what
    the last step need beside them. Meant for refusing what cannot fit, so it leaves out what is not
    certain: the allocator's rounding, workspaces, masks, and the weights that int8 layers unpack. A
    compiled model can need less beside weights and cache, because activations are fused.
    """
    positions = prompt + new_tokens - 1  # the last token is not fed back
    cache = cache_bytes(module.config, batch, positions, dtype)
    before = cache_bytes(module.config, batch, prompt, dtype)
    prefill = before + _transient_bytes(module, batch, prompt, prompt, dtype)
    last_step = cache + _transient_bytes(module, batch, 1, positions, dtype)
    return weight_bytes(module, dtype) + max(prefill, last_step)


def weight_bytes(module: Any, dtype: torch.dtype) -> int:
    """Bytes of parameters and buffers once the floating ones are of `dtype`; shared ones count once.

    What torchao has quantised counts as it is.
    """
    total = 0
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        if hasattr(tensor, "__tensor_flatten__"):
            parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
            total += sum(part.numel() * part.element_size() for part in parts)
        else:
            total += tensor.numel() * (
                dtype.itemsize if tensor.is_floating_point() else tensor.element_size()
            )
    return total


def cache_bytes(config: Any, batch: int, positions: int, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of all layers: 2 x layers x batch x heads x positions x head size.

    Multi-query attention has one head of keys and values (Shazeer 2019), grouped-query a few.
    """
    heads = config.num_attention_heads
    if getattr(config, "multi_query", False):
        kept = 1
    else:
        kept = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * batch * kept * positions * size * dtype.itemsize


def _transient_bytes(module: Any, batch: int, queries: int, keys: int, dtype: torch.dtype) -> int:
    """The largest of what lives at once in an MLP, in attention by a matrix of scores, and at the head."""
    config = module.config
    activation = getattr(config, "activation_function", None) or config.model_type
    copies = _INNER_WRITTEN_OUT.get(activation, _INNER_ONE_KERNEL)
    inner = getattr(config, "n_inner", None) or getattr(config, "intermediate_size", None)
    inner = inner or 4 * config.hidden_size
    # Beside the inner tensors live the residual and the normalised input.
    mlp = batch * queries * (copies * inner + 2 * config.hidden_size) * dtype.itemsize
    scores = 0
    if config._attn_implementation == "eager":
        # Scores, masked scores and the softmax in float32, which a shorter dtype is rounded from.
        each = 2 * dtype.itemsize + 4 + (dtype.itemsize if dtype.itemsize < 4 else 0)
        scores = batch * config.num_attention_heads * queries * keys * each
    positions = 1 if keeps_last_logits(module) else queries
    logits = batch * positions * config.vocab_size * dtype.itemsize
    return max(mlp, scores, logits)


def to_int8(module: nn.Module, dynamic: bool = False) -> tuple[nn.Module, str]:
    """A copy whose linear layers hold int8 weights (torchao), and a note of how many do.

    Weights are symmetric with one scale a row. dynamic: activations are quantised too, one scale a
    token, and the products are int8. GPT-2's Conv1D layers become Linear first. The head that makes the
    logits stays as it is: it is tied to the embedding in these models, and the reference's int8 (Dettmers
    et al. 2022) leaves it out too. Raises ValueError where no layer is left.
    """
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        quantize_,
    )

    if not hasattr(module, "get_output_embeddings"):
        raise ValueError(f"{type(module).__name__} is no decoder of transformers")
    copied = with_linear_layers(copy.deepcopy(module))
    head = copied.get_output_embeddings()

    def chosen(layer: nn.Module, name: str) -> bool:
        return isinstance(layer, nn.Linear) and layer is not head

    layers = [layer for name, layer in copied.named_modules() if chosen(layer, name)]
    if not layers:
        raise ValueError(f"{type(module).__name__} has no linear layer to quantise")
    inside = sum(layer.weight.numel() for layer in layers)
    whole = sum(parameter.numel() for parameter in copied.parameters())
    way = Int8DynamicActivationInt8WeightConfig() if dynamic else Int8WeightOnlyConfig()
    quantize_(copied, way, filter_fn=chosen)
    what = "weights and activations" if dynamic else "weights"
    return copied, f"int8 {what} in {len(layers)} linear layers, with {inside / whole:.0%} of the parameters"


def with_linear_layers(module: nn.Module) -> nn.Module:
    """The module, its Conv1D layers replaced by the Linear ones that they are: weight transposed."""
    from transformers.pytorch_utils import Conv1D

    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, Conv1D):
                linear = nn.Linear(*layer.weight.shape, device="meta")
                linear.weight = nn.Parameter(layer.weight.detach().t().contiguous())
                linear.bias = layer.bias
                setattr(parent, name, linear)
    return module
