"""Super SloMo: interpolation of video frames between two frames.

Jiang et al. 2018, "Super SloMo: high quality estimation of multiple intermediate frames for video
interpolation". One U-Net computes the optical flow; a second U-Net refines it for the requested time.

As in the benchmark, evaluation returns the loss as well: reconstruction, warping, smoothness, and the
perceptual loss on features of VGG-16 (Simonyan and Zisserman 2015) up to conv4_3, here with random weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FRAMES = 8  # time steps between the two input frames; seven frames lie between them
WIDTHS = (32, 64, 128, 256, 512, 512)
KERNELS = (7, 5, 3, 3, 3, 3)
SLOPE = 0.1  # of leaky ReLU
VGG_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512))
# The paper weights reconstruction and warping for colours of 0 to 255; colours are 0 to 1 here. It weights
# the perceptual loss by 0.005. Features of random weights are so alike that with 0.005 no fault in them would
# exceed the tolerance of the loss.
RECONSTRUCTION, WARPING, PERCEPTUAL, SMOOTHNESS = 0.8 * 255, 0.4 * 255, 5.0, 1.0


def convolution(size: int, width: int, kernel: int) -> nn.Sequential:
    """Build a convolution with leaky ReLU. (batch, size, H, W) -> (batch, width, H, W)."""
    return nn.Sequential(nn.Conv2d(size, width, kernel, padding=kernel // 2), nn.LeakyReLU(SLOPE))


class SlomoUNet(nn.Module):
    """A U-Net with six levels down and five up.

    (batch, size, H, W) -> (batch, out, H, W); H and W are multiples of 32.
    """

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Sequential(convolution(before, width, kernel), convolution(width, width, kernel))
            for before, width, kernel in zip((size, *WIDTHS[:-1]), WIDTHS, KERNELS)
        )
        upwards = list(zip(WIDTHS[::-1], WIDTHS[-2::-1]))
        self.up = nn.ModuleList(convolution(below, width, 3) for below, width in upwards)
        self.merge = nn.ModuleList(convolution(2 * width, width, 3) for _, width in upwards)
        self.last = convolution(WIDTHS[0], out, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down[0](x)
        skips = []
        for level in self.down[1:]:
            skips.append(x)
            x = level(F.avg_pool2d(x, 2))
        for up, merge in zip(self.up, self.merge):
            x = up(F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False))
            x = merge(torch.cat([x, skips.pop()], dim=1))
        return self.last(x)


def centres(count: int, like: Tensor) -> Tensor:
    """Return the centres of `count` pixels along an edge from -1 to 1."""
    return (2 * torch.arange(count, dtype=like.dtype, device=like.device) + 1) / count - 1


def warp(image: Tensor, flow: Tensor) -> Tensor:
    """Sample an image at positions that the flow displaces.

    out[p] = image[p + flow[p]], bilinearly, zero outside: image (batch, C, H, W), flow (batch, 2, H, W) in
    pixels to the right and down.

    Half precision is converted to float32: it cannot represent 352 pixel positions, and the CPU's kernel
    would read beyond the image.
    """
    precise = torch.promote_types(image.dtype, torch.float32)
    height, width = image.shape[2:]
    flow = flow.to(precise)
    x = centres(width, flow) + flow[:, 0] * (2 / width)
    y = centres(height, flow)[:, None] + flow[:, 1] * (2 / height)
    warped = F.grid_sample(image.to(precise), torch.stack([x, y], dim=3), align_corners=False)
    return warped.to(image.dtype)


def roughness(flow: Tensor) -> Tensor:
    """Return the mean absolute difference between neighbours, summed over both directions."""
    return flow.diff(dim=3).abs().mean() + flow.diff(dim=2).abs().mean()


def vgg_features() -> nn.Sequential:
    """Build VGG-16 up to conv4_3 with frozen weights. (batch, 3, H, W) -> (batch, 512, H / 8, W / 8)."""
    layers: list[nn.Module] = []
    size = 3
    for stage in VGG_STAGES:
        for width in stage:
            layers += [nn.Conv2d(size, width, 3, padding=1), nn.ReLU()]
            size = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers[:-2]).requires_grad_(False)


class SuperSloMo(nn.Module):
    """Estimate a frame between two frames, and the loss.

    first, last and true middle frames (batch, 3, H, W), index 0..6 (batch,) of the middle frame ->
    estimated middle frames (batch, 3, H, W) and the loss, a scalar.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flow = SlomoUNet(2 * 3, 2 * 2)
        self.refine = SlomoUNet(4 * 3 + 4 * 2, 2 * 2 + 1)
        self.features = vgg_features()
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):  # torch's default weights would give a uniform flow
                nn.init.kaiming_normal_(layer.weight, a=SLOPE)

    def forward(self, first: Tensor, last: Tensor, truth: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        time = ((index + 1).to(first.dtype) / FRAMES)[:, None, None, None]
        forward, backward = self.flow(torch.cat([first, last], dim=1)).chunk(2, dim=1)
        to_first = time * (time * backward - (1 - time) * forward)
        to_last = (1 - time) * ((1 - time) * forward - time * backward)
        rough = (warp(first, to_first), warp(last, to_last))
        middle = self.between(time, (first, last), (forward, backward), (to_first, to_last), rough)
        ends = F.l1_loss(warp(first, backward), last) + F.l1_loss(warp(last, forward), first)
        loss = (
            RECONSTRUCTION * F.l1_loss(middle, truth)
            + PERCEPTUAL * F.mse_loss(self.features(middle), self.features(truth))
            + WARPING * (F.l1_loss(rough[0], truth) + F.l1_loss(rough[1], truth) + ends)
            + SMOOTHNESS * (roughness(forward) + roughness(backward))
        )
        return middle, loss

    def between(
        self,
        time: Tensor,
        frames: tuple[Tensor, Tensor],
        flows: tuple[Tensor, Tensor],
        to_frames: tuple[Tensor, Tensor],
        rough: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Warp both frames along refined flows and mix them.

        The weight of a frame is its nearness in time times the visibility of the pixel in it.
        """
        refined = self.refine(torch.cat([*frames, *flows, *to_frames, *rough], dim=1))
        change_first, change_last, visible = refined.split([2, 2, 1], dim=1)
        visible = visible.sigmoid()
        weight_first, weight_last = (1 - time) * visible, time * (1 - visible)
        warped_first = warp(frames[0], to_frames[0] + change_first)
        warped_last = warp(frames[1], to_frames[1] + change_last)
        return (weight_first * warped_first + weight_last * warped_last) / (weight_first + weight_last)


def build(batch_size: int, size: int = 352) -> tuple[nn.Module, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Build the model with three random frames and the middle frame's index."""
    first, last, truth = torch.rand(3, batch_size, 3, size, size)
    return SuperSloMo(), (first, last, truth, torch.randint(FRAMES - 1, (batch_size,)))
