"""A model whose latency the environment says: what one build computes in a millisecond takes another more."""

import os
import time

import torch


@torch.library.custom_op("perfdash_confirmed::work", mutates_args=())
def work(x: torch.Tensor) -> torch.Tensor:
    end = time.thread_time() + float(os.environ.get("CONFIRMED_MS", "2")) / 1e3
    while time.thread_time() < end:
        pass
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
