"""A slot: fork parents on its cores, which measure one case after another.

A case is sampled in processes forked from different parents, since forks of one share its addresses and hash
seed. The parents have imported everything, so that a further process costs seconds.

It knows nothing of the journal or of other slots: orders in, answers out.
"""

from __future__ import annotations

import hashlib
import math
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from perfdash.errors import MachineError, UsageError
from perfdash.files import TemporaryFolder, now
from perfdash.records import Case, Job, Status
from perfdash.runner import compatibility, gpus, host, noise
from perfdash.runner.allocator import allocator_library
from perfdash.runner.case_status import is_measured, spoils_gpu
from perfdash.runner.cores import Locks, core_names, every_slot
from perfdash.runner.gpu_monitor import NO_MONITOR, GpuMonitor, open_monitor, sharing_warning
from perfdash.runner.launcher import ForkParent, Launch
from perfdash.runner.messages import Answer, Options, Order, ProcessOutcome
from perfdash.runner.notebook_model import NotebookModel
from perfdash.runner.result_record import process_ratios
from perfdash.runner.worker_limits import OnEvent, Stop
from perfdash.stats.process_spread import disagree
from perfdash.suites.case_selection import Planned
from perfdash.suites.suite_file import OWN
from perfdash.worker import registry

PROBE_S = 300.0
# For the headers of a further kind of case, which take seconds; where compiling hangs, a slot waits twice.
HEADERS_S = 200.0
DRIVER_STUB = "Triton's driver stub"
FURTHER = 2  # processes more, where the first ones disagree
# Forks that a parent serves. What its models have in common must not stay the same for a whole night.
_FORKS = 40
# Variables that change what inductor compiles, or for which instructions; names or beginnings.
_OF_COMPILING = ("ATEN_CPU_CAPABILITY", "CXX", "TORCHINDUCTOR_")
# Variables that decide which interpreter starts, and which packages it finds.
_OF_INTERPRETER = ("PATH", "PYTHON")
_KEPT = 3  # parents that are kept between cases; a process of a higher number gets one for itself

# The share of each phase of the main process that a further process repeats; compiling it reads a cache.
_OF_A_REPLICA = {"load": 1.0, "compile": 0.13, "latency": 1.0}

_OF_A_JOB = {job_field.name for job_field in fields(Job)}

# What the first fork parents said of their interpreter: by the variables of _OF_INTERPRETER, then by the
# packages that a fork parent imports.
FirstHellos = dict[tuple[tuple[str, str], ...], dict[tuple[str, ...], dict[str, Any]]]


class InterpreterChanged(MachineError):
    """A fork parent's torch or packages are not those of the slot's first one: the run must end.

    `changes`: a line each, as of compatibility.differences.
    """

    def __init__(self, message: str, changes: Sequence[str]) -> None:
        super().__init__(message)
        self.changes = list(changes)


class Slot:
    """Measures cases on a set of cores, whose locks it holds as a context manager."""

    def __init__(
        self,
        cores: Sequence[int],
        options: Options,
        *,
        number: int = 0,
        gpu: str | None = None,
        compile_cores: Sequence[int] = (),
        stop: Stop | None = None,
        on_activity: Callable[[str], None] | None = None,
        notebook: NotebookModel | None = None,
        first_hellos: FirstHellos | None = None,
    ) -> None:
        """`gpu` is what CUDA_VISIBLE_DEVICES names it by; None leaves all that are visible.

        `compile_cores`: its own and those beside them that compiling for a GPU may use; none: its own.

        `notebook`: the model of cases whose loader is that of notebooks.
        `first_hellos`: shared by slots that must measure the same interpreter; None: by no other one.
        `on_activity` receives what introduce() and null() are doing, in words.
        """
        self.cores = tuple(cores)
        self.gpu = gpu
        self.compile_cores = tuple(compile_cores)
        self.stop = stop
        self._number = number
        self._options = options
        self._notebook = notebook
        self._on_activity = on_activity or (lambda text: None)
        self._locks = Locks()
        # By number: the first measures a case's main process, the second its second one.
        self._parents: dict[int, ForkParent] = {}
        self._first_hellos = {} if first_hellos is None else first_hellos
        self._machine_cache: TemporaryFolder | None = None
        self._shared: TemporaryFolder | None = None  # what cases with this eager side share
        self._eager_side: Case | None = None
        self._monitor: GpuMonitor | None = None  # once it is first needed
        self._prepared_for: dict[tuple[str, ...], bool] = {}  # whether a kind's (_prepared_as) is complete

    @property
    def lock_names(self) -> list[str]:
        """The locks of its cores and its GPU."""
        return [*core_names({*self.cores, *self.compile_cores}), *([f"gpu {self.gpu}"] if self.gpu else [])]

    def __enter__(self) -> Slot:
        """Raises MachineError where another run measures on one of its cores."""
        self._locks = Locks.take(self.lock_names)
        return self

    def try_enter(self) -> bool:
        """Enters where nobody measures on its cores now; whether it did."""
        locks = Locks.try_take(self.lock_names)
        if locks:
            self._locks = locks
        return locks is not None

    def share(self, locks: Locks) -> None:
        """Use locks that the caller holds: what outlives this process keeps its cores locked."""
        self._locks = locks

    def __exit__(self, *_: object) -> None:
        self.renew()
        self._stop_sharing()
        if self._machine_cache:
            self._machine_cache.remove()
            self._machine_cache = None
        self._locks.close()

    @property
    def hello(self) -> dict[str, Any]:
        """What the running fork parent has said of its interpreter; empty without one."""
        return self._parents[0].hello if 0 in self._parents else {}

    def renew(self, another_build: bool = False) -> None:
        """Ends the fork parents: the next case is measured under ones started anew, at other addresses.

        `another_build`: their interpreter may change (a bisection builds all commits in one folder).
        """
        while self._parents:
            self._parents.popitem()[1].close()
        if another_build:
            self._first_hellos.clear()

    def introduce(self, planned: Sequence[Planned]) -> dict[str, Any]:
        """Examine the host and the measured interpreter: {environment, probes, where, unloadable, notes}.

        One probe a back end, dtype and options of compiling. Raises what `_probe` raises.
        `unloadable`: the failure of each model of the user's own that does not load, by the name of its
        function; then the rest is not looked at. `notes`: for the user.
        """
        like = next((case for case in planned if not case.chooses_vector_isa), planned[0])
        self._on_activity(f"starting {self._options.python} and importing torch")
        alike = {_probed_as(case): case for case in planned}
        by_kind = {kind: self._probe(like, case) for kind, case in alike.items()}
        probes = list(by_kind.values())
        hopeless = all(probe["complaints"] for probe in probes)
        unloadable = {} if hopeless else self._unloadable(like, planned)
        possible = [case for case in planned if not by_kind[_probed_as(case)]["complaints"]]
        facts = host.facts()
        environment = {
            **facts,
            "host_class": host.host_class(facts),
            "worker": self._parent_for(like).hello,
            "gpus": probes[0]["cuda"],
            **self._gpu_facts(),
            "vector_isa": None if hopeless or unloadable else self._vector_isa(possible, facts["cpu_flags"]),
        }
        monitor = self._gpu_monitor()
        warning = sharing_warning(monitor) if monitor else NO_MONITOR if self.gpu else None
        return {
            "environment": environment, "probes": probes, "where": self.where(), "unloadable": unloadable,
            "notes": [warning] if warning else [],
        }  # fmt: skip

    def _gpu_facts(self) -> dict[str, Any]:
        nvml = gpus.open_nvml() if self.gpu else None
        return {"gpu_facts": gpus.facts(self.gpu, nvml)} if self.gpu and nvml else {}

    def _unloadable(self, like: Planned, planned: Sequence[Planned]) -> dict[str, dict[str, Any]]:
        """Call the functions that --model names, the smallest batch of each: a slip is told at once.

        The first slot does it for all. A crash is no slip: the model gets its row like any other.
        """
        smallest = {
            case.target: case
            for case in sorted(planned, key=lambda case: case.case.batch_size, reverse=True)
            if case.case.suite == OWN and self._number == 0
        }
        failures = {}
        for target, case in smallest.items():
            self._on_activity(f"loading {case.case.model}")
            with TemporaryFolder() as scratch:
                job = replace(self._job(case, scratch), role="load")
                outcome = self._parent_for(like).run(job, Path(scratch) / "load.log", stop=self.stop)
            failed = outcome.find("failed")
            # Before it is loaded, a back end that is not installed is refused: no fault of the model.
            if not failed or failed["phase"] != "load":
                continue
            if failed["status"] in (Status.MODEL_FAIL_TO_LOAD, Status.MISSING_DEPENDENCY):
                failures[target] = failed
        return failures

    def _probe(
        self, like: Planned, planned: Planned, role: str = "probe", timeout_s: float = PROBE_S
    ) -> dict[str, Any]:
        """One look at what the interpreter can do, tried twice: something may have killed the first.

        Raises MachineError where it does not answer, UsageError where a user's back end does not import.
        """
        # The probe imports the back end, as each case does before its first phase.
        start_s = planned.phase_timeouts.get("start", 0.0) if role == "probe" else 0.0
        for _ in range(2):
            with TemporaryFolder() as scratch:
                job = replace(
                    self._job(planned, scratch),
                    role=role,
                    timeout_s=max(timeout_s, start_s),
                    phase_timeouts={},  # it has no phases
                    memory_limit_bytes=None,
                )
                outcome = self._parent_for(like).run(job, Path(scratch) / "probe.log", stop=self.stop)
            if probed := outcome.find("probed"):
                return probed
        failed = outcome.find("failed") or {"message": "it ended without a word", "type": None}
        if role == "probe" and failed["type"] == "UnusableBackend":
            raise UsageError(f"--backend: {failed['message']}")
        limit = outcome.limit or {}
        why = f"no answer in {limit['limit']:.0f} s" if limit.get("what") == "time" else failed["message"]
        raise MachineError(f"the worker under {self._options.python} failed: {why}")

    def _vector_isa(self, planned: Sequence[Planned], cpu_flags: Sequence[str]) -> str | None:
        """What inductor compiles for on this machine, where one of the cases is for it on the CPU.

        What the cases of a kind share is made on the way, for every kind (worker.compiler_caches): otherwise
        compilation latencies would depend on the kind that comes first. Inductor falls back without a word
        when its try is disturbed (backends.inductor.vector_isa): asked again where the processor has more.
        Raises MachineError where not even plain torch.compile answers.
        """
        # A case that chooses its vector instructions says nothing about the machine.
        of_inductor = [case for case in planned if case.needs_inductor and not case.chooses_vector_isa]
        if not of_inductor:
            return None
        by_plain = [_by_plain_inductor(case) for case in of_inductor]
        plain = min(by_plain, key=lambda case: bool(case.inductor_config or _variables_of_compiling(case)))
        vector_isa: str | None = None
        for _ in range(2):
            probed = self._make_shared(plain, PROBE_S)
            vector_isa = probed["vector_isa"]
            widest = vector_isa and (
                "avx512" in vector_isa or "amx" in vector_isa or "avx512f" not in cpu_flags
            )
            if probed["whole"] and (widest or not plain.needs_cpp):
                break
        self._prepared_for[_prepared_as(plain)] = probed["whole"]
        for case in of_inductor:
            self._prepare(case)
        return vector_isa

    def _prepare(self, planned: Planned) -> None:
        """Makes what the cases of a kind share, once a slot; where it is incomplete, a second time.

        A process that crashes or hangs meanwhile is no failure of the machine: the cases of this kind compile
        in the same way, and each reports its own crash or timeout.
        """
        kind = _prepared_as(planned)
        if kind in self._prepared_for:
            return
        whole = False
        with suppress(MachineError):
            for _ in range(2):
                if whole := self._make_shared(planned, HEADERS_S)["whole"]:
                    break
        self._prepared_for[kind] = whole

    def _make_shared(self, planned: Planned, timeout_s: float) -> dict[str, Any]:
        """Makes what inductor's cases share (worker.compiler_caches), and asks what it compiles for."""
        if self._machine_cache is None:
            self._machine_cache = TemporaryFolder()
        shared = "a C++ header, tests of vector instructions" if planned.needs_cpp else DRIVER_STUB
        self._on_activity(f"compiling what cases share: {shared}")
        return self._probe(planned, planned, role="isa", timeout_s=timeout_s)

    def null(self, like: Planned, processes: int, log: Path) -> list[ProcessOutcome]:
        """A small model against itself in so many processes (noise.null_case)."""
        planned = noise.null_case(like)
        outcomes = []
        for number in range(processes):
            self._on_activity(f"A/A null (a small model against itself): process {number + 1} of {processes}")
            with TemporaryFolder() as scratch:
                job = replace(
                    self._job(planned, scratch),
                    role="replica",
                    process=number,
                    allocator="steady",
                    weights="random",
                    sampling=noise.NULL_SAMPLING,
                )
                outcomes.append(self._process(like, job, log, parent=number % 2))
        return outcomes

    def measure(self, order: Order, log: Path, on_event: OnEvent) -> Answer:
        """Measure a case, sampled again in further processes. Raises RunStopped when the run ends."""
        monitor = self._gpu_monitor()
        if monitor is None:
            return self._measure(order, log, on_event)
        with monitor:
            answer = self._measure(order, log, on_event)
        answer.gpu = monitor.report()
        return answer

    def _gpu_monitor(self) -> GpuMonitor | None:
        if self.gpu and self._monitor is None:
            self._monitor = open_monitor(self.gpu)
        return self._monitor

    def _measure(self, order: Order, log: Path, on_event: OnEvent) -> Answer:
        started, start = now(), time.monotonic()
        planned = order.planned
        # A preloaded malloc hides what is resident: all but the timing is done without it.
        preload = allocator_library(self._options.allocator) is not None
        replica_s, notes = 0.0, []
        shares_as = planned.shares_as
        try:
            if order.role in ("full", "profile", "subgraph", "structure") and shares_as.needs_inductor:
                self._prepare(shares_as)
                if not self._prepared_for[_prepared_as(shares_as)]:
                    header = "the precompiled C++ header" if shares_as.needs_cpp else DRIVER_STUB
                    by = "" if planned.needs_inductor else ", if its back end uses inductor"
                    notes.append(f"{header} could not be made beforehand: compiling the case includes it{by}")
            with TemporaryFolder() as scratch:
                role = "untimed" if preload and order.role == "full" else order.role
                job = replace(self._job(planned, scratch), role=role, folder=order.folder)
                outcomes = [_too_large(job, planned) or self._main_process(order, job, log, on_event)]
                if is_measured(outcomes[0]) and not outcomes[0].find("eager_lost") and order.role == "full":
                    replica_start = time.monotonic()
                    # The main process is not one of the timed ones where the allocator is preloaded.
                    self._sample_again(order, job, log, on_event, outcomes, preload)
                    replica_s = time.monotonic() - replica_start
        except InterpreterChanged:
            raise
        except MachineError as error:  # no room for a folder
            outcomes = [_not_started(error)]
        if planned.case.device != "cpu" and spoils_gpu(outcomes):
            self._recover()
        return Answer(outcomes, started, time.monotonic() - start, replica_s, self.where(), notes=notes)

    def _main_process(self, order: Order, job: Job, log: Path, on_event: OnEvent) -> ProcessOutcome:
        """Run the main process of a case, which may share what it measures of eager (worker/shared_eager).

        Of a process that ended without a word nothing is shared: the next case measures for itself.
        """
        if not order.share:
            return self._process(order.planned, job, log, on_event)
        if self._shared and self._eager_side != order.planned.eager_side:
            self._stop_sharing()
        if self._shared is None:
            self._shared, self._eager_side = TemporaryFolder(), order.planned.eager_side
        launch = hashlib.sha256(repr(self._launch(order.planned)).encode()).hexdigest()[:16]
        folder = Path(self._shared.path) / launch
        folder.mkdir(exist_ok=True)
        earlier = set(folder.iterdir())
        outcome = self._process(order.planned, replace(job, shared=str(folder)), log, on_event)
        if not outcome.find("done") and not outcome.find("failed"):
            for path in set(folder.iterdir()) - earlier:
                path.unlink()
        return outcome

    def _stop_sharing(self) -> None:
        if self._shared:
            self._shared.remove()
            self._shared = None

    def _recover(self) -> None:
        """Start the fork parents anew, once the driver has taken back what an ended case held on the GPU.

        They hold no context of their own, but handles of the driver's library may be stale after a fault.
        """
        self.renew()
        if monitor := self._gpu_monitor():
            monitor.wait_until_free()

    def where(self) -> dict[str, Any]:
        """The slot's number, host and cores."""
        return {
            "slot": self._number,
            "host": socket.gethostname().split(".")[0],
            "cores": list(self.cores),
            **({"gpu": self.gpu} if self.gpu else {}),
            **({"compile_cores": len(self.compile_cores)} if self.compile_cores else {}),
        }

    def _sample_again(
        self,
        order: Order,
        job: Job,
        log: Path,
        on_event: OnEvent,
        outcomes: list[ProcessOutcome],
        preload: bool,
    ) -> None:
        """Sample the latency in the other processes of a case, each under another fork parent."""
        wanted = order.processes + preload
        expected_s = _replica_seconds(outcomes[0])
        # Two more where these disagree; that does not depend on the ratio itself, so no verdict is sought.
        for number in range(1, wanted + FURTHER):
            if number == wanted and not (order.further and disagree(process_ratios(outcomes))):
                break
            before = process_ratios(outcomes)
            so_far = f", {math.exp(before.mean):.2f}x so far" if before else ""
            total = max(wanted, number + 1)
            left_s = expected_s * (total - number)
            left = f", about {left_s:.0f} s left" if left_s >= 1 else ""
            on_event({"event": "phase", "name": f"process {number + 1} of {total}{so_far}{left}"})
            replica = replace(job, role="replica", process=number)
            parent = min(number, _KEPT)
            start = time.monotonic()
            outcomes.append(self._process(order.planned, replica, log, parent=parent, timed=preload))
            if parent == _KEPT and parent in self._parents:
                self._parents.pop(parent).close()
            expected_s = time.monotonic() - start

    def _process(
        self,
        planned: Planned,
        job: Job,
        log: Path,
        on_event: OnEvent = lambda event: None,
        *,
        parent: int = 0,
        timed: bool = False,
    ) -> ProcessOutcome:
        """Run a job in a process forked from the parent of that number."""

        def watched(event: dict[str, Any]) -> None:
            if self._monitor:
                self._monitor.on_event(event)
            on_event(event)

        try:
            return self._parent_for(planned, parent, timed).run(job, log, watched, self.stop)
        except InterpreterChanged:
            raise
        except MachineError as error:
            return _not_started(error)

    def _parent_for(self, planned: Planned, number: int = 0, timed: bool = False) -> ForkParent:
        """The running fork parent for a case; another one is started where this one will not do.

        Raises InterpreterChanged where that one has another torch or other packages than the first one.
        """
        launch = self._launch(planned, timed)
        parent = self._parents.get(number)
        if parent and (not parent.alive or parent.launch != launch or parent.forks >= _FORKS):
            self._parents.pop(number).close()
            parent = None
        if parent is None:
            parent = self._parents[number] = ForkParent(
                launch, self._locks.fds, self.stop, self._notebook
            ).__enter__()
            try:
                self._refuse_changed_interpreter(parent)
            except InterpreterChanged:
                self._parents.pop(number).close()
                raise
        return parent

    def _refuse_changed_interpreter(self, parent: ForkParent) -> None:
        imported = parent.launch.packages
        variables = tuple(item for item in parent.launch.env if item[0].startswith(_OF_INTERPRETER))
        hellos = self._first_hellos.setdefault(variables, {})
        known = hellos.get(imported)
        # A list, since slots of other threads may add to what they share.
        first = known or [*hellos.values(), parent.hello][0]
        changes = compatibility.interpreter_changes(first, parent.hello, same_imports=known is not None)
        if changes:
            raise InterpreterChanged(
                f"{self._options.python} changed while it was measured (at the start | now):\n"
                f"{compatibility.as_lines(changes)}\n"
                "Nothing was measured under the new one. Restore it and continue (perfdash run and "
                "compare-builds: --resume), or start again.",
                changes,
            )
        hellos.setdefault(imported, parent.hello)

    def _launch(self, planned: Planned, timed: bool = False) -> Launch:
        env = dict(planned.env)
        if self._options.weights == "pretrained":
            env.setdefault("HF_HUB_OFFLINE", "0")
        if self.gpu:
            env["CUDA_VISIBLE_DEVICES"] = self.gpu
        return Launch(
            python=self._options.python,
            cores=self.cores,
            threads=self._options.threads,
            packages=registry.preload(planned.loader),
            env=tuple(sorted(env.items())),
            allocator_library=allocator_library(self._options.allocator) if timed else None,
        )

    def _job(self, planned: Planned, scratch: str) -> Job:
        options = {name: value for name, value in vars(self._options).items() if name in _OF_A_JOB}
        return planned.job(
            **options,
            scratch=scratch,
            memory_limit_bytes=planned.memory_limit_bytes or host.default_memory_limit(),
            machine_cache=self._machine_cache.path if self._machine_cache else None,
            compile_cores=self.compile_cores,
        )


def _probed_as(planned: Planned) -> tuple[str, ...]:
    """What the interpreter is asked about: cases that agree in it share a probe."""
    return planned.case.backend, planned.case.dtype, repr((planned.compile_mode, planned.inductor_config))


def _prepared_as(planned: Planned) -> tuple[str, ...]:
    """What the files that inductor's cases share depend on: cases that agree in it share them."""
    if not planned.needs_cpp:  # Triton's driver stub depends on Triton and Python alone
        return ()
    backend = (planned.backend_file or planned.case.backend) if _makes_other_headers(planned) else ""
    options = sorted(planned.inductor_config.items())
    return backend, repr(options), repr(_variables_of_compiling(planned))


def _variables_of_compiling(planned: Planned) -> list[tuple[str, str]]:
    return sorted(item for item in planned.env.items() if item[0].startswith(_OF_COMPILING))


def _by_plain_inductor(planned: Planned) -> Planned:
    """The case by torch.compile without options of inductor, but for the one that names the compiler.

    A torch may crash where it compiles a package or with an option, while plain torch.compile works.
    """
    options = {key: value for key, value in planned.inductor_config.items() if key == "cpp.cxx"}
    if _makes_other_headers(planned):
        plain = replace(planned.case, backend="inductor")
        planned = replace(planned, case=plain, backend_file=None)
    return replace(planned, inductor_config=options)


def _makes_other_headers(planned: Planned) -> bool:
    """Whether the case's back end makes other precompiled headers than torch.compile."""
    facts = registry.backend_facts(planned.backend_file or planned.case.backend)
    return hasattr(facts, "compile_sample")


def free_slots(threads: int) -> list[tuple[int, ...]]:
    """The cores of all slots that nobody measures on now."""
    free = []
    for cores in every_slot(threads):
        locks = Locks.try_take(core_names(cores))
        if locks is not None:
            locks.close()
            free.append(cores)
    return free


def _replica_seconds(main: ProcessOutcome) -> float:
    """About how long a further process takes: it loads the model and the compiled code, then samples."""
    seconds: dict[str, float] = {
        event["name"]: event["seconds"] for event in main.events if event["event"] == "phase_end"
    }  # fmt: skip
    return sum(_OF_A_REPLICA[name] * seconds.get(name, 0.0) for name in _OF_A_REPLICA)


def _too_large(job: Job, planned: Planned) -> ProcessOutcome | None:
    """The outcome of a case whose weights alone pass its limit: it is not even loaded.

    Every loader builds in float32 on the host, whatever the dtype and the device of the case.
    """
    needed, limit = 4 * (planned.parameters or 0), job.memory_limit_bytes
    if limit is None or needed <= limit:
        return None
    message = (
        f"not loaded: its {planned.parameters:,} parameters alone need {needed / 2**30:.1f} GiB in float32, "
        f"and the limit is {limit / 2**30:.1f} GiB"
    )
    failed = {"status": "eager_oom", "phase": "load", "type": "TooLarge", "message": message}
    return ProcessOutcome([{"event": "failed", **failed}], status=0)


def _not_started(error: MachineError) -> ProcessOutcome:
    """The outcome of a process whose fork parent could not be started."""
    failed = {"status": "infra_error", "phase": "start", "type": "MachineError", "message": str(error)}
    return ProcessOutcome([{"event": "failed", **failed}], status=0)
