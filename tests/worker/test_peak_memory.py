"""What a model holds outside of parameters and buffers, and what it keeps with every call."""

from __future__ import annotations

import functools
import gc
import io
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

profiling = lazy("perfdash.worker.profiling")
torch = lazy("torch")
future = lazy("torch.__future__")
worker_case = lazy("perfdash.worker.case")
compilation = lazy("perfdash.worker.compilation")
device = lazy("perfdash.worker.device")
linux = lazy("perfdash.worker.linux")
peak_memory = lazy("perfdash.worker.peak_memory")
modules = lazy("tests.worker.modules")
compiler_caches = lazy("perfdash.worker.compiler_caches")
registry = lazy("perfdash.worker.registry")
eager_and_compiled = lazy("perfdash.worker.eager_and_compiled")
MIB = 1 << 20


def bound(tensor, x):
    return x + tensor[0]


def circle():
    nest = {"tensor": modules.mib(3)}
    nest["itself"] = nest
    return nest


def closed_over():
    tensor = modules.mib(3)
    return lambda x: x + tensor[0]


@pytest.mark.parametrize("attribute", [
    lambda: modules.mib(3), lambda: [modules.mib(1), modules.mib(2)],
    lambda: {"a": (modules.mib(1), [modules.mib(2)])},
    lambda: SimpleNamespace(inside=SimpleNamespace(tensor=modules.mib(3))),
    lambda: [modules.Holds(modules.mib(2))], circle, closed_over,
    lambda: functools.partial(bound, modules.mib(3)), lambda: modules.Holds(modules.mib(2)).forward,
    lambda: [modules.mib(3).view(-1, 4)[:1], torch.empty(9 * MIB, device="meta")],
])  # fmt: skip
def test_tensors_in_plain_attributes_are_held(attribute):
    module = modules.Holds(attribute())
    side = eager_and_compiled.eager_side(module, (), Job(Case("s", "m"), "python", ""), torch.device("cpu"))
    assert sum(side.held().values()) == 4 * MIB


def test_a_tensor_that_is_held_twice_counts_once():
    module = modules.Holds(None)
    module.attribute = [module.registered, module.registered.view(2, -1)]
    side = eager_and_compiled.eager_side(module, (), Job(Case("s", "m"), "python", ""), torch.device("cpu"))
    assert sum(side.held().values()) == MIB


def nearest(figure, make_step, expected):
    """The figure of the best of three measurements: the kernel may take pages of files back meanwhile."""
    figures = (peak_memory.transient_bytes(make_step(), nullcontext)[figure] for _ in range(3))
    return min(figures, key=lambda value: abs(value - expected))


def test_what_is_kept_with_every_call_is_seen():
    outputs = []
    keeps = nearest("grown_bytes", lambda: lambda: outputs.append(modules.mib(8).add_(1)), 8 * MIB)
    assert keeps == pytest.approx(8 * MIB, rel=0.1)
    assert peak_memory.transient_bytes(lambda: modules.mib(8).add_(1), nullcontext)["grown_bytes"] < MIB


def test_what_was_needed_before_the_steady_calls_is_not_transient():
    """Neither the peak of what ran before nor what only the first call needs."""
    modules.mib(64).add_(1)

    def make_step():
        calls = []

        def step():
            calls.append(modules.mib(1 if calls else 32).add_(1).sum())
            return modules.mib(8).add_(1)

        return step

    assert nearest("transient_bytes", make_step, 8 * MIB) == pytest.approx(8 * MIB, rel=0.1)


@pytest.mark.slow
def test_both_sides_are_counted_after_as_many_calls(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler_caches, "use_in", lambda scratch, headers: None)
    monkeypatch.setattr(
        registry.find("loaders", "python"), "load", lambda job: (modules.Keeps(), (torch.ones(3),))
    )
    events = {}
    job = Job(Case("s", "m", backend="eager"), "python", "", scratch=str(tmp_path))
    case = worker_case.CaseProcess(job, lambda event, **facts: events.update({event: facts}))
    case.begin()
    with case.scenario.context(job):
        case.eager()
        case.compile()
    assert events["eager"]["memory"]["constants_bytes"] == 16 * MIB
    assert case.constants_bytes == 16 * MIB
    assert case.held_bytes == events["loaded"]["held_bytes"] == 12
    assert events["eager"]["memory"]["grown_bytes"] == pytest.approx(8 * MIB, rel=0.1)


def test_constants_are_counted_after_the_second_call():
    calls, seen = [], []
    compilation.first_call(
        lambda: lambda: calls.append(1), lambda: None, after_two=lambda: seen.append(len(calls))
    )
    assert (seen, len(calls)) == ([2], 4)


def pretended_gpu(held, pool=0):
    """A GPU whose allocator is three numbers: what is held, the workspace of matrix products, the peak."""

    class Gpu(device.Cuda):
        def __init__(self):
            self.workspace, self.most = 0, 0

        def step(self, transient, workspace):
            self.workspace = max(self.workspace, workspace)
            self.most = max(self.most, self.allocated() + transient)

        def allocated(self):
            return held + self.workspace

        def drop_caches(self):
            self.workspace = 0

        def graph_pool_bytes(self):
            return pool

        def synchronize(self):
            pass

        def reset_peak(self):
            self.most = self.allocated()

        def peak(self):
            return self.most, 2 * self.most

    return Gpu()


def test_what_a_back_end_keeps_of_the_module_stays_on_the_gpu():
    """torch.jit.freeze makes constants of the very parameters that need no gradient."""
    gpu = pretended_gpu(held=0)
    module = modules.Calls(lambda module, x: x * module.fixed + module.learned).eval()
    module.fixed = torch.nn.Parameter(torch.full((4,), 2.0), requires_grad=False)
    module.learned = torch.nn.Parameter(torch.ones(4))
    inputs = (torch.ones(2, 4),)
    job = Job(Case("s", "m", device="cuda", backend="torchscript"), "python", "")
    side = eager_and_compiled.eager_side(module, inputs, job, torch.device("cpu"))
    backend = registry.find("backends", "torchscript")
    model = backend.prepare(module, inputs, job)
    kept = list(module.parameters())
    comparison = SimpleNamespace(
        backend=backend, compiled_side=side, eager_side=side, device=gpu, compiled_model=model,
        eager_step=None, compiled_step=lambda: model(*inputs),
    )  # fmt: skip
    figures = peak_memory.of_compiled(comparison, 0, 0, nullcontext)
    assert figures["held_bytes"] == (4 + 4 + 2 * 4) * 4
    constants = {id(tensor) for tensor in backend.held_tensors(model)}
    assert constants & set(map(id, kept)), "else this test tests nothing"
    assert not constants & set(map(id, module.parameters())), "these are the tensors that Module.to moves"
    assert (module.fixed.requires_grad, module.learned.requires_grad) == (False, True)
    assert not future.get_overwrite_module_params_on_conversion()


@pytest.mark.parametrize("own_workspace", [0, 32 * MIB])
def test_what_eager_left_in_caches_is_not_in_the_peak_of_the_compiled_side(own_workspace):
    gpu = pretended_gpu(held=5 * MIB)
    eager = peak_memory.of_step(lambda: gpu.step(10 * MIB, 32 * MIB), gpu, nullcontext)
    assert eager == {
        "peak_bytes": 47 * MIB, "graph_pool_bytes": 0, "reserved_bytes": 94 * MIB, "grown_bytes": 0,
    }  # fmt: skip
    for _ in range(2):  # eager also runs while both sides are timed
        gpu.step(10 * MIB, 32 * MIB)
    compiled = peak_memory.of_step(lambda: gpu.step(4 * MIB, own_workspace), gpu, nullcontext)
    assert compiled["peak_bytes"] == 9 * MIB + own_workspace
    assert compiled["grown_bytes"] == 0, "the workspace is there again after the warm-up call"


def test_what_a_cuda_graph_keeps_for_its_replays_is_in_the_peak():
    """A replay allocates nothing: without its pool the peak would be the weights alone."""
    gpu = pretended_gpu(held=5 * MIB, pool=40 * MIB)
    figures = peak_memory.of_step(lambda: gpu.step(0, 0), gpu, nullcontext)
    assert (figures["peak_bytes"], figures["graph_pool_bytes"]) == (45 * MIB, 40 * MIB)


def test_garbage_of_the_call_before_is_not_in_the_peak_of_a_gpu():
    gpu = pretended_gpu(held=0)
    living = weakref.WeakSet()

    def step():
        circle = modules.Holds(None)
        circle.attribute = circle
        living.add(circle)
        gpu.most = max(gpu.most, len(living))

    with_gc_off = gc.isenabled()
    gc.disable()
    try:
        assert peak_memory.of_step(step, gpu, nullcontext)["peak_bytes"] == 1
    finally:
        if with_gc_off:
            gc.enable()


def test_the_caches_of_a_gpu_are_emptied_in_order(monkeypatch):
    """Workspaces go back to the allocator first, then what the allocator keeps goes back to the driver."""
    calls = []
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: calls.append("workspaces"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("allocator"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait"))
    device.Cuda.drop_caches(device.Cuda.__new__(device.Cuda))
    assert calls == ["wait", "workspaces", "allocator"]
    monkeypatch.delattr(torch._C, "_cuda_clearCublasWorkspaces")
    device.Cuda.drop_caches(device.Cuda.__new__(device.Cuda))
    assert calls[3:] == ["wait", "allocator"], "a torch without this function"


def test_memory_of_the_process_is_in_bytes(monkeypatch):
    """The kernel writes KiB as kB (proc(5)); a KiB taken for 1000 bytes would be 2 % less."""
    status = "Name:\tpython\nVmHWM:\t  300 kB\nVmRSS:\t  200 kB\nRssAnon:\t  100 kB\nThreads:\t1\n"
    monkeypatch.setattr("perfdash.worker.linux.open", lambda path: io.StringIO(status), raising=False)
    assert linux.memory_status() == {"VmHWM": 307_200, "VmRSS": 204_800, "RssAnon": 102_400}


def test_no_buffer_at_the_peak_is_left_out():
    """What one of two builds left out would look new, or gone, in the other."""
    events = [(place, place, 1000 - place, (f"aten::op{place}",)) for place in range(40)]
    assert [buffer["bytes"] for buffer in profiling.peak(events, [])["buffers"]] == [e[2] for e in events]
