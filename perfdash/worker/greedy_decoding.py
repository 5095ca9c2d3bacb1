"""Greedy decoding of a fixed number of tokens, and a lower bound of its memory.

The model is a decoder of the transformers package. Prefill and every decode step are marked separately.
There is no tokeniser, no sampling and no end token, so that each call does the same work. The caller
chooses the model and compiles it.

Needs transformers 4.56 or later (the caches' constructors). GPT-2, GPTBigCode and BLOOM compile with
fullgraph in the first call and never recompile: two graphs with a static cache (prefill, steps), three with
a dynamic cache (prefill, the first step, then steps of any length). mark_dynamic would save the third graph
only for multi-query attention: with more heads, inductor leaves the prefill's cache in another layout than
the steps' cache, and the compiler guards on the layout too.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any, NamedTuple, Optional, Protocol

import torch
from torch import Tensor

CACHES = ("dynamic", "static")

# Tensors of the inner size (4 x hidden) that are alive at once in the eager activation. GPT-2's "gelu_new"
# and BLOOM's activation compute the approximate GELU in several operations; any other activation is one
# kernel with an input and an output.
_INNER_WRITTEN_OUT = {"gelu_new": 4, "bloom": 5}
_INNER_ONE_KERNEL = 2

# The estimate follows the eager code of these models; for other models it is no lower bound.
_ESTIMATED_MODELS = frozenset({"gpt2", "gpt_bigcode", "bloom"})


class Clock(Protocol):
    """Takes a time or records an event at each mark. The caller reads the marks."""

    def mark(self) -> Any: ...


class Decoded(NamedTuple):
    """Decoded tokens, with their logits if the caller asks for them.

    tokens: (batch, new_tokens) int64; logits: (prompts, new_tokens, vocabulary), or None.
    """

    tokens: Tensor
    logits: Optional[Tensor]


class GreedyDecoder:
    """Decode `new_tokens` tokens greedily after the prompts in `inputs`.

    model: the callable, which may be compiled; module: the plain module behind it; inputs: `input_ids`
    (batch, prompt) alone, so prompts have the same length; cache: "dynamic" grows by a copy at every step,
    "static" holds prompt + new_tokens positions from the start.

    Raises ValueError for a model without a cache, for prompt + new_tokens beyond the model's positions, and
    for inputs other than prompts of the same length.
    """

    def __init__(
        self, model: Any, module: Any, inputs: dict[str, Tensor], new_tokens: int, cache: str = "dynamic"
    ) -> None:
        if cache not in CACHES:
            raise ValueError(f"there is no cache '{cache}'; there are: {', '.join(CACHES)}")
        if set(inputs) != {"input_ids"} or inputs["input_ids"].ndim != 2:
            raise ValueError("decoding takes input_ids of shape (batch, prompt) and nothing else")
        check(module, inputs["input_ids"].shape[1], new_tokens)
        self._model = model
        self._config = module.config
        self._prompt = inputs["input_ids"]
        self._new_tokens = new_tokens
        self._static = cache == "static"
        self._keywords: dict[str, Any] = {"use_cache": True}
        if keeps_last_logits(module):
            self._keywords["logits_to_keep"] = 1

    def __call__(
        self, clock: Optional[Clock] = None, keep_logits: int = 0, forced: Optional[Tensor] = None
    ) -> Decoded:
        """Run prefill, then new_tokens - 1 decode steps.

        The clock is marked before prefill, after prefill and after every step: new_tokens + 1 times. The
        cache is created inside the call, after the first mark, for three reasons: the `generate` that the
        reference times does so too, no call can see the keys of another call, and two sides in one process
        do not hold two caches.

        keep_logits: the number of prompts, the first and the last of the batch, whose logits are returned;
        0 when timing. forced: tokens (batch, new_tokens) that the steps read instead of the chosen tokens,
        so that two sides stay comparable after they have chosen different tokens.
        """
        with torch.no_grad():
            return self._decode(clock, keep_logits, forced)

    def _decode(self, clock: Optional[Clock], keep_logits: int, forced: Optional[Tensor]) -> Decoded:
        if clock:
            clock.mark()
        cache = self._make_cache()
        logits = self._forward(self._prompt, cache)
        if not cache.layers or cache.layers[0].keys is None:
            raise ValueError(f"{self._config.model_type}: the model was given a cache and left it empty")
        tokens = [logits.argmax(-1, keepdim=True)]
        logits_of_steps = [_ends(logits, keep_logits)] if keep_logits else []
        del logits  # otherwise a step would hold the previous step's logits
        if clock:
            clock.mark()
        for index in range(self._new_tokens - 1):
            last = tokens[-1]
            if forced is not None:  # contiguous, because other strides would cause a recompile
                last = forced[:, index : index + 1].clone(memory_format=torch.contiguous_format)
            logits = self._forward(last, cache)
            tokens.append(logits.argmax(-1, keepdim=True))
            if keep_logits:
                logits_of_steps.append(_ends(logits, keep_logits))
            del logits
            if clock:
                clock.mark()
        return Decoded(torch.cat(tokens, dim=1), torch.stack(logits_of_steps, dim=1) if keep_logits else None)

    def _forward(self, tokens: Tensor, cache: Any) -> Tensor:
        """Return the logits of the last position, (batch, vocabulary).

        The call adds the tokens to the cache.
        """
        return self._model(input_ids=tokens, past_key_values=cache, **self._keywords).logits[:, -1]

    def _make_cache(self) -> Any:
        import transformers

        if self._static:
            positions = self._prompt.shape[1] + self._new_tokens
            return transformers.StaticCache(config=self._config, max_cache_len=positions)
        return transformers.DynamicCache(config=self._config)


def _ends(rows: Tensor, count: int) -> Tensor:
    """Copy `count` rows, half from the start and half from the end.

    Most faults are in the first rows, faults of large batches in the last rows. With fewer than `count`
    rows, all rows are copied.
    """
    if count >= len(rows):
        return rows.clone()
    first = (count + 1) // 2
    return torch.cat([rows[:first], rows[len(rows) - (count - first) :]])


def check(module: Any, prompt: int, new_tokens: int) -> None:
    """Raise ValueError if the module cannot decode so many tokens after the prompt.

    The module may be on the meta device. A model without a table of positions (BLOOM) has no limit.
    """
    name = type(module).__name__
    parameters = inspect.signature(module.forward).parameters
    config = getattr(module, "config", None)
    generates = "past_key_values" in parameters and hasattr(module, "can_generate") and module.can_generate()
    if config is None or not generates or config.is_encoder_decoder:
        raise ValueError(f"{name} has no cache of keys and values to decode with")
    if _is_encoder(config):
        raise ValueError(f"{name} is configured as an encoder, which no cache is right for: set is_decoder")
    if prompt < 1 or new_tokens < 1:
        raise ValueError(f"a prompt of {prompt} and {new_tokens} new tokens: both must be at least 1")
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and prompt + new_tokens > positions:
        raise ValueError(
            f"a prompt of {prompt} and {new_tokens} new tokens are {prompt + new_tokens}; "
            f"{name} has {positions} positions"
        )


def keeps_last_logits(module: Any) -> bool:
    """Whether the model can compute the logits of the last position alone. Prefill needs no other logits."""
    return "logits_to_keep" in inspect.signature(module.forward).parameters


def _is_encoder(config: Any) -> bool:
    """Whether is_decoder marks the configuration as an encoder's.

    transformers 4 sets is_decoder to False in every configuration, so there it means nothing.
    """
    import transformers

    always_set = hasattr(transformers.PretrainedConfig(), "is_decoder")
    return not always_set and not getattr(config, "is_decoder", True)


def has_estimate(module: Any) -> bool:
    """Whether `least_bytes` and `cache_bytes` are lower bounds for this module."""
    return getattr(getattr(module, "config", None), "model_type", None) in _ESTIMATED_MODELS


def least_bytes(module: Any, batch: int, prompt: int, new_tokens: int, dtype: torch.dtype) -> int:
    """Return a lower bound of the peak memory of eager greedy decoding, in bytes.

    The module may be on the meta device. The bound is the sum of the weights, the keys and values of all
    positions (of a dynamic cache), and the larger of the transient bytes of prefill and of the last step.
    Callers use it to refuse cases that cannot fit, so it omits uncertain parts: the allocator's rounding,
    workspaces, masks, and the weights that int8 layers unpack. A compiled model can need less beside
    weights and cache, because activations are fused.
    """
    positions = prompt + new_tokens - 1  # the last token is not fed back
    cache = cache_bytes(module.config, batch, positions, dtype)
    prompt_cache = cache_bytes(module.config, batch, prompt, dtype)
    prefill = prompt_cache + _transient_bytes(module, batch, prompt, prompt, dtype)
    last_step = cache + _transient_bytes(module, batch, 1, positions, dtype)
    return weight_bytes(module, dtype) + max(prefill, last_step)


def weight_bytes(module: Any, dtype: torch.dtype) -> int:
    """Return the bytes of parameters and buffers with floating tensors in `dtype`.

    Shared tensors count once. Tensors that torchao has quantised count in their own format.
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
    """Return the bytes of the keys and values of all layers.

    They are 2 x layers x batch x heads x positions x head size elements. Multi-query attention has one head
    of keys and values (Shazeer 2019), grouped-query attention a few.
    """
    heads = config.num_attention_heads
    if getattr(config, "multi_query", False):
        cached = 1
    else:
        cached = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * batch * cached * positions * size * dtype.itemsize


def _transient_bytes(module: Any, batch: int, queries: int, keys: int, dtype: torch.dtype) -> int:
    """Return the largest transient bytes of an MLP, of attention scores and of logits."""
    config = module.config
    activation = getattr(config, "activation_function", None) or config.model_type
    copies = _INNER_WRITTEN_OUT.get(activation, _INNER_ONE_KERNEL)
    inner = getattr(config, "n_inner", None) or getattr(config, "intermediate_size", None)
    inner = inner or 4 * config.hidden_size
    # The residual and the normalised input are alive beside the inner tensors.
    mlp = batch * queries * (copies * inner + 2 * config.hidden_size) * dtype.itemsize
    scores = 0
    if config._attn_implementation == "eager":
        # Scores, masked scores and the softmax in float32, which is then rounded to a shorter dtype.
        element = 2 * dtype.itemsize + 4 + (dtype.itemsize if dtype.itemsize < 4 else 0)
        scores = batch * config.num_attention_heads * queries * keys * element
    positions = 1 if keeps_last_logits(module) else queries
    logits = batch * positions * config.vocab_size * dtype.itemsize
    return max(mlp, scores, logits)
