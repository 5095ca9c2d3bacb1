"""What a model holds outside of parameters and buffers."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from perfdash.records import Case, Job
from perfdash.worker import sides

MIB = 1 << 20


def mib(count=1.0):
    return torch.zeros(int(count * MIB // 4))


def bound(tensor, x):
    return x + tensor[0]


class Holds(nn.Module):
    """One buffer of 1 MiB, and what it is given as a plain attribute."""

    def __init__(self, attribute):
        super().__init__()
        self.register_buffer("registered", mib())
        self.attribute = attribute


def circle():
    nest = {"tensor": mib(3)}
    nest["itself"] = nest
    return nest


def closed_over():
    tensor = mib(3)
    return lambda x: x + tensor[0]


@pytest.mark.parametrize("attribute", [
    lambda: mib(3), lambda: [mib(1), mib(2)], lambda: {"a": (mib(1), [mib(2)])},
    lambda: SimpleNamespace(inside=SimpleNamespace(tensor=mib(3))), lambda: [Holds(mib(2))], circle,
    closed_over,
    lambda: functools.partial(bound, mib(3)), lambda: Holds(mib(2)).forward,
    lambda: [mib(3).view(-1, 4)[:1], torch.empty(9 * MIB, device="meta")],
])  # fmt: skip
def test_tensors_in_plain_attributes_are_held(attribute):
    module = Holds(attribute())
    side = sides.baseline_side(module, (), Job(Case("s", "m"), "python", "", ""), torch.device("cpu"))
    assert sum(side.held().values()) == 4 * MIB


def test_a_tensor_that_is_held_twice_counts_once():
    module = Holds(None)
    module.attribute = [module.registered, module.registered.view(2, -1)]
    side = sides.baseline_side(module, (), Job(Case("s", "m"), "python", "", ""), torch.device("cpu"))
    assert sum(side.held().values()) == MIB
