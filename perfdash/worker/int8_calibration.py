"""Calibration batches from which static quantisation chooses its ranges, for every back end."""

from __future__ import annotations

import math
from typing import Any

import torch

from perfdash.records import Job
from perfdash.worker import pytree, registry

_SAMPLES = 64  # or the next multiple of the batch size: exported models may accept whole batches only
_NOISE = 0.1  # as a share of the tensor's standard deviation


def calibration_batches(inputs: Any, job: Job) -> tuple[list[Any], str]:
    """Return batches structured like `inputs`, and a note about their source.

    They are training data if the case's labelled data have any, never the scored samples. Otherwise they
    are drawn around the case's inputs with the job's seed: floating tensors get noise, token ids are
    shuffled within their row. The inputs themselves are not used, because the distance to eager is judged
    on them. Integer tensors whose rows only rise or only fall stay as they are, because a model may
    require this order: offsets, positions, lengths, masks of padding.
    """
    count = max(1, math.ceil(_SAMPLES / max(1, job.case.batch_size)))
    size = f"{count} batch{'es' * (count > 1)} of {job.case.batch_size}"
    if job.data:
        kind = registry.find("datasets", job.data)
        if hasattr(kind, "calibration"):
            device = next(pytree.tensors_in(inputs)).device
            batches = pytree.map_tensors(list(kind.calibration(job, count)), lambda tensor: tensor.to(device))
            return batches, f"calibrated on {size}, training data ({job.data})"
    generator = torch.Generator().manual_seed(job.seed)
    batches = [pytree.map_tensors(inputs, lambda tensor: _around(tensor, generator)) for _ in range(count)]
    restriction = ", not on your data" if job.data_path else ""
    return batches, f"calibrated on {size}, drawn around the case's inputs{restriction}"


def _around(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.is_floating_point():
        spread = float(tensor.std()) if tensor.numel() > 1 else 0.0
        noise = torch.randn(tensor.shape, generator=generator).to(tensor)
        return tensor + _NOISE * spread * noise
    if tensor.dim() == 0 or tensor.dtype == torch.bool:
        return tensor
    steps = tensor.long().diff(dim=-1)
    if bool((steps >= 0).all() or (steps <= 0).all()):
        return tensor
    return tensor[..., torch.randperm(tensor.shape[-1], generator=generator)]
