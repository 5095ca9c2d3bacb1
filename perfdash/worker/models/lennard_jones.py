"""An energy as a function of one distance: a small multilayer perceptron with tanh between layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def build(batch_size: int, hidden: int = 16, layers: int = 4) -> tuple[nn.Module, tuple[Tensor]]:
    """1 -> hidden (x layers) -> 1, over distances of shape (batch, 1)."""
    sizes = [1, *[hidden] * layers]
    blocks: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:]):
        blocks += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*blocks, nn.Linear(hidden, 1)), (torch.rand(batch_size, 1),)
