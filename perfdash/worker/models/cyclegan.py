"""The generator of CycleGAN, which turns horses into zebras.

Zhu et al. 2017, "Unpaired image-to-image translation using cycle-consistent adversarial networks", after
Johnson et al. 2016. The generator has nine residual blocks.
"""

from __future__ import annotations

from typing import Callable

import torch
from torch import Tensor, nn

from perfdash.worker.models.dcgan import gaussian_start

WIDTH = 64
BLOCKS = 9


def reflecting(size: int, width: int, kernel: int) -> nn.Conv2d:
    """Build a convolution with reflection padding."""
    return nn.Conv2d(size, width, kernel, padding=kernel // 2, padding_mode="reflect")


class ReflectingResidual(nn.Module):
    """Add two convolutions with reflection padding to the input. (batch, width, H, W) -> the same shape."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            reflecting(width, width, 3), norm(width), nn.ReLU(), reflecting(width, width, 3), norm(width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def generator() -> nn.Sequential:
    """Build the generator.

    Images (batch, 3, H, W) -> images in (-1, 1) of the same shape; H and W are multiples of 4.
    """
    norm = nn.InstanceNorm2d
    layers = [reflecting(3, WIDTH, 7), norm(WIDTH), nn.ReLU()]
    for size in (WIDTH, 2 * WIDTH):
        layers += [nn.Conv2d(size, 2 * size, 3, 2, 1), norm(2 * size), nn.ReLU()]
    layers += [ReflectingResidual(4 * WIDTH, norm) for _ in range(BLOCKS)]
    for size in (4 * WIDTH, 2 * WIDTH):
        up = nn.ConvTranspose2d(size, size // 2, 3, 2, 1, output_padding=1)
        layers += [up, norm(size // 2), nn.ReLU()]
    return nn.Sequential(*layers, reflecting(WIDTH, 3, 7), nn.Tanh())


def build(batch_size: int, size: int = 256) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the generator with random images in (-1, 1)."""
    module = generator()
    gaussian_start(module)
    return module, (torch.rand(batch_size, 3, size, size) * 2 - 1,)
