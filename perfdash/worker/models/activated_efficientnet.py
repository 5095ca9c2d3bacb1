"""EfficientNet B0 to B3 (Tan and Le 2019) of timm with an activation of ours in place of its swish."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from perfdash.worker.norm_activation import activation_named

VARIANTS = ("b0", "b1", "b2", "b3")


class Activation(nn.Module):
    """An activation as timm makes them; whether it overwrites its input is ours to say, not timm's."""

    def __init__(self, name: str, inplace: bool = False) -> None:
        super().__init__()
        self.activate = activation_named(name)

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(x)


def build(
    batch_size: int, variant: str = "b0", activation: str = "swish", size: int = 224, classes: int = 1000
) -> tuple[nn.Module, tuple[Tensor]]:
    """Images (batch, 3, size, size) -> (batch, classes); no dropout and no dropped paths."""
    import timm

    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r} is unknown; known are {', '.join(VARIANTS)}")
    activation_named(activation)
    module = timm.create_model(
        f"efficientnet_{variant}", num_classes=classes, act_layer=partial(Activation, activation)
    )
    return module.train(), (torch.randn(batch_size, 3, size, size),)
