"""The profile of a case whose compiled call replays what was recorded, as under CUDA graphs."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

torch = lazy("torch")
device = lazy("perfdash.worker.device")
generated_wrappers = lazy("perfdash.worker.generated_wrappers")
latency_sampling = lazy("perfdash.worker.latency_sampling")
profiling = lazy("perfdash.worker.profiling")

KERNEL = "cpp_fused_tanh_0"
SOURCE = f"""
{KERNEL} = async_compile.cpp_pybinding(['float*'], '''
extern "C" void kernel(float* out_ptr0) {{ }}
''')

async_compile.wait(globals())
del async_compile

def call(args):
    {KERNEL}(args)
"""


CANDIDATE = """
@triton.jit
def triton_(arg_A, arg_B, out_ptr0):
    pass

def call(args):
    triton_.run(*args)
"""


def loaded_module(folder, name, source):
    """A module that inductor has written and loaded."""
    module = ModuleType(name)
    module.__file__ = str(folder / f"{name}.py")
    (folder / f"{name}.py").write_text(source)
    module.call = lambda args: None
    return module


@pytest.fixture
def wrapper(tmp_path, monkeypatch):
    """A wrapper as inductor has loaded it, with one kernel that `call` calls; the rounds are short."""
    module = loaded_module(tmp_path, "wrapper", SOURCE)
    setattr(module, KERNEL, torch.tanh)
    module.call = lambda tensor: getattr(module, KERNEL)(tensor)
    monkeypatch.setattr(generated_wrappers, "loaded", lambda: [module])
    monkeypatch.setattr(profiling, "_BLOCK_NS", 1000)
    monkeypatch.setattr(profiling, "_memory", lambda *_: None)
    monkeypatch.setattr(latency_sampling, "warm_up", lambda *_, **more: 1000.0)
    return module


def profiled(tmp_path, compiled, graph_launches=None):
    """The compiled side of a case, its settings, and the notes.

    `graph_launches`: what the device says of a call; None for the CPU, which knows no CUDA graphs.
    """

    class Gpu(device.Cpu):
        kind = "cuda"

        def account(self, call):
            return {"graph_launches": graph_launches}

    tensor = torch.ones(4)
    job = Job(Case("s", "m"), "python", "", folder=str(tmp_path / "profile"), tf32=True)
    opened = device.Cpu(1) if graph_launches is None else Gpu(1)
    notes = profiling.of_case(lambda: torch.tanh(tensor), lambda: compiled(tensor), opened, job)
    document = json.loads((tmp_path / "profile" / profiling.FILE).read_text())
    assert document["notes"] == notes
    return document["sides"]["compiled"], document["settings"], notes


def test_a_kernel_that_python_calls_is_timed(tmp_path, wrapper):
    side, settings, notes = profiled(tmp_path, wrapper.call)
    assert [call["label"] for call in side["calls"]] == [KERNEL]
    assert not side["replays_graphs"]
    assert notes == []
    assert settings["tf32"] is None, "the CPU has none"


def test_kernels_that_a_cuda_graph_replays_are_not_timed_and_a_note_says_so(tmp_path, wrapper):
    side, settings, (note,) = profiled(tmp_path, torch.tanh, graph_launches=1)
    assert (side["calls"], list(side["kernels"])) == ([], [KERNEL])
    assert side["replays_graphs"]
    assert "CUDA graphs are replayed in the compiled call: no kernel within them is timed" in note
    assert settings["tf32"] is True


def test_a_graph_beside_kernels_that_python_calls_is_noted(tmp_path, wrapper):
    side, _, (note,) = profiled(tmp_path, wrapper.call, graph_launches=2)
    assert [call["label"] for call in side["calls"]] == [KERNEL]
    assert "CUDA graphs are replayed" in note


def test_kernels_that_no_call_reaches_are_noted_where_the_profiler_tells_nothing(tmp_path, wrapper):
    side, _, (note,) = profiled(tmp_path, torch.tanh, graph_launches=0)
    assert side["calls"] == []
    assert note == "Python calls none of the generated kernels in the compiled call: none is timed"


def test_how_many_candidates_autotuning_has_loaded_changes_no_label(tmp_path, monkeypatch):
    """It is chance: the times of a kernel are looked up by its label in every process."""
    codecache = pytest.importorskip("torch._inductor.codecache")
    first, second, candidate = (
        loaded_module(tmp_path, name, source)
        for name, source in (("first", SOURCE), ("second", SOURCE), ("candidate", CANDIDATE))
    )
    for module in (first, second):
        setattr(module, KERNEL, torch.tanh)
    labels = []
    for modules in ([first, second], [first, candidate, second]):
        monkeypatch.setattr(codecache.PyCodeCache, "modules", modules)
        calls = generated_wrappers.Calls(lambda: 0)
        labels.append(list(generated_wrappers.Instrumented(calls, generated_wrappers.loaded()).kernels))
    assert labels == [[KERNEL, f"{KERNEL} of graph 1"]] * 2
