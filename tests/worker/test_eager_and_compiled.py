"""What the back end is given beside eager: the same model, or a copy in its own dtype."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfdash.records import Case, Job, Status
from tests.lazy import lazy

torch = lazy("torch")
modules = lazy("tests.worker.modules")
eager_and_compiled = lazy("perfdash.worker.eager_and_compiled")
failures = lazy("perfdash.worker.failures")


def made(dtype, baseline=None):
    module = torch.nn.Linear(4, 2)
    inputs = (torch.randn(3, 4), torch.arange(3))
    case = Case("s", "m", dtype=dtype, amp_dtype="bfloat16" if dtype == "amp" else None)
    job = Job(case, "python", "", baseline_dtype=baseline)
    side = eager_and_compiled.eager_side(module, inputs, job, torch.device("cpu"))
    return side, eager_and_compiled.compiled_side(side, job)


def test_the_same_dtype_shares_model_and_inputs():
    for dtype in ("float32", "bfloat16"):
        eager, own = made(dtype)
        assert own.module is eager.module
        assert own.inputs is eager.inputs
        assert eager.module.weight.dtype == getattr(torch, dtype)
        assert eager.inputs[1].dtype == torch.int64


def test_another_dtype_has_a_copy():
    eager, own = made("bfloat16", "float32")
    assert (eager.module.weight.dtype, own.module.weight.dtype) == (torch.float32, torch.bfloat16)
    assert (eager.inputs[0].dtype, own.inputs[0].dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(own.module.weight, eager.module.weight.bfloat16())
    assert (eager.job.case.dtype, own.job.case.dtype) == ("float32", "bfloat16")
    assert sum(eager.held().values()) == 4 * (8 + 2 + 12) + 24
    assert sum(own.held().values()) == 2 * (8 + 2 + 12) + 24


def test_autocast_takes_the_model_as_it_is():
    eager, own = made("amp", "float32")
    assert own.module is eager.module
    assert (eager.job.case.dtype, eager.job.case.amp_dtype) == ("float32", None)
    assert (own.job.case.dtype, own.job.case.amp_dtype) == ("amp", "bfloat16")


def test_inputs_that_a_model_has_changed_come_back():
    eager, own = made("bfloat16", "float32")
    before = own.inputs[0].clone()
    own.inputs[0].zero_()
    assert eager.inputs[0].abs().sum() > 0, "each side has its own"
    own.restore()
    assert torch.equal(own.inputs[0], before)


class Cache:
    """A cache of keys that a call replaces by longer ones, as transformers' DynamicCache does."""

    def __init__(self, length):
        self.layers = [SimpleNamespace(keys=torch.randn(1, length, 2) if length else None)]

    def grow(self):
        (layer,) = self.layers
        new = torch.randn(1, 1, 2)
        layer.keys = new if layer.keys is None else torch.cat([layer.keys, new], dim=1)


def side_of(inputs):
    job = Job(Case("s", "m"), "python", "")
    return eager_and_compiled.eager_side(torch.nn.Identity(), inputs, job, torch.device("cpu"))


@pytest.mark.parametrize(
    ("length", "calls", "change"),
    [(64, 1, r"\(1, 64, 2\) -> \(1, 65, 2\)"), (0, 2, r"\(1, 1, 2\) -> \(1, 2, 2\)")],
)
def test_inputs_that_grow_with_every_call_are_not_measured(length, calls, change):
    side = side_of({"x": torch.randn(3), "past_key_values": Cache(length)})
    for _ in range(calls):
        side.restore()
        side.inputs["past_key_values"].grow()
    path = r"inputs\['past_key_values'\].layers\[0\].keys"
    with pytest.raises(failures.Unmeasurable, match=rf"({path}: {change}).*--scenario generation") as caught:
        side.restore()
    assert caught.value.status is Status.SKIPPED


def test_what_the_first_call_keeps_in_an_input_stays_and_the_rest_comes_back():
    graph = SimpleNamespace(degrees=None, edges=torch.ones(2, 3))
    side = side_of((graph,))
    (own,) = side.inputs
    for _ in range(3):
        own.degrees = torch.full((5,), 7.0)
        own.edges.zero_()
        side.restore()
        assert own.edges.sum() == 6
        assert own.degrees.sum() == 35


def test_data_are_cast_as_the_inputs_are():
    eager, own = made("bfloat16", "float32")
    images, labels = own.convert_inputs((torch.randn(3, 4), torch.arange(3)))
    assert (images.dtype, labels.dtype) == (torch.bfloat16, torch.int64)
    assert eager.convert_inputs({"x": torch.randn(1)})["x"].dtype == torch.float32


def bytes_kept(module, inputs, parameters=False):
    side = eager_and_compiled.eager_side(
        module, inputs, Job(Case("s", "m"), "python", ""), torch.device("cpu")
    )
    side.save_state(parameters)
    return side


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.expand(4, 3, 10),
        lambda x: x[:1].expand(5, 10),
        lambda x: x.flatten().unfold(0, 4, 1),  # windows that overlap
        lambda x: x.t(),
        lambda x: x[:, ::3],
        lambda x: x[0, 0].expand(7),
        lambda x: x[:0].expand(0, 10),
    ],
)
def test_inputs_whose_elements_share_memory_come_back(make):
    x = torch.randn(3, 10)
    tensor = make(x)
    side = bytes_kept(torch.nn.ReLU(), (tensor,))
    before, strides = tensor.clone(), tensor.stride()
    side.restore()
    x.mul_(2)
    side.restore()
    assert torch.equal(side.inputs[0], before)
    assert side.inputs[0].stride() == strides, "it is the model's own input, as it was laid out"


def test_what_lies_beside_an_input_is_left_alone():
    whole = torch.arange(20.0)
    side = bytes_kept(torch.nn.ReLU(), (whole[4:10].unfold(0, 3, 1),))
    whole.zero_()
    side.restore()
    assert whole.tolist() == [0.0] * 4 + [4.0, 5.0, 6.0, 7.0, 8.0, 9.0] + [0.0] * 10


def test_buffers_come_back_in_inference_too():
    module = modules.Remembers()
    x = torch.ones(1, 2)
    side = bytes_kept(module, (x,))
    with torch.no_grad():
        first, second = module(x), module(x)
        side.restore()
        again = module(x)
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    assert set(side.state) == {"inner.calls", "history"}, "no copy of the parameters is made"


def test_a_copy_in_another_dtype_keeps_what_its_baseline_keeps():
    eager, _ = made("float32")
    eager.save_state(parameters=False)
    assert not eager_and_compiled.compiled_side(eager, eager.job).saves_parameters
    own = eager_and_compiled.compiled_side(
        eager, replace(eager.job, case=replace(eager.job.case, dtype="bfloat16"))
    )
    assert own.state == {}


def to_none(module):
    module.seen = None


def deleted(module):
    del module.seen


def to_a_plain_value(module):
    del module.seen
    module.seen = 3.0


def to_a_module(module):
    del module.seen
    module.seen = torch.nn.ReLU()


@pytest.mark.parametrize("change", [to_none, deleted, to_a_plain_value, to_a_module])
def test_a_buffer_that_is_no_tensor_any_more_is_changed_and_comes_back(change):
    module = torch.nn.Sequential(modules.Calls(None, torch.ones(2)))
    side, buffer = bytes_kept(module, ()), module[0].seen
    assert side.changed() == {}
    change(module[0])
    assert side.changed() == {"buffer 0.seen": None}
    buffer.zero_()
    side.restore()
    assert side.changed() == {}
    assert module[0].seen is buffer
    assert [name for name, _ in module.named_buffers()] == ["0.seen"]
    assert not list(module[0].children())


@pytest.mark.parametrize(
    "other", [lambda: torch.nn.Identity(), lambda: torch.nn.Sequential(torch.nn.Identity())]
)
def test_a_module_that_was_replaced_comes_back(other):
    inner = torch.nn.BatchNorm1d(2)
    module = torch.nn.Sequential(torch.nn.Sequential(inner))
    side = bytes_kept(module, (), parameters=True)
    side.saves_parameters = False
    module[0] = other()
    assert side.changed() == dict.fromkeys([f"buffer 0.0.{name}" for name in inner.state_dict()])
    side.restore()
    assert module[0][0] is inner
    assert side.changed() == {}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", ["jagged", "strided"])
def test_nested_inputs_are_left_out(layout):
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=getattr(torch, layout))
    x = torch.ones(2)
    side = bytes_kept(torch.nn.ReLU(), (nested, x))
    side.restore()
    side.inputs[1].zero_()
    assert list(side.changed()) == ["inputs[1]"]
