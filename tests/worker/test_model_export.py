"""The structure of an output where memory ends before the call of the model does; inputs of another batch."""

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


def test_another_batch_repeats_samples_and_leaves_expanded_what_was():
    sequence = torch.arange(3.0)[:, None] * torch.ones(3, 6)
    expanded = torch.randn(1, 1, 6).expand(3, 5, 6)
    table = torch.randn(7, 2)
    repeated, wide, same = model_export.with_batch((sequence, expanded, table), 3, 5)
    assert repeated[:, 0].tolist() == [0, 1, 2, 0, 1]
    assert torch.equal(wide, expanded[:1].expand(5, 5, 6))
    assert wide.stride()[1:] == (0, 1), "a package reads one row, not five copies"
    assert same is table


def test_the_same_batch_is_the_same_memory_in_the_same_strides():
    """A package is compiled for the strides of its example: for other ones every timed call would copy."""
    transposed, expanded = torch.randn(6, 4, 16).transpose(0, 1), torch.randn(1, 16).expand(4, 16)
    resized = model_export.with_batch((transposed, expanded), 4, 4)
    for tensor, other in zip((transposed, expanded), resized, strict=True):
        assert (other.stride(), other.data_ptr()) == (tensor.stride(), tensor.data_ptr())
