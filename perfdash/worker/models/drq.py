"""The actor of DrQ, which computes actions from pixels.

Kostrikov et al. 2020, "Image augmentation is all you need". The benchmark's actor returns a squashed
Gaussian as an object. This actor returns two tensors instead: the Gaussian's mode, which is the tanh of its
mean, and the deviation before squashing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

FRAMES = 3  # stacked frames of three colours
SIZE = 84
FILTERS, FEATURES, HIDDEN = 32, 50, 1024
ACTIONS = 1  # the cart's force
LOG_STD = (-10.0, 2.0)


class PixelActor(nn.Module):
    """Compute the action and its deviation.

    Pixels 0..255 (batch, 9, 84, 84) -> action in (-1, 1) and deviation, both (batch, 1).
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3 * FRAMES, FILTERS, 3, stride=2), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(FILTERS, FILTERS, 3), nn.ReLU()]
        side = (SIZE - 1) // 2 - 3 * 2
        self.encoder = nn.Sequential(
            *layers,
            nn.Flatten(),
            nn.Linear(FILTERS * side * side, FEATURES),
            nn.LayerNorm(FEATURES),
            nn.Tanh(),
        )
        self.policy = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 2 * ACTIONS),
        )

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.policy(self.encoder(pixels / 255)).chunk(2, dim=1)
        low, high = LOG_STD
        log_std = low + (high - low) * 0.5 * (torch.tanh(log_std) + 1)
        return torch.tanh(mean), log_std.exp()


def build(batch_size: int) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the actor with three frames of noise. Pixels are 8-bit values as floating-point numbers."""
    return PixelActor(), (torch.randint(256, (batch_size, 3 * FRAMES, SIZE, SIZE)).float(),)
