"""The structure of a model's output, where memory ends before the model's own call does."""

from __future__ import annotations

import pytest

from tests.lazy import lazy

torch = lazy("torch")
nn = lazy("torch.nn")
model_export = lazy("perfdash.worker.model_export")

NO_ROOM = "[enforce fail] DefaultCPUAllocator: can't allocate memory"


def model(forward=None, error=NO_ROOM):
    """A model of two weights whose call raises with the data of tensors; without them it has this forward."""

    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            if type(x) is torch.Tensor:
                raise RuntimeError(error)
            self.calls += 1
            self.kept = x * self.weight
            return forward(self.kept) if forward else {"sum": self.kept.sum(1), "kind": "logits", "n": 3}

    return Large().eval()


def test_a_model_without_memory_for_its_own_call_can_still_be_converted():
    module, inputs = model(), (torch.ones(2, 4),)
    signature, _, tensors = model_export.flattened(module, inputs)
    assert signature.outputs == [((2,), torch.float32)]
    assert all(type(tensor) is torch.Tensor for tensor in tensors)
    assert signature.rebuild([torch.full((2,), 4.0)])["kind"] == "logits"
    assert not hasattr(module, "kept"), "the module keeps nothing of a call without data"
    assert type(module.calls) is torch.Tensor
    assert float(module.calls) == 0.0


def test_where_the_output_depends_on_the_data_memory_has_ended():
    with pytest.raises(RuntimeError, match="can't allocate"):
        model_export.flattened(model(lambda kept: kept.sum().item()), (torch.ones(2, 4),))


def test_another_error_of_the_model_is_raised():
    with pytest.raises(RuntimeError, match="of its own"):
        model_export.flattened(model(error="of its own"), (torch.ones(2, 4),))
