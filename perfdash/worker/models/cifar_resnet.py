"""The 20-layer residual network for small images, with projection shortcuts. He et al. 2015, section 4.2."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from perfdash.worker.weights import set_norm_statistics


class Block(nn.Module):
    """Two convolutions and a shortcut. (batch, channels, h, w) -> (batch, width, h / stride, w / stride)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(channels, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layers(x) + self.shortcut(x))


def build(batch_size: int) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the network for images of CIFAR-10's size. (batch, 3, 32, 32) -> (batch, 10)."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    channels = 16
    for width in (16, 32, 64):
        layers.append(Block(channels, width, stride=1 if width == channels else 2))
        layers += [Block(width, width, stride=1) for _ in range(2)]
        channels = width
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    images = torch.randn(batch_size, 3, 32, 32)
    set_norm_statistics(module, torch.randn(2, 3, 32, 32))
    return module, (images,)
