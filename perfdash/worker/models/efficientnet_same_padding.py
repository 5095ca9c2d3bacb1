"""EfficientNet B0 and B1 in the layout of the original: SAME padding, a swish that keeps its input only.

Tan and Le 2019, table 1 and section 3.3; Sandler et al. 2018 for the inverted bottleneck, Hu et al. 2018 for
squeeze and excitation. timm's layout pads symmetrically and stores what autograd stores.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perfdash.worker.norm_activation import Activation

# Multipliers of the number of layers by the compound scaling; the width of both is the same.
DEPTHS = {"b0": 1.0, "b1": 1.1}
# Expansion, channels, layers, stride, kernel size of each stage of B0.
STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
STEM, HEAD = 32, 1280


class SameConv2d(nn.Conv2d):
    """A convolution whose output has ceil(size / stride) places: odd padding goes to the right and below."""

    def forward(self, x: Tensor) -> Tensor:
        pads = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1]):
            total = max(0, (math.ceil(size / stride) - 1) * stride + kernel - size)
            pads += [total // 2, total - total // 2]
        return super().forward(F.pad(x, pads) if any(pads) else x)


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution without bias, and its normalisation with the original's constants."""
    layer = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)]


class SqueezeExcitation(nn.Module):
    """Weight channels by a gate that sees the mean of each."""

    def __init__(self, channels: int, squeezed: int, swish: nn.Module) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.swish = swish

    def forward(self, x: Tensor) -> Tensor:
        gate = self.expand(self.swish(self.reduce(F.adaptive_avg_pool2d(x, 1))))
        return x * gate.sigmoid()


class MBConv(nn.Module):
    """An inverted bottleneck with squeeze and excitation; with a shortcut where the shapes agree."""

    def __init__(
        self, inputs: int, outputs: int, expansion: int, stride: int, kernel: int, swish: nn.Module
    ) -> None:
        super().__init__()
        wide = inputs * expansion
        layers = [*convolution(inputs, wide, 1), swish] if expansion > 1 else []
        layers += [*convolution(wide, wide, kernel, stride, groups=wide), swish]
        layers += [SqueezeExcitation(wide, max(1, inputs // 4), swish), *convolution(wide, outputs, 1)]
        self.layers = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + x if self.has_shortcut else self.layers(x)


def build(
    batch_size: int,
    variant: str = "b0",
    activation: str = "swish_saving",
    size: int = 224,
    classes: int = 1000,
) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the network, without dropout and without stochastic depth.

    Images (batch, 3, size, size) -> (batch, classes).
    """
    if variant not in DEPTHS:
        raise ValueError(f"variant {variant!r} is unknown; known are {', '.join(DEPTHS)}")
    depth, swish = DEPTHS[variant], Activation(activation)
    layers: list[nn.Module] = [*convolution(3, STEM, 3, 2), swish]
    channels = STEM
    for expansion, outputs, repeats, stride, kernel in STAGES:
        for number in range(math.ceil(repeats * depth)):
            layers.append(MBConv(channels, outputs, expansion, 1 if number else stride, kernel, swish))
            channels = outputs
    layers += [*convolution(channels, HEAD, 1), swish]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(HEAD, classes)]
    return nn.Sequential(*layers).train(), (torch.randn(batch_size, 3, size, size),)
