"""The loss of a training step: one number computed from a model's outputs."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from perfdash.records import Job, Status
from perfdash.worker import pytree
from perfdash.worker.failures import Unmeasurable


def make(job: Job) -> Callable[[Any], Tensor]:
    """Return the loss function that the job names, a function of the model's outputs.

    The names, and the default without a name:

    - no name: the model's own loss if it returns a loss, else mean_square;
    - model: the field `loss`, or the first output if it is a single number;
    - cross_entropy: of the first floating output (batch, classes), with labels (batch,) drawn from the
      job's seed;
    - mean: the mean of each floating output, averaged over the outputs, as the public dynamo harness does;
    - mean_square: the mean of the squares of all floating outputs.

    The function raises Unmeasurable if the outputs do not have this loss.
    """
    if job.loss is None:
        return _own_or_mean_square
    if job.loss == "cross_entropy":
        return _CrossEntropy(job.seed)
    return {"model": _own, "mean": _mean, "mean_square": _mean_square}[job.loss]


def _own_or_mean_square(outputs: Any) -> Tensor:
    loss = _model_loss(outputs)
    return _mean_square(outputs) if loss is None else loss


def _own(outputs: Any) -> Tensor:
    loss = _model_loss(outputs)
    if loss is None:
        raise Unmeasurable(
            Status.SKIPPED, "the model returns no loss: give it labels, or the suite another loss"
        )
    return loss


def _model_loss(outputs: Any) -> Any:
    loss = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if loss is None:  # not of shape (1,), which may be one loss per sample
        first = outputs[0] if isinstance(outputs, (tuple, list)) and outputs else outputs
        loss = first if isinstance(first, Tensor) and first.dim() == 0 else None
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad:
        return loss.reshape(())
    return None


class _CrossEntropy:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._labels: Any = None

    def __call__(self, outputs: Any) -> Tensor:
        scores = next((output for output in _floating(outputs) if output.dim() == 2), None)
        if scores is None:
            raise Unmeasurable(
                Status.SKIPPED, "cross entropy needs an output (batch, classes), and there is none"
            )
        if self._labels is None:
            labels = torch.randint(
                scores.shape[1], (scores.shape[0],), generator=torch.Generator().manual_seed(self._seed)
            )
            self._labels = labels.to(scores.device)
        return torch.nn.functional.cross_entropy(scores, self._labels)


def _mean(outputs: Any) -> Tensor:
    floating = _floating(outputs)
    return sum(output.mean() for output in floating) / len(floating)


def _mean_square(outputs: Any) -> Tensor:
    floating = _floating(outputs)
    return sum(output.square().sum() for output in floating) / sum(output.numel() for output in floating)


def _floating(outputs: Any) -> list[Tensor]:
    """Return the floating outputs that have a gradient. Raises Unmeasurable without any."""
    floating = [
        tensor for tensor in pytree.tensors_in(outputs) if tensor.is_floating_point() and tensor.requires_grad
    ]
    if not floating:
        raise Unmeasurable(
            Status.SKIPPED, "the model returns no floating output that its parameters have a part in"
        )
    return floating
