"""Residual networks whose norm and activation can be configured.

ResNet-34 and ResNet-50 (He et al. 2015, with the stride in the 3x3 convolution), with `groups` ResNeXt (Xie
et al. 2017), with `se` SE-ResNeXt (Hu et al. 2018).
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor, nn

from perfdash.worker.norm_activation import Chain, InPlaceNorm, activation_named, norm_named

BLOCKS = {34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
REDUCTION = 16


class Gate(nn.Module):
    """Squeeze and excitation: scale each channel by a factor computed from all channel means.

    (batch, channels, h, w) -> the same shape.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.factors = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, channels // REDUCTION, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels // REDUCTION, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factors(x)


class ActivatedBlock(nn.Module):
    """A residual block with configurable norms, whose activation follows the sum.

    (batch, channels, h, w) -> (batch, out, h / stride, w / stride).

    The last norm has no activation, because the activation follows the sum. With norm = in_place that norm
    is in place only before a gate, because the gate keeps the norm's output. Without a gate no layer keeps
    this output, so keeping the norm's input costs no more memory. With norm = in_place_sum the last norm
    also computes the sum and the activation, and it keeps only tensors that other layers keep.
    """

    def __init__(
        self,
        channels: int,
        convolutions: list[nn.Conv2d],
        stride: int,
        norm: str,
        activation: str,
        checkpoint: Optional[str],
        se: bool,
    ) -> None:
        super().__init__()
        self.sums = norm == "in_place_sum"
        if self.sums and se:
            raise ValueError("norm = in_place_sum does not go with se: the gate stands between norm and sum")
        inner = "in_place" if self.sums else norm
        layers: list[nn.Module] = []
        for convolution in convolutions[:-1]:
            layers += [convolution, norm_named(inner, convolution.out_channels, activation)]
        out = convolutions[-1].out_channels
        layers.append(convolutions[-1])
        layers.append(
            InPlaceNorm(out, activation) if self.sums else norm_named(norm if se else "plain", out, "none")
        )
        self.layers = Chain(layers, checkpoint)
        self.gate = Gate(out) if se else nn.Identity()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            projected = norm_named(inner if self.sums else "plain", out, "none")
            self.shortcut = Chain([nn.Conv2d(channels, out, 1, stride, bias=False), projected], checkpoint)
        self.activate = activation_named(activation)

    def forward(self, x: Tensor) -> Tensor:
        if self.sums:
            *layers, last = self.layers
            inner = x
            for layer in layers:
                inner = layer(inner)
            return last(inner, self.shortcut(x))
        return self.activate(self.gate(self.layers(x)) + self.shortcut(x))


class Network(nn.Sequential):
    """Layers in sequence, optionally under autocast to bfloat16. The output has the input's dtype."""

    def __init__(self, *layers: nn.Module, autocast: bool = False) -> None:
        super().__init__(*layers)
        self.autocast = autocast

    def forward(self, x: Tensor) -> Tensor:
        if not self.autocast:
            return super().forward(x)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return super().forward(x).to(x.dtype)


def _convolutions(
    depth: int, channels: int, base: int, stride: int, groups: int, width: int
) -> list[nn.Conv2d]:
    if depth < 50:
        return [
            nn.Conv2d(channels, base, 3, stride, padding=1, bias=False),
            nn.Conv2d(base, base, 3, padding=1, bias=False),
        ]
    inner = base * width // 64 * groups
    return [
        nn.Conv2d(channels, inner, 1, bias=False),
        nn.Conv2d(inner, inner, 3, stride, padding=1, groups=groups, bias=False),
        nn.Conv2d(inner, 4 * base, 1, bias=False),
    ]


def build(
    batch_size: int,
    depth: int = 50,
    groups: int = 1,
    width: int = 64,
    se: bool = False,
    norm: str = "plain",
    activation: str = "leaky_relu",
    checkpoint: Optional[str] = None,
    autocast: bool = False,
    size: int = 224,
    classes: int = 1000,
) -> tuple[nn.Module, tuple[Tensor]]:
    """Build a residual network in training mode.

    Images (batch, 3, size, size) -> (batch, classes). `depth` is 34 or 50. `width` is the number of
    channels of a group in the first stage (groups = 32, width = 4: ResNeXt-50 32x4d); it has no effect at
    depth 34.

    `norm` is plain, in_place (the paper's in-place norm wherever an activation follows the norm) or
    in_place_sum (also the last norm of a block, together with the sum and the activation after it). The
    state dict is the same for all three.
    """
    if depth not in BLOCKS:
        raise ValueError(f"depth {depth} is unknown; known are 34 and 50")
    first = "in_place" if norm == "in_place_sum" else norm
    stem = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), norm_named(first, 64, activation)]
    layers: list[nn.Module] = [Chain([*stem, nn.MaxPool2d(3, 2, padding=1)], checkpoint)]
    channels = 64
    for stage, count in enumerate(BLOCKS[depth]):
        for index in range(count):
            stride = 2 if stage and not index else 1
            convolutions = _convolutions(depth, channels, 64 << stage, stride, groups, width)
            layers.append(ActivatedBlock(channels, convolutions, stride, norm, activation, checkpoint, se))
            channels = convolutions[-1].out_channels
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    module = Network(*layers, *head, autocast=autocast)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module.train(), (torch.randn(batch_size, 3, size, size),)
