"""Batch norm followed by an activation, in ways that differ in what a training step keeps in memory.

`NormActivation` is batch norm and an activation as anyone writes it: the norm's input and the
activation's output stay until the backward pass. `InPlaceNorm` keeps its output alone. `Chain` runs
convolutions and such norms in checkpointed segments. Knows nothing of whole networks.
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


# torch's decorators have no types: the `type: ignore`s below.
class _SavingSwish(torch.autograd.Function):
    """x * sigmoid(x) that keeps x alone; the sigmoid is computed again in the backward pass."""

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


# relu and leaky_relu write over the norm's output, which nobody else keeps, as published networks do:
# their backward pass needs the output alone. Mish and swish need their input and cannot.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: F.relu(x, inplace=True),
    "leaky_relu": _leaky_relu,
    "leaky_relu_kept": lambda x: F.leaky_relu(x, SLOPE),  # as nn.LeakyReLU() is without inplace
    "mish": F.mish,
    "mish_naive": lambda x: x * torch.tanh(F.softplus(x)),
    "swish": F.silu,
    "swish_naive": lambda x: x * torch.sigmoid(x),
    "swish_saving": _SavingSwish.apply,
    "none": lambda x: x,
}


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """The function; relu and leaky_relu overwrite their input. ValueError for an unknown name."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is unknown; known are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


class NormActivation(nn.BatchNorm2d):
    """(batch, channels, h, w) -> the same shape: torch's batch norm, then the activation of that name."""

    def __init__(self, channels: int, activation: str) -> None:
        super().__init__(channels)
        self.activation = activation
        self.activate = activation_named(activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(super().forward(x))


class InPlaceNorm(nn.BatchNorm2d):
    """Batch norm and leaky ReLU that keep their output alone (Rota Bulo, Porzi and Kontschieder 2018,
    "In-place activated BatchNorm for memory-optimized training of DNNs", arXiv:1712.02616).

    (batch, channels, h, w), and perhaps a shortcut of that shape, which is added before the activation ->
    the same shape, written over the input where that is allowed: the input must be a tensor that nobody
    else needs, such as a convolution's output (autograd refuses the backward pass where somebody kept it).
    A leaf that requires a gradient, a view, and an input of another dtype than the statistics (autocast)
    are left alone; their memory is free once the caller drops it. The activation is leaky_relu or none,
    for it has to be invertible.

    The same numbers, states and parameters as NormActivation, with two needs of its own. The weight is
    divided by, so a magnitude below eps counts as eps, keeping its sign (the paper takes |weight| + eps,
    which is never what batch norm computes). And precision is lost as |bias / weight| grows: of the
    normalised input, what survives is what the output could hold. A ValueError for training on one value
    per channel. Its backward pass cannot be differentiated again. torch.compile breaks the graph here.

    The sum with a shortcut goes beyond the paper. The shortcut is kept instead of the norm's input, which
    costs nothing where others keep it anyway, as in a residual network; it is subtracted again in the
    backward pass, so precision is lost as |shortcut / weight| grows too.
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
    """The paper's scheme I: the normalised input is had back from the output by inverting the activation
    and the affine transform; mean and variance are kept per channel."""

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
    """Gradients by input, weight and bias of batch norm, from its output instead of its input.

    (out - bias) / weight is the normalised input, which is what batch norm's own backward kernel computes
    when it is told that the mean is `bias` and the inverse deviation 1 / weight. It then multiplies by
    that inverse deviation and by the weight it was given, which must come to `scale`, weight over deviation.
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
    """The weight with magnitudes below eps raised to eps; zero counts as positive."""
    return torch.where(weight.abs() < eps, torch.where(weight < 0, -eps, eps).to(weight.dtype), weight)


def _spread(by_channel: Tensor) -> Tensor:
    return by_channel.view(1, -1, 1, 1)


def norm_named(norm: str, channels: int, activation: str) -> nn.BatchNorm2d:
    """A norm with its activation: `plain` or `in_place`. ValueError for an unknown one."""
    if norm not in NORMS:
        raise ValueError(f"norm {norm!r} is unknown; known are {', '.join(NORMS)}")
    return NormActivation(channels, activation) if norm == "plain" else InPlaceNorm(channels, activation)


class Chain(nn.Sequential):
    """Layers in order; in training, cut into checkpointed segments, of which only the inputs are kept.

    The cut alone differs: `post` before each convolution (convolution, norm, activation: the activation
    ends the segment), `pre` before each norm (norm, activation, convolution), None nowhere. What is
    computed again in the backward pass leaves the running statistics alone: they have been updated.
    """

    def __init__(self, layers: list[nn.Module], cut: Optional[str]) -> None:
        super().__init__(*layers)
        if cut not in CHECKPOINTS:
            raise ValueError(f"checkpoint {cut!r} is unknown; known are post and pre")
        if cut and any(isinstance(layer, InPlaceNorm) for layer in layers):
            # Computed again from an input that has been written over, gradients would be wrong.
            raise ValueError("checkpoint takes norm = plain: an in-place norm would overwrite what is kept")
        starts = {"post": nn.Conv2d, "pre": nn.BatchNorm2d}.get(cut or "")
        # Places, not layers: a layer that somebody replaces later is then the one that runs.
        self.starts = [0] + [
            i for i, layer in enumerate(layers) if i and starts and isinstance(layer, starts)
        ]
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        layers = list(self)
        for start, end in zip(self.starts, [*self.starts[1:], len(layers)]):
            segment = layers[start:end]
            if self.cut and self.training and torch.is_grad_enabled():
                again = functools.partial(_contexts, segment)
                x = checkpoint(_in_order, segment, x, use_reentrant=False, context_fn=again)
            else:
                x = _in_order(segment, x)
        return x


def _contexts(layers: list[nn.Module]) -> tuple[Any, Any]:
    """What the layers run in, first and when they are computed again."""
    return contextlib.nullcontext(), _statistics_kept(layers)


@contextlib.contextmanager
def _statistics_kept(layers: list[nn.Module]) -> Iterator[None]:
    norms = [layer for layer in layers if isinstance(layer, nn.BatchNorm2d)]
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, usual):
            norm.momentum = momentum
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.sub_(1)


def _in_order(layers: list[nn.Module], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x
