"""A convolutional network for the handwritten digits, trained by digits_training.py."""

from __future__ import annotations

import torch
from torch import nn

from perfdash.worker import digits_training
from perfdash.worker.datasets import digits

_CHANNELS = (32, 64, 128)


class CNN(nn.Module):
    """Convolutions at image sides of 8, 8 and 4, then the image's mean. (n, 1, 8, 8) -> (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        first, second, third = _CHANNELS
        self.features = nn.Sequential(
            *_convolution(1, first),
            *_convolution(first, second),
            nn.MaxPool2d(2),
            *_convolution(second, third),
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(third, digits.CLASSES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()


def build(batch_size: int) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the trained network and test images. The images (batch_size, 1, 8, 8) repeat beyond 359."""
    return digits_training.build(CNN, batch_size)
