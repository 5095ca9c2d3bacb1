"""Small modules, and a wrong optimizer, for the tests of the worker; a test imports this lazily."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass
class Output:
    logits: torch.Tensor
    hidden: Any = None


torch.utils._pytree.register_dataclass(Output)


class Mlp(nn.Module):
    """Keywords in; a registered class, None and a number among the tensors out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.last = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> Any:
        hidden = torch.relu(self.first(x))
        return {"out": Output(self.last(hidden) * scale, None), "kept": (hidden, None, 3)}


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 32, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(images)[0][:, -1])


class Branch(nn.Module):
    """Its way depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum() > 0 else x


class FixedBatch(nn.Module):
    """The batch size is written into it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).reshape(4, 2, 4).sum(1)


class Fused(nn.Linear):
    """A layer as its kernels are injected."""


class Tiny(nn.Module):
    """Trained in a fraction of a second."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, images):
        return self.layer(images.flatten(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight


class WrongSgd(torch.optim.SGD):
    """Steps as often as it is told to, in the direction that it is told to."""

    times, sign = 1, 1

    @torch.no_grad()
    def step(self, closure=None):
        for _ in range(self.times):
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(parameter.grad, alpha=-self.sign * self.param_groups[0]["lr"])


class Calls(nn.Module):
    """Calls a function of the module and its input; `buffer`, where given, is the buffer `seen`."""

    def __init__(self, function, buffer=None):
        super().__init__()
        self.function = function
        if buffer is not None:
            self.register_buffer("seen", buffer)

    def forward(self, *inputs):
        return self.function(self, *inputs)


MIB = 1 << 20


def mib(count=1.0):
    return torch.zeros(int(count * MIB // 4))


class Holds(nn.Module):
    """One buffer of 1 MiB, and what it is given as a plain attribute."""

    def __init__(self, attribute):
        super().__init__()
        self.register_buffer("registered", mib())
        self.attribute = attribute


class Keeps(nn.Module):
    """Keeps 8 MiB of every call."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def forward(self, x):
        self.kept.append(mib(8).add_(1))
        return x + 1


def branches(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


def breaks(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


class Counts(torch.nn.Module):
    """A number that dynamo compiles for changes at every call; what it returns does not."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + 0 * self.calls


class Remembers(torch.nn.Module):
    """Counts its calls in place, and puts another tensor in place of a buffer at each call."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.inner.register_buffer("calls", torch.zeros(()))
        self.register_buffer("history", torch.zeros(1, 2))

    def forward(self, x):
        self.inner.calls += 1
        self.history = torch.cat([self.history, x])
        return x + self.inner.calls + self.history.sum()


class Engine(torch.nn.Module):
    """A TensorRT engine's module."""


class WithEngines(torch.nn.Module):
    """A converted module: the original beside so many engines."""

    def __init__(self, module, engines):
        super().__init__()
        self.module = module
        self.engines = torch.nn.ModuleList(Engine() for _ in range(engines))

    def forward(self, *inputs):
        return self.module(*inputs)


class Opaque(torch.Tensor):
    """A tensor without plain bytes that says so by an assertion, as torchao's Float8Tensor does."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.Tensor.reshape, "only from 2D to 3D"
        return super().__torch_function__(func, types, args, kwargs or {})
