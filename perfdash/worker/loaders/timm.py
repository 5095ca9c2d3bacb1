"""Models of the timm package by name, with random weights unless told otherwise."""

from __future__ import annotations

from typing import Any

from perfdash.records import Job

PRELOAD = ("timm",)


def load(job: Job) -> tuple[Any, tuple[Any, ...]]:
    """The model and one batch of random images of its native size (or `inputs.size`: [C, H, W])."""
    import timm
    import torch
    from timm.data import resolve_model_data_config

    model = timm.create_model(job.target, pretrained=job.weights == "pretrained")
    size = job.inputs.get("size") or resolve_model_data_config(model)["input_size"]
    return model, (torch.randn(job.case.batch_size, *size),)
