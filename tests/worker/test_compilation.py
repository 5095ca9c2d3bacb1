"""What is read from dynamo's counters; compiled by its back end `eager`, which generates no code."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

torch = lazy("torch")
compilation = lazy("perfdash.worker.compilation")
compiler_caches = lazy("perfdash.worker.compiler_caches")
modules = lazy("tests.worker.modules")
registry = lazy("perfdash.worker.registry")
shape_models = lazy("tests.truth.shape_models")
sizes = lazy("perfdash.worker.scenarios.sizes")
structure = lazy("perfdash.worker.structure")
worker_case = lazy("perfdash.worker.case")


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


def test_an_attempt_that_is_thrown_away_is_no_part_of_compiling():
    """Dynamo compiles a model that fixes its size before it raises, and then compiles it again."""
    every = {f"batch {size}": (torch.ones(size, 64),) for size in (2, 3, 5)}
    side, frames, attempts = SimpleNamespace(inputs=every), [], []
    model = torch.compile(shape_models.Specialises(), backend="eager")
    calls = {name: lambda one=one: model(*one) for name, one in every.items()}

    def make_step():
        step = sizes.SizedStep(calls, SimpleNamespace(synchronize=lambda: None, mark=lambda: None))
        sizes.before_compile(side, step)
        attempts.append(step)
        return step

    def begin(is_anew):
        frames.append(structure.Frames())
        if is_anew:
            attempts.append("anew")
            torch._dynamo.reset()

    step, figures, capture = compilation.captured_first_call(begin, make_step, lambda: None)
    assert attempts == [step, "anew"]
    assert step.fixed_at == "it fixes the size at 2"
    assert capture["graphs"] == 3
    assert capture["calls_captured"] == 2 + 3 + 5
    assert [facts["graphs"] for facts in step.first.values()] == [1, 1, 1]
    assert sum(facts["seconds"] for facts in step.first.values()) <= figures["first_call_s"]
    assert frames[-1].failures()["given_up"] == {}
    assert frames[-1].recompiles() == 2


def test_a_compilation_that_begins_anew_finds_empty_caches_on_disk(tmp_path, monkeypatch):
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TMPDIR"):
        monkeypatch.setenv(variable, "")
    monkeypatch.setattr("tempfile.tempdir", None)
    shared, mark = tmp_path / "shared", "lib.so.load_ok"
    (shared / "vector_tests").mkdir(parents=True)
    for name in ("lib.so", mark):
        (shared / "vector_tests" / name).touch()
    compiler_caches.use_in(str(tmp_path), str(shared))
    code = tmp_path / "inductor" / "fxgraph" / "code.py"
    for on_disk in (False, True):
        code.parent.mkdir(exist_ok=True)
        code.touch()
        compiler_caches.begin_anew(str(tmp_path), str(shared), on_disk)
        assert code.exists() == (not on_disk)
    assert (tmp_path / "inductor" / mark).exists(), "the tests of vector instructions are shared again"


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


@pytest.mark.parametrize("by", ["variable", "option"])
def test_the_number_of_compilers_that_a_user_gives_holds_on_more_cores(monkeypatch, by):
    import torch._inductor.config as inductor_config

    monkeypatch.setattr(compilation.linux, "bind_threads", lambda cores: None)
    if by == "variable":
        monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    with inductor_config.patch(compile_threads=4):
        with compilation.on_cores((0, 1), 1 if by == "option" else None) as number:
            assert (number, inductor_config.compile_threads) == (1, 1)
        assert inductor_config.compile_threads == (1 if by == "option" else 4)


@pytest.mark.parametrize(("backend", "compiles"), [(None, False), ("eager", False), ("aot_eager", True)])
def test_a_model_that_calls_torch_compile_itself_is_known(backend, compiles):
    """The back end `eager` generates no code: dynamo traces torch.cond and flex_attention with such a one."""
    (torch.compile(torch.sin, backend=backend) if backend else torch.sin)(torch.ones(3))
    assert compilation.model_compiles_itself() is compiles


@pytest.mark.slow
@pytest.mark.parametrize("compiles", [True, False])
def test_what_eager_has_compiled_is_said_and_forgotten_before_the_back_end_compiles(
    tmp_path, monkeypatch, compiles
):
    act = torch.compile(torch.sin, backend="aot_eager") if compiles else torch.sin
    model = modules.Calls(lambda module, x: act(x)), (torch.ones(3),)
    forgotten = []
    monkeypatch.setattr(compiler_caches, "use_in", lambda scratch, headers: None)
    monkeypatch.setattr(compiler_caches, "begin_anew", lambda *where, on_disk: forgotten.append(on_disk))
    monkeypatch.setattr(registry.find("loaders", "python"), "load", lambda job: model)
    events = {}
    job = Job(Case("s", "m", backend="eager"), "python", "", scratch=str(tmp_path))
    case = worker_case.CaseProcess(job, lambda event, **facts: events.update({event: facts}))
    case.begin()
    with case.scenario.context(job):
        case.eager()
    assert events["eager"]["compiles_itself"] is compiles
    assert forgotten == [True] * compiles
    assert "compiles_itself" not in events["eager"]["memory"]
