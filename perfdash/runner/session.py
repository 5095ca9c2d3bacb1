"""One run from the first null to the last: the loop that measures case after case.

It owns the fork parents and the journal; how things look on a terminal is the watcher's business.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from perfdash.cases import Planned
from perfdash.errors import MachineError, UsageError
from perfdash.records import Case, Job, Result, RunInfo, Sampling
from perfdash.runner import host, noise
from perfdash.runner.assemble import assemble, skipped
from perfdash.runner.cores import available_cores
from perfdash.runner.journal import Journal, now
from perfdash.runner.launcher import ForkParent, Launch, Outcome
from perfdash.stats.intervals import Spread
from perfdash.worker import registry


@dataclass(frozen=True)
class Options:
    """How every case of a run is measured."""

    python: str
    cores: tuple[int, ...]
    threads: int
    allocator: str = "steady"  # steady | default | jemalloc | tcmalloc
    processes: int | None = None  # None: one, and several for the first few cases
    weights: str = "random"
    compile_mode: str | None = None
    inductor_config: dict[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 1337


class Watcher(Protocol):
    """Who is told how a run goes on."""

    def say(self, text: str) -> None: ...

    def case_started(self, number: int, total: int, case: Case) -> None: ...

    def phase(self, name: str) -> None: ...

    def case_done(self, number: int, total: int, result: Result) -> None: ...


class Session:
    """A run under way. `results` holds what has been measured so far."""

    def __init__(
        self,
        planned: Sequence[Planned],
        options: Options,
        journal: Journal,
        info: RunInfo,
        watcher: Watcher,
        dynamo_names: dict[str, str],
    ) -> None:
        self.planned = noise.replicated_first(planned)
        self.options = options
        self.journal = journal
        self.info = info
        self.watcher = watcher
        self.dynamo_names = dynamo_names
        self.results: list[Result] = []
        self.pooled = Spread()
        self._replicated: list[str] = []
        self._parent: ForkParent | None = None

    def run(self) -> list[Result]:
        """Measures everything. Raises UsageError or MachineError where nothing can be measured.

        However it ends, what was measured is in the journal, and no process is left.
        """
        state = "failed"
        with _away_from(self.options.cores):
            try:
                self._introduce()
                self._null("start")
                for number, planned in enumerate(self.planned, start=1):
                    self._one(number, planned)
                self._null("end")
                state = "done"
            except KeyboardInterrupt:
                state = "interrupted"
                raise
            finally:
                if self._parent:
                    self._parent.close()
                self.info.state = state
                self.info.ended = now()
                self.journal.write_info(self.info)
        return self.results

    def _introduce(self) -> None:
        """Starts the first fork parent, asks it what it can do, and writes run.json."""
        parent = self._parent_for(self.planned[0])
        environment = self.info.environment
        environment["worker"] = parent.hello
        self.journal.write_info(self.info)
        self._refuse_what_cannot_run(parent)
        for planned in {(p.case.backend, p.case.dtype): p for p in self.planned}.values():
            facts = self._probe(parent, planned)
            if planned.case.device == "cuda" and not facts["cuda"]:
                raise UsageError(
                    "--device cuda: this torch sees no GPU (`perfdash doctor` says more); "
                    f"torch {parent.hello['torch']}, CUDA {parent.hello['torch_cuda'] or 'not built in'}"
                )
            environment["gpus"] = facts["cuda"]
            if facts["complaints"]:
                raise UsageError("; ".join(facts["complaints"]))

    def _refuse_what_cannot_run(self, parent: ForkParent) -> None:
        """Raises MachineError where every case would fail for the same reason."""
        hello = parent.hello
        needed = {planned.loader for planned in self.planned}
        for package, trouble in hello["missing"].items():
            if "torchvision" in trouble or len(needed) == 1:
                raise MachineError(
                    f"{package} does not import under {hello['executable']}: {trouble}; with torch "
                    f"{hello['torch']} install torch, torchvision and {package} together, from one place"
                )
        if hello["cuda_initialized"]:
            raise MachineError(
                "importing the libraries has started CUDA, so that no case can be forked: find out "
                "which package does it (a sitecustomize?)"
            )

    def _probe(self, parent: ForkParent, planned: Planned) -> dict[str, Any]:
        with self._scratch() as scratch:
            job = replace(self._job(planned, scratch), role="probe", timeout_s=300.0)
            outcome = parent.run(job, self.journal.logs / "probe.log")
        probed = outcome.find("probed")
        if probed is None:
            failed = outcome.find("failed") or {"message": "it ended without a word"}
            raise MachineError(f"the worker under {self.options.python} failed: {failed['message']}")
        return probed

    def _one(self, number: int, planned: Planned) -> None:
        total = len(self.planned)
        self.watcher.case_started(number, total, planned.case)
        skip = planned.skip_reason is not None
        result = skipped(planned, now()) if skip else self._measure(planned)
        self.results.append(result)
        self.journal.append(result)
        self.journal.write_csv(self.results, self.dynamo_names)
        self.watcher.case_done(number, total, result)

    def _measure(self, planned: Planned) -> Result:
        started, start = now(), time.monotonic()
        log = self.journal.logs / f"{planned.case.name}.log"
        # A preloaded malloc hides what is resident: all but the timing is done without it.
        preload = host.allocator_library(self.options.allocator) is not None
        replica_s = 0.0
        with self._scratch() as scratch:
            job = replace(self._job(planned, scratch), role="untimed" if preload else "full")
            try:
                outcomes = [self._parent_for(planned).run(job, log, self._on_event)]
            except MachineError as error:
                outcomes = [_not_started(error)]
            if outcomes[0].find("done"):
                replica_start = time.monotonic()
                outcomes += self._replicas(planned, job, log)
                replica_s = time.monotonic() - replica_start
        own_fault = not outcomes[0].find("done")
        result, own = assemble(
            planned,
            outcomes,
            self.pooled,
            started=started,
            wall_s=time.monotonic() - start,
            allocator=self.options.allocator,
            log=log.name,
            log_tail=_tail(log) if own_fault else (),
        )
        if len(outcomes) > 1:
            result.phases_s["replicas"] = round(replica_s, 4)
        if own.df:
            self.pooled = self.pooled.plus(own.variance, own.df)
            self._replicated.append(planned.case.name)
            self.info.noise["between_processes"] = {
                "relative_sd": round(math.sqrt(self.pooled.variance), 6),
                "df": self.pooled.df,
                "cases": self._replicated,
            }
            self.journal.write_info(self.info)
        return result

    def _replicas(self, planned: Planned, job: Job, log: Path) -> list[Outcome]:
        """The sampling again in processes started anew: a fork would share its parent's addresses."""
        count = self.options.processes
        if count is None:
            wanted, processes = noise.replication(len(self.planned))
            count = processes if len(self._replicated) < wanted else 1
        if job.role == "untimed":
            count += 1  # the main process is not one of the timed ones
        outcomes = []
        for number in range(1, count):
            self.watcher.phase(f"replica {number}/{count - 1}")
            try:
                with ForkParent(self._launch(planned, timed=True)) as fresh:
                    outcomes.append(fresh.run(replace(job, role="replica", process=number), log))
            except MachineError as error:
                outcomes.append(_not_started(error))
        return outcomes

    def _null(self, when: str) -> None:
        """The A/A null: a small model against itself, in several processes."""
        first = self.planned[0]
        planned = noise.null_case(first)
        ratios = []
        for number in range(noise.NULL_PROCESSES):
            with self._scratch() as scratch:
                job = replace(
                    self._job(planned, scratch),
                    role="replica",
                    process=number,
                    allocator="steady",
                    sampling=noise.NULL_SAMPLING,
                )
                try:
                    outcome = self._parent_for(first).run(job, self.journal.logs / "null.log")
                except MachineError as error:
                    outcome = _not_started(error)
            result, _ = assemble(planned, [outcome], Spread(), started=now(), wall_s=0, allocator="steady")
            if result.speedup:
                ratios.append(result.speedup.value)
        null = self.info.noise.setdefault("null", {})
        null[when] = ratios
        every = [ratio for part in ("start", "end") for ratio in null.get(part, [])]
        if every:
            null["worst"] = round(max(abs(ratio - 1) for ratio in every), 6)
            self.watcher.say(
                f"A/A null at the {when}: a model against itself is off by at most "
                f"{max(abs(ratio - 1) for ratio in ratios or every):.2%}"
            )
        else:
            self.watcher.say("A/A null: could not be measured (logs/null.log)")

    def _parent_for(self, planned: Planned) -> ForkParent:
        """The running fork parent for a case; another one is started where this one will not do."""
        launch = self._launch(planned)
        if self._parent and (not self._parent.alive or self._parent.launch != launch):
            self._parent.close()
            self._parent = None
        if self._parent is None:
            self._parent = ForkParent(launch).__enter__()
        return self._parent

    def _launch(self, planned: Planned, timed: bool = False) -> Launch:
        env = dict(planned.env)
        if self.options.weights == "pretrained":
            env.setdefault("HF_HUB_OFFLINE", "0")
        return Launch(
            python=self.options.python,
            cores=self.options.cores,
            threads=self.options.threads,
            packages=registry.find("loaders", planned.loader).PRELOAD,
            env=tuple(sorted(env.items())),
            allocator_library=host.allocator_library(self.options.allocator) if timed else None,
        )

    def _job(self, planned: Planned, scratch: str) -> Job:
        options = self.options
        job = planned.job(
            scratch=scratch,
            sampling=options.sampling,
            weights=options.weights,
            allocator=options.allocator,
            compile_mode=options.compile_mode,
            inductor_config=options.inductor_config,
            seed=options.seed,
        )
        return replace(job, memory_limit_bytes=job.memory_limit_bytes or host.default_memory_limit())

    def _on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "phase":
            self.watcher.phase(event["name"])

    @contextmanager
    def _scratch(self) -> Iterator[str]:
        try:
            folder = tempfile.TemporaryDirectory(prefix="perfdash-case-", ignore_cleanup_errors=True)
        except OSError as error:
            raise MachineError(
                f"no temporary folder for a case in {tempfile.gettempdir()}: {error.strerror}; "
                "make room there or set TMPDIR"
            ) from error
        with folder as path:
            yield path


@contextmanager
def _away_from(cores: Sequence[int]) -> Iterator[None]:
    """Keeps this process off the measured cores where it has others."""
    before = available_cores()
    others = set(before) - set(cores)
    if others:
        os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _not_started(error: MachineError) -> Outcome:
    """The outcome of a process whose fork parent could not be started."""
    failed = {"status": "infra_error", "phase": "start", "type": "MachineError", "message": str(error)}
    return Outcome([{"event": "failed", **failed}], status=0)


def _tail(log: Path, lines: int = 20) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        return []
