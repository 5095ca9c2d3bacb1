"""One number of what a model returns, for a training step to start backward from."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from perfdash.records import Job, Status
from perfdash.worker import pytree
from perfdash.worker.failures import Unmeasurable


def make(job: Job) -> Callable[[Any], Tensor]:
    """The loss that the job names, a function of the model's outputs; without a name the model's own where
    it returns one, else the mean of the squares.

    model: the field `loss`, or the first output, one number. cross_entropy: with labels (batch,) drawn
    from the job's seed, of the first floating output (batch, classes). mean: the mean of each
    floating output, averaged over these, as the public dynamo harness reduces them. mean_square: the mean
    of the squares of all. Raises Unmeasurable where the outputs do not have it.
    """
    if job.loss is None:
        return _own_or_mean_square
    if job.loss == "cross_entropy":
        return _CrossEntropy(job.seed)
    return {"model": _own, "mean": _mean, "mean_square": _mean_square}[job.loss]


def _own_or_mean_square(outputs: Any) -> Tensor:
    found = _find_own(outputs)
    return _mean_square(outputs) if found is None else found


def _own(outputs: Any) -> Tensor:
    found = _find_own(outputs)
    if found is None:
        raise Unmeasurable(
            Status.SKIPPED, "the model returns no loss: give it labels, or the suite another loss"
        )
    return found


def _find_own(outputs: Any) -> Any:
    found = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if found is None:  # a row of one score is none: with a larger batch it would be another loss
        first = outputs[0] if isinstance(outputs, (tuple, list)) and outputs else outputs
        found = first if isinstance(first, Tensor) and first.dim() == 0 else None
    if isinstance(found, Tensor) and found.numel() == 1 and found.requires_grad:
        return found.reshape(())
    return None


class _CrossEntropy:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._labels: Any = None

    def __call__(self, outputs: Any) -> Tensor:
        scores = next((each for each in _floating(outputs) if each.dim() == 2), None)
        if scores is None:
            raise Unmeasurable(
                Status.SKIPPED, "cross entropy needs an output (batch, classes), and there is none"
            )
        if self._labels is None:
            drawn = torch.randint(
                scores.shape[1], (scores.shape[0],), generator=torch.Generator().manual_seed(self._seed)
            )
            self._labels = drawn.to(scores.device)
        return torch.nn.functional.cross_entropy(scores, self._labels)


def _mean(outputs: Any) -> Tensor:
    found = _floating(outputs)
    return sum(each.mean() for each in found) / len(found)


def _mean_square(outputs: Any) -> Tensor:
    found = _floating(outputs)
    return sum(each.square().sum() for each in found) / sum(each.numel() for each in found)


def _floating(outputs: Any) -> list[Tensor]:
    """The outputs that a gradient comes from."""
    found = [each for each in pytree.tensors_in(outputs) if each.is_floating_point() and each.requires_grad]
    if not found:
        raise Unmeasurable(
            Status.SKIPPED, "the model returns no floating output that its parameters have a part in"
        )
    return found
