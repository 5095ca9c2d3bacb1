"""Image matting with a photograph of the background.

Sengupta et al. 2020, "Background matting: the world is your green screen". Image, background, segmentation
and motion (four grey frames before and after) have an encoder each. The image's features are combined with
the features of each prior, so that the network can choose which prior to trust. Residual blocks follow:
seven shared, three for the opacity and three for the foreground's colours.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from perfdash.worker.models.cyclegan import ReflectingResidual, reflecting

WIDTH = 64
PRIORS = (3, 1, 4)  # channels of background, segmentation and motion
SHARED, OWN = 7, 3  # residual blocks: before the two outputs, for each output


def normalised(convolution: nn.Conv2d) -> nn.Sequential:
    """Append batch normalisation and ReLU to a convolution."""
    return nn.Sequential(convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU())


def half_encoder(size: int) -> nn.Sequential:
    """Build an encoder to half resolution. (batch, size, H, W) -> (batch, 128, H / 2, W / 2)."""
    down = nn.Conv2d(WIDTH, 2 * WIDTH, 3, 2, 1)
    return nn.Sequential(normalised(reflecting(size, WIDTH, 7)), normalised(down))


def quarter_encoder() -> nn.Sequential:
    """Build an encoder from half to quarter resolution.

    (batch, 128, H / 2, W / 2) -> (batch, 256, H / 4, W / 4).
    """
    return normalised(nn.Conv2d(2 * WIDTH, 4 * WIDTH, 3, 2, 1))


def up(size: int, width: int) -> nn.Sequential:
    """Build a layer that doubles height and width. (batch, size, H, W) -> (batch, width, 2 * H, 2 * W)."""
    larger = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
    return nn.Sequential(larger, normalised(nn.Conv2d(size, width, 3, padding=1)))


def blocks(count: int) -> nn.Sequential:
    """Build residual blocks for quarter resolution. (batch, 256, H / 4, W / 4) -> the same shape."""
    return nn.Sequential(*(ReflectingResidual(4 * WIDTH, nn.BatchNorm2d) for _ in range(count)))


class Matting(nn.Module):
    """Estimate the foreground's opacity and colours.

    Inputs: image and background (batch, 3, H, W), segmentation (batch, 1, H, W), motion (batch, 4, H, W); H
    and W are multiples of 4. Outputs: opacity in (-1, 1), (batch, 1, H, W), and the foreground's colours
    (batch, 3, H, W).
    """

    def __init__(self) -> None:
        super().__init__()
        self.image_half, self.image_quarter = half_encoder(3), quarter_encoder()
        self.priors = nn.ModuleList(nn.Sequential(half_encoder(size), quarter_encoder()) for size in PRIORS)
        self.selectors = nn.ModuleList(normalised(nn.Conv2d(8 * WIDTH, WIDTH, 1)) for _ in PRIORS)
        self.combinator = normalised(nn.Conv2d((4 + len(PRIORS)) * WIDTH, 4 * WIDTH, 1))
        self.shared = blocks(SHARED)
        self.opacity = nn.Sequential(
            blocks(OWN),
            up(4 * WIDTH, 2 * WIDTH),
            up(2 * WIDTH, WIDTH),
            reflecting(WIDTH, 1, 7),
            nn.Tanh(),
        )
        self.colours_half = nn.Sequential(blocks(OWN), up(4 * WIDTH, 2 * WIDTH))
        self.colours = nn.Sequential(up(4 * WIDTH, WIDTH), reflecting(WIDTH, 3, 7))

    def forward(
        self, image: Tensor, background: Tensor, segmentation: Tensor, motion: Tensor
    ) -> tuple[Tensor, Tensor]:
        half = self.image_half(image)
        quarter = self.image_quarter(half)
        chosen = [quarter]
        for prior, encoder, selector in zip((background, segmentation, motion), self.priors, self.selectors):
            chosen.append(selector(torch.cat([quarter, encoder(prior)], dim=1)))
        x = self.shared(self.combinator(torch.cat(chosen, dim=1)))
        return self.opacity(x), self.colours(torch.cat([self.colours_half(x), half], dim=1))


def build(batch_size: int, size: int = 512) -> tuple[nn.Module, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Build the network and random inputs in (-1, 1)."""
    image, background, segmentation, motion = (
        torch.rand(batch_size, channels, size, size) * 2 - 1 for channels in (3, *PRIORS)
    )
    return Matting(), (image, background, segmentation, motion)
