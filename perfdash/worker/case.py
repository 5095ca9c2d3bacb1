"""One case from load to latency, in the process that was forked for it.

Every phase ends with an event, so what was measured before a crash is kept. The order matters: load with
one thread (no OpenMP pool yet), fork the child that measures eager's memory, compile, check accuracy, time
under the steady allocator, score, try a compiled file in a fresh process, measure the compiled side's
memory, and last run several instances at once: their end costs nothing that was measured.

With Job.until_oom the batch grows until memory ends: where eager runs out of memory, the case goes on with
the back end alone, and a check that alone lacks memory is skipped.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import time
from dataclasses import replace
from typing import Any, Callable, ContextManager, Iterator, Optional

import torch

from perfdash.records import Job, Status
from perfdash.worker import (
    accuracy,
    capabilities,
    compilation,
    compile_phases,
    compiler_caches,
    failing_subgraph,
    failures,
    hardware_counters,
    held_memory,
    instances,
    latency_sampling,
    linux,
    loaded_files,
    numa,
    output_comparison,
    peak_memory,
    profiling,
    quality,
    registry,
    shared_eager,
    shared_state,
    structure,
    weights,
)
from perfdash.worker.child import ChildDied, ChildFailed, in_child
from perfdash.worker.eager_and_compiled import BothSides, ModelSide, compiled_side, eager_side, variant_side

Emit = Callable[..., None]


def run_case(job: Job, emit: Emit) -> None:
    """Measure the job and emit its events; a failure is the event `failed`, never an exception."""
    case: CaseProcess | None = None
    try:
        case = CaseProcess(job, emit)  # imports the back end, which may be a file of the user's
        if job.role == "probe":
            capabilities.probe(job, emit)
        elif job.role == "isa":
            capabilities.isa(job, emit)
        elif job.role == "load":
            case.begin()
        else:
            roles = {
                "check": case.check,
                "try_eager": case.try_eager,
                "try_backend": case.try_backend,
                "profile": case.profile,
                "subgraph": case.failing_subgraph,
                "structure": case.profile,
            }
            roles.get(job.role, case.measure)()
            emit("done")
    except ChildFailed as error:
        print(error.failed["traceback"], file=sys.stderr, flush=True)
        emit("failed", **error.failed)
    except ChildDied as error:
        emit("died", phase=case.phase_name if case else "start", signal=error.signal)
    except BaseException as error:
        failed = failures.describe(case.phase_name if case else "start", error)
        print(failed["traceback"], file=sys.stderr, flush=True)
        emit("failed", **failed)


class CaseProcess:
    """The phases of one case, and what they hand on to each other."""

    def __init__(self, job: Job, emit: Emit) -> None:
        self.job = job
        self.emit = emit
        self.phase_name = "start"
        self.sides: list[ModelSide] = []  # those that `seed` sets back
        self.eager_lost = False  # out of memory, in a case that goes on without it
        self.frames: structure.Frames | None = None  # what dynamo compiles, of a back end that it serves
        self.recompiles: dict[str, int] = {}  # by phase
        self.atomics: str | None = None  # how eager's runs differ unless its algorithms are deterministic
        self.pool: list[int] = []  # the threads that OpenMP has started, where they are pinned
        self.unrepeated: str | None = None  # why it is unknown whether eager repeats itself
        self.shared: shared_eager.SharedEager | None = None  # what configurations of the model share
        with shared_state.settings_kept(job):
            self.backend = registry.backend(job.backend)
        self.scenario = registry.find("scenarios", job.case.scenario)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name the phase for failures and time limits: an event at its start and at its end."""
        self.phase_name = name
        self.emit("phase", name=name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.emit("phase_end", name=name, seconds=time.perf_counter() - start)

    def measure(self) -> None:
        """All phases; of a replica load, compile and latency alone (on a GPU eager first)."""
        job = self.job
        self.begin()
        with self.scenario.context(job):
            if job.role != "replica" or self.device.kind == "cuda":
                with self.phase("eager"):
                    self.eager()
            with self.phase("compile"):
                self.compile()
            if job.role != "replica":
                with self.phase("accuracy"):
                    self.accuracy()
                self.count_recompiles("accuracy")
            if job.role != "untimed":
                with self.phase("latency"):
                    self.latency()
            # After the timing: scoring may take longer than a case may.
            if job.role != "replica" and job.data and not self.eager_lost:
                with self.phase("quality"):
                    self.emit("quality", **quality.of_case(self.comparison()))
            if job.role != "replica" and hasattr(self.backend, "standalone"):
                with self.phase("standalone"):
                    example = getattr(self.scenario, "example", lambda inputs: inputs)
                    inputs = example(self.compiled_side.inputs)
                    self.emit("standalone", **self.backend.standalone(self.compiled_model, inputs, job))
            if job.role != "replica" and hasattr(self.scenario, "further") and not self.eager_lost:
                with self.phase("sizes"):
                    for facts in self.scenario.further(self.comparison()):
                        self.emit("sizes", **facts)
            # It changes the settings of malloc, which must not reach the timing.
            if job.role != "replica":
                with self.phase("memory"):
                    self.memory()
                if self.frames:
                    self.count_recompiles("timing")
                    self.emit("recompiled", by_phase=self.recompiles, **self.frames.failures())
            if job.role == "full" and job.instance_cores:
                with self.phase("instances"):
                    self.emit("instances", **instances.run_at_once(job))

    def profile(self) -> None:
        """Load, compile, then profile both sides unless only the structure is wanted; nothing is judged."""
        self.begin()
        with self.scenario.context(self.job):
            with self.phase("compile"):
                self.compile()
            if self.job.role == "structure":
                return
            with self.phase("latency"):
                self.use_allocator()
                notes = profiling.of_case(self.eager_step, self.compiled_step, self.device, self.job)
                self.emit("profiled", notes=notes)

    def failing_subgraph(self) -> None:
        """Load, then find the smallest part of the model's graphs that is compiled wrongly."""
        job = self.job
        self.begin()
        with self.scenario.context(job), self.phase("compile"):
            self.use_threads()
            side = self.make_compiled_side()
            capabilities.prepare_backend(job)
            self.seed()
            found = failing_subgraph.of_case(
                lambda backend: self.make_step(side, torch.compile(side.module, backend=backend)),
                self.backend,
                job,
            )
            self.emit("subgraph", found=found)

    def check(self) -> None:
        """Load the model and run each side once in eager; nothing is compiled or judged."""
        self.begin()
        with self.scenario.context(self.job), self.phase("eager"):
            self.use_threads()
            self.eager_step()
            self.device.synchronize()
            if self.job.variant or self.job.baseline_dtype:  # the compiled side has a model of its own
                side = self.make_compiled_side()
                self.make_step(side, side.module)()
                self.device.synchronize()

    def try_eager(self) -> None:
        """Find out whether eager has memory for this batch size; nothing is judged."""
        self.begin()
        with self.scenario.context(self.job), self.phase("eager"):
            self.use_threads()
            peak_memory.try_steps(self.eager_step, self.device)

    def try_backend(self) -> None:
        """Find out whether the back end has memory for this batch size, without eager's own model."""
        self.begin()
        with self.scenario.context(self.job), self.phase("compile"):
            self.use_threads()
            side = self.make_compiled_side()
            del self.eager_side, self.eager_step
            self.sides = [side]
            gc.collect()
            linux.malloc_trim()
            capabilities.prepare_backend(self.job)
            self.seed()
            peak_memory.try_steps(self.make_step(side, self.prepare(side)), self.device)

    def begin(self) -> None:
        """Set the process's own caches and limits, refuse what cannot be measured, load the model."""
        job = self.job
        compiler_caches.use_in(job.scratch, job.machine_cache)
        if job.group:
            linux.join_group(job.group)
        if job.memory_limit_bytes and job.case.device == "cpu":
            linux.limit_data(job.memory_limit_bytes)
        if job.instance_cores:  # the case itself is measured on the cores of the first instance
            os.sched_setaffinity(0, job.instance_cores[0])
        if job.bind_memory and job.case.device == "cpu":
            numa.bind_memory(os.sched_getaffinity(0))
        capabilities.refuse(job)
        with self.phase("load"):
            self.load()

    def load(self) -> None:
        """Load the model with one thread, and make the eager side of it."""
        job = self.job
        torch.set_num_threads(1)
        self.seed()
        loader = registry.find("loaders", job.loader)
        self.registered = profiling.RegisteredOperators(loader, job)
        module, inputs = loader.load(job)
        if hasattr(self.scenario, "all_inputs"):
            inputs = self.scenario.all_inputs(job, inputs, loader.load)
        if job.weights not in ("random", "pretrained"):
            weights.load_into(module, job.weights)
        self.scenario.set_mode(module)
        # CUDA starts here, in the forked process and nowhere earlier.
        self.device = capabilities.open_device(job)
        self.eager_side = eager_side(module, inputs, job, self.device.torch_device)
        if not job.role.startswith("try_"):  # there the copies would take the memory that is looked for
            self.eager_side.save_state(parameters=getattr(self.scenario, "CHANGES_MODULE", False))
        self.watched = shared_state.shared_state(job, self.eager_side, self.scenario)
        self.sides.append(self.eager_side)
        self.eager_step = self.make_step(self.eager_side, self.eager_side.module)
        self.emit(
            "loaded",
            weights_bytes=sum(held_memory.storage_bytes(held_memory.weights(module)).values()),
            held_bytes=sum(self.eager_side.held().values()),
            parameters=sum(p.numel() for p in module.parameters()),
            own_files=loaded_files.of_user(loader, job),
            notes=loader.notes(job) if hasattr(loader, "notes") else [],
        )

    def make_compiled_side(self) -> ModelSide:
        """The side that the back end gets; of a variant, the model in the other configuration."""
        job = self.job
        if not job.variant:
            return compiled_side(self.eager_side, job)
        varied = {key: value for key, value in job.variant.items() if key != "channels_last"}
        other = replace(job, config={**job.config, **varied})
        module, _ = registry.find("loaders", job.loader).load(other)
        self.scenario.set_mode(module)
        return variant_side(self.eager_side, module, job, self.device.torch_device)

    def prepare(self, side: ModelSide) -> Any:
        """What the back end makes of a side's module."""
        example = getattr(self.scenario, "example", lambda inputs: inputs)
        return self.backend.prepare(side.module, example(side.inputs), self.job)

    def make_step(self, side: ModelSide, model: Any) -> Callable[[], Any]:
        """The scenario's step of a model over a side."""
        step: Callable[[], Any] = self.scenario.make_step(model, side, self.device)
        return step

    def seed(self) -> None:
        """Set all random generators, and inputs and state that steps change, to their start."""
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
        """Let torch use the case's threads; from then on the process cannot be forked."""
        torch.set_num_threads(self.job.case.threads)

    def pinned(self) -> ContextManager[bool]:
        """Pin this thread and OpenMP's to a core each, with Job.bind_memory; whether they are."""
        is_wanted = self.job.bind_memory and self.device.kind == "cpu"
        return numa.pinned(self.pool, self.job.case.threads) if is_wanted else contextlib.nullcontext(False)

    def comparison(self) -> BothSides:
        """Both sides, once the back end's is compiled."""
        return BothSides(
            job=self.job,
            scenario=self.scenario,
            backend=self.backend,
            device=self.device,
            eager_side=self.eager_side,
            compiled_side=self.compiled_side,
            compiled_model=self.compiled_model,
            eager_step=self.eager_step,
            compiled_step=self.compiled_step,
            seed=self.seed,
            frames=self.frames,
            atomics=self.atomics,
        )

    def memory_shortage(self, work: Callable[[], Any]) -> Optional[str]:
        """Do the work; with until_oom, the message if it ran out of memory, else None."""
        try:
            work()
        except Exception as error:
            if not self.job.until_oom or not failures.is_out_of_memory(error):
                raise
            shortage = str(error)[:200]
        else:
            return None
        gc.collect()
        return shortage

    def lose_eager(self, failed: dict[str, Any]) -> None:
        """Go on without eager, which is out of memory."""
        print(failed["traceback"], file=sys.stderr, flush=True)
        self.eager_lost = True
        self.emit("eager_lost", **failed)

    def eager(self) -> None:
        """Does eager run, does it repeat itself, what memory does it need: in a child on the CPU."""
        if self.job.role == "replica":
            self.use_threads()
            compilation.begin_after_eager(self.eager_step, self.device.synchronize, self.job)
            return
        self.shared = shared_eager.open_shared(self.job, self.eager_side, self.backend)
        try:
            if self.device.kind == "cuda":
                facts = self.eager_facts()
            else:
                facts = shared_eager.memory_facts(self.shared, lambda: in_child("eager", self.eager_facts))
        except (ChildFailed, RuntimeError, MemoryError) as error:  # on a GPU there is no child
            failed = error.failed if isinstance(error, ChildFailed) else failures.describe("eager", error)
            if not self.job.until_oom or failed["status"] != Status.EAGER_OOM.value:
                raise
            self.lose_eager(failed)
            return
        self.eager_differs, self.atomics = facts.pop("differ"), facts.pop("atomics", None)
        self.unrepeated, self.eager_changes = facts.pop("unrepeated", None), facts.pop("changes", [])
        others = {name: facts.pop(name, None) for name in ("operators", "compiles_itself")}
        self.emit("eager", differ=self.eager_differs, atomics=self.atomics, memory=facts, **others)
        if others["compiles_itself"]:  # else the back end would find that code and compile in no time
            compiler_caches.begin_anew(self.job.scratch, self.job.machine_cache, on_disk=True)

    def eager_facts(self) -> dict[str, Any]:
        """How two eager runs differ, what its calls keep, its memory, and whether it compiles code."""
        self.use_threads()
        gc.collect()  # else a new tensor may get the address of garbage
        live_before = held_memory.live_storages()
        # A step that is compared releases the optimizer's state, which the compiled side's calls keep.
        releases = hasattr(self.eager_step, "release")
        if releases:
            for _ in range(2):
                self.eager_step()
            gc.collect()
            constants = held_memory.bytes_since(live_before)
        repeated = self.eager_repeats()
        self.seed()  # the steps that were compared leave other parameters than those that are measured
        gc.collect()
        if not releases:
            constants = held_memory.bytes_since(live_before)
        figures = peak_memory.of_step(self.eager_step, self.device, self.thread_context)
        operators = profiling.eager_operators(self.eager_step, self.registered)  # last: it may allocate more
        repeated["changes"] = self.watched.changes() if self.watched else []
        others = {"operators": operators, "compiles_itself": compilation.model_compiles_itself()}
        return {**repeated, "constants_bytes": constants, **figures, **others}

    def eager_repeats(self) -> dict[str, Any]:
        """How two eager runs of one seed differ (`differ`), or why that is unknown (`unrepeated`).

        One run may have memory where the copies of two runs have none.
        """
        facts: dict[str, Any] = {}
        if (shortage := self.memory_shortage(lambda: facts.update(self.how_runs_differ()))) is None:
            return facts
        why = f"no memory was left to see whether eager repeats itself: {shortage}"
        return {"differ": None, "unrepeated": why}

    def how_runs_differ(self) -> dict[str, Any]:
        """How two eager runs differ (`differ`); `atomics`: only since the GPU adds in any order."""
        differ = self.two_runs_differ()
        if differ is None or not self.device.has_atomics:
            return {"differ": differ}
        with self.device.deterministic():
            again = self.two_runs_differ()
        if again is None:
            return {"differ": None, "atomics": differ}
        return {"differ": f"{differ}; with deterministic algorithms: {again}"}

    def two_runs_differ(self) -> str | None:
        """How two eager runs of one seed differ; None where they do not."""
        self.seed()
        first = accuracy.observed(self.eager_step)
        self.seed()
        second = accuracy.observed(self.eager_step)
        return output_comparison.two_runs_differ(first, second, getattr(self.scenario, "OF_GROUP", 0.0))

    def compile(self) -> None:
        """Compile the back end's side: its first call, the constants it keeps, what was captured."""
        self.use_threads()
        if self.job.bind_memory and self.job.case.threads > 1 and self.device.kind == "cpu":
            self.pool = numa.new_threads(lambda: torch.ones(1 << 22).add_(1))
        self.seed()  # the parameters as they were: on a GPU eager has trained in this process
        side = self.compiled_side = self.make_compiled_side()
        self.sides.append(side)
        capabilities.prepare_backend(self.job)
        if self.eager_lost:
            peak_memory.release_eager(self.device, self.eager_side, side, self.eager_step)
        gc.unfreeze()  # compiling collects garbage as it does in any other process
        gc.collect()
        # Held bytes and constants apart, as of eager: some models keep more with each call.
        self.held_bytes, self.constants_bytes = sum(side.held().values()), 0
        is_replica = self.job.role == "replica"
        live_before = held_memory.live_storages() if not is_replica else {}

        def count_constants() -> None:
            self.constants_bytes = 0 if is_replica else held_memory.bytes_since(live_before)

        def make_step() -> Callable[[], Any]:
            self.compiled_model = self.prepare(side)
            step = self.make_step(side, self.compiled_model)
            if hasattr(self.scenario, "before_compile") and getattr(self.backend, "CAPTURES", True):
                self.scenario.before_compile(side, step)
            return step

        def begin(is_anew: bool) -> None:
            if is_anew:  # a replica loads what the main process has compiled
                compiler_caches.begin_anew(self.job.scratch, self.job.machine_cache, on_disk=not is_replica)
            self.seed()
            self.frames = structure.Frames()

        compilers = self.job.inductor_config.get("compile_threads")
        self.compiled_step, figures, capture = compilation.captured_first_call(
            begin, make_step, self.device.synchronize, count_constants, self.job.compile_cores, compilers
        )
        if self.watched and not self.eager_lost:
            figures["notes"] += self.watched.refuse_changes(self.eager_changes, self.job.case.backend)
        # perfdash's own examination of what was converted is no part of converting it.
        uncounted = getattr(self.compiled_model, "uncounted_s", 0.0)
        for name in ("first_call_s", "build_s", "compilation_s", "compilation_cpu_s"):
            figures[name] = max(0.0, figures[name] - uncounted)
        clock = figures.pop("clock")
        notes = self.backend.notes(self.compiled_model) if hasattr(self.backend, "notes") else []
        if not getattr(self.backend, "CAPTURES", True):
            capture = {}  # the back end does not go through dynamo
            clock = compile_phases.PhaseClock()
            self.frames = None
        elif self.job.case.device == "cpu":
            capture["vector_isa"] = capabilities.vector_isa(self.job, find_out=False)
        phases = clock.figures(figures["compilation_s"])
        compiled, structure_notes = self.structure(capture.get("vector_isa"))
        notes += [*figures.pop("notes"), *clock.notes(), *structure_notes]
        self.emit(
            "compiled",
            **figures,
            capture=capture,
            phases_s=phases,
            structure=compiled,
            artifact=getattr(self.backend, "artifact", lambda model: {})(self.compiled_model),
            notes=notes,
        )

    def structure(self, isa: Optional[str]) -> tuple[dict[str, Any], list[str]]:
        """What compiling produced; a replica has the same, and a back end without dynamo nothing to read.

        Emits the generated code, if it is kept.
        """
        if self.frames is None or self.job.role == "replica":
            return {}, []
        settings = structure.settings_of(self.job)
        folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", self.job.scratch)
        figures, code, notes = structure.of_case(folder, self.frames, isa, settings, not self.job.no_code)
        if code:
            self.emit("code", graphs=code)
        self.count_recompiles("compile")
        cache = self.job.machine_cache
        if cache and (loaded := loaded_files.digests_or_note(cache, self.job.scratch, notes)):
            figures["loaded"] = loaded
        found, texts = loaded_files.of_model(registry.find("loaders", self.job.loader), self.job)
        figures |= {**found, "model": structure.model_keys_of(self.job)}
        if texts:
            self.emit("model_files", files=texts)
        return figures, notes

    def count_recompiles(self, phase: str) -> None:
        """Count the recompiles of the phase that ends, beside those of the phases before it."""
        total = self.frames.recompiles() if self.frames else None
        if total is not None:
            self.recompiles[phase] = total - sum(self.recompiles.values())

    def accuracy(self) -> None:
        """Are the compiled outputs right? Copies that only the check needs must not end the case."""
        why = "eager ran out of memory: nothing to compare with" if self.eager_lost else self.unrepeated
        if not why:
            if (shortage := self.memory_shortage(self.check_accuracy)) is None:
                return
            why = f"no memory was left for the check itself: {shortage}"
        self.emit("accuracy", status="skipped", detail=why)

    def check_accuracy(self) -> None:
        """Emit the verdict."""
        self.emit("accuracy", **accuracy.of_case(self.comparison(), self.eager_differs, self.shared))

    def latency(self) -> None:
        """Time both sides. Eager may have had memory in its child and have none beside the back end."""
        try:
            self.time_sides()
            return
        except Exception as error:
            # A replica's samples join those of the main process: of both sides, or not at all.
            is_alone = self.eager_lost or self.job.role == "replica"
            if not self.job.until_oom or is_alone or not failures.is_out_of_memory(error):
                raise
            failed = {**failures.describe("eager", error), "status": Status.EAGER_OOM.value}
        self.lose_eager(failed)
        peak_memory.release_eager(self.device, self.eager_side, self.compiled_side, self.eager_step)
        gc.collect()
        self.time_sides()

    def use_allocator(self) -> None:
        """Seed, return memory that is free, and take the job's allocator: from here on calls are timed."""
        self.seed()  # a step that was judged may have left parameters of any size
        gc.collect()
        linux.malloc_trim()
        allocator = self.job.allocator
        if allocator == "steady":
            linux.malloc_steady()
        elif allocator != "default" and not linux.is_mapped(allocator):
            raise failures.Unmeasurable(Status.INFRA_ERROR, f"{allocator} is not loaded in this process")

    def time_sides(self) -> None:
        """Sample pairs under the job's allocator, or the back end alone, and emit them."""
        job = self.job
        self.use_allocator()
        graphs = compilation.compiled_graphs()
        before = self.device.probe()
        load, cores = os.getloadavg()[0], sorted(os.sched_getaffinity(0))
        with self.pinned() as is_pinned:
            if self.eager_lost:
                figures = latency_sampling.sample_alone(self.compiled_step, self.device, job.sampling, cores)
            else:
                seed, own = job.seed + job.process, capabilities.has_own_threads(job)
                figures = latency_sampling.sample_pairs(
                    self.eager_step, self.compiled_step, self.device, job.sampling, seed, cores, own
                )
        figures["probe_ms"] = [before, self.device.probe()]
        steps = {"backend": self.compiled_step} | ({} if self.eager_lost else {"eager": self.eager_step})
        if self.job.role != "replica":
            figures["accounts"] = {side: self.device.account(step) for side, step in steps.items()}
            for step in steps.values():
                getattr(step, "marks", []).clear()
        figures |= {"load": round(load, 2), "cores": cores, "torch_threads": torch.get_num_threads()}
        if self.job.bind_memory:
            figures["pinned"], figures["memory_nodes"] = is_pinned, list(numa.nodes_of(cores))
        figures |= {"whole_socket": numa.is_whole_socket(cores), "recompile_limit": compilation.gave_up()}
        figures["recompiles"] = compilation.compiled_graphs() - graphs
        if self.device.kind == "cpu" and self.job.case.threads == 1 and self.job.role != "replica":
            figures["instructions"] = hardware_counters.of_calls(steps)
        self.emit("latency", **figures)

    def memory(self) -> None:
        """Measure the back end's memory. A shortage here does not undo what was timed."""
        if (shortage := self.memory_shortage(self.measure_memory)) is not None:
            self.emit("memory", held_bytes=None, constants_bytes=0, transient_bytes=None, lost=shortage)

    def measure_memory(self) -> None:
        """Emit the memory of the back end's side; the child has emitted eager's."""
        step, bytes_before = self.comparison(), (self.held_bytes, self.constants_bytes)
        self.emit("memory", **peak_memory.of_compiled(step, *bytes_before, self.thread_context))
