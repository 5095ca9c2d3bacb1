"""Greedy decoding of a fixed number of tokens by a decoder of the transformers package, and its least memory.

Prefill and every decode step are marked separately. No tokeniser, no sampling, no end token: each call
does the same work. The caller chooses the model and compiles it.

Needs transformers 4.56 or later (the caches' constructors). GPT-2, GPTBigCode and BLOOM compile with
fullgraph in the first call and never again: two graphs with a static cache (prefill, steps), three with
a dynamic one (prefill, the first step, then steps of any length). mark_dynamic would save the third only
for multi-query attention: with more heads, inductor leaves the cache of prefill in another layout than
that of the steps, and the compiler guards on the layout too.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any, NamedTuple, Optional, Protocol

import torch
from torch import Tensor

CACHES = ("dynamic", "static")

# Tensors of the inner size (4 x hidden) that are alive at once in the eager activation. GPT-2's "gelu_new"
# and BLOOM's own write the approximate GELU out; any other activation is one kernel: an input, an output.
_INNER_WRITTEN_OUT = {"gelu_new": 4, "bloom": 5}
_INNER_ONE_KERNEL = 2


# Models whose eager code was read for this: the estimate of other models is no lower bound.
_ESTIMATED_MODELS = frozenset({"gpt2", "gpt_bigcode", "bloom"})


class Clock(Protocol):
    """Takes a time or records an event at each mark; what the marks become is the caller's."""

    def mark(self) -> Any: ...


class Decoded(NamedTuple):
    """tokens: (batch, new_tokens) int64; logits: (kept, new_tokens, vocabulary) where some were kept."""

    tokens: Tensor
    logits: Optional[Tensor]


class GreedyDecoder:
    """Greedy decoding of `new_tokens` tokens after the prompts in `inputs`.

    model: what is called, maybe compiled; module: the plain module behind it; inputs: `input_ids`
    (batch, prompt) alone, so prompts are of one length; cache: "dynamic" grows by a copy at every step,
    "static" holds prompt + new_tokens positions from the start.

    Raises ValueError for a model that keeps no cache, for prompt + new_tokens beyond the model's
    positions, and for inputs that are not prompts of one length.
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
        """Prefill, then new_tokens - 1 steps.

        The clock is marked before prefill, after it and after every step: new_tokens + 1 times. The cache
        is made anew inside the call, after the first mark: so does the `generate` that the reference
        times, no call can see the keys of another, and two sides in one process do not hold two caches.

        keep_logits: of so many prompts, the first and the last ones, keep those that each token was chosen
        by; none when timing.
        forced: go on with these tokens (batch, new_tokens) instead of the chosen ones, so that two ways
        can be compared after they have chosen differently once.
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
        kept = [_ends(logits, keep_logits)] if keep_logits else []
        del logits  # else a step would hold those of the one before
        if clock:
            clock.mark()
        for index in range(self._new_tokens - 1):
            last = tokens[-1]
            if forced is not None:  # of the same strides: else it is compiled anew, and not what is timed
                last = forced[:, index : index + 1].clone(memory_format=torch.contiguous_format)
            logits = self._forward(last, cache)
            tokens.append(logits.argmax(-1, keepdim=True))
            if keep_logits:
                kept.append(_ends(logits, keep_logits))
            del logits
            if clock:
                clock.mark()
        return Decoded(torch.cat(tokens, dim=1), torch.stack(kept, dim=1) if keep_logits else None)

    def _forward(self, tokens: Tensor, cache: Any) -> Tensor:
        """Logits of the last position (batch, vocabulary); the cache has taken the tokens in."""
        return self._model(input_ids=tokens, past_key_values=cache, **self._keywords).logits[:, -1]

    def _make_cache(self) -> Any:
        import transformers

        if self._static:
            positions = self._prompt.shape[1] + self._new_tokens
            return transformers.StaticCache(config=self._config, max_cache_len=positions)
        return transformers.DynamicCache(config=self._config)


def _ends(rows: Tensor, count: int) -> Tensor:
    """A copy of `count` rows: half of them from the start, where most faults are, half from the end, where
    those of large batches are; of all rows where there are no more.
    """
    if count >= len(rows):
        return rows.clone()
    first = (count + 1) // 2
    return torch.cat([rows[:first], rows[len(rows) - (count - first) :]])


def check(module: Any, prompt: int, new_tokens: int) -> None:
    """Raises ValueError where this module cannot decode so many tokens after so long a prompt.

    A module on the meta device will do. A model without a table of positions (BLOOM) has no limit.
    """
    name = type(module).__name__
    taken = inspect.signature(module.forward).parameters
    config = getattr(module, "config", None)
    generates = "past_key_values" in taken and hasattr(module, "can_generate") and module.can_generate()
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
    """Whether it can compute the logits of the last position alone, which prefill needs no others of."""
    return "logits_to_keep" in inspect.signature(module.forward).parameters


def _is_encoder(config: Any) -> bool:
    """Whether is_decoder says so. transformers 4 kept it, false, in every configuration: it says nothing."""
    import transformers

    silent = hasattr(transformers.PretrainedConfig(), "is_decoder")
    return not silent and not getattr(config, "is_decoder", True)


def has_estimate(module: Any) -> bool:
    """Whether `least_bytes` and `cache_bytes` are lower bounds for this module."""
    return getattr(getattr(module, "config", None), "model_type", None) in _ESTIMATED_MODELS


def least_bytes(module: Any, batch: int, prompt: int, new_tokens: int, dtype: torch.dtype) -> int:
    """Bytes that eager greedy decoding needs at least, at its peak. A module on the meta device will do.

    Weights, keys and values of all positions (of a dynamic cache), and the larger of what prefill and
    the last step need beside them. It serves to refuse what cannot fit, so it leaves out what is not
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
    """Bytes of parameters and buffers with the floating ones in `dtype`; shared ones count once.

    Tensors that torchao has quantised count as they are.
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
        cached = 1
    else:
        cached = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * batch * cached * positions * size * dtype.itemsize


def _transient_bytes(module: Any, batch: int, queries: int, keys: int, dtype: torch.dtype) -> int:
    """The largest of what is alive at once in an MLP, in attention with its scores, and at the head."""
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
