"""What static quantisation looks at to choose its ranges: the same for every back end that quantises."""

from __future__ import annotations

from typing import Any

import torch

from perfdash.records import Job
from perfdash.worker import nest, registry

_BATCHES = 4
_NOISE = 0.1  # of a tensor's own spread


def calibration_batches(inputs: Any, job: Job) -> tuple[list[Any], str]:
    """Batches built like `inputs`, and a note that says what they are.

    Training data where the case's labelled data has any (never what is scored); else the case's inputs
    and batches drawn around them with the job's seed: noise on floating tensors, token ids shuffled
    within their row.
    """
    if job.data:
        kind = registry.find("datasets", job.data)
        if hasattr(kind, "calibration"):
            found = list(kind.calibration(job, _BATCHES))
            return found, f"calibrated on {len(found)} batches of training data ({job.data})"
    generator = torch.Generator().manual_seed(job.seed)
    drawn = [nest.map_tensors(inputs, lambda tensor: _around(tensor, generator)) for _ in range(_BATCHES - 1)]
    return [inputs, *drawn], f"calibrated on the case's inputs and {len(drawn)} batches drawn around them"


def _around(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.is_floating_point():
        spread = float(tensor.std()) if tensor.numel() > 1 else 0.0
        noise = torch.randn(tensor.shape, generator=generator).to(tensor)
        return tensor + _NOISE * spread * noise
    if tensor.dim() == 0 or tensor.dtype == torch.bool:
        return tensor
    return tensor[..., torch.randperm(tensor.shape[-1], generator=generator)]
