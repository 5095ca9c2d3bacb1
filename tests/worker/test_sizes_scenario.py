"""What scenario `sizes` does after the timing, with stand-ins for what it compiles."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

torch = lazy("torch")
accuracy = lazy("perfdash.worker.accuracy")
compilation = lazy("perfdash.worker.compilation")
device = lazy("perfdash.worker.device")
eager_and_compiled = lazy("perfdash.worker.eager_and_compiled")
modules = lazy("tests.worker.modules")
sizes = lazy("perfdash.worker.scenarios.sizes")
worker_case = lazy("perfdash.worker.case")


def played(monkeypatch, *, has_graph_breaks=False, **raising):
    """A case of scenario `sizes` whose work after the timing raises the given error; and its events."""

    def work(name):
        if name in raising:
            raise raising[name]
        return {name: True}

    monkeypatch.setattr(sizes, "_beside_static", lambda comparison, step: work("static"))
    monkeypatch.setattr(sizes, "_automatic", lambda comparison: work("automatic"))
    monkeypatch.setattr(sizes.compilation, "has_graph_breaks", lambda: has_graph_breaks)
    step = sizes.SizedStep({}, None)
    step.first = {"batch 2": {"seconds": 1.0, "graphs": 1}}
    case = object.__new__(worker_case.CaseProcess)
    case.job = SimpleNamespace(role="full", data=None, sizes=(2, 4), sizes_of="batch", instance_cores=())
    case.scenario = SimpleNamespace(context=lambda job: contextlib.nullcontext(), further=sizes.further)
    case.backend, case.frames, case.eager_lost = SimpleNamespace(CAPTURES=True), None, False
    case.comparison = lambda: SimpleNamespace(
        compiled_step=step, job=case.job, backend=case.backend, uncounted=contextlib.nullcontext
    )
    events = []
    case.emit = lambda event, **more: events.append({"event": event, **more})
    case.begin = case.eager = case.compile = case.accuracy = case.latency = lambda: None
    case.count_recompiles = lambda phase: None
    case.memory = lambda: case.emit("memory")
    return case, events


def test_the_figures_come_as_they_are_measured(monkeypatch):
    case, events = played(monkeypatch)
    case.measure()
    first, static, both = (event for event in events if event["event"] == "sizes")
    assert (first["first"], first["left"]) == (
        {"batch 2": {"seconds": 1.0, "graphs": 1}},
        ["static", "automatic"],
    )
    assert (static["static"], static["left"]) == ({"static": True}, ["automatic"])
    assert (both["automatic"], both["left"], both["failed"]) == ({"automatic": True}, [], {})


def test_nothing_is_compiled_beside_a_model_with_graph_breaks(monkeypatch):
    """What dynamo compiled of its functions for the dynamic artefact would serve the others, too."""
    case, events = played(monkeypatch, has_graph_breaks=True)
    case.measure()
    (facts,) = (event for event in events if event["event"] == "sizes")
    assert (set(facts["failed"]), facts["left"]) == ({"static", "automatic"}, [])
    assert "graph breaks" in facts["failed"]["static"]
    assert not {"static", "automatic"} & set(facts)
    case.backend.CAPTURES = False  # it exports the model: what breaks dynamo is no matter
    case.measure()
    *_, facts = (event for event in events if event["event"] == "sizes")
    assert (facts["failed"], facts["static"]) == ({}, {"static": True})


def test_an_artefact_that_compiled_nothing_is_refused():
    step = sizes.SizedStep({}, None)
    step.first = {"batch 2": {"seconds": 1.0, "graphs": 1}}
    sizes._refuse_shared_code(step, "batch 2", 1)
    with pytest.raises(RuntimeError, match="compiled nothing for batch 2"):
        sizes._refuse_shared_code(step, "batch 2", 0)
    step.first["batch 2"]["graphs"] = 0  # nothing was captured, or the back end does without dynamo
    sizes._refuse_shared_code(step, "batch 2", 0)


@pytest.mark.parametrize("name", ["static", "automatic"])
def test_a_failure_after_the_timing_costs_nothing_that_was_measured(monkeypatch, name):
    case, events = played(monkeypatch, **{name: RuntimeError("batch 8 alone does not compile")})
    case.measure()
    *_, last = (event for event in events if event["event"] == "sizes")
    assert last["failed"] == {name: "RuntimeError: batch 8 alone does not compile"}
    assert last["left"] == []
    assert ("static" in last, "automatic" in last) == (name != "static", name != "automatic")
    assert {"event": "memory"} in events


def test_a_fault_of_the_machine_is_measured_again(monkeypatch):
    case, _ = played(monkeypatch, static=OSError(28, "No space left on device"))
    with pytest.raises(OSError, match="No space"):
        case.measure()


def side_of(module, **settings):
    """A side with the inputs of two sizes."""
    inputs = {"batch 2": (torch.ones(2, 3),), "batch 4": (torch.ones(4, 3),)}
    job = Job(Case("s", "m", scenario="sizes"), "python", "", sizes=(2, 4), **settings)
    return eager_and_compiled.eager_side(module, inputs, job, torch.device("cpu"))


def test_every_artefact_is_compiled_on_the_cores_for_compiling_and_timed_on_the_case_s_own(monkeypatch):
    cores, seen = [], []

    @contextlib.contextmanager
    def on_cores(more, compilers=None):
        cores.append(more)
        yield len(more)
        cores.pop()

    def prepare(module, inputs, job):
        seen.append(("prepare", *cores))

        def model(x):
            seen.append(("call", *cores))
            return x + 1

        return model

    def sample_pairs(*steps_and_settings):
        seen.append(("sample", *cores))
        return dict.fromkeys(("eager_parts_ns", "backend_parts_ns", "clean", "times_s"))

    monkeypatch.setattr(compilation, "on_cores", on_cores)
    monkeypatch.setattr(compilation, "start_compilers", lambda number: None)
    monkeypatch.setattr(sizes, "_empty_caches", lambda folder: contextlib.nullcontext())
    monkeypatch.setattr(sizes.latency_sampling, "sample_pairs", sample_pairs)
    side = side_of(modules.Calls(lambda module, x: x + 1), compile_cores=(4, 5))
    host, backend = device.Cpu(1), SimpleNamespace(prepare=prepare)

    def first_calls():
        step, _, _ = compilation.captured_first_call(
            lambda is_anew: None,
            lambda: sizes.make_step(prepare(side.module, None, side.job), side, host),
            host.synchronize,
            cores=side.job.compile_cores,
        )
        return step

    comparison = SimpleNamespace(
        job=side.job, device=host, backend=backend, compiled_side=side, uncounted=contextlib.nullcontext,
        compiled_step=first_calls(),
    )  # fmt: skip
    *_, facts = sizes.further(comparison)
    assert facts["failed"] == {}
    on_more = [name for name, *more in seen if more == [(4, 5)]]
    assert on_more.count("prepare") == [name for name, *_ in seen].count("prepare") == 1 + 2 + 1
    on_own = [name for name, *more in seen if not more]
    assert on_own == ["call", "call", "sample"], "a steady call of each static artefact, then the timing"
    assert sorted(facts["static"]["first_s"]) == ["batch 2", "batch 4"]


def test_what_is_no_part_of_converting_is_no_part_of_the_first_call_of_a_static_artefact(monkeypatch):
    def prepare(module, inputs, job):
        model = modules.Calls(lambda module, x: x + 1)
        model.uncounted_s = 1e6
        return model

    figures = dict.fromkeys(("eager_parts_ns", "backend_parts_ns", "clean", "times_s"))
    monkeypatch.setattr(sizes.latency_sampling, "sample_pairs", lambda *steps_and_settings: figures)
    side, host = side_of(modules.Calls(lambda module, x: x + 1)), device.Cpu(1)
    step = sizes.make_step(side.module, side, host)
    step()
    comparison = SimpleNamespace(
        job=side.job, device=host, backend=SimpleNamespace(prepare=prepare, CAPTURES=False),
        compiled_side=side, uncounted=contextlib.nullcontext, compiled_step=step,
    )  # fmt: skip
    *_, facts = sizes.further(comparison)
    assert facts["failed"] == {}
    assert facts["static"]["first_s"] == {"batch 2": 0.0, "batch 4": 0.0}


class Overwrites:
    """Every call overwrites what the call before has returned, as a replay of a CUDA graph does."""

    def __init__(self):
        self.last = None

    def __call__(self, module, x):
        if self.last is not None:
            self.last.zero_()
        self.last = 2 * x
        return self.last


def test_the_outputs_of_a_size_are_copied_before_the_next_call():
    side = side_of(modules.Calls(Overwrites()))
    step = sizes.make_step(side.module, side, device.Cpu(1))
    for _ in range(2):  # the first call is another path
        outputs = accuracy.observed(step)
        assert {name: value.sum().item() for name, value in outputs.items()} == {"batch 2": 12, "batch 4": 24}
    assert list(step.first) == ["batch 2", "batch 4"]
    assert step()["batch 2"].sum() == 0, "a timed call copies nothing"
