"""VGG-16 with batch norm, whose norm and activation can be configured.

Simonyan and Zisserman 2014, "Very deep convolutional networks for large-scale image recognition",
configuration D; batch norm of Ioffe and Szegedy 2015.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor, nn

from perfdash.worker.norm_activation import Chain, norm_named

WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
HIDDEN = 4096


def build(
    batch_size: int,
    norm: str = "plain",
    activation: str = "leaky_relu",
    checkpoint: Optional[str] = None,
    size: int = 224,
    classes: int = 1000,
) -> tuple[nn.Module, tuple[Tensor]]:
    """Build VGG-16 in training mode.

    Images (batch, 3, size, size) -> (batch, classes); size is a multiple of 32. The width of the first
    linear layer follows from `size`: the model has 138 million parameters at 224.
    """
    layers: list[nn.Module] = []
    channels = 3
    for widths in WIDTHS:
        for width in widths:
            layers.append(nn.Conv2d(channels, width, 3, padding=1, bias=False))
            layers.append(norm_named(norm, width, activation))
            channels = width
        layers.append(nn.MaxPool2d(2))
    module = nn.Sequential(
        Chain(layers, checkpoint),
        nn.Flatten(),
        *(nn.Linear(channels * (size // 32) ** 2, HIDDEN), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        *(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        nn.Linear(HIDDEN, classes),
    )
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    return module.train(), (torch.randn(batch_size, 3, size, size),)
