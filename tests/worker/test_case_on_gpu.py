"""A whole case as it goes on a GPU, on a device that stands in for one: it is this CPU."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from perfdash.records import Case, Job, Sampling
from tests.lazy import lazy

torch = lazy("torch")
compilation = lazy("perfdash.worker.compilation")
compiler_caches = lazy("perfdash.worker.compiler_caches")
device = lazy("perfdash.worker.device")
modules = lazy("tests.worker.modules")
registry = lazy("perfdash.worker.registry")
worker_case = lazy("perfdash.worker.case")

SHORT = Sampling(min_pairs=3, max_pairs=3, min_s=0.0, budget_s=0.0)
ACCOUNT = {"kernels": 3, "copies": 0, "launches": 3, "graph_launches": 0, "gpu_busy_ms": 0.5}


def stand_in():
    """A device.Cuda whose every question to torch.cuda is answered here."""

    class Gpu(device.Cuda):
        garbage_bytes = 1 << 30

        def __init__(self):
            self.torch_device = torch.device("cpu")
            self.calls, self.most, self.deterministic_runs = [], 0, 0

        def synchronize(self):
            pass

        def mark(self):
            return 0.0

        def between(self, start, end):
            return end - start

        def allocator_retries(self):
            return 0

        def random_state(self):
            return torch.get_rng_state()

        def time(self, call, repeats):
            for _ in range(repeats):
                call()
            return device.Sample(2e6 * repeats, None, launch_ns=1e6 * repeats)

        def account(self, call):
            call()
            return dict(ACCOUNT)

        @contextlib.contextmanager
        def deterministic(self):
            self.deterministic_runs += 1
            yield

        def probe(self):
            return 0.25

        def drop_caches(self):
            self.calls.append("drop")

        def allocated(self):
            return 100

        def graph_pool_bytes(self):
            return 7

        def reset_peak(self):
            self.calls.append("reset")

        def peak(self):
            return 1000, 2000

    return Gpu()


@pytest.fixture
def gpu(monkeypatch):
    """The stand-in, which every case opens."""
    made = stand_in()
    monkeypatch.setattr(device, "open_device", lambda kind, threads, tf32: made)
    monkeypatch.setattr(compiler_caches, "use_in", lambda scratch, shared: None)
    return made


def measured(tmp_path, monkeypatch, module, role="full"):
    """The events of a case by name."""
    load = registry.find("loaders", "python")
    monkeypatch.setattr(load, "load", lambda job: (module, (torch.ones(4, 8),)))
    events = {}
    case = Case("s", "m", device="cuda", backend="eager")
    job = replace(Job(case, "python", "", sampling=SHORT), scratch=str(tmp_path), role=role)
    worker_case.run_case(job, lambda event, **facts: events.update({event: facts}))
    return events


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 8)


@pytest.mark.slow
def test_every_phase_goes_through_on_a_gpu(gpu, tmp_path, monkeypatch, linear):
    events = measured(tmp_path, monkeypatch, linear)
    assert "failed" not in events, events.get("failed")
    assert "done" in events
    assert events["eager"]["memory"]["peak_bytes"] == events["memory"]["peak_bytes"] == 1007
    assert events["eager"]["memory"]["reserved_bytes"] == 2000
    first, *_ = gpu.calls
    assert first == "drop"
    for place, call in enumerate(gpu.calls):  # before both sides' peaks
        assert call == "drop" or "drop" in gpu.calls[max(0, place - 2) : place]
    assert events["accuracy"]["status"] == "pass"
    assert events["latency"]["launch_ns"] == {"eager": 1e6, "backend": 1e6}
    assert events["latency"]["accounts"] == {"eager": ACCOUNT, "backend": ACCOUNT}
    assert events["latency"]["probe_ms"] == [0.25, 0.25]
    assert gpu.deterministic_runs == 0


def test_a_further_process_does_not_profile(gpu, tmp_path, monkeypatch, linear):
    events = measured(tmp_path, monkeypatch, linear, role="replica")
    assert "done" in events
    assert "accounts" not in events["latency"]


@pytest.mark.parametrize("compiles_itself", [True, False])
def test_a_further_process_compiles_after_a_call_of_eager(gpu, tmp_path, monkeypatch, compiles_itself):
    """As the main process does: the start of CUDA's libraries would count as compiling in one of them."""
    order, first_call = [], compilation.first_call
    monkeypatch.setattr(gpu, "synchronize", lambda: order.append("wait"))
    monkeypatch.setattr(compilation, "model_compiles_itself", lambda: compiles_itself)
    monkeypatch.setattr(
        compiler_caches, "begin_anew", lambda *_, on_disk: order.append(f"forget, on disk: {on_disk}")
    )
    monkeypatch.setattr(compilation, "first_call", lambda *more: order.append("compile") or first_call(*more))
    module = modules.Calls(lambda module, x: order.append("call") or x.sin())
    events = measured(tmp_path, monkeypatch, module, role="replica")
    assert "done" in events
    assert "eager" not in events, "nothing of eager is measured"
    forgotten = ["forget, on disk: False"] * compiles_itself
    assert order[: 4 + compiles_itself] == ["call", "wait", *forgotten, "compile", "call"]


@pytest.mark.slow
def test_eager_that_differs_by_atomics_is_judged(gpu, tmp_path, monkeypatch):
    runs = []

    def in_any_order(module, x):
        """Its runs differ until deterministic algorithms were asked for."""
        runs.append(1)
        return x.sin() + (0 if gpu.deterministic_runs else 1e-4 * len(runs))

    module = modules.Calls(in_any_order, None)
    events = measured(tmp_path, monkeypatch, module)
    assert events["eager"]["differ"] is None
    assert "differs by" in events["eager"]["atomics"]
    assert events["accuracy"]["status"] == "pass"
    assert "deterministic algorithms" in events["accuracy"]["detail"]


def test_cuda_starts_after_the_model_is_loaded(gpu, tmp_path, monkeypatch, linear):
    order, product = [], torch.mm
    load = registry.find("loaders", "python")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: order.append("available") or True)
    monkeypatch.setattr(
        torch, "ones", lambda *size, device, **more: order.append(device) or torch.zeros(8, 8)
    )
    monkeypatch.setattr(torch, "mm", lambda a, b: order.append("product") or product(a, b))
    monkeypatch.setattr(load, "load", lambda job: order.append("load") or (linear, (torch.zeros(4, 8),)))
    monkeypatch.setattr(device, "open_device", lambda kind, threads, tf32: order.append("open") or gpu)
    case = Case("s", "m", device="cuda", dtype="float16", backend="eager")
    events = []
    worker_case.run_case(
        Job(case, "python", "", scratch=str(tmp_path), role="load"),
        lambda event, **facts: events.append(event),
    )
    assert "loaded" in events
    assert order == ["load", "open", "available", "cuda", "product"]


def test_a_dtype_that_the_gpu_lacks_is_skipped(gpu, tmp_path, monkeypatch, linear):
    def refuse(left, right):
        raise RuntimeError("not implemented for 'BFloat16'")

    load = registry.find("loaders", "python")
    monkeypatch.setattr(load, "load", lambda job: (linear, (torch.zeros(4, 8),)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", lambda *size, device, **more: torch.zeros(8, 8))
    monkeypatch.setattr(torch, "mm", refuse)
    events = {}
    case = Case("s", "m", device="cuda", dtype="bfloat16", backend="eager")
    worker_case.run_case(
        Job(case, "python", "", scratch=str(tmp_path), role="load"),
        lambda event, **facts: events.update({event: facts}),
    )
    assert events["failed"]["status"] == "skipped"
    assert "bfloat16 is not available on cuda" in events["failed"]["message"]
