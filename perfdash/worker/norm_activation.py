"""Batch norm with activation, in variants that keep different tensors for the backward pass.

`NormActivation` is the plain variant: the norm's input and the activation's output stay until the backward
pass. `InPlaceNorm` keeps only its output. `Chain` runs convolutions and norms in checkpointed segments.
This module knows nothing of whole networks.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator, Optional

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

SLOPE = 0.01  # of the leaky ReLU for negative inputs
NORMS = ("plain", "in_place")
CHECKPOINTS = (None, "post", "pre")


# torch's decorators are untyped, hence the comments `type: ignore` below.
class _SavingSwish(torch.autograd.Function):
    """Swish, x * sigmoid(x), which keeps only x for the backward pass.

    The backward pass computes the sigmoid again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return grad * gate * (1 + x * (1 - gate))


def _leaky_relu(x: Tensor) -> Tensor:
    return F.leaky_relu(x, SLOPE, inplace=True)


# relu and leaky_relu overwrite the norm's output, as published networks do: no other layer keeps it, and
# their backward pass needs only their own output. Mish and swish need their input and cannot overwrite it.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: F.relu(x, inplace=True),
    "leaky_relu": _leaky_relu,
    "leaky_relu_kept": lambda x: F.leaky_relu(x, SLOPE),  # as nn.LeakyReLU() without inplace
    "mish": F.mish,
    "mish_naive": lambda x: x * torch.tanh(F.softplus(x)),
    "swish": F.silu,
    "swish_naive": lambda x: x * torch.sigmoid(x),
    "swish_saving": _SavingSwish.apply,
    "none": lambda x: x,
}


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation function of this name.

    relu and leaky_relu overwrite their input. Raises ValueError for an unknown name.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is unknown; known are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


class Activation(nn.Module):
    """A named activation as a layer, with the constructor that timm calls.

    timm's argument `inplace` is ignored: the named activation itself defines whether it overwrites its input.
    """

    def __init__(self, name: str, inplace: bool = False) -> None:
        super().__init__()
        self.activate = activation_named(name)

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(x)


class NormActivation(nn.BatchNorm2d):
    """torch's batch norm, followed by the named activation. (batch, channels, h, w) -> the same shape."""

    def __init__(self, channels: int, activation: str) -> None:
        super().__init__(channels)
        self.activation = activation
        self.activate = activation_named(activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(super().forward(x))


class InPlaceNorm(nn.BatchNorm2d):
    """Batch norm and leaky ReLU that keep only their output for the backward pass.

    Rota Bulo, Porzi and Kontschieder 2018, "In-place activated BatchNorm for memory-optimized training of
    DNNs", arXiv:1712.02616.

    (batch, channels, h, w) -> the same shape. An optional shortcut of that shape is added before the
    activation. The output is written over the input where possible, so no other layer may need the input: a
    convolution's output is suitable (autograd refuses the backward pass if another operation kept it). The
    input is not overwritten if it is a leaf that requires a gradient, a view, or of another dtype than the
    statistics (autocast); its memory is free once the caller drops it. The activation is leaky_relu or
    none, because it must be invertible.

    Outputs, state dict and parameters equal NormActivation's, with two restrictions. The backward
    pass divides by the weight, so a magnitude below eps counts as eps, with the same sign (the paper uses
    |weight| + eps, which differs from batch norm for every weight). Precision decreases as |bias / weight|
    grows, because the normalised input is computed from the rounded output. Raises ValueError for training
    on one value per channel. The backward pass cannot be differentiated again. torch.compile breaks the
    graph here.

    The sum with a shortcut goes beyond the paper. The shortcut is kept instead of the norm's input, which
    costs nothing where other layers keep the shortcut anyway, as in a residual network. The backward pass
    subtracts the shortcut again, so precision also decreases as |shortcut / weight| grows.
    """

    def __init__(self, channels: int, activation: str = "leaky_relu") -> None:
        super().__init__(channels)
        if activation not in ("leaky_relu", "none"):
            raise ValueError(
                f"in-place batch norm cannot invert activation {activation!r}; it takes leaky_relu or none"
            )
        self.slope = SLOPE if activation == "leaky_relu" else 1.0

    def forward(self, x: Tensor, shortcut: Optional[Tensor] = None) -> Tensor:
        self._check_input_dim(x)
        if self.training:
            if x.numel() == x.shape[1]:
                raise ValueError(
                    f"batch norm needs more than 1 value per channel when training, got {tuple(x.shape)}"
                )
            self.num_batches_tracked.add_(1)
        return _in_place_norm(x, shortcut, self)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _in_place_norm(x: Tensor, shortcut: Optional[Tensor], norm: InPlaceNorm) -> Tensor:
    return _InPlaceNormFunction.apply(
        x,
        shortcut,
        norm.weight,
        norm.bias,
        norm.running_mean,
        norm.running_var,
        norm.training,
        norm.momentum,
        norm.eps,
        norm.slope,
    )


class _InPlaceNormFunction(torch.autograd.Function):
    """Scheme I of the paper: compute the normalised input from the output.

    The backward pass inverts the activation and the affine transform; weight, bias and scale are kept per
    channel.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shortcut: Optional[Tensor],
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        training: bool,
        momentum: float,
        eps: float,
        slope: float,
    ) -> Tensor:
        weight = away_from_zero(weight, eps)
        mean, var = running_mean, running_var
        if training:
            mean, var = torch.batch_norm_update_stats(x, running_mean, running_var, momentum)
        scale = torch.rsqrt(var + eps) * weight
        if x.dtype == scale.dtype and not x._is_view() and not (x.is_leaf and x.requires_grad):
            torch.addcmul(_spread(bias - mean * scale), x, _spread(scale), out=x)
            ctx.mark_dirty(x)
        else:
            x = F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)
        if shortcut is not None:
            x += shortcut
        if slope != 1.0:
            F.leaky_relu(x, slope, inplace=True)
        ctx.save_for_backward(x, shortcut, weight, bias, scale)
        ctx.training, ctx.slope = training, slope
        return x

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
        out, shortcut, weight, bias, scale = ctx.saved_tensors
        if ctx.slope != 1.0:
            grad = torch.ops.aten.leaky_relu_backward(grad, out, ctx.slope, True)
            out = F.leaky_relu(out, 1 / ctx.slope)
        by_shortcut = None
        if shortcut is not None:
            out, by_shortcut = out - shortcut, grad
        by_input, by_weight, by_bias = norm_backward(grad, out, weight, bias, scale, ctx.training)
        return (by_input, by_shortcut, by_weight, by_bias, *[None] * 6)


def norm_backward(
    grad: Tensor, out: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, training: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return batch norm's gradients by input, weight and bias, computed from its output.

    (out - bias) / weight is the normalised input. Batch norm's own backward kernel computes this expression
    if its mean is `bias` and its inverse deviation is 1 / weight. The kernel then multiplies by the inverse
    deviation and by its weight argument; this product must be `scale`, which is weight over deviation.
    """
    if training:
        grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward(
            grad, out, weight * scale, None, None, bias, 1 / weight, True, 0.0, [True, True, True]
        )
        return grads
    by_bias = grad.sum((0, 2, 3), dtype=bias.dtype)
    by_weight = ((grad * out).sum((0, 2, 3), dtype=bias.dtype) - bias * by_bias) / weight
    return (grad * _spread(scale)).to(grad.dtype), by_weight, by_bias


def away_from_zero(weight: Tensor, eps: float) -> Tensor:
    """Raise magnitudes of the weight below eps to eps. Zero counts as positive."""
    return torch.where(weight.abs() < eps, torch.where(weight < 0, -eps, eps).to(weight.dtype), weight)


def _spread(by_channel: Tensor) -> Tensor:
    return by_channel.view(1, -1, 1, 1)


def norm_named(norm: str, channels: int, activation: str) -> nn.BatchNorm2d:
    """Create a norm with its activation: `plain` or `in_place`. Raises ValueError for an unknown norm."""
    if norm not in NORMS:
        raise ValueError(f"norm {norm!r} is unknown; known are {', '.join(NORMS)}")
    return NormActivation(channels, activation) if norm == "plain" else InPlaceNorm(channels, activation)


class Chain(nn.Sequential):
    """Layers in sequence, cut into checkpointed segments in training.

    A segment keeps only its input. `cut` is where segments start: `post` before each convolution
    (convolution, norm, activation: the activation ends the segment), `pre` before each norm (norm,
    activation, convolution), None: there are no segments. The recomputation in the backward pass does not
    update the running statistics, because the forward pass has updated them.
    """

    def __init__(self, layers: list[nn.Module], cut: Optional[str]) -> None:
        super().__init__(*layers)
        if cut not in CHECKPOINTS:
            raise ValueError(f"checkpoint {cut!r} is unknown; known are post and pre")
        if cut and any(isinstance(layer, InPlaceNorm) for layer in layers):
            # Recomputation from an overwritten input would give wrong gradients.
            raise ValueError("checkpoint takes norm = plain: an in-place norm would overwrite what is kept")
        starts = {"post": nn.Conv2d, "pre": nn.BatchNorm2d}.get(cut or "")
        # Indices, not layers, so that the replacement of a layer takes effect.
        self.starts = [0] + [
            i for i, layer in enumerate(layers) if i and starts and isinstance(layer, starts)
        ]
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        layers = list(self)
        for start, end in zip(self.starts, [*self.starts[1:], len(layers)]):
            segment = layers[start:end]
            if self.cut and self.training and torch.is_grad_enabled():
                contexts = functools.partial(_contexts, segment)
                x = checkpoint(_in_order, segment, x, use_reentrant=False, context_fn=contexts)
            else:
                x = _in_order(segment, x)
        return x


def _contexts(layers: list[nn.Module]) -> tuple[Any, Any]:
    """Return the contexts of the forward pass and of the recomputation."""
    return contextlib.nullcontext(), _statistics_kept(layers)


@contextlib.contextmanager
def _statistics_kept(layers: list[nn.Module]) -> Iterator[None]:
    norms = [layer for layer in layers if isinstance(layer, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.sub_(1)


def _in_order(layers: list[nn.Module], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x
