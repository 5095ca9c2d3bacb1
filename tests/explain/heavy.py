"""A model whose time is one generated kernel between two matrix products."""

import torch
from torch import nn


class Heavy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        for _ in range(4):
            hidden = torch.sin(torch.exp(torch.cos(hidden)))
        return self.last(hidden)


def heavy(batch_size):
    torch.manual_seed(0)
    return Heavy(), (torch.randn(256 * batch_size, 32),)
