"""The generator of StarGAN, which changes images to the attributes of a domain.

Choi et al. 2018, "StarGAN: unified generative adversarial networks for multi-domain image-to-image
translation". Instance normalisation keeps running statistics and uses them in evaluation, as the published
model does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

ATTRIBUTES = 5  # black, blond or brown hair; male; young
WIDTH = 64
BLOCKS = 6


def normalised(convolution: nn.Module, width: int) -> list[nn.Module]:
    """Append instance normalisation to a convolution."""
    return [convolution, nn.InstanceNorm2d(width, affine=True, track_running_stats=True)]


class StyleResidual(nn.Module):
    """Add two convolutions to the input. (batch, width, H, W) -> the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        first, second = (
            normalised(nn.Conv2d(width, width, 3, padding=1, bias=False), width) for _ in range(2)
        )
        self.layers = nn.Sequential(*first, nn.ReLU(), *second)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Generator(nn.Module):
    """Change images to the given attributes.

    Images (batch, 3, H, W), attributes (batch, 5) -> images in (-1, 1), (batch, 3, H, W).
    """

    def __init__(self) -> None:
        super().__init__()
        first = nn.Conv2d(3 + ATTRIBUTES, WIDTH, 7, padding=3, bias=False)
        layers = [*normalised(first, WIDTH), nn.ReLU()]
        for size in (WIDTH, 2 * WIDTH):
            down = nn.Conv2d(size, 2 * size, 4, 2, 1, bias=False)
            layers += [*normalised(down, 2 * size), nn.ReLU()]
        layers += [StyleResidual(4 * WIDTH) for _ in range(BLOCKS)]
        for size in (4 * WIDTH, 2 * WIDTH):
            up = nn.ConvTranspose2d(size, size // 2, 4, 2, 1, bias=False)
            layers += [*normalised(up, size // 2), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(WIDTH, 3, 7, padding=3, bias=False), nn.Tanh())

    def forward(self, images: Tensor, attributes: Tensor) -> Tensor:
        planes = attributes[:, :, None, None].expand(-1, -1, images.shape[2], images.shape[3])
        return self.layers(torch.cat([images, planes], dim=1))


def build(batch_size: int, size: int = 128) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Build the generator with images in (-1, 1) and attributes of 0 or 1."""
    images = torch.rand(batch_size, 3, size, size) * 2 - 1
    return Generator(), (images, torch.randint(2, (batch_size, ATTRIBUTES)).float())
