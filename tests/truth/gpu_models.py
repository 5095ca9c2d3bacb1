"""Models for a GPU whose answers are known by construction; they run on a CPU too."""

import torch
from torch import nn

ADDITIONS = 200  # kernels of one call
UNITS = 16 * 1024 * 1024  # floats: 64 MiB a buffer


class Calls(nn.Module):
    """Calls a function of the input."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def products(size):
    """Four products of matrices in eager, one of them when compiled: the speedup is 4."""

    def function(x):
        for _ in range(1 if torch.compiler.is_compiling() else 4):
            y = x @ x
        return y

    return Calls(function), (torch.full((size, size), 0.01),)


def buffers(size):
    """Eager holds x, sin(x), cos(x) and the result, 64 MiB each; fused: two of them."""

    def function(x):
        y, z = x.sin(), x.cos()
        return y * z

    return Calls(function), (torch.full((UNITS,), 0.5),)


def additions(size):
    """As many kernels as additions in eager, each far shorter than its launch."""

    def function(x):
        for _ in range(ADDITIONS):
            x = x + 1.0
        return x

    return Calls(function), (torch.zeros(64, 64),)
