"""Text generation: a prompt is read (prefill), then tokens are decoded greedily, one after the other."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Optional

import torch

from perfdash.records import Job, Status
from perfdash.worker import greedy_decoding, pytree
from perfdash.worker.eager_and_compiled import ModelSide
from perfdash.worker.failures import Unmeasurable

_KEPT_LOGITS = 1 << 24


def set_mode(module: Any) -> None:
    """Evaluation mode."""
    module.eval()


def make_step(model: Any, side: ModelSide, device: Any) -> GenerationStep:
    """One generation from the prompts of a side. Raises Unmeasurable for a model that cannot."""
    return GenerationStep(model, side, device)


@contextlib.contextmanager
def context(job: Job) -> Iterator[None]:
    """No gradients."""
    with torch.no_grad():
        yield


class GenerationStep:
    """Called, it reads the prompts and decodes; returns the new tokens (batch, new_tokens).

    `prefill` ends with the first token, `decode` is all further ones; each of them has a mark.
    """

    parts = ("prefill", "decode")

    def __init__(self, model: Any, side: ModelSide, device: Any) -> None:
        job = self._job = side.job
        self._side, self._is_eager = side, model is side.module
        self._fits = False  # nothing was tried yet
        try:
            self._decoder = greedy_decoding.GreedyDecoder(
                model, side.module, side.inputs, job.new_tokens, job.cache
            )
        except ValueError as error:
            raise Unmeasurable(Status.SKIPPED, str(error)) from error
        self._kind = job.case.device
        self._clock = _TokenMarks(device)
        # With the logits of all prompts the check would need more memory than the model.
        vocabulary = getattr(side.module.config, "vocab_size", 1)
        self._rows = max(1, _KEPT_LOGITS // (job.new_tokens * vocabulary))
        self._forced: Optional[torch.Tensor] = None
        self.tokens: Optional[torch.Tensor] = None
        self.marks: list[list[Any]] = []

    def __call__(self) -> Any:
        """The new tokens."""
        self._refuse_too_large()
        with self._side.autocast():
            tokens = self._decoder(self._clock).tokens
        self.marks.append(self._clock.take())
        return tokens

    def observe(self) -> dict[str, Any]:
        """The logits (prompts, new_tokens, vocabulary) of the first and the last prompts.

        Decoding repeats the tokens of the step that it follows, if any: after one different token, chosen by
        a rounding error, all later logits would differ.
        """
        self._refuse_too_large()
        with self._side.autocast():
            decoded = self._decoder(keep_logits=self._rows, forced=self._forced)
        self.tokens = decoded.tokens if self._forced is None else self._forced
        return {"logits": pytree.detach(decoded.logits)}

    def follow(self, other: GenerationStep) -> None:
        """Let `observe` repeat the tokens that the other step has chosen, which may be on another device."""
        tokens = other.tokens
        self._forced = None if tokens is None else tokens.to(self._side.inputs["input_ids"].device)

    def _refuse_too_large(self) -> None:
        """Raise MemoryError before the first step if it cannot fit even into the whole memory."""
        if self._fits:
            return
        available = torch.cuda.mem_get_info()[1] if self._kind == "cuda" else self._job.memory_limit_bytes
        if not available or not greedy_decoding.has_estimate(self._side.module):
            return
        module, tokens = self._side.module, self._job.new_tokens
        batch, prompt = self._side.inputs["input_ids"].shape
        dtype = self._side.autocast_dtype() or next(module.parameters()).dtype
        if self._is_eager:
            needed = greedy_decoding.least_bytes(module, batch, prompt, tokens, dtype)
        else:  # a back end may need no memory beside weights and cache
            cache = greedy_decoding.cache_bytes(module.config, batch, prompt + tokens - 1, dtype)
            needed = greedy_decoding.weight_bytes(module, dtype) + cache
        if needed > available:
            raise MemoryError(
                f"{batch} prompts of {prompt} and {tokens} new tokens need at least {needed / 1e6:.0f} MB, "
                f"and there are {available / 1e6:.0f} MB: not tried"
            )
        self._fits = True


class _TokenMarks:
    def __init__(self, device: Any) -> None:
        self._device = device
        self._marks: list[Any] = []

    def mark(self) -> None:
        self._marks.append(self._device.mark())

    def take(self) -> list[Any]:
        marks, self._marks = self._marks, []
        return marks
