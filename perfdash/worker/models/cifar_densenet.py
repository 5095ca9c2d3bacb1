"""DenseNet-BC for small images: a densely connected network with bottlenecks (Huang et al. 2017).

Four blocks of six layers; a layer adds 16 channels. A transition between two blocks halves channels, height
and width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from perfdash.worker.weights import set_norm_statistics

GROWTH = 16
BOTTLENECK = 2 * GROWTH


class DenseLayer(nn.Module):
    """Concatenate 16 new channels with the input. (batch, channels, h, w) -> (batch, channels + 16, h, w)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, BOTTLENECK, 1, bias=False),
            nn.BatchNorm2d(BOTTLENECK),
            nn.ReLU(),
            nn.Conv2d(BOTTLENECK, GROWTH, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.layers(x), x], dim=1)


def build(batch_size: int) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the network for images of CIFAR-10's size. (batch, 3, 32, 32) -> (batch, 10)."""
    channels = BOTTLENECK
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
    for block in range(4):
        if block:
            layers += [nn.BatchNorm2d(channels), nn.ReLU()]
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(6):
            layers.append(DenseLayer(channels))
            channels += GROWTH
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    module = nn.Sequential(*layers, nn.Linear(channels, 10))
    images = torch.randn(batch_size, 3, 32, 32)
    set_norm_statistics(module, torch.randn(2, 3, 32, 32))
    return module, (images,)
