"""A model in which one operator of many is a ReLU."""

import torch
from torch import nn


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        hidden = torch.tanh(self.first(x)) * 0.5
        hidden = torch.relu(hidden - 0.1)
        return torch.softmax(self.last(torch.sin(hidden) + 1), -1)


def deep(batch_size):
    torch.manual_seed(0)
    return Deep(), (torch.randn(4 * batch_size, 8),)
