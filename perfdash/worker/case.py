"""One case from load to latency, in the process that was forked for it.

Every phase ends with an event, so what was measured before a crash is kept. The order matters:
load with one thread (no OpenMP pool yet), fork the child that measures eager's memory, compile, take
the compiled side's memory, judge, and time last, under the steady allocator.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import os
import random
import sys
import time
from typing import Any, Callable, Iterator

import torch

from perfdash.records import Job
from perfdash.worker import accuracy, compilation, device, failures, latency, linux, memory, registry
from perfdash.worker.child import ChildDied, ChildFailed, in_child

Emit = Callable[..., None]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def run_case(job: Job, emit: Emit) -> None:
    """Measures the job and emits its events; a failure is the event `failed`, never an exception."""
    case = _Case(job, emit)
    try:
        if job.role == "probe":
            case.probe()
        else:
            case.measure()
    except ChildFailed as error:
        emit("failed", **error.failed)
    except ChildDied as error:
        emit("died", phase=case.phase_name, signal=error.signal)
    except BaseException as error:
        failed = failures.describe(case.phase_name, error)
        print(failed["traceback"], file=sys.stderr, flush=True)
        emit("failed", **failed)


class _Case:
    def __init__(self, job: Job, emit: Emit) -> None:
        self.job = job
        self.emit = emit
        self.phase_name = "start"
        self.backend = registry.find("backends", job.case.backend)
        self.scenario = registry.find("scenarios", job.case.scenario)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Names the phase for failures and for the clock: an event at its start and at its end."""
        self.phase_name = name
        self.emit("phase", name=name)
        start = time.perf_counter()
        yield
        self.emit("phase_end", name=name, seconds=time.perf_counter() - start)

    def probe(self) -> None:
        """What this interpreter can do with the job's device, dtype and options; measures nothing."""
        facts: dict[str, Any] = {"complaints": getattr(self.backend, "complaints", lambda job: [])(self.job)}
        facts["cuda"] = (
            [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
            if torch.cuda.is_available()
            else []
        )
        self.emit("probed", **facts)

    def measure(self) -> None:
        job = self.job
        compilation.use_caches_in(job.scratch)
        if job.memory_limit_bytes and job.case.device == "cpu":
            linux.limit_data(job.memory_limit_bytes)
        with self.phase("load"):
            self.load()
        with self.scenario.context(job):
            if job.role == "full":
                with self.phase("eager"):
                    self.eager()
            with self.phase("compile"):
                self.compile()
            if job.role == "full":
                with self.phase("memory"):
                    self.backend_memory()
                with self.phase("accuracy"):
                    self.accuracy()
            with self.phase("latency"):
                self.latency()
        self.emit("done")

    def load(self) -> None:
        job = self.job
        torch.set_num_threads(1)
        self.seed()
        module, inputs = registry.find("loaders", job.loader).load(job)
        self.scenario.set_mode(module)
        # CUDA starts here, in the forked process and nowhere earlier.
        self.device = device.open_device(job.case.device, job.case.threads)
        dtype = _DTYPES.get(job.case.dtype, torch.float32)
        self.module = module.to(device=self.device.torch_device, dtype=dtype)
        self.inputs = _place(inputs, self.device.torch_device, dtype)
        self.eager_step = self.scenario.make_step(self.module, self.inputs, job)
        weights = memory.weights(self.module)
        held = memory.storage_bytes([*weights, *memory.tensors_in(self.inputs)])
        self.held_bytes = sum(held.values())
        self.emit(
            "loaded",
            weights_bytes=sum(memory.storage_bytes(weights).values()),
            held_bytes=self.held_bytes,
            parameters=sum(p.numel() for p in self.module.parameters()),
        )

    def seed(self) -> None:
        random.seed(self.job.seed)
        torch.manual_seed(self.job.seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(self.job.seed)

    @contextlib.contextmanager
    def thread_context(self) -> Iterator[None]:
        """What torch keeps per thread: the number of threads, gradients, autocast."""
        self.use_threads()
        with self.scenario.context(self.job):
            yield

    def use_threads(self) -> None:
        torch.set_num_threads(self.job.case.threads)

    def eager(self) -> None:
        """Does eager run, does it repeat itself, what memory does it need: in a child on the CPU."""

        def work() -> dict[str, Any]:
            self.use_threads()
            self.seed()
            first = accuracy.detach(self.eager_step())
            self.seed()
            differ = accuracy.two_runs_differ(first, accuracy.detach(self.eager_step()))
            del first
            return {"differ": differ, **self.side_memory(self.eager_step)}

        facts = work() if self.device.kind == "cuda" else in_child("eager", work)
        self.eager_differs = facts.pop("differ")
        self.emit("eager", differ=self.eager_differs, memory=facts)

    def side_memory(self, step: Callable[[], Any]) -> dict[str, int]:
        if isinstance(self.device, device.Cuda):
            return memory.cuda_peak(self.device, step)
        return memory.transient_bytes(step, self.thread_context)

    def compile(self) -> None:
        self.use_threads()
        self.live_before = memory.live_storages() if self.job.role == "full" else {}

        def make_step() -> Callable[[], Any]:
            model = self.backend.prepare(self.module, self.inputs, self.job)
            step: Callable[[], Any] = self.scenario.make_step(model, self.inputs, self.job)
            return step

        self.seed()
        with compilation.capture_figures() as capture:
            self.backend_step, figures = compilation.first_call(make_step, self.device.synchronize)
        self.emit("compiled", **figures, capture=capture)

    def backend_memory(self) -> None:
        constants = memory.owned_since(self.live_before)
        self.emit("memory", constants_bytes=constants, **self.side_memory(self.backend_step))

    def accuracy(self) -> None:
        job = self.job
        if not job.check_accuracy:
            self.emit("accuracy", status="skipped", detail="the suite skips the check for this model")
            return
        if self.eager_differs:
            self.emit("accuracy", status="eager_two_runs_differ", detail=self.eager_differs)
            return
        self.seed()
        state = self.device.random_state()
        eager = accuracy.detach(self.eager_step())
        is_random = not torch.equal(self.device.random_state(), state)
        self.seed()
        compiled = accuracy.detach(self.backend_step())
        judge, why_none = self.judge()
        compare = functools.partial(
            accuracy.compare, tolerance=job.tolerance, factor=job.factor, cosine=job.cosine
        )
        verdict = compare(eager, compiled, judge)
        if verdict["status"] == "fail" and is_random and hasattr(self.backend, "prepare_repeatable"):
            model = self.backend.prepare_repeatable(self.module, self.inputs, job)
            step = self.scenario.make_step(model, self.inputs, job)
            self.seed()
            verdict = compare(eager, accuracy.detach(step()), judge)
            verdict["detail"] += "; checked on a second artefact, which draws the random numbers of eager"
        if why_none:
            verdict["detail"] += f"; no float64 judge: {why_none}"
        self.emit("accuracy", **verdict)

    def judge(self) -> tuple[Any, str]:
        """The outputs of a float64 copy of the model, or None and why there is none."""
        try:
            module = copy.deepcopy(self.module).to(torch.float64)
            step = self.scenario.make_step(module, accuracy.to_float64(self.inputs), self.job)
            self.seed()
            with torch.autocast(self.job.case.device, enabled=False):
                return accuracy.detach(step()), ""
        except Exception as error:
            return None, f"{type(error).__name__}: {str(error)[:200]}"

    def latency(self) -> None:
        gc.collect()
        linux.malloc_trim()
        if self.job.allocator == "steady":
            linux.malloc_steady()
        before = device.probe(self.device.kind)
        load = os.getloadavg()[0]
        figures = latency.sample_pairs(
            self.eager_step, self.backend_step, self.device, self.job.sampling, self.job.seed
        )
        figures["probe_ms"] = [before, device.probe(self.device.kind)]
        figures["load"] = round(load, 2)
        figures["cores"] = sorted(os.sched_getaffinity(0))
        figures["torch_threads"] = torch.get_num_threads()
        self.emit("latency", **figures)


def _place(value: Any, where: torch.device, dtype: torch.dtype) -> Any:
    """Inputs on the device, floating ones in the dtype."""
    if isinstance(value, torch.Tensor):
        return value.to(where, dtype) if value.is_floating_point() else value.to(where)
    if isinstance(value, dict):
        return {key: _place(item, where, dtype) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_place(item, where, dtype) for item in value])
    return value
