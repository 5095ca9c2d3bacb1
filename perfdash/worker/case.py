"""One case from load to latency, in the process that was forked for it.

Every phase ends with an event, so what was measured before a crash is kept. The order matters:
load with one thread (no OpenMP pool yet), fork the child that measures eager's memory, compile,
judge, time under the steady allocator, score, and take the compiled side's memory last.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import time
from dataclasses import replace
from typing import Any, Callable, Iterator

import torch

from perfdash.records import Job, Status
from perfdash.worker import (
    capabilities,
    climbing,
    compilation,
    device,
    failures,
    footprint,
    latency,
    linux,
    output_comparison,
    peak_memory,
    registry,
    room,
    weights,
)
from perfdash.worker.accuracy import Compared, accuracy_of, observed, quality_of
from perfdash.worker.child import ChildDied, ChildFailed, in_child
from perfdash.worker.eager_and_compiled import Side, backend_side, baseline_side, variant_side

Emit = Callable[..., None]


def run_case(job: Job, emit: Emit) -> None:
    """Measures the job and emits its events; a failure is the event `failed`, never an exception."""
    case: _Case | None = None
    try:
        case = _Case(job, emit)  # imports the back end, which may be a file of the user's
        if job.role == "probe":
            capabilities.probe(job, emit)
        elif job.role == "isa":
            capabilities.isa(job, emit)
        elif job.role == "check":
            case.check()
        elif job.role == "room_eager":
            room.of_eager(case)
        elif job.role == "room":
            room.of_backend(case)
        else:
            case.measure()
    except ChildFailed as error:
        print(error.failed["traceback"], file=sys.stderr, flush=True)
        emit("failed", **error.failed)
    except ChildDied as error:
        emit("died", phase=case.phase_name if case else "start", signal=error.signal)
    except BaseException as error:
        failed = failures.describe(case.phase_name if case else "start", error)
        print(failed["traceback"], file=sys.stderr, flush=True)
        emit("failed", **failed)


class _Case:
    def __init__(self, job: Job, emit: Emit) -> None:
        self.job = job
        self.emit = emit
        self.phase_name = "start"
        self.sides: list[Side] = []
        self.eager_lost = False
        self.unrepeated: str | None = None  # why it is not known whether eager repeats itself
        self.backend = registry.backend(job.backend)
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
            if self.job.variant or self.job.baseline_dtype:  # the model of the other side
                own = self.variant() if self.job.variant else backend_side(self.baseline, self.job)
                self.make_step(own, own.module)()
                self.device.synchronize()
        self.emit("done")

    def measure(self) -> None:
        job = self.job
        self.begin()
        with self.scenario.context(job):
            if job.role != "replica":
                with self.phase("eager"):
                    climbing.eager(self)
            with self.phase("compile"):
                self.compile()
            if job.role != "replica":
                with self.phase("accuracy"):
                    climbing.accuracy(self)
            if job.role != "untimed":
                with self.phase("latency"):
                    climbing.latency(self)
            # After the timing: scoring may take longer than a case may.
            if job.role != "replica" and job.data and not self.eager_lost:
                with self.phase("quality"):
                    self.emit("quality", **quality_of(self.compared()))
            # Last: it changes the settings of malloc, which must not reach the timing.
            if job.role != "replica":
                with self.phase("memory"):
                    climbing.memory(self)
        self.emit("done")

    def begin(self) -> None:
        """Caches and limits of its own, then the model; but not for what cannot be measured anyway."""
        job = self.job
        capabilities.use_own_caches(job)
        if job.group:
            linux.join_group(job.group)
        if job.memory_limit_bytes and job.case.device == "cpu":
            linux.limit_data(job.memory_limit_bytes)
        capabilities.refuse(job)
        with self.phase("load"):
            self.load()

    def load(self) -> None:
        job = self.job
        torch.set_num_threads(1)
        self.seed()
        module, inputs = registry.find("loaders", job.loader).load(job)
        if job.weights not in ("random", "pretrained"):
            weights.load_into(module, job.weights)
        self.scenario.set_mode(module)
        # CUDA starts here, in the forked process and nowhere earlier.
        self.device = device.open_device(job.case.device, job.case.threads)
        self.baseline = baseline_side(module, inputs, job, self.device.torch_device)
        if not job.role.startswith("room"):
            self.baseline.keep_state(parameters=getattr(self.scenario, "CHANGES_MODULE", False))
        self.sides.append(self.baseline)
        self.eager_step = self.make_step(self.baseline, self.baseline.module)
        held = self.baseline.held()
        self.emit(
            "loaded",
            weights_bytes=sum(peak_memory.storage_bytes(peak_memory.weights(module)).values()),
            held_bytes=sum(held.values()),
            parameters=sum(p.numel() for p in module.parameters()),
        )

    def make_step(self, side: Side, model: Any) -> Callable[[], Any]:
        """The scenario's step of a model over a side."""
        step: Callable[[], Any] = self.scenario.make_step(model, side, self.device)
        return step

    def seed(self) -> None:
        """All random generators and the inputs as they were at the start (a model may change them)."""
        random.seed(self.job.seed)
        torch.manual_seed(self.job.seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(self.job.seed)
        for side in self.sides:
            side.restore()

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
            gc.collect()  # else what comes alive may get the address of what was garbage
            live_before = peak_memory.live_storages()
            # A step that is compared lets go of the optimizer's state, which the compiled side's calls keep.
            lets_go = hasattr(self.eager_step, "release")
            if lets_go:
                for _ in range(2):
                    self.eager_step()
                gc.collect()
                constants = peak_memory.owned_since(live_before)
            repeated = climbing.repeated(self)
            self.seed()  # the steps that were compared leave other parameters than those that are measured
            gc.collect()
            if not lets_go:
                constants = peak_memory.owned_since(live_before)
            return {
                **repeated,
                "constants_bytes": constants,
                **footprint.of_step(self.eager_step, self.device, self.thread_context),
            }

        facts = work() if self.device.kind == "cuda" else in_child("eager", work)
        self.eager_differs = facts.pop("differ")
        self.unrepeated = facts.pop("unrepeated", None)
        self.emit("eager", differ=self.eager_differs, memory=facts)

    def differs(self) -> str | None:
        """How two eager runs of one seed differ; None where they do not."""
        self.seed()
        first = observed(self.eager_step)
        self.seed()
        second = observed(self.eager_step)
        return output_comparison.two_runs_differ(first, second, getattr(self.scenario, "OF_GROUP", 0.0))

    def accuracy(self) -> None:
        why = "eager ran out of memory: nothing to compare with" if self.eager_lost else self.unrepeated
        if why:
            self.emit("accuracy", status="skipped", detail=why)
            return
        self.emit("accuracy", **accuracy_of(self.compared(), self.eager_differs))

    def compile(self) -> None:
        self.use_threads()
        self.seed()  # the parameters as they were: on a GPU eager has trained in this process
        own = self.own = self.variant() if self.job.variant else backend_side(self.baseline, self.job)
        self.sides.append(own)
        capabilities.import_packages(self.job)
        if self.eager_lost:
            footprint.drop_eager(self.device, self.baseline, own, self.eager_step)
        gc.unfreeze()  # compiling collects garbage as it does in any other process
        gc.collect()
        # What two calls leave is counted apart, as of eager: some models keep more with each.
        self.held_bytes, self.constants_bytes = sum(own.held().values()), 0
        is_replica = self.job.role == "replica"
        live_before = peak_memory.live_storages() if not is_replica else {}

        def count_constants() -> None:
            self.constants_bytes = 0 if is_replica else peak_memory.owned_since(live_before)

        def make_step() -> Callable[[], Any]:
            self.model = self.backend.prepare(own.module, own.inputs, self.job)
            return self.make_step(own, self.model)

        self.seed()
        with compilation.capture_figures() as capture:
            self.backend_step, figures = compilation.first_call(
                make_step, self.device.synchronize, after_two=count_constants
            )
        # perfdash's own look at what was converted is no part of converting it.
        uncounted = getattr(self.model, "uncounted_s", 0.0)
        for name in ("first_call_s", "compilation_s", "compilation_cpu_s"):
            figures[name] = max(0.0, figures[name] - uncounted)
        if not getattr(self.backend, "CAPTURES", True):
            capture = {}  # dynamo was not asked
        elif self.job.case.device == "cpu":
            capture["vector_isa"] = capabilities.vector_isa(self.job, find_out=False)
        notes = self.backend.notes(self.model) if hasattr(self.backend, "notes") else []
        self.emit("compiled", **figures, capture=capture, notes=notes)

    def memory(self) -> None:
        """Of the back end's side; of eager's, the child tells."""
        figures = footprint.of_backend(
            self.compared(), self.held_bytes, self.constants_bytes, self.thread_context
        )
        self.emit("memory", **figures)

    def variant(self) -> Side:
        """The back end's side, where it is the model in another configuration."""
        job = self.job
        varied = {key: value for key, value in job.variant.items() if key != "channels_last"}
        other = replace(job, config={**job.config, **varied})
        module, _ = registry.find("loaders", job.loader).load(other)
        self.scenario.set_mode(module)
        return variant_side(self.baseline, module, job, self.device.torch_device)

    def compared(self) -> Compared:
        return Compared(
            job=self.job,
            scenario=self.scenario,
            backend=self.backend,
            device=self.device,
            baseline=self.baseline,
            own=self.own,
            model=self.model,
            eager_step=self.eager_step,
            backend_step=self.backend_step,
            seed=self.seed,
        )

    def latency(self) -> None:
        self.seed()  # a step that was judged may have left parameters of any size
        gc.collect()
        linux.malloc_trim()
        allocator = self.job.allocator
        if allocator == "steady":
            linux.malloc_steady()
        elif allocator != "default" and not linux.is_mapped(allocator):
            raise failures.Unmeasurable(Status.INFRA_ERROR, f"{allocator} is not loaded in this process")
        graphs = compilation.compiled_graphs()
        before = device.probe(self.device.kind)
        load = os.getloadavg()[0]
        if self.eager_lost:
            figures = latency.sample_alone(self.backend_step, self.device, self.job.sampling)
        else:
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
        figures["recompiles"] = compilation.compiled_graphs() - graphs
        figures["recompile_limit"] = compilation.gave_up()
        self.emit("latency", **figures)
