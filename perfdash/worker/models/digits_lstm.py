"""An LSTM that reads the handwritten digits row by row, trained by digits_training.py."""

from __future__ import annotations

import torch
from torch import nn

from perfdash.worker import digits_training
from perfdash.worker.datasets import digits

_HIDDEN = 256
_LAYERS = 2


class LSTM(nn.Module):
    """Classify an image by the LSTM's state after its eight rows of eight pixels. (n, 1, 8, 8) -> (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(digits.SIDE, _HIDDEN, _LAYERS, batch_first=True)
        self.head = nn.Linear(_HIDDEN, digits.CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        states, _ = self.rows(images.flatten(1, 2))
        return self.head(states[:, -1])


def build(batch_size: int) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the trained network and test images. The images (batch_size, 1, 8, 8) repeat beyond 359."""
    return digits_training.build(LSTM, batch_size)
