"""Loader of torchvision models by name, with random weights by default."""

from __future__ import annotations

import inspect
from typing import Any

from perfdash.records import Job
from perfdash.worker.failures import unknown_model
from perfdash.worker.weights import set_norm_statistics

PRELOAD = ("torchvision",)


def load(job: Job) -> tuple[Any, tuple[Any, ...]]:
    """Create the model and a batch of random images.

    Images are 224 x 224, or of `inputs.size`: [C, H, W]. Raises LookupError with near names for an unknown
    model.
    """
    import torch
    import torchvision

    names = torchvision.models.list_models()
    if job.target not in names:
        raise unknown_model("torchvision", job.target, names)
    weights = "DEFAULT" if job.weights == "pretrained" else None
    builder = torchvision.models.get_model_builder(job.target)
    settings: dict[str, Any] = dict(job.config)
    if weights is None and "weights_backbone" in inspect.signature(builder).parameters:
        settings["weights_backbone"] = None  # the default downloads weights
    model = builder(weights=weights, **settings)
    size = job.inputs.get("size", (3, 224, 224))
    # Detectors are excluded, because in training mode they need target boxes as well as images.
    if weights is None and ".detection." not in builder.__module__:
        set_norm_statistics(model, torch.randn(2, *size))
    return model, (torch.randn(job.case.batch_size, *size),)
