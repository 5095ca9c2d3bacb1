"""The actor of a painting agent: a ResNet-18 that computes five strokes.

Huang et al. 2019, "Learning to paint with model-based deep reinforcement learning"; ResNet-18 of He et al.
2016. The input is the canvas, the target, the time and the pixel coordinates. All four stages halve the
image, and there is no pooling after the first convolution.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perfdash.worker.weights import set_norm_statistics

SIZE = 128
STROKES, STROKE = 5, 13  # a stroke has three points, two radii, two opacities and a colour
PLANES = 9  # canvas 3, target 3, time 1, place 2


def convolution(size: int, width: int, kernel: int, stride: int) -> nn.Sequential:
    """Build a convolution with batch normalisation.

    (batch, size, H, W) -> (batch, width, H / stride, W / stride).
    """
    conv = nn.Conv2d(size, width, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width))


class PainterBlock(nn.Module):
    """Two convolutions beside a shortcut, which is a convolution where the shape changes."""

    def __init__(self, size: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(size, width, 3, stride)
        self.second = convolution(width, width, 3, 1)
        self.shortcut = nn.Identity() if stride == 1 else convolution(size, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class StrokeActor(nn.Module):
    """Compute stroke parameters from the state.

    State (batch, 9, 128, 128) -> parameters in (0, 1), (batch, 65).
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [convolution(PLANES, 64, 3, 2), nn.ReLU()]
        size = 64
        for width in (64, 128, 256, 512):
            layers += [PainterBlock(size, width, 2), PainterBlock(width, width, 1)]
            size = width
        self.layers = nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten())
        self.strokes = nn.Linear(size, STROKES * STROKE)

    def forward(self, state: Tensor) -> Tensor:
        return self.strokes(self.layers(state)).sigmoid()


def build(batch_size: int) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the actor with states half-way through painting.

    A state is a random canvas, a random target, the time, and each pixel's row and column.
    """
    pictures = torch.rand(batch_size, 6, SIZE, SIZE)
    time = torch.full((batch_size, 1, SIZE, SIZE), 0.5)
    along = torch.arange(SIZE) / (SIZE - 1)
    place = torch.stack(torch.meshgrid(along, along, indexing="ij")).expand(batch_size, -1, -1, -1)
    module = StrokeActor()
    state = torch.cat([pictures, time, place], dim=1)
    set_norm_statistics(module, state[:1])
    return module, (state,)
