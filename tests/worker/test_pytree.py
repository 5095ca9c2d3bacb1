from __future__ import annotations

import collections
import dataclasses

from tests.lazy import lazy

torch = lazy("torch")
pytree = lazy("perfdash.worker.pytree")


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    extra: object = None


class Mapping(collections.OrderedDict):
    pass


def test_nests_keep_their_types():
    x = torch.ones(2)
    value = {"p": Pair(x, [x, (x, None)]), "o": Output(x, {"k": 1}), "m": Mapping(k=x)}
    changed = pytree.map_tensors(value, lambda tensor: tensor + 1)
    assert pytree.structure(changed) == pytree.structure(value)
    assert all(bool((tensor == 2).all()) for tensor in pytree.tensors_in(changed))
    assert len(list(pytree.tensors_in(changed))) == 5
    assert all(bool((tensor == 1).all()) for tensor in pytree.tensors_in(value)), "the original is as it was"


def test_float64_leaves_integers_and_keeps_complex():
    made = pytree.to_float64([torch.ones(1, dtype=d) for d in (torch.half, torch.complex64, torch.int)])
    assert [tensor.dtype for tensor in made] == [torch.float64, torch.complex128, torch.int32]


def test_a_module_is_cast_without_making_complex_numbers_real():
    module = torch.nn.Linear(2, 2)
    module.register_buffer("turn", torch.ones(2, dtype=torch.complex64) * 1j)
    pytree.cast_module(module, pytree.double)
    assert module.weight.dtype == torch.float64
    assert module.turn.dtype == torch.complex128
    assert bool((module.turn.imag == 1).all())
