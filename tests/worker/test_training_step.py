"""A training step against what torch does by hand, and what its loss is made of."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest

from perfdash.records import Case, Job
from perfdash.worker.failures import Unmeasurable
from tests.lazy import lazy

torch = lazy("torch")
output_comparison = lazy("perfdash.worker.output_comparison")
device = lazy("perfdash.worker.device")
losses = lazy("perfdash.worker.losses")
pytree = lazy("perfdash.worker.pytree")
training = lazy("perfdash.worker.scenarios.training")
eager_and_compiled = lazy("perfdash.worker.eager_and_compiled")
modules = lazy("tests.worker.modules")


def job(**settings):
    return Job(Case("s", "m", scenario="training"), "python", "", **settings)


def made(module, inputs, **settings):
    side = eager_and_compiled.eager_side(module, inputs, job(**settings), torch.device("cpu"))
    side.save_state()
    return training.make_step(module, side, device.Cpu(1)), side


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "none"])
def test_it_is_forward_backward_and_the_step(optimizer):
    torch.manual_seed(0)
    module, inputs = torch.nn.Linear(3, 2), (torch.randn(5, 3),)
    by_hand = torch.nn.Linear(3, 2)
    by_hand.load_state_dict(module.state_dict())
    loss = by_hand(*inputs).square().mean()
    loss.backward()
    with torch.no_grad():
        by_hand.weight.zero_()
    if optimizer != "none":
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
        kind(by_hand.parameters(), lr=1.0, **({"eps": 1.0} if optimizer == "adam" else {})).step()
    step, _ = made(module, inputs, optimizer=optimizer)
    seen = step.observe()
    torch.testing.assert_close(seen["loss"], loss.detach())
    torch.testing.assert_close(seen["gradients"]["weight"], by_hand.weight.grad)
    if optimizer == "none":
        assert seen["updates"] == {}
    else:
        torch.testing.assert_close(seen["updates"]["weight"], by_hand.weight.detach())
    assert all(tensor.grad is None for tensor in module.parameters())
    assert not step.marks


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_inputs_are_observed_and_dropped(dtype):
    case = Case("s", "m", scenario="training", dtype=dtype)
    of_case = Job(case, "python", "", baseline_dtype="float32")
    inputs = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3)
    eager = eager_and_compiled.eager_side(torch.nn.Bilinear(3, 3, 2), inputs, of_case, torch.device("cpu"))
    eager.save_state()
    for side in (eager, eager_and_compiled.compiled_side(eager, of_case)):
        side.restore()
        step = training.make_step(side.module, side, device.Cpu(1))
        seen = pytree.detach(step.observe())
        side.restore()
        assert set(seen["input_gradients"]) == {"inputs[0]"}
        step()
        step()
        assert [tensor.grad for tensor in side.inputs] == [None, None]
        side.restore()
        torch.testing.assert_close(pytree.detach(step.observe())["input_gradients"], seen["input_gradients"])


@pytest.mark.parametrize(("times", "sign", "verdict"), [
    (1, 1, "pass"), (0, 1, "fail"), (2, 1, "fail"), (1, -1, "fail"), (1, 1.05, "fail"),
])  # fmt: skip
def test_a_step_that_is_left_out_done_twice_or_turned_round_is_wrong(monkeypatch, times, sign, verdict):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.ReLU(), torch.nn.Linear(20, 5))
    step, side = made(module, (torch.randn(8, 30),))
    right = pytree.detach(step.observe())
    side.restore()
    kind = type("Kind", (modules.WrongSgd,), {"times": times, "sign": sign})
    monkeypatch.setattr(torch.optim, "SGD", kind)
    compared = output_comparison.compare(
        right, pytree.detach(step.observe()), right, tolerance=1e-2, factor=2.0, of_group=training.OF_GROUP
    )
    assert compared["status"] == verdict
    assert verdict == "pass" or "updates" in compared["detail"]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_was_judged_leaves_the_timed_step_as_it_was(optimizer):
    torch.manual_seed(0)
    module, inputs = torch.nn.Linear(3, 2), (torch.randn(5, 3),)
    step, side = made(module, inputs, optimizer=optimizer)
    step.observe()
    side.restore()
    before = module.weight.detach().clone()
    step()
    assert 0 < (module.weight.detach() - before).abs().max() < 2e-4


def test_steps_go_on_and_restore_goes_back():
    module, inputs = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)), (torch.randn(5, 3),)
    step, side = made(module, inputs)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    step(), step()
    assert not torch.equal(module.state_dict()["0.weight"], before["0.weight"])
    assert module.state_dict()["1.num_batches_tracked"] == 2
    assert [len(row) for row in step.marks] == [4, 4]
    side.restore()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_without_an_optimiser_there_is_no_such_part():
    module, inputs = torch.nn.Linear(3, 2), (torch.randn(5, 3),)
    step, _ = made(module, inputs, optimizer="none")
    step()
    assert step.parts == ("forward", "backward")
    assert [len(row) for row in step.marks] == [3]
    assert made(module, inputs)[0].parts == ("forward", "backward", "optimizer")


def test_the_backward_pass_runs_in_the_context_of_what_was_compiled():
    module, inputs = torch.nn.Linear(3, 2), (torch.randn(5, 3),)
    within = []

    class Compiled:
        def __call__(self, x):
            assert not within, "only backward is"
            return module(x)

        @contextlib.contextmanager
        def backward_context(self):
            assert module.weight.grad is None
            yield
            within.append(module.weight.grad.clone())

    side = eager_and_compiled.eager_side(module, inputs, job(), torch.device("cpu"))
    training.make_step(Compiled(), side, device.Cpu(1))()
    assert len(within) == 1


def test_a_column_is_no_loss_at_batch_size_1_either():
    for size in (1, 2):
        module, inputs = torch.nn.Linear(3, 1), (torch.randn(size, 3),)
        expected = module(*inputs).square().mean().detach()
        step, _ = made(module, inputs)
        torch.testing.assert_close(step.observe()["loss"], expected)


def test_nothing_to_train():
    with pytest.raises(Unmeasurable, match="no parameter"):
        made(torch.nn.ReLU(), (torch.randn(2),))


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


def test_losses():
    scores = torch.tensor([[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]], requires_grad=True)
    own = scores.sum()
    assert losses.make(job())(Output(own, scores)) == own
    assert losses.make(job(loss="model"))((own, scores)) == own
    assert losses.make(job())(scores).item() == pytest.approx((1 + 4 + 9 + 12) / 6)
    assert losses.make(job(loss="mean"))((scores, 2 * scores)).item() == pytest.approx((2 + 4) / 2)
    entropy = losses.make(job(loss="cross_entropy"))
    assert entropy(scores) == entropy(scores) > 0
    with pytest.raises(Unmeasurable, match="returns no loss"):
        losses.make(job(loss="model"))(scores)
    with pytest.raises(Unmeasurable, match="no floating output"):
        losses.make(job(loss="mean"))(scores.argmax(-1))
    with pytest.raises(Unmeasurable, match="cross entropy needs"):
        losses.make(job(loss="cross_entropy"))(scores[0])
