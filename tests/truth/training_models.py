"""Models whose training steps are known by construction."""

import time

import torch
from torch import nn

MIB = 1 << 20
FORWARD_S, BACKWARD_S = 0.004, 0.012


@torch.library.custom_op("truth_training::wait", mutates_args=())
def wait(x: torch.Tensor, seconds: float) -> torch.Tensor:
    """Takes `seconds`, asleep."""
    time.sleep(seconds)
    return x.clone()


wait.register_fake(lambda x, seconds: torch.empty_like(x))


def _backward(context, gradient):
    return wait(gradient, BACKWARD_S), None


wait.register_autograd(_backward)


class Waits(nn.Module):
    """Forward takes 4 ms, backward 12 ms."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return wait(x @ self.weight, FORWARD_S)


def waits(batch_size):
    return Waits(), (torch.randn(batch_size, 4),)


class _Saves(torch.autograd.Function):
    """Saves 64 MiB for backward, which takes 32 MiB more."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(torch.ones(16 * MIB))
        return x * 2

    @staticmethod
    def backward(context, gradient):
        (saved,) = context.saved_tensors
        more = torch.ones(8 * MIB)
        return gradient * 2 + 0 * (saved[0] + more[0])


class Saves(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x):
        return _Saves.apply(x * self.weight)


def saves(batch_size):
    return Saves(), (torch.randn(batch_size, 16),)


def layer(batch_size):
    """9 MiB of parameters; adam keeps twice as much, and the number of its step."""
    return nn.Linear(1536, 1536, bias=False), (torch.ones(batch_size, 1536),)


class _Grows(torch.autograd.Function):
    """A sample keeps 8 MiB for backward."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(torch.ones(x.shape[0], 2 * MIB))
        return x * 2

    @staticmethod
    def backward(context, gradient):
        (saved,) = context.saved_tensors
        return gradient * 2 + 0 * saved[:, :1]


class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x):
        return _Grows.apply(x * self.weight)


def grows(batch_size):
    return Grows(), (torch.randn(batch_size, 16),)


class WrongGradient(nn.Module):
    """The compiled side returns what eager returns, with gradients that are ten per cent larger."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        if torch.compiler.is_compiling():
            y = y + 0.1 * y - 0.1 * y.detach()
        return y


def wrong_gradient(batch_size):
    return WrongGradient(), (torch.randn(batch_size, 8),)


class WrongStatistics(nn.Module):
    """The compiled side keeps other statistics; outputs and gradients are eager's."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        self.seen.add_(x.mean(0) * (2.0 if torch.compiler.is_compiling() else 1.0))
        return self.layer(x)


def wrong_statistics(batch_size):
    return WrongStatistics(), (torch.randn(batch_size, 8) + 1,)


def dropout(batch_size):
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64), nn.BatchNorm1d(64)]
    return nn.Sequential(*layers), (torch.randn(batch_size, 64),)


def integers(batch_size):
    class Rounds(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x).argmax(-1)

    return Rounds(), (torch.randn(batch_size, 4),)


def one_row(batch_size):
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), (torch.randn(1, 4),)
