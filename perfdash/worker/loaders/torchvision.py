"""Models of the torchvision package by name, with random weights unless told otherwise."""

from __future__ import annotations

import inspect
from typing import Any

from perfdash.records import Job
from perfdash.worker.failures import unknown_model
from perfdash.worker.weights import set_norm_statistics

PRELOAD = ("torchvision",)


def load(job: Job) -> tuple[Any, tuple[Any, ...]]:
    """The model and one batch of random images of 224 x 224 (or `inputs.size`: [C, H, W]).

    Raises LookupError with near names for one that torchvision does not have.
    """
    import torch
    import torchvision

    known = torchvision.models.list_models()
    if job.target not in known:
        raise unknown_model("torchvision", job.target, known)
    weights = "DEFAULT" if job.weights == "pretrained" else None
    builder = torchvision.models.get_model_builder(job.target)
    settings: dict[str, Any] = dict(job.config)
    if weights is None and "weights_backbone" in inspect.signature(builder).parameters:
        settings["weights_backbone"] = None  # else fetched from the network
    model = builder(weights=weights, **settings)
    size = job.inputs.get("size", (3, 224, 224))
    # In training, detectors want to be told what is in the images.
    if weights is None and ".detection." not in builder.__module__:
        set_norm_statistics(model, torch.randn(2, *size))
    return model, (torch.randn(job.case.batch_size, *size),)
