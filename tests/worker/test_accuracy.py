"""What the accuracy check says of two sides that are told apart by construction; both run in eager."""

from __future__ import annotations

import contextlib
import functools
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

np = lazy("numpy")
torch = lazy("torch")
output_comparison = lazy("perfdash.worker.output_comparison")
accuracy = lazy("perfdash.worker.accuracy")
device = lazy("perfdash.worker.device")
inference = lazy("perfdash.worker.scenarios.inference")
modules = lazy("tests.worker.modules")
eager_and_compiled = lazy("perfdash.worker.eager_and_compiled")
training = lazy("perfdash.worker.scenarios.training")

JOB = Job(Case("s", "m"), "python", "")


def verdict(
    eager, compiled=None, inputs=None, *, buffer=None, backend=None, eager_differs=None, on=None,
    atomics=None, shared=None, **settings,
):  # fmt: skip
    """The event of two functions, the second of which stands for the compiled side, on a device."""
    on = on or device.Cpu(1)
    torch.manual_seed(0)
    inputs = (torch.randn(32, 8),) if inputs is None else inputs
    job = replace(JOB, **settings)
    module = modules.Calls(eager, buffer)
    eager_side = eager_and_compiled.eager_side(module, inputs, job, torch.device("cpu"))
    eager_side.save_state(parameters=False)
    compiled_side = eager_and_compiled.compiled_side(eager_side, job)

    def model(*arguments):
        return (compiled or eager)(module, *arguments)

    def seed():
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        eager_side.restore(), compiled_side.restore()

    comparison = eager_and_compiled.BothSides(
        job=job, scenario=inference, backend=backend or SimpleNamespace(), device=on,
        eager_side=eager_side, compiled_side=compiled_side, compiled_model=model,
        eager_step=inference.make_step(module, eager_side, on),
        compiled_step=inference.make_step(model, compiled_side, on), seed=seed, atomics=atomics,
    )  # fmt: skip
    with inference.context(job):
        return accuracy.of_case(comparison, eager_differs, shared)


def in_float32(module, x):
    """No float64 copy of it runs."""
    if x.dtype != torch.float32:
        raise TypeError("float32 only")
    return x.sin()


def out_of_memory(module, x):
    if x.dtype != torch.float32:
        raise MemoryError("DefaultCPUAllocator: can't allocate memory")
    return x.sin()


def test_without_a_judge_twice_the_right_value_is_wrong():
    outcome = verdict(in_float32, lambda module, x: 2 * x.sin())
    assert (outcome["status"], outcome["metric"]) == ("fail", "relative_rmse")
    assert outcome["distance"]["cosine"] == pytest.approx(1.0)
    assert verdict(in_float32, lambda module, x: 1.004 * x.sin())["status"] == "pass"


@pytest.mark.parametrize(("dtype", "by", "status"), [
    ("bfloat16", 1.03, "pass"), ("bfloat16", 1.1, "fail"),
    ("float16", 1.015, "pass"), ("float16", 1.05, "fail"),
])  # fmt: skip
def test_fewer_bits_may_be_further_away_without_a_judge(dtype, by, status):
    def eager(module, x):
        if x.dtype == torch.float64:
            raise TypeError("no float64")
        return x.sin()

    case = replace(JOB.case, dtype=dtype)
    assert verdict(eager, lambda module, x: by * x.sin(), case=case)["status"] == status


@pytest.mark.parametrize("until_oom", [False, True])
def test_a_judge_that_had_no_memory_says_so(until_oom):
    outcome = verdict(out_of_memory, lambda module, x: 1.004 * x.sin(), until_oom=until_oom)
    assert "no float64 judge: no memory for it" in outcome["detail"]
    assert outcome["no_judge"].startswith("no memory for it")
    assert outcome["status"] == ("skipped" if until_oom else "pass")


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "outputs",
    [
        lambda x: x * NAN,
        lambda x: x / 0,
        lambda x: {"logits": x * NAN, "tokens": torch.arange(3)},
        lambda x: None,
        lambda x: x[:0],
    ],
)
def test_where_no_output_is_finite_nothing_was_compared(outputs):
    outcome = verdict(lambda module, x: outputs(x))
    assert outcome["status"] == "no_finite_output"
    assert "nothing could be compared" in outcome["detail"]


@pytest.mark.parametrize(
    "outputs",
    [lambda x: (x * NAN, x), lambda x: torch.arange(3), lambda x: 7, lambda x: torch.tensor([NAN, 1.0])],
)
def test_one_finite_output_is_something_to_compare(outputs):
    assert verdict(lambda module, x: outputs(x))["status"] == "pass"


def test_a_side_that_alone_is_not_finite_is_wrong():
    assert verdict(lambda module, x: x * NAN, lambda module, x: x)["status"] == "fail"
    assert verdict(lambda module, x: x, lambda module, x: x * INF)["status"] == "fail"


def test_of_a_training_step_the_loss_is_what_is_shown():
    compared = SimpleNamespace(scenario=training)
    observation = {"loss": torch.tensor(NAN), "buffers": {"running_mean": torch.ones(3)}}
    assert output_comparison.nothing_finite(accuracy._model_outputs(compared, observation))
    assert not output_comparison.nothing_finite(observation)


def plain(module, x):
    return x.sin()


def in_place(module, x):
    y = x.sin()
    x.add_(1)
    return y


def other_place(module, x):
    y = x.sin()
    x.add_(2)
    return y


def counts(module, x):
    module.seen += 1
    return x.sin()


def counts_double(module, x):
    module.seen += 2
    return x.sin()


def clears(module, x):
    module.seen = None
    return x.sin()


def deletes(module, x):
    del module.seen
    return x.sin()


@pytest.mark.parametrize(("eager", "compiled", "says"), [
    (clears, clears, None), (deletes, deletes, None),
    (clears, plain, "eager changes buffer seen, the compiled side leaves it"),
    (plain, deletes, "the compiled side changes buffer seen"),
    (clears, counts, "to other values: "), (counts, clears, "to other values: "),
    (plain, in_place, "the compiled side changes inputs[0]"),
    (in_place, plain, "eager changes inputs[0], the compiled side leaves it"),
    (in_place, other_place, "to other values: out['inputs[0]']"),
    (counts, plain, "eager changes buffer seen, the compiled side leaves it"),
    (plain, counts, "the compiled side changes buffer seen"),
    (counts, counts_double, "to other values: out['buffer seen']"),
    (in_place, in_place, None), (counts, counts, None), (plain, plain, None),
])  # fmt: skip
def test_what_a_call_leaves_behind_is_part_of_its_answer(eager, compiled, says):
    outcome = verdict(eager, compiled, buffer=torch.zeros(()))
    assert outcome["status"] == ("pass" if says is None else "fail"), outcome
    assert says is None or says in outcome["detail"]


def test_a_model_that_is_converted_elsewhere_may_leave_updates_out_but_not_change_its_inputs():
    elsewhere = SimpleNamespace(CAPTURES=False)
    assert verdict(counts, plain, buffer=torch.zeros(()), backend=elsewhere)["status"] == "pass"
    assert verdict(plain, in_place, backend=elsewhere)["status"] == "fail"


def writes(times, returns=None):
    """A model that writes its result into its second input."""

    def model(module, x, out):
        out.copy_(x * times)
        return returns and x * returns

    return model


def draws_into(module, x, out):
    out.copy_(torch.rand_like(x))


@pytest.mark.parametrize(("eager", "compiled", "status", "says"), [
    (writes(2), writes(2), "pass", "returns nothing; what it changes: out['inputs[1]']"),
    (writes(2), writes(2.0001), "pass", "returns nothing"),
    (writes(2), writes(6), "fail", "to other values: out['inputs[1]']"),
    (writes(2), writes(0), "fail", "eager changes inputs[1], the compiled side leaves it"),
    (writes(0), writes(2), "fail", "the compiled side changes inputs[1]"),
    (writes(2, NAN), writes(6, NAN), "no_finite_output", "nothing could be compared"),
    (writes(2, NAN), writes(INF, NAN), "no_finite_output", "nothing could be compared"),
    (writes(NAN), writes(NAN), "no_finite_output", "nothing could be compared"),
    (draws_into, writes(3), "no_finite_output", "nothing could be compared"),
])  # fmt: skip
def test_a_model_that_returns_nothing_is_judged_by_what_it_writes(eager, compiled, status, says):
    outcome = verdict(eager, compiled, (torch.randn(32, 8), torch.zeros(32, 8)))
    assert outcome["status"] == status, outcome
    assert says in outcome["detail"]


def test_where_what_is_written_may_be_left_out_a_model_that_returns_nothing_has_no_verdict():
    inputs = torch.randn(32, 8), torch.zeros(32, 8)
    elsewhere = SimpleNamespace(CAPTURES=False)
    assert verdict(writes(2), writes(0), inputs, backend=elsewhere)["status"] == "no_finite_output"
    assert verdict(writes(0), writes(2), inputs, backend=elsewhere)["status"] == "fail"


def test_inputs_with_nan_are_not_changed_by_being_so():
    inputs = (torch.tensor([1.0, NAN]),)
    assert verdict(plain, inputs=inputs)["status"] == "pass"


class Gpu:
    """A GPU that is this CPU, without room for a float64 copy."""

    kind = "cuda"

    def __init__(self, peak=1 << 20):
        self.peak_of_step = self.peak_bytes = peak
        self.dropped, self.is_deterministic = 0, False

    def random_state(self):
        return torch.get_rng_state()

    def peak(self):
        return self.peak_bytes, self.peak_bytes

    def reset_peak(self):
        self.peak_bytes = self.peak_of_step

    def drop_caches(self):
        self.dropped += 1

    @contextlib.contextmanager
    def deterministic(self):
        self.is_deterministic = True
        yield
        self.is_deterministic = False


@pytest.fixture
def no_room(monkeypatch):
    """The float64 copy beside eager fills the GPU and is out of memory, that on the CPU is not."""

    def on_device(comparison):
        comparison.device.peak_bytes = 1 << 60
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(accuracy, "_judge_on_device", on_device)


def weighs(module, x):
    return x @ torch.ones(8, 8, dtype=x.dtype) + module.seen


def test_the_judge_runs_on_the_cpu_where_the_gpu_has_no_room(no_room):
    gpu = Gpu()
    outcome = verdict(weighs, lambda module, x: weighs(module, x) + 1e-6, buffer=torch.ones(8), on=gpu)
    assert outcome["status"] == "pass"
    assert outcome["judge_on"] == "the CPU"
    assert "the float64 judge ran on the CPU, for want of memory" in outcome["detail"]
    assert "no_judge" not in outcome
    assert gpu.dropped == 1
    wrong = verdict(weighs, lambda module, x: 1.01 * weighs(module, x), buffer=torch.ones(8), on=gpu)
    assert (wrong["status"], wrong["metric"]) == ("fail", "rmse_to_float64")


@pytest.mark.parametrize(("gpu", "flops", "says"), [
    (lambda: Gpu(peak=1 << 60), 2e9, "the CPU has"), (Gpu, 1e-3, "it would take about"),
])  # fmt: skip
def test_a_judge_that_the_cpu_cannot_run_either_is_not_tried(no_room, monkeypatch, gpu, flops, says):
    monkeypatch.setattr(accuracy, "_CPU_FLOPS", flops)
    monkeypatch.setattr(accuracy, "_judge_on_cpu", lambda comparison: pytest.fail("tried"))
    outcome = verdict(weighs, lambda module, x: 1.004 * weighs(module, x), buffer=torch.ones(8), on=gpu())
    assert says in outcome["no_judge"]
    assert "CUDA out of memory" in outcome["no_judge"]


def noisy(module, x):
    return x + torch.rand(x.shape, dtype=torch.float32).to(x.dtype)


def own_noise():
    """A compiled side with a generator of its own, which nobody sets back."""
    generator = torch.Generator().manual_seed(1)
    return lambda module, x: x + torch.rand(x.shape, generator=generator)


@pytest.mark.parametrize("draws_on", ["the host", "the GPU"])
def test_a_model_on_a_gpu_may_draw_its_random_numbers_on_the_host(draws_on):
    """Only the GPU's own numbers are others in float64."""
    gpu = Gpu()
    if draws_on == "the host":
        gpu.random_state = lambda: torch.zeros(16, dtype=torch.uint8)
    repeatable = SimpleNamespace(prepare_repeatable=lambda module, inputs, job: module)
    outcome = verdict(noisy, own_noise(), on=gpu, backend=repeatable)
    assert outcome["status"] == "pass"
    assert "checked on a second artefact" in outcome["detail"]
    assert ("no_judge" in outcome) == (draws_on == "the GPU")
    assert verdict(noisy, own_noise(), on=gpu)["status"] == "skipped"
    assert verdict(noisy, lambda module, x: noisy(module, x) + 0.1, on=gpu)["status"] == "fail"


def test_the_second_artefact_is_compiled_on_the_cores_for_compiling(monkeypatch):
    cores, seen = [], []

    @contextlib.contextmanager
    def on_cores(more, compilers=None):
        cores.append(more)
        yield len(more)
        cores.pop()

    def prepare_repeatable(module, inputs, job):
        return lambda x: seen.append(list(cores)) or module(x)

    monkeypatch.setattr(accuracy.compilation, "on_cores", on_cores)
    backend = SimpleNamespace(prepare_repeatable=prepare_repeatable)
    assert verdict(noisy, own_noise(), backend=backend, compile_cores=(4, 5))["status"] == "pass"
    assert (seen, cores) == ([[(4, 5)]], [])


def test_the_judge_on_the_host_has_all_cores_for_compiling_whatever_the_number_of_compilers(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    monkeypatch.setattr(accuracy.compilation.linux, "bind_threads", lambda cores: None)
    threads = torch.get_num_threads()
    monkeypatch.setattr(accuracy, "_judge", lambda *_: torch.get_num_threads())
    side = SimpleNamespace(module=torch.nn.Linear(2, 2), inputs=(torch.ones(1, 2),))
    job = SimpleNamespace(compile_cores=(4, 5, 6), inductor_config={})
    assert accuracy._judge_on_cpu(SimpleNamespace(eager_side=side, job=job)) == 3
    assert torch.get_num_threads() == threads


def test_a_judge_that_drew_other_random_numbers_is_none():
    """It is as far from eager as any wrong output is, which passed beside it."""

    def draws(module, x):
        return x + torch.rand_like(x)

    outcome = verdict(draws, own_noise())
    assert outcome["no_judge"] == "in float64 the model draws other random numbers"
    assert outcome["status"] == "skipped"
    assert verdict(draws, lambda module, x: draws(module, x) + 0.5)["status"] == "fail"
    repeatable = SimpleNamespace(prepare_repeatable=lambda module, inputs, job: module)
    assert verdict(draws, lambda module, x: x + 0.5, backend=repeatable)["status"] == "pass"
    dropout = verdict(lambda module, x: torch.nn.functional.dropout(x))
    assert (dropout["status"], "no_judge" in dropout) == ("pass", False)


def from_torch(module, x):
    return x + torch.rand(x.shape, dtype=torch.float32).to(x.dtype)


def from_numpy(module, x):
    return x + torch.from_numpy(np.random.rand(*x.shape)).to(x.dtype)


def from_python(module, x):
    return x + random.random()


def own_numbers(draws):
    """The same with a generator that nobody sets back."""
    torch_noise, python = own_noise(), random.Random(1)
    return (lambda module, x: x + python.random()) if draws == "Python's random" else torch_noise


DRAWS = {"torch": from_torch, "numpy": from_numpy, "Python's random": from_python}


@pytest.mark.parametrize("draws", [*DRAWS])
@pytest.mark.parametrize("bound", [None, 0.2])
def test_a_back_end_that_draws_other_random_numbers_cannot_be_judged(draws, bound):
    """One that draws eager's can, and so can what has nothing to do with the numbers."""
    eager = DRAWS[draws]

    def judged(compiled, **more):
        return verdict(eager, compiled, distance_bound=bound, **more)

    assert judged(None)["status"] == "pass"
    outcome = judged(own_numbers(draws))
    assert outcome["status"] == "skipped"
    assert f"draws random numbers ({draws}), which the back end cannot repeat" in outcome["detail"]
    assert judged(lambda module, x: eager(module, x) + 1.0)["status"] == "fail"
    for wrong in (lambda y: y[1:], lambda y: y * NAN, lambda y: y + 10, lambda y: y.roll(1, 0) * 20):
        own = own_numbers(draws)
        assert judged(lambda module, x, own=own, wrong=wrong: wrong(own(module, x)))["status"] == "fail"


@pytest.mark.parametrize("draws", [*DRAWS])
@pytest.mark.parametrize("bound", [None, 0.2])
def test_a_back_end_that_loses_the_random_numbers_is_wrong(draws, bound):
    """As where one leaves dropout out, or makes a constant of numbers that it drew when it compiled."""
    outcome = verdict(DRAWS[draws], lambda module, x: x + 0.5, distance_bound=bound)
    assert outcome["status"] == "fail"
    assert "the back end returns the same" in outcome["detail"]


@pytest.mark.parametrize("bound", [None, 0.2])
@pytest.mark.parametrize("draws", [*DRAWS])
def test_random_numbers_excuse_only_the_outputs_that_depend_on_them(draws, bound):
    """Some models draw a number for each layer that training may leave out, also in evaluation."""

    def beside(noise):
        return lambda module, x: {"noise": noise(module, x), "y": x.sin(), "labels": x.argmax(1)}

    def alone(module, x):
        DRAWS[draws](module, x)
        return x.sin()

    own = own_numbers(draws)
    assert verdict(beside(DRAWS[draws]), beside(own), distance_bound=bound)["status"] == "skipped"
    wrong = verdict(alone, lambda module, x: x.cos(), distance_bound=bound)
    assert wrong["status"] == "fail"
    for part in ({"y": torch.ones(32, 8)}, {"y": torch.full((32, 8), NAN)}):
        other = verdict(
            beside(DRAWS[draws]),
            lambda module, x, part=part: beside(own)(module, x) | part,
            distance_bound=bound,
        )
        assert other["status"] == "fail"
    labels = verdict(beside(DRAWS[draws]), lambda module, x: beside(own)(module, x) | {"labels": x.argmin(1)})
    assert labels["status"] == "fail"


def test_nan_beside_random_integers_is_wrong():
    def eager(module, x):
        return torch.from_numpy(np.random.randint(0, 9, size=(len(x),))), x.sin()

    def compiled(module, x):
        return torch.randint(9, (len(x),)), x * NAN

    assert verdict(eager, compiled)["status"] == "fail"


@pytest.mark.parametrize("draws", [*DRAWS])
def test_the_second_artefact_repeats_torchs_numbers_alone(draws):
    """One that leaves torch's out, as where a dropout is lost, is wrong."""
    backend = SimpleNamespace(
        prepare_repeatable=lambda module, inputs, job: functools.partial(own_numbers(draws), module)
    )
    outcome = verdict(DRAWS[draws], own_numbers(draws), backend=backend)
    assert outcome["status"] == ("fail" if draws == "torch" else "skipped")
    assert ("checked on a second artefact" in outcome["detail"]) == (draws == "torch")


def test_integers_drawn_at_random_are_not_judged_beside_other_ones():
    def eager(module, x):
        return torch.from_numpy(np.random.randint(0, 9, size=(len(x),)))

    assert verdict(eager)["status"] == "pass"
    assert verdict(eager, lambda module, x: torch.randint(9, (len(x),)))["status"] == "skipped"
    assert verdict(eager, lambda module, x: torch.arange(len(x)))["status"] == "fail"
    assert verdict(eager, lambda module, x: eager(module, x) + 1)["status"] == "fail"


def test_a_judge_that_drew_other_numbers_from_numpy_is_none():
    def draws(module, x):
        return x + np.random.rand() + (np.random.rand() if x.dtype == torch.float64 else 0.0)

    assert verdict(draws)["no_judge"] == "in float64 the model draws other random numbers"


def test_atomics_are_kept_out_of_eager_and_of_eager_alone():
    gpu, seen = Gpu(), []

    def eager(module, x):
        seen.append(("eager", gpu.is_deterministic))
        return x.sin()

    def compiled(module, x):
        seen.append(("compiled", gpu.is_deterministic))
        return x.sin()

    outcome = verdict(eager, compiled, on=gpu, atomics="out differs by 1e-4")
    assert outcome["status"] == "pass"
    assert outcome["atomics"] == "out differs by 1e-4"
    assert "eager ran with deterministic algorithms" in outcome["detail"]
    assert seen[:2] == [("eager", True), ("compiled", False)]


class Shared(dict):
    """What cases of one eager side share, in memory."""

    def read(self, kind):
        values = self.get(kind)
        return {**values, "shared_from": "the first"} if values else None

    def write(self, kind, values):
        self[kind] = dict(values)


def twice(module, x):
    return 2 * x


def test_outputs_and_judge_of_another_case_give_the_same_verdict():
    def almost(module, x):
        return 2 * x + 1e-7

    shared = Shared()
    first = verdict(twice, almost, shared=shared)
    assert shared["outputs"]["judge"] is not None
    second = verdict(twice, almost, shared=shared)
    assert second == {**first, "shared_from": "the first"}
    assert first == verdict(twice, almost)


def test_a_verdict_other_than_pass_is_reached_beside_the_cases_own_eager():
    shared = Shared()
    verdict(twice, shared=shared)
    outputs, *rest = shared["outputs"]["judge"]
    shared["outputs"] |= {"eager": outputs + 1, "judge": (outputs + 1, *rest)}
    result = verdict(twice, shared=shared)
    assert (result["status"], "shared_from" in result) == ("pass", False)
    wrong = verdict(twice, lambda module, x: 3 * x, shared=shared)
    assert (wrong["status"], "shared_from" in wrong) == ("fail", False)


def test_effects_on_the_inputs_are_shared_too():
    def changes(module, x):
        x.add_(1)
        return 2 * x

    shared = Shared()
    assert verdict(changes, shared=shared)["status"] == "pass"
    assert verdict(changes, shared=shared)["shared_from"] == "the first"
    result = verdict(changes, lambda module, x: 2 * (x + 1), shared=shared)
    assert (result["status"], "shared_from" in result) == ("fail", False)


def asked_again(monkeypatch, compiled, nearby, bound=None, case=JOB.case):
    """The verdict on wrong gradients (all are 1 in eager), and how far eager's parameters were moved for it.

    nearby: the gradients of each further run of eager.
    """
    moved_by = []

    def perturbed_runs(comparison, eps=None):
        moved_by.append(eps)
        yield from map(step_with, nearby)

    def step_with(gradients):
        leaves = {name: torch.full((4,), value) for name, value in gradients.items()}
        return {"loss": torch.tensor(1.0), "gradients": leaves}

    monkeypatch.setattr(accuracy, "_perturbed_runs", perturbed_runs)
    eager, other = step_with(dict.fromkeys(compiled, 1.0)), step_with(compiled)
    noise = {}
    judge = functools.partial(
        output_comparison.compare, noise=noise, judge=eager, tolerance=1e-3, factor=2.0,
        of_group=training.OF_GROUP, gated=training.GATED,
    )  # fmt: skip
    if bound is not None:
        judge = functools.partial(output_comparison.within, bound=bound, of_group=training.OF_GROUP)
    first = judge(eager, other)
    assert first["status"] == "fail"
    comparison = SimpleNamespace(scenario=training, job=replace(JOB, case=case, distance_bound=bound))
    float64_outputs = eager if bound is None else None
    return accuracy._judged_again(comparison, first, eager, other, float64_outputs, noise, judge), moved_by


@pytest.mark.parametrize(("furthest", "status"), [(1.08, "pass"), (1.02, "fail")])
def test_a_gradient_may_be_as_far_as_the_furthest_of_eagers_further_runs(monkeypatch, furthest, status):
    """Whichever of them it is."""
    nearby = [{"a": 1.0, "b": value} for value in (1.0, furthest, 1.01)]
    outcome, moved_by = asked_again(monkeypatch, {"a": 1.2, "b": 1.0}, nearby)
    assert outcome["status"] == status
    assert "eager was asked again" in outcome["detail"]
    assert moved_by == [None], "in their last place"


@pytest.mark.parametrize(("furthest", "status"), [(1.15, "skipped"), (1.08, "fail")])
def test_fewer_bits_are_not_judged_where_eager_moves_about_as_far(monkeypatch, furthest, status):
    nearby = [{"a": value, "b": 1.0} for value in (1.0, furthest, 1.01)]
    outcome, _ = asked_again(monkeypatch, {"a": 1.2, "b": 1.01}, nearby, bound=0.05)
    assert outcome["status"] == status
    outcome, _ = asked_again(monkeypatch, {"a": 1.2, "b": 1.1}, nearby, bound=0.05)
    assert outcome["status"] == "fail", "eager's `b` does not move"


@pytest.mark.parametrize(("case", "name"), [
    ({}, "bfloat16"), ({"dtype": "float16"}, "float16"),
    ({"dtype": "amp", "amp_dtype": "float16"}, "float16"),
])  # fmt: skip
def test_eagers_parameters_are_moved_by_half_a_unit_of_the_short_dtype(monkeypatch, case, name):
    _, moved_by = asked_again(monkeypatch, {"a": 1.2}, [], bound=0.05, case=replace(JOB.case, **case))
    assert moved_by == [torch.finfo(getattr(torch, name)).eps / 2]


def test_each_further_run_of_eager_is_from_other_parameters_around_its_own():
    torch.manual_seed(0)
    module = torch.nn.Linear(30, 30)
    own = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}

    def restore():
        with torch.no_grad():
            for name, tensor in module.named_parameters():
                tensor.copy_(own[name])

    def moved(observed):
        own_and_moved = [(own[name].double(), tensor.double()) for name, tensor in module.named_parameters()]
        return torch.cat([(now / before - 1).detach().flatten() for before, now in own_and_moved])

    comparison = SimpleNamespace(
        job=JOB, eager_side=SimpleNamespace(module=module), seed=restore, observe_eager=moved
    )
    for by in (None, 1e-3):
        runs = list(accuracy._perturbed_runs(comparison, by))
        assert len({tuple(run.tolist()) for run in runs}) == 4
        for run in runs:
            most = by or torch.finfo(torch.float32).eps
            assert -1.6 * most < run.min() < -0.4 * most
            assert 0.4 * most < run.max() < 1.6 * most
        assert not moved(None).any(), "its own are put back"
