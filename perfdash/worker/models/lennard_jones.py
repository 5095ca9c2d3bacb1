"""An interatomic potential (Jones 1924), learnt by a small tanh perceptron of the distance."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def build(batch_size: int) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the perceptron with four layers of 16.

    Distances (batch, 1) -> energies (batch, 1). Forces are not computed.
    """
    sizes = [1, 16, 16, 16, 16]
    blocks: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:]):
        blocks += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*blocks, nn.Linear(16, 1)), (torch.rand(batch_size, 1),)
