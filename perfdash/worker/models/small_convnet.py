"""The model of the null case: three small convolutions.

The null case compares the model with itself, so any difference is the machine's noise.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def build(batch_size: int) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the model, which takes some milliseconds on one core. Images are (batch, 3, 64, 64)."""
    layers: list[nn.Module] = []
    for channels in (3, 32, 32):
        layers += [nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers), (torch.randn(batch_size, 3, 64, 64),)
