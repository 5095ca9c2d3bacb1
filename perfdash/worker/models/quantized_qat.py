"""A torchvision model, quantised to int8 in FX graph mode.

It is prepared as for quantisation-aware training, then converted.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from perfdash.worker.weights import set_norm_statistics


def build(batch_size: int, model: str) -> tuple[Any, tuple[Tensor]]:
    """Build the quantised form of a torchvision model.

    `model` is a name in torchvision.models; images are (batch, 3, 224, 224), float32 in and out. The
    quantisation ranges come from a single batch: with random weights more images would not give better
    ranges.
    """
    import torchvision

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao warns that its quantisation moves to torchao
        from torch.ao.quantization import get_default_qat_qconfig_mapping
        from torch.ao.quantization.quantize_fx import convert_fx, prepare_qat_fx

        images = torch.randn(batch_size, 3, 224, 224)
        plain = torchvision.models.get_model(model, weights=None).train()
        set_norm_statistics(plain, images)
        mapping = get_default_qat_qconfig_mapping("fbgemm")
        prepared = prepare_qat_fx(plain, mapping, (images,)).eval()
        with torch.no_grad():
            prepared(images)
        return convert_fx(prepared), (images,)
