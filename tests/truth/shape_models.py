"""Models for AOTInductor, export and several sizes, whose answers are known by construction."""

import os

import torch
from torch import nn

MIB = 1 << 20


class Product(nn.Module):
    """16 MiB of weights, held as one matrix."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2048, 2048, bias=False)

    def forward(self, x):
        return self.layer(x).relu()


def product(batch_size):
    torch.manual_seed(0)
    return Product(), (torch.randn(batch_size, 2048),)


class Branches(nn.Module):
    """Cannot be exported: its branch depends on the input's values."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        if x.sum() > 0:
            return self.layer(x)
        return x


def branches(batch_size):
    torch.manual_seed(0)
    return Branches(), (torch.randn(batch_size, 16),)


class Specialises(nn.Module):
    """Its loop over the batch makes the batch size a constant of the graph."""

    def forward(self, x):
        total = x
        for row in range(x.shape[0]):
            total = total + row
        return total


def specialises(batch_size):
    torch.manual_seed(0)
    return Specialises(), (torch.randn(batch_size, 64),)


class Remembers(nn.Module):
    """Compiled again at each size: a number that it keeps outside of the graph is the last batch size."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.rows = 0

    @torch.compiler.disable
    def remember(self, x):
        self.rows = x.shape[0]

    def forward(self, x):
        self.remember(x)
        return self.layer(x) * self.rows


def remembers(batch_size):
    torch.manual_seed(0)
    return Remembers(), (torch.randn(batch_size, 64),)


class Plain(nn.Module):
    """Takes any batch by one graph."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(x).relu()


def plain(batch_size):
    torch.manual_seed(0)
    return Plain(), (torch.randn(batch_size, 64),)


def same_at_every_size(batch_size):
    torch.manual_seed(0)
    return Plain(), (torch.randn(2, 64),)


def of_the_process(batch_size):
    """Its weights are drawn by the process, not by the seed."""
    model = Plain()
    with torch.no_grad():
        model.layer.weight.mul_(1 + os.getpid() / 1e7)
    return model, (torch.randn(batch_size, 64),)
