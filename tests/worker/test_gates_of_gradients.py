"""Gradients of a deep network of ReLUs: which gates rounding opens is chance, a wrong gradient is not."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

torch = lazy("torch")
nn = lazy("torch.nn")
comparison = lazy("perfdash.worker.output_comparison")
accuracy = lazy("perfdash.worker.accuracy")
device = lazy("perfdash.worker.device")
pytree = lazy("perfdash.worker.pytree")
training = lazy("perfdash.worker.scenarios.training")
eager_and_compiled = lazy("perfdash.worker.eager_and_compiled")


JOB = Job(Case("s", "m", scenario="training"), "python", "", tolerance=1e-3, factor=2.0)
SEEDS = range(4)

pytestmark = pytest.mark.slow


def layer(width):
    return nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 16, 3), *(layer(16) for _ in range(24))), (torch.randn(8, 3, 18, 18),)


def compared(seed, harm=lambda module: None, by=1.2e-7, bound=None, build=network):
    """Both sides are eager; the parameters of the second are moved in their last place, as if it summed
    in another order.
    """
    module, inputs = build(seed)
    moved = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(100 + seed)
    with torch.no_grad():
        for tensor in moved.parameters():
            tensor.mul_(1 + (torch.rand(tensor.shape, generator=generator) * 2 - 1) * by)
    harm(moved)
    eager_side, compiled_side = (
        eager_and_compiled.eager_side(candidate, inputs, JOB, torch.device("cpu"))
        for candidate in (module, moved)
    )
    eager_side.save_state(), compiled_side.save_state()

    def restore():
        torch.manual_seed(0)
        eager_side.restore(), compiled_side.restore()

    cpu = device.Cpu(1)
    return eager_and_compiled.BothSides(
        job=replace(JOB, distance_bound=bound), scenario=training, backend=SimpleNamespace(), device=cpu,
        eager_side=eager_side, compiled_side=compiled_side, compiled_model=moved,
        eager_step=training.make_step(module, eager_side, cpu),
        compiled_step=training.make_step(moved, compiled_side, cpu), seed=restore,
    )  # fmt: skip


def test_gates_that_rounding_opens_are_no_fault():
    outcomes = [accuracy.of_case(compared(seed), None) for seed in SEEDS]
    assert [outcome["status"] for outcome in outcomes] == ["pass"] * len(SEEDS)


def test_by_eagers_own_error_leaf_by_leaf_they_would_be():
    def alone(seed):
        both = compared(seed)
        judge, *_ = accuracy._float64_outputs(both, accuracy._reference(both).states)
        both.seed()
        eager, other = accuracy.observed(both.eager_step), accuracy.observed(both.compiled_step)
        return comparison.compare(eager, other, judge, tolerance=1e-3, factor=2.0, of_group=training.OF_GROUP)

    assert "fail" in [alone(seed)["status"] for seed in SEEDS]


@pytest.mark.parametrize("by", [0.0, 0.8, 1.2])
@pytest.mark.parametrize("place", [1, 12, 24])
def test_a_wrong_gradient_is_found_among_them(by, place):
    def harm(module):
        module[place][0].weight.register_hook(lambda gradient: gradient * by)

    for seed in (0, 1):
        outcome = accuracy.of_case(compared(seed, harm), None)
        assert outcome["status"] == "fail"
        assert f"{place}.0.weight" in outcome["detail"]


def test_eager_is_asked_from_parameters_nearby_and_left_as_it_was():
    both = compared(0)
    judge, *_ = accuracy._float64_outputs(both, accuracy._reference(both).states)
    both.seed()
    before = pytree.detach(dict(both.eager_side.module.state_dict()))
    seen = [
        comparison.relative_errors(perturbed_run, judge, training.OF_GROUP)
        for perturbed_run in accuracy._perturbed_runs(both)
    ]
    assert len(seen) == 4
    assert len({errors["out['gradients'"] for errors in seen}) == 4
    assert all(0 < errors["out['gradients'"] < 0.5 for errors in seen)
    after = both.eager_side.module.state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())


def smooth(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5)), (torch.randn(16, 20),)


@pytest.mark.parametrize(("build", "by", "bound", "status"), [
    (network, 4e-3, 0.05, "skipped"), (network, 4e-3, 10.0, "pass"), (network, 1e-7, 0.05, "pass"),
    (smooth, 4e-3, 0.05, "pass"), (smooth, 0.3, 0.05, "fail"),
])  # fmt: skip
def test_fewer_bits_are_not_judged_where_they_make_another_network_of_it(build, by, bound, status):
    outcome = accuracy.of_case(compared(0, by=by, bound=bound, build=build), None)
    assert outcome["status"] == status, outcome["detail"]
    assert ("not judged" in outcome["detail"]) == (status == "skipped")


def test_a_gradient_that_is_not_finite_is_wrong_in_any_bits():
    def harm(module):
        module[12][0].weight.register_hook(lambda gradient: gradient * float("nan"))

    assert accuracy.of_case(compared(0, harm, by=4e-3, bound=0.05), None)["status"] == "fail"


def test_what_chance_moves_elsewhere_does_not_excuse_a_gradient_that_was_left_out():
    """The last layer's own is sure in any bits."""

    def harm(module):
        module[-1].weight.register_hook(lambda gradient: gradient * 0)

    def with_head(seed):
        module, inputs = network(seed)
        return nn.Sequential(*module, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)), inputs

    whole = accuracy.of_case(compared(0, by=4e-3, bound=0.2, build=with_head), None)
    assert whole["status"] == "skipped", whole["detail"]
    outcome = accuracy.of_case(compared(0, harm, by=4e-3, bound=0.2, build=with_head), None)
    assert outcome["status"] == "fail", outcome["detail"]


def test_memory_that_only_asking_again_lacks_leaves_the_verdict(monkeypatch):
    def none(*_):
        raise MemoryError

    def harm(module):
        module[12][0].weight.register_hook(lambda gradient: gradient * 0)

    monkeypatch.setattr(accuracy, "_perturbed_runs", none)
    for bound in (None, 0.05):
        outcome = accuracy.of_case(compared(0, harm, bound=bound), None)
        assert outcome["status"] == "fail"
        assert "no memory was left to ask eager again" in outcome["detail"]
