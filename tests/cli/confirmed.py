"""A model whose latency is the build's: its module `speed` says how many milliseconds a pass takes.

It waits, as how busy the machine is that runs the tests must not decide what is told.
"""

import time

import torch
from speed import MILLISECONDS


@torch.library.custom_op("perfdash_confirmed::work", mutates_args=())
def work(x: torch.Tensor) -> torch.Tensor:
    time.sleep(MILLISECONDS / 1e3)
    return x.clone()


@work.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Model(torch.nn.Module):
    def forward(self, x):
        return work(x)


def busy(batch_size):
    return Model(), (torch.zeros(batch_size, 8),)


def other(batch_size):
    return Model(), (torch.ones(batch_size, 4),)
