"""The discriminator of DCGAN: five strided convolutions without pooling.

Radford et al. 2016, "Unsupervised representation learning with deep convolutional generative adversarial
networks".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512)


def gaussian_start(module: nn.Module) -> None:
    """Draw the convolutions' weights with a standard deviation of 0.02.

    Many adversarial networks were published with this initialisation.
    """
    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(layer.weight, std=0.02)


class Discriminator(nn.Module):
    """Estimate the probability that images are real. Images (batch, 3, 64, 64) -> (batch,)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, WIDTHS[0], 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
        for size, width in zip(WIDTHS, WIDTHS[1:]):
            layers += [
                nn.Conv2d(size, width, 4, 2, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.LeakyReLU(0.2),
            ]
        self.layers = nn.Sequential(*layers, nn.Conv2d(WIDTHS[-1], 1, 4, bias=False), nn.Sigmoid())
        gaussian_start(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).flatten()


def build(batch_size: int) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the discriminator with noise in place of images."""
    return Discriminator(), (torch.randn(batch_size, 3, 64, 64),)
