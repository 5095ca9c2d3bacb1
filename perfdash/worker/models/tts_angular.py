"""A speaker encoder of three projected LSTMs.

Wan et al. 2018, "Generalized end-to-end loss for speaker verification". LSTMs of width 768 are projected to
256, and the last frame's vector is normalised to length one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MELS = 40


class ProjectedLSTM(nn.Module):
    """An LSTM with a projection outside the recurrence.

    (batch, frames, size) -> (batch, frames, projected).
    """

    def __init__(self, size: int, hidden: int, projected: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(size, hidden, batch_first=True)
        self.project = nn.Linear(hidden, projected, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.lstm(x)[0])


class SpeakerEncoder(nn.Module):
    """Encode speech as speaker vectors of length one. Mel frames (batch, frames, 40) -> (batch, 256)."""

    def __init__(self, hidden: int = 768, width: int = 256) -> None:
        super().__init__()
        sizes = (MELS, width, width)
        self.layers = nn.Sequential(*(ProjectedLSTM(size, hidden, width) for size in sizes))

    def forward(self, mels: Tensor) -> Tensor:
        return F.normalize(self.layers(mels)[:, -1], dim=1)


def build(batch_size: int) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the encoder with 50 frames of 40 mels."""
    return SpeakerEncoder(), (torch.rand(batch_size, 50, MELS),)
