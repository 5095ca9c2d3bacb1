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


@pytest.fixture
def timed_calls(monkeypatch):
    """first_call of a step whose calls take these seconds, by a clock of its own; the figures, and the calls.

    `cpu_s`: CPU seconds of each call, by default as many. `compiling`: the calls in which dynamo compiles.
    """

    def measure(seconds, cpu_s=None, compiling=(), build_s=0.0, threads=1, before_more=lambda: None):
        now = {"wall": 0.0, "cpu": 0.0}
        waiting, made, graphs = list(zip(seconds, cpu_s or seconds, strict=True)), [], [0]

        def spend(wall, cpu):
            now["wall"] += wall
            now["cpu"] += cpu

        def step():
            made.append(None)
            graphs[0] += len(made) in compiling
            spend(*(waiting[min(len(made), len(waiting)) - 1]))

        def make_step():
            spend(build_s, build_s)
            return step

        clock = SimpleNamespace(
            perf_counter=lambda: now["wall"], process_time=lambda: now["cpu"], thread_time=lambda: now["cpu"]
        )
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        monkeypatch.setattr(compilation, "time", clock)
        monkeypatch.setattr(compilation.linux, "tree_cpu_s", lambda root: now["cpu"])
        monkeypatch.setattr(compilation, "compiled_graphs", lambda: graphs[0])
        _, figures = compilation.first_call(make_step, lambda: None, before_more=before_more)
        return figures, len(made)

    return measure


@pytest.mark.parametrize(("calls", "cpu_s", "compilation_s", "compilation_cpu_s"), [
    ((5.0, 0.11, 0.10, 0.13), None, 4.89, 4.89),  # all compiled in the first
    ((5.0, 2.0, 0.1, 0.1), None, 4.9 + 1.9, 4.9 + 1.9),  # TorchScript, a CUDA graph: in the second, too
    ((5.0, 0.1, 3.0, 0.1), None, 4.9 + 2.9, 4.9 + 2.9),
    ((5.0, 2.0, 0.1, 0.1), (4.0, 0.1, 0.1, 0.1), 4.9, 3.9),  # another program had the core
    ((5.0, 2.9, 1.0, 1.1), None, 3.9, 3.9),  # three times as long would be compiling
    ((0.1, 0.015, 0.001, 0.001), None, 0.099, 0.099),  # nor is what a machine does by itself
])  # fmt: skip
def test_compilation_contains_what_the_next_calls_clearly_compile(
    timed_calls, calls, cpu_s, compilation_s, compilation_cpu_s
):
    figures, made = timed_calls(calls, cpu_s)
    assert made == 4
    assert figures["compilation_s"] == pytest.approx(compilation_s)
    assert figures["compilation_cpu_s"] == pytest.approx(compilation_cpu_s)
    assert figures["first_call_s"] == calls[0]


def test_a_call_in_which_dynamo_compiles_is_no_steady_one_however_short(timed_calls):
    figures, made = timed_calls((5.0, 1.2, 1.0, 1.0), compiling={1, 2})
    assert made == 4
    assert figures["compilation_s"] == pytest.approx(4.0 + 0.2)
    assert figures["notes"] == ["1 of the calls after the first compiled as well: 0.2 s of compiling"]
    assert timed_calls((5.0, 1.2, 1.0, 1.0), compiling={1})[0]["notes"] == []


def test_the_calls_go_on_until_one_compiles_nothing(timed_calls):
    figures, made = timed_calls((5.0, 4.0, 4.0, 4.0, 4.0, 0.1), compiling={1, 2, 3, 4, 5})
    assert made == 6
    assert figures["compilation_s"] == pytest.approx(4.9 + 4 * 3.9)
    figures, made = timed_calls((5.0, 4.0), compiling=range(100))
    assert made < 20, "a model that is compiled anew in every call ends"
    assert figures["compilation_s"] == pytest.approx(1.0)


def test_a_slow_model_that_still_compiles_reaches_no_time_limit_by_more_calls(timed_calls):
    figures, made = timed_calls((400.0, 50.0), compiling=range(100))
    assert made == 4
    assert figures["notes"]


@pytest.mark.parametrize(("second_s", "later_s"), [(0.08, 0.0), (0.2, 0.199)])
def test_several_threads_that_spin_while_they_wait_compile_nothing(timed_calls, second_s, later_s):
    """A call on two busy cores took up to 80 ms of CPU time instead of 2."""
    figures, _ = timed_calls((1.0, second_s, 0.001, 0.001), threads=2)
    assert figures["compilation_s"] == pytest.approx(0.999 + later_s)
    assert bool(figures["notes"]) == bool(later_s)


def test_only_the_thread_of_the_calls_tells_what_they_compile(monkeypatch):
    """Those of OpenMP use CPU time while they wait for one that has lost its core."""
    monkeypatch.setattr(compilation.time, "process_time", iter(range(0, 100, 7)).__next__)
    _, figures = compilation.first_call(lambda: lambda: None, lambda: None)
    assert figures["notes"] == []


def test_what_is_captured_is_counted_in_as_many_calls_of_every_model():
    """Else a model that needs more calls would have other counts than in earlier nights."""
    made = []

    def step():
        made.append(None)
        torch._dynamo.utils.counters["stats"]["unique_graphs"] += 1

    _, _, capture = compilation.captured_first_call(lambda is_anew: None, lambda: step, lambda: None)
    assert len(made) > 4
    assert capture["graphs"] == 4


def test_a_conversion_takes_as_long_as_building_takes(timed_calls):
    figures, _ = timed_calls((0.1, 0.3, 0.3, 0.3), build_s=2.0)
    assert figures["compilation_s"] == pytest.approx(2.0)
    assert figures["build_s"] == pytest.approx(2.0)


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
    # Each is rounded to a tenth of a millisecond.
    assert sum(facts["seconds"] for facts in step.first.values()) <= figures["first_call_s"] + 3 * 0.5e-4
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


def pretended_cores(monkeypatch, own):
    """Let the process believe that it runs on the cores `own`, then on those that it is bound to.

    Returns the sets of cores, the present one last.
    """
    bound = [own]
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    monkeypatch.setattr(compilation.linux, "bind_threads", lambda cores: bound.append(set(cores)))
    monkeypatch.setattr(compilation.os, "sched_getaffinity", lambda pid: bound[-1])
    return bound


def test_more_cores_are_for_compiling_alone(monkeypatch):
    import torch._inductor.config as inductor_config

    bound = pretended_cores(monkeypatch, {3})
    before = inductor_config.compile_threads
    with compilation.on_cores(()) as cores:
        assert (cores, bound) == (1, [{3}]), "the case's own"
    with compilation.on_cores((1, 2, 3)) as cores:
        assert (cores, bound) == (3, [{3}, {1, 2, 3}])
        assert inductor_config.compile_threads == 3
    assert bound == [{3}, {1, 2, 3}, {3}]
    assert inductor_config.compile_threads == before


def test_a_server_has_no_more_compilers_than_torch_starts_for_a_user(monkeypatch):
    import torch._inductor.config as inductor_config

    pretended_cores(monkeypatch, set(range(224)))
    of_a_user = inductor_config.decide_compile_threads()
    assert of_a_user < 224
    compilation.linux.bind_threads({3})
    with compilation.on_cores(range(224)) as number:
        assert number == inductor_config.compile_threads == of_a_user


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
