"""The actor of soft actor-critic for the pendulum: a squashed Gaussian.

Haarnoja et al. 2018. The benchmark's actor draws samples. This actor returns the distribution instead: the
mean action and the logarithm of the deviation, which is bounded smoothly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

HIDDEN = 256
LOG_STD = (-10.0, 2.0)


class StateActor(nn.Module):
    """Compute the distribution of actions.

    Observations (batch, 3) -> mean action in (-1, 1) and log deviation, both (batch, 1).
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2)
        )

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.layers(observation).chunk(2, dim=1)
        low, high = LOG_STD
        return torch.tanh(mean), low + (high - low) * 0.5 * (torch.tanh(log_std) + 1)


def build(batch_size: int) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the actor with random states of the pendulum.

    A state is the angle's cosine and sine, and the angular velocity, which is at most 8.
    """
    angle = torch.rand(batch_size) * (2 * math.pi)
    velocity = torch.rand(batch_size) * 16 - 8
    return StateActor(), (torch.stack([angle.cos(), angle.sin(), velocity], dim=1),)
