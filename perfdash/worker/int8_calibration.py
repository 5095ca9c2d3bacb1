"""Batches from which static quantisation chooses its ranges, the same for every back end."""

from __future__ import annotations

import math
from typing import Any

import torch

from perfdash.records import Job
from perfdash.worker import pytree, registry

_SAMPLES = 64  # at any batch size: else each batch size would have another quantised model
_NOISE = 0.1  # of a tensor's own spread


def calibration_batches(inputs: Any, job: Job) -> tuple[list[Any], str]:
    """Batches built like `inputs`, and a note that says what they are.

    Training data where the case's labelled data has any (never what is scored); else batches drawn
    around the case's inputs with the job's seed, but not these themselves, by which the distance to
    eager is judged: noise on floating tensors, token ids shuffled within their row.
    """
    count = max(1, math.ceil(_SAMPLES / max(1, job.case.batch_size)))
    what = f"{count} batch{'es' * (count > 1)} of {job.case.batch_size}"
    if job.data:
        kind = registry.find("datasets", job.data)
        if hasattr(kind, "calibration"):
            return list(kind.calibration(job, count)), f"calibrated on {what}, training data ({job.data})"
    generator = torch.Generator().manual_seed(job.seed)
    drawn = [pytree.map_tensors(inputs, lambda tensor: _around(tensor, generator)) for _ in range(count)]
    yours = ", not on your data" if job.data_path else ""
    return drawn, f"calibrated on {what}, drawn around the case's inputs{yours}"


def _around(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.is_floating_point():
        spread = float(tensor.std()) if tensor.numel() > 1 else 0.0
        noise = torch.randn(tensor.shape, generator=generator).to(tensor)
        return tensor + _NOISE * spread * noise
    if tensor.dim() == 0 or tensor.dtype == torch.bool:
        return tensor
    return tensor[..., torch.randperm(tensor.shape[-1], generator=generator)]
