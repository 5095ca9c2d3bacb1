"""U-Net for segmentation, with padding, batch normalisation and bilinear upsampling.

Ronneberger et al. 2015, "U-Net: convolutional networks for biomedical image segmentation". Bilinear
upsampling cannot change the width, so the lowest level has the width of the level above it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perfdash.worker.weights import set_norm_statistics

CLASSES = 2
WIDTHS = (64, 128, 256, 512)
CROP = 160  # pixels; a whole photograph would take ten seconds for its statistics


def twice(size: int, middle: int, width: int) -> nn.Sequential:
    """Build two 3 x 3 convolutions. (batch, size, H, W) -> (batch, width, H, W)."""
    layers: list[nn.Module] = []
    for before, after in ((size, middle), (middle, width)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


def enlarged(x: Tensor, height: int, width: int) -> Tensor:
    """Double height and width, then pad with zeros to the given size.

    Pooling drops the last row or column of an odd size; the padding restores it.
    """
    x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
    rows, columns = height - x.shape[2], width - x.shape[3]
    return F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])


class UNet(nn.Module):
    """Segment images. Images (batch, 3, H, W) -> logits (batch, 2, H, W); H and W are at least 16."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(twice(size, width, width) for size, width in zip((3, *WIDTHS[:-1]), WIDTHS))
        self.bottom = twice(WIDTHS[-1], WIDTHS[-1], WIDTHS[-1])
        skips = WIDTHS[::-1]
        self.up = nn.ModuleList(
            twice(2 * skip, skip, above) for skip, above in zip(skips, (*skips[1:], skips[-1]))
        )
        self.classify = nn.Conv2d(WIDTHS[0], CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level in self.down:
            x = level(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for level in self.up:
            skip = skips.pop()
            x = level(torch.cat([skip, enlarged(x, skip.shape[2], skip.shape[3])], dim=1))
        return self.classify(x)


def build(batch_size: int, height: int = 640, width: int = 959) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the network with random photographs of half the Carvana set's size.

    Height or width is at least 32: normalisation has no statistics of a single pixel.
    """
    module = UNet()
    images = torch.rand(batch_size, 3, height, width)
    set_norm_statistics(module, images[:1, :, :CROP, :CROP])
    return module, (images,)
