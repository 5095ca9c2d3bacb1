"""The smallest subgraph that is compiled wrongly: the search, and a fault that inductor can plant itself."""

from __future__ import annotations

import importlib
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdash.cli import explain_profile
from perfdash.errors import UsageError
from perfdash.explain import profiling
from perfdash.explain.reproducer import write_accuracy
from perfdash.records import Case, Job
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned
from tests.explain.scripts import run
from tests.lazy import lazy

failing_subgraph = lazy("perfdash.worker.failing_subgraph")

AS_MAIN = """
import runpy, sys
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
except SystemExit as end:
    print("exit code", end.code)
"""
SEEN_BY_COMPILE = """
import os, runpy, sys, torch
os.environ["NVIDIA_TF32_OVERRIDE"] = "1"
seen = []
def compiled(function, **_):
    seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
    seen.append(torch.backends.cudnn.fp32_precision)
    seen.append(os.environ.get("NVIDIA_TF32_OVERRIDE"))
    return function
torch.compile = compiled
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
except SystemExit:
    print("switches", *seen)
"""
FAULT = {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}  # relu(x) becomes relu(x) + 1


def build(config, scenario="inference"):
    target = f"{Path(__file__).with_name('wrong_relu.py')}:deep"
    case = Case("own", "wrong_relu.deep", scenario=scenario)
    planned = Planned(case=case, loader="python", target=target, inductor_config=config)
    return profiling.ProfiledBuild("r", planned, RunSettings(python=sys.executable, jobs=1), {})


@pytest.mark.parametrize(("culprits", "size", "window"), [
    ([3], 10, (3, 4)), ([0], 1, (0, 1)), ([9], 10, (9, 10)), ([4, 6], 10, (4, 7)), ([], 10, None),
])  # fmt: skip
def test_the_window_is_the_smallest_that_fails(culprits, size, window):
    """It fails where it contains all culprits: two operators may only be wrong together."""
    tried = []

    def fails(start, end):
        tried.append((start, end))
        return bool(culprits) and all(start <= place < end for place in culprits)

    assert failing_subgraph.smallest(size, fails) == window
    assert len(tried) <= 9


def test_only_inference_under_inductor_is_bisected(tmp_path):
    with pytest.raises(UsageError, match="only the graphs of inference under inductor"):
        profiling.failing_subgraph(build({}, "training"), {}, tmp_path, lambda line: None)


def test_the_script_compiles_with_the_mode_and_the_shapes_of_the_case(tmp_path):
    found = {
        "operators": ["aten.relu.default"], "place": {"operators": 7}, "torch": "2.15.0", "threads": 1,
        "tf32": None, "tolerance": 1e-3, "factor": 2.0, "mode": "max-autotune", "config": {"freezing": True},
        "dynamic": True, "code": "",
    }  # fmt: skip
    inputs = tmp_path / "inputs.pt"
    inputs.write_bytes(b"")
    text = write_accuracy(tmp_path / "script", found, inputs, {}).read_text()
    assert "FACTOR, MODE, DYNAMIC = 1, 0.001, 2.0, 'max-autotune', True" in text
    assert "torch.compile(forward, mode=MODE, dynamic=DYNAMIC)" in text
    assert "CONFIG = {'freezing': True}" in text


@pytest.mark.slow
@pytest.mark.parametrize(("tf32", "switches"), [
    (True, "(True, True) tf32 None"), (False, "(False, False) ieee None"), (None, "(False, True) none 1"),
])  # fmt: skip
def test_the_script_has_the_tf32_setting_of_a_run_on_a_gpu(tmp_path, command_server, tf32, switches):
    """Without it a convolution of eager has the error of TF32, which hides that of the compiled one.

    Inductor's own convolutions have a switch of their own, and the shell's variable overrides all of them.
    """
    found = {
        "operators": ["aten.relu.default"], "place": {"operators": 7}, "torch": "2.15.0", "threads": 1,
        "tf32": tf32, "tolerance": 1e-3, "factor": 2.0, "mode": None, "config": {}, "dynamic": None,
        "code": "def forward(self, x):\n    return torch.relu(x)",
    }  # fmt: skip
    torch = pytest.importorskip("torch")
    torch.save([torch.ones(4)], tmp_path / "inputs.pt")
    script = write_accuracy(tmp_path / "script", found, tmp_path / "inputs.pt", {})
    told = command_server.workers.run_script(SEEN_BY_COMPILE, str(script))
    assert told.splitlines()[-1] == f"switches {switches}"


@pytest.mark.parametrize(
    ("backend", "device", "mode", "config"),
    [
        ("inductor_freezing", "cpu", None, {"freezing": True}),
        ("inductor_max_autotune", "cpu", "max-autotune", {"freezing": True}),
        ("inductor_max_autotune", "cuda", "max-autotune", {}),
    ],
)
def test_a_back_end_says_what_it_adds_to_the_options(backend, device, mode, config):
    job = Job(Case("own", "m", device=device), loader="python", target="x:y")
    job = importlib.import_module(f"perfdash.worker.backends.{backend}").effective_job(job)
    assert (job.compile_mode, job.inductor_config) == (mode, config)


@pytest.mark.slow
def test_a_case_of_amp_is_cut_up_in_the_dtype_of_autocast(tmp_path, monkeypatch):
    """The compiler may be wrong in bfloat16 alone; a float64 copy rounds nothing to it."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval()
    job = Job(Case("own", "m", dtype="amp", dynamic=True), "python", "x:y", folder=str(tmp_path))
    compare, judges = failing_subgraph.output_comparison.compare, []

    def under_autocast(backend):
        model = torch.compile(net, backend=backend)

        def step():
            with torch.autocast("cpu", torch.bfloat16):
                return model(torch.ones(2, 8))

        return step

    def wrong_in_bfloat16(module, inputs, job):
        def call(*values):
            outputs = module(*values)
            return tuple(value + 1 if value.dtype is torch.bfloat16 else value for value in outputs)

        return call

    def recorded(eager, compiled, judge, **options):
        judges.extend(judge)
        return compare(eager, compiled, judge, **options)

    monkeypatch.setattr(failing_subgraph.output_comparison, "compare", recorded)
    with torch.no_grad():
        back_end = SimpleNamespace(
            prepare=wrong_in_bfloat16, effective_job=lambda job: replace(job, compile_mode="fast")
        )
        found = failing_subgraph.of_case(under_autocast, back_end, job)
    assert found is not None
    assert (found["mode"], found["dynamic"], found["tf32"]) == ("fast", True, None)
    assert {value.dtype for value in judges} == {torch.float64}


@pytest.mark.slow
def test_a_later_graph_that_cannot_be_traced_does_not_hide_the_wrong_one(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    job = Job(Case("own", "m", device="cuda"), "python", "x:y", folder=str(tmp_path), tf32=True)
    trace, traced = failing_subgraph.trace, []

    def model(x):
        first = torch.relu(x)
        torch._dynamo.graph_break()
        return torch.sin(first)

    def only_the_first(module, inputs):
        traced.append(module)
        if len(traced) > 1:
            raise RuntimeError("no trace")
        return trace(module, inputs)

    def back_end(is_wrong):
        return SimpleNamespace(
            prepare=lambda module, inputs, job: lambda *values: tuple(x + is_wrong for x in module(*values))
        )

    def capture(backend):
        return lambda: torch.compile(model, backend=backend)(torch.ones(4))

    monkeypatch.setattr(failing_subgraph, "trace", only_the_first)
    with torch.no_grad():
        found = failing_subgraph.of_case(capture, back_end(is_wrong=True), job)
        assert (found["operators"], found["tf32"]) == (["aten.relu.default"], True)
        assert len(traced) == 2
        traced.clear()
        with pytest.raises(RuntimeError, match="no trace"):
            failing_subgraph.of_case(capture, back_end(is_wrong=False), job)


@pytest.mark.slow
def test_bits_that_are_read_as_another_dtype_have_no_float64_copy():
    """With other bits the copy would be so far from eager that any output passes."""
    torch = pytest.importorskip("torch")
    bits = torch.arange(1.0, 9.0).view(torch.int32)
    traced = failing_subgraph.trace(lambda x: (x.view(torch.float32).sum(),), [bits])
    wrong = SimpleNamespace(prepare=lambda module, inputs, job: lambda *values: (module(*values)[0] * 1.5,))
    job = Job(Case("own", "m"), loader="python", target="x:y")
    graph = failing_subgraph.Graph(traced, [bits])
    window, inputs = graph.window(0, len(graph.nodes))
    assert failing_subgraph.judge(window, inputs, wrong, job)["status"] == "fail"


class FakeSlot:
    """A slot whose interpreter has torch 2.15.0 of commit b."""

    orders = ()

    def __init__(self, *_, **more):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def introduce(self, planned):
        return {"environment": {"worker": {"torch": "2.15.0", "torch_git_version": "b" * 40}}}

    def measure(self, order, log, on_event):
        FakeSlot.orders += (order.role,)
        return SimpleNamespace(outcomes=[SimpleNamespace(find=lambda event: {"found": {"operators": []}})])


def test_another_build_than_the_run_measured_is_not_cut_up(tmp_path, monkeypatch):
    """The fault may be mended there, or it is another one."""
    monkeypatch.setattr(profiling, "Slot", FakeSlot)
    monkeypatch.setattr(profiling, "check_machine", lambda settings, cases: None)
    for commit in ("a", "b"):
        worker = {"torch": "2.15.0", "torch_git_version": commit * 40}
        of_run = replace(build({}), worker=worker)
        if commit == "b":
            assert profiling.failing_subgraph(of_run, worker, tmp_path, print) == {"operators": []}
            continue
        with pytest.raises(UsageError, match=r"r measured another build .*torch: a+ \| b+: .* by --python"):
            profiling.failing_subgraph(of_run, {}, tmp_path, print)
        assert not FakeSlot.orders


def test_what_was_found_is_kept_where_no_script_can_be_written(tmp_path, monkeypatch):
    found = {
        "operators": ["mylib.f.default"], "place": {"operators": 7}, "torch": "2.15.0", "threads": 1,
        "tf32": None, "tolerance": 1e-3, "factor": 2.0, "mode": None, "config": {}, "dynamic": None,
        "code": "",
    }  # fmt: skip
    (tmp_path / "subgraph").mkdir()
    (tmp_path / "subgraph" / "inputs.pt").write_bytes(b"")
    monkeypatch.setattr(profiling, "failing_subgraph", lambda *_: found)
    lines = []
    plain, problem = explain_profile._reproduce_accuracy(build({}), {}, tmp_path, tmp_path, lines.append)
    assert plain == {"subgraph": found}
    assert lines == ["1 of 7 operators are compiled wrongly: mylib.f.default"]
    assert isinstance(problem, UsageError)


def test_the_script_has_the_variables_that_the_outputs_were_wrong_with(tmp_path, monkeypatch):
    found = {
        "operators": ["aten.relu.default"], "place": {"operators": 7}, "torch": "2.15.0", "threads": 1,
        "tf32": None, "tolerance": 1e-3, "factor": 2.0, "mode": None, "config": {}, "dynamic": None,
        "code": "",
    }  # fmt: skip
    (tmp_path / "subgraph").mkdir()
    (tmp_path / "subgraph" / "inputs.pt").write_bytes(b"")
    monkeypatch.setattr(profiling, "failing_subgraph", lambda *_: found)
    monkeypatch.setattr("perfdash.explain.reproducer.shows_it", lambda *_: True)
    of_case = build({})
    env = {"TORCHINDUCTOR_FREEZING": "1", "TORCH_TOKEN": "hidden", "OWN": "2"}
    of_case = replace(of_case, planned=replace(of_case.planned, env=env))
    lines, script = [], tmp_path / "a folder"
    plain, problem = explain_profile._reproduce_accuracy(of_case, {}, tmp_path, script, lines.append)
    assert problem is None
    assert shlex.split(lines[-1]) == ["Reproducer:", sys.executable, str(script / "reproduce.py")]
    before, _ = Path(plain["reproducer"]).read_text().split("\nimport torch\n")
    assert "os.environ.update({'TORCHINDUCTOR_FREEZING': '1'})" in before


@pytest.mark.slow
def test_a_planted_fault_is_cut_out_and_reproduced(tmp_path, warm_workers, command_server):
    found = profiling.failing_subgraph(build(FAULT), {}, tmp_path / "work", lambda line: None)
    assert found["operators"] == ["aten.relu.default"]
    assert found["place"]["operators"] > 5
    script = write_accuracy(tmp_path / "script", found, tmp_path / "work" / "subgraph" / "inputs.pt", {})
    text = script.read_text()
    assert "perfdash" not in text
    assert len(text.splitlines()) < 110
    done = run(script)
    assert (done.returncode, "output 0: wrong: " in done.stdout) == (1, True), done.stderr
    script.write_text(text.replace(f"CONFIG = {FAULT!r}", "CONFIG = {}"))
    # That it needs nothing but torch was shown above: this time torch has been imported.
    told = command_server.workers.run_script(AS_MAIN, str(script))
    assert "output 0: right" in told
    assert told.splitlines()[-1] == "exit code 0"
