"""What a model with random weights needs, so that its outputs depend on its inputs as a trained one's do."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def settle(module: nn.Module, images: Tensor) -> None:
    """Batch normalisation's running statistics set by a batch, as training would have set them.

    Untrained ones let activations die away with depth, until what comes out does not depend on the
    images, and a check of the outputs would pass whatever was compiled. Leaves the module in
    training mode; one without batch normalisation as it is.
    """
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    if not norms:
        return
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        module.train()(images)
    for norm, momentum in zip(norms, usual):
        norm.momentum = momentum
