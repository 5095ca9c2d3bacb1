"""The small model that is measured against itself: what it shows is the machine's noise."""

from __future__ import annotations

from typing import Any


def small(batch_size: int) -> tuple[Any, tuple[Any, ...]]:
    """Three convolutions over a 64 x 64 image, some milliseconds on one core."""
    import torch
    from torch import nn

    layers: list[Any] = []
    for channels_in, channels_out in ((3, 32), (32, 32), (32, 32)):
        layers += [
            nn.Conv2d(channels_in, channels_out, 3, padding=1),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers), (torch.randn(batch_size, 3, 64, 64),)
