"""What scenario `sizes` does after the timing, with stand-ins for what it compiles."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from tests.lazy import lazy

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
        compiled_step=step, job=case.job, backend=case.backend, frames=None
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
