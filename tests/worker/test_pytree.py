from __future__ import annotations

import collections
import dataclasses

import pytest

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


@dataclasses.dataclass
class OutputOfLanguageModel(dict):
    """As transformers' outputs are: a dict, whose items are attributes too."""

    logits: object = None
    hidden: object = None

    def __post_init__(self):
        self.update({name: value for name, value in vars(self).items() if value is not None})


def test_outputs_are_made_again_from_plain_values():
    value = {
        "a": (torch.ones(2, 3).t(), 1, None),
        2: [OutputOfLanguageModel(torch.zeros(1), (1.5, True)), "x"],
    }
    plain = pytree.to_plain(value)
    assert pytree.structure(pytree.from_plain(plain)) == pytree.structure(value)
    made = pytree.from_plain(plain)
    assert torch.equal(made["a"][0], value["a"][0])
    assert made["a"][0].stride() == (1, 3)
    assert type(made[2][0]) is OutputOfLanguageModel
    assert made[2][0].hidden == (1.5, True)


@pytest.mark.parametrize(
    "value",
    [object(), collections.namedtuple("Pair", "a b")(1, 2), {(1, 2): 3}, collections.OrderedDict(a=1)],
)
def test_what_is_not_made_of_plain_values_is_refused(value):
    with pytest.raises(TypeError):
        pytree.to_plain([value])


@pytest.mark.parametrize(
    "plain",
    [["output", "os", "system", [["command", ["value", "true"]]]], ["output", "subprocess", "Popen", []],
     ["code", "print", "x", []], ["output", "not.imported", "Output", []]],
)  # fmt: skip
def test_a_file_names_no_other_class(plain):
    with pytest.raises(TypeError):
        pytree.from_plain(plain)
