"""A fully connected network for the handwritten digits, trained by digits_training.py."""

from __future__ import annotations

import torch
from torch import nn

from perfdash.worker import digits_training
from perfdash.worker.datasets import digits

_HIDDEN = 1024


class FCN(nn.Module):
    """Two hidden layers of width 1024. (n, 1, 8, 8) -> (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(digits.SIDE**2, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, digits.CLASSES),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def build(batch_size: int) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the trained network and test images. The images (batch_size, 1, 8, 8) repeat beyond 359."""
    return digits_training.build(FCN, batch_size)
