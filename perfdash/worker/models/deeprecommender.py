"""An autoencoder that reconstructs a user's ratings.

Kuchaiev and Ginsburg 2017, "Training deep autoencoders for collaborative filtering": SELU after every
layer, dropout 0.8 on the code, untied encoder and decoder.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def build(batch_size: int, items: int = 197_951) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the autoencoder with layers of 512, 512, 1024, 512 and 512.

    Ratings (batch, items) -> a reconstruction of the same shape.
    """
    sizes = [items, 512, 512, 1024, 512, 512, items]
    layers: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:]):
        layers += [nn.Linear(before, after), nn.SELU()]
        if after == max(sizes[1:-1]):
            layers.append(nn.Dropout(0.8))
    return nn.Sequential(*layers), (torch.randn(batch_size, items),)
