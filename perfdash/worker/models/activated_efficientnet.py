"""EfficientNet B0 to B3 of timm with another activation in place of swish.

Tan and Le 2019. The activations are in norm_activation.py.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from perfdash.worker.norm_activation import Activation, activation_named

VARIANTS = ("b0", "b1", "b2", "b3")


def build(
    batch_size: int, variant: str = "b0", activation: str = "swish", size: int = 224, classes: int = 1000
) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the network, without dropout and without stochastic depth.

    Images (batch, 3, size, size) -> (batch, classes).
    """
    import timm

    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r} is unknown; known are {', '.join(VARIANTS)}")
    activation_named(activation)
    module = timm.create_model(
        f"efficientnet_{variant}", num_classes=classes, act_layer=partial(Activation, activation)
    )
    return module.train(), (torch.randn(batch_size, 3, size, size),)
