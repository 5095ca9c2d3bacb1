"""What is read from dynamo's counters; compiled by its back end `eager`, which generates no code."""

from __future__ import annotations

import pytest

from tests.lazy import lazy

torch = lazy("torch")
compilation = lazy("perfdash.worker.compilation")
modules = lazy("tests.worker.modules")


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_branch_that_depends_on_data_is_a_graph_break():
    with compilation.capture_figures() as figures:
        torch.compile(modules.branches, backend="eager")(torch.ones(3))
    assert figures["graphs"] == 2
    assert (figures["graph_breaks"], figures["unique_graph_breaks"]) == (1, 1)
    (reason,) = figures["break_reasons"]
    assert "depends on data in modules.py:" in reason


def test_any_other_break_counts_once_as_before():
    with compilation.capture_figures() as figures:
        torch.compile(modules.breaks, backend="eager")(torch.ones(3))
    assert (figures["graphs"], figures["graph_breaks"]) == (2, 1)
    ((place,),) = figures["break_places"].values()
    assert place.startswith("modules.py:")
    assert place.endswith(" in breaks")
    assert list(figures["break_places"]) == list(figures["break_reasons"])
    with compilation.capture_figures() as figures:
        torch.compile(torch.sin, backend="eager")(torch.ones(3))
    assert figures["graph_breaks"] == 0


def test_the_limit_of_recompiles_is_reported_when_it_is_reached_later():
    module = modules.Counts()
    with torch._dynamo.config.patch(recompile_limit=3), compilation.capture_figures():
        model = torch.compile(module, backend="eager")
        model(torch.ones(3))
    assert compilation.gave_up() is None
    before = compilation.compiled_graphs()
    with torch._dynamo.config.patch(recompile_limit=3):
        for _ in range(6):
            model(torch.ones(3))
    assert compilation.compiled_graphs() > before
    assert "limit" in compilation.gave_up()


def test_more_cores_are_for_compiling_alone(monkeypatch):
    import torch._inductor.config as inductor_config

    bound = []
    monkeypatch.setattr(compilation.linux, "bind_threads", lambda cores: bound.append(set(cores)))
    monkeypatch.setattr(compilation.os, "sched_getaffinity", lambda pid: {3})
    before = inductor_config.compile_threads
    with compilation.on_cores(()) as cores:
        assert (cores, bound) == (1, []), "the case's own"
    with compilation.on_cores((1, 2, 3)) as cores:
        assert (cores, bound) == (3, [{1, 2, 3}])
        assert inductor_config.compile_threads == 3
    assert bound == [{1, 2, 3}, {3}]
    assert inductor_config.compile_threads == before
