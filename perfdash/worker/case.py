"""One case from load to latency, in the process that was forked for it.

Every phase ends with an event, so what was measured before a crash is kept. The order matters:
load with one thread (no OpenMP pool yet), fork the child that measures eager's memory, compile,
judge, time under the steady allocator, and take the compiled side's memory last.
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
from dataclasses import replace
from typing import Any, Callable, Iterator, Optional

import torch

from perfdash.records import Job, Status
from perfdash.worker import (
    accuracy,
    compilation,
    device,
    failures,
    latency,
    linux,
    memory,
    nest,
    probing,
    registry,
)
from perfdash.worker.child import ChildDied, ChildFailed, in_child

Emit = Callable[..., None]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def run_case(job: Job, emit: Emit) -> None:
    """Measures the job and emits its events; a failure is the event `failed`, never an exception."""
    case = _Case(job, emit)
    try:
        if job.role == "probe":
            probing.probe(job, emit)
        elif job.role == "isa":
            probing.isa(job, emit)
        elif job.role == "check":
            case.check()
        else:
            case.measure()
    except ChildFailed as error:
        print(error.failed["traceback"], file=sys.stderr, flush=True)
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
        try:
            yield
        finally:
            self.emit("phase_end", name=name, seconds=time.perf_counter() - start)

    def check(self) -> None:
        """Does it build and run? Nothing is compiled or judged."""
        self.begin()
        with self.scenario.context(self.job), self.phase("eager"):
            self.use_threads()
            self.eager_step()
            self.device.synchronize()
        self.emit("done")

    def measure(self) -> None:
        job = self.job
        self.begin()
        with self.scenario.context(job):
            if job.role != "replica":
                with self.phase("eager"):
                    self.eager()
            with self.phase("compile"):
                self.compile()
            if job.role != "replica":
                with self.phase("accuracy"):
                    self.accuracy()
            if job.role != "untimed":
                with self.phase("latency"):
                    self.latency()
            # Last: it changes the settings of malloc, which must not reach the timing.
            if job.role != "replica":
                with self.phase("memory"):
                    self.backend_memory()
        self.emit("done")

    def begin(self) -> None:
        """Caches and limits of its own, then the model."""
        job = self.job
        probing.use_own_caches(job)
        if job.group:
            linux.join_group(job.group)
        if job.memory_limit_bytes and job.case.device == "cpu":
            linux.limit_data(job.memory_limit_bytes)
        with self.phase("load"):
            self.load()

    def load(self) -> None:
        job = self.job
        torch.set_num_threads(1)
        self.seed()
        module, inputs = registry.find("loaders", job.loader).load(job)
        self.scenario.set_mode(module)
        # CUDA starts here, in the forked process and nowhere earlier.
        self.device = device.open_device(job.case.device, job.case.threads)
        dtype = _DTYPES.get(job.case.dtype)
        where = self.device.torch_device

        def cast(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor

        nest.cast_module(module, cast)
        self.module = module.to(where)
        self.inputs = nest.map_tensors(inputs, lambda tensor: cast(tensor.to(where)))
        self.pristine_inputs = nest.detach(self.inputs)
        self.eager_step = self.scenario.make_step(self.module, self.inputs, job)
        weights = memory.weights(self.module)
        held = memory.storage_bytes([*weights, *nest.tensors_in(self.inputs)])
        self.held_bytes = sum(held.values())
        self.emit(
            "loaded",
            weights_bytes=sum(memory.storage_bytes(weights).values()),
            held_bytes=self.held_bytes,
            parameters=sum(p.numel() for p in self.module.parameters()),
        )

    def seed(self) -> None:
        """All random generators and the inputs as they were at the start (a model may change them)."""
        random.seed(self.job.seed)
        torch.manual_seed(self.job.seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(self.job.seed)
        if hasattr(self, "pristine_inputs"):
            for tensor, pristine in zip(nest.tensors_in(self.inputs), nest.tensors_in(self.pristine_inputs)):
                tensor.copy_(pristine)

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
            live_before = memory.live_storages()
            self.seed()
            first = nest.detach(self.eager_step())
            self.seed()
            differ = accuracy.two_runs_differ(first, nest.detach(self.eager_step()))
            del first
            gc.collect()
            constants = memory.owned_since(live_before)
            return {"differ": differ, "constants_bytes": constants, **self.side_memory(self.eager_step)}

        facts = work() if self.device.kind == "cuda" else in_child("eager", work)
        self.eager_differs = facts.pop("differ")
        self.emit("eager", differ=self.eager_differs, memory=facts)

    def side_memory(self, step: Callable[[], Any]) -> dict[str, Optional[int]]:
        if isinstance(self.device, device.Cuda):
            return memory.cuda_peak(self.device, step)
        return memory.transient_bytes(step, self.thread_context)

    def compile(self) -> None:
        self.use_threads()
        gc.unfreeze()  # compiling collects garbage as it does in any other process
        gc.collect()
        self.live_before = memory.live_storages() if self.job.role != "replica" else {}

        def make_step() -> Callable[[], Any]:
            model = self.backend.prepare(self.module, self.inputs, self.job)
            step: Callable[[], Any] = self.scenario.make_step(model, self.inputs, self.job)
            return step

        self.seed()
        with compilation.capture_figures() as capture:
            self.backend_step, figures = compilation.first_call(make_step, self.device.synchronize)
        self.constants_bytes = memory.owned_since(self.live_before)
        if self.job.case.device == "cpu":
            capture["vector_isa"] = probing.vector_isa(self.job, find_out=False)
        self.emit("compiled", **figures, capture=capture)

    def backend_memory(self) -> None:
        figures = self.side_memory(self.backend_step)
        self.emit("memory", constants_bytes=self.constants_bytes, **figures)

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
        eager = nest.detach(self.eager_step())
        is_random = not torch.equal(self.device.random_state(), state)
        self.seed()
        compiled = nest.detach(self.backend_step())
        judge, why_none = self.judge()
        compare = functools.partial(
            accuracy.compare, tolerance=job.tolerance, factor=job.factor, cosine=job.cosine
        )
        verdict = compare(eager, compiled, judge)
        if verdict["status"] == "fail" and is_random and hasattr(self.backend, "prepare_repeatable"):
            model = self.backend.prepare_repeatable(self.module, self.inputs, job)
            step = self.scenario.make_step(model, self.inputs, job)
            self.seed()
            verdict = compare(eager, nest.detach(step()), judge)
            verdict["detail"] += "; checked on a second artefact, which draws the random numbers of eager"
        if why_none:
            verdict["detail"] += f"; no float64 judge: {why_none}"
        self.emit("accuracy", **verdict)

    def judge(self) -> tuple[Any, str]:
        """The outputs of a float64 copy of the model, or None and why there is none."""
        try:
            module = copy.deepcopy(self.module)
            nest.cast_module(module, nest.double)
            exact = replace(self.job, case=replace(self.job.case, dtype="float64", amp_dtype=None))
            self.seed()
            step = self.scenario.make_step(module, nest.to_float64(self.inputs), exact)
            return nest.detach(step()), ""
        except Exception as error:
            return None, f"{type(error).__name__}: {str(error)[:200]}"

    def latency(self) -> None:
        gc.collect()
        linux.malloc_trim()
        allocator = self.job.allocator
        if allocator == "steady":
            linux.malloc_steady()
        elif allocator != "default" and not linux.is_mapped(allocator):
            raise failures.Unmeasurable(Status.INFRA_ERROR, f"{allocator} is not loaded in this process")
        before = device.probe(self.device.kind)
        load = os.getloadavg()[0]
        figures = latency.sample_pairs(
            self.eager_step,
            self.backend_step,
            self.device,
            self.job.sampling,
            self.job.seed + self.job.process,
        )
        figures["probe_ms"] = [before, device.probe(self.device.kind)]
        figures["load"] = round(load, 2)
        figures["cores"] = sorted(os.sched_getaffinity(0))
        figures["torch_threads"] = torch.get_num_threads()
        self.emit("latency", **figures)
