"""ResNet-18 with group normalisation, as differentially private training wants it, on CIFAR-10's images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def build(batch_size: int) -> tuple[Any, tuple[Tensor]]:
    """torchvision's ResNet-18 (He et al. 2015), groups of at least one channel; images (batch, 3, 32, 32)."""
    import torchvision

    model = torchvision.models.resnet18(weights=None, norm_layer=_group_norm)
    return model, (torch.randn(batch_size, 3, 32, 32),)


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, channels), channels)
