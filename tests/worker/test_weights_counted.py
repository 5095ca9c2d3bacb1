"""What a module holds, counted from its tensors."""

from __future__ import annotations

import warnings

import pytest

from tests.lazy import lazy

torch = lazy("torch")
held_memory = lazy("perfdash.worker.held_memory")


def held(module):
    return sum(held_memory.storage_bytes(held_memory.weights(module)).values())


def test_tied_weights_count_once():
    linear = torch.nn.Linear(256, 256, bias=False)
    other = torch.nn.Linear(256, 256, bias=False)
    other.weight = linear.weight
    assert held(torch.nn.Sequential(linear, other)) == 256 * 256 * 4


def test_a_quantised_layer_counts_once():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.ao.quantization.quantize_dynamic(
            torch.nn.Sequential(torch.nn.Linear(1024, 1024)), {torch.nn.Linear}
        )
        assert held(module) == pytest.approx((1 << 20) + 4096, rel=0.01)
