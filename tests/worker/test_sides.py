"""What the back end is given beside eager: the same model, or a copy in its own dtype."""

from __future__ import annotations

from perfdash.records import Case, Job
from tests.lazy import lazy

torch = lazy("torch")
sides = lazy("perfdash.worker.sides")


def made(dtype, baseline=None):
    module = torch.nn.Linear(4, 2)
    inputs = (torch.randn(3, 4), torch.arange(3))
    case = Case("s", "m", dtype=dtype, amp_dtype="bfloat16" if dtype == "amp" else None)
    job = Job(case, "python", "", "", baseline_dtype=baseline)
    one = sides.baseline_side(module, inputs, job, torch.device("cpu"))
    return one, sides.backend_side(one, job)


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


def test_data_are_cast_as_the_inputs_are():
    eager, own = made("bfloat16", "float32")
    images, labels = own.prepared((torch.randn(3, 4), torch.arange(3)))
    assert (images.dtype, labels.dtype) == (torch.bfloat16, torch.int64)
    assert eager.prepared({"x": torch.randn(1)})["x"].dtype == torch.float32
