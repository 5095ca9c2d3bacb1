"""Loader of timm models by name, with random weights by default."""

from __future__ import annotations

from typing import Any

from perfdash.records import Job
from perfdash.worker.failures import unknown_model
from perfdash.worker.weights import set_norm_statistics

PRELOAD = ("timm",)


def load(job: Job) -> tuple[Any, tuple[Any, ...]]:
    """Create the model and a batch of random images.

    Images have the model's native size, or `inputs.size`: [C, H, W]. Raises LookupError with near names for
    an unknown model.
    """
    import timm
    import torch
    from timm.data import resolve_model_data_config

    if not timm.is_model(job.target):
        raise unknown_model("timm", job.target, timm.list_models())
    model = timm.create_model(job.target, pretrained=job.weights == "pretrained", **job.config)
    size = job.inputs.get("size") or resolve_model_data_config(model)["input_size"]
    if job.weights != "pretrained":
        set_norm_statistics(model, torch.randn(2, *size))
    return model, (torch.randn(job.case.batch_size, *size),)
