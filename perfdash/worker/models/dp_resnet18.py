"""ResNet-18 with group normalisation for CIFAR-10's images, as differentially private training requires."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def build(batch_size: int) -> tuple[Any, tuple[Tensor]]:
    """Build torchvision's ResNet-18 with group normalisation.

    He et al. 2015. Images (batch, 3, 32, 32); a group has at least one channel.
    """
    import torchvision

    model = torchvision.models.resnet18(weights=None, norm_layer=_group_norm)
    return model, (torch.randn(batch_size, 3, 32, 32),)


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, channels), channels)
