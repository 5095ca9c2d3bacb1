"""Messages between the runner and a slot: options, orders, answers. Each has a JSON form.

A slot is a set of cores that measures one case at a time, in this process or on another machine.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from perfdash.errors import UsageError
from perfdash.records import ProcessOptions, Sampling
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned, planned_from_json
from perfdash.topology import parse_cores


@dataclass(frozen=True, kw_only=True)
class Options(ProcessOptions):
    """How every case of a run is measured, and under which interpreter."""

    python: str
    threads: int
    device: str = "cpu"


def options_of(settings: RunSettings, of_build: bool = False) -> Options:
    """How every case of a run is measured, from its settings. Raises UsageError.

    `of_build`: builds are compared. An interpreter other than perfdash's own is the build in any case.
    """
    names = {option.name for option in fields(Options)} & set(RunSettings.model_fields)
    given = {name: getattr(settings, name) for name in names}
    made = {
        "weights": weights_of(settings),
        "instance_cores": instance_cores(settings),
        "of_build": of_build or settings.python != sys.executable,
    }
    return Options(**{**given, **made})


def instance_cores(settings: RunSettings) -> tuple[tuple[int, ...], ...]:
    """The cores of each of the instances that run a case at once; () without --instances."""
    if not settings.instances:
        return ()
    cores, threads = parse_cores(settings.cores or ""), settings.threads
    return tuple(cores[start : start + threads] for start in range(0, len(cores), threads))


def weights_of(settings: RunSettings) -> str:
    """random, pretrained, or the absolute path of a file. Raises UsageError where it does not exist."""
    if settings.weights in ("random", "pretrained"):
        return settings.weights
    path = Path(settings.weights).expanduser().absolute()
    if not path.is_file():
        raise UsageError(
            f"--weights {settings.weights}: no such file; it is random, pretrained, or a file of weights "
            "(safetensors, or a state dict saved by torch.save)"
        )
    return str(path)


@dataclass(frozen=True)
class Order:
    """One case to measure or to check, with its latency sampled in `processes` processes.

    `further`: two more where these disagree. `role` is what its main process does: full, check, try_eager
    or try_backend; or profile and subgraph, which write into `folder` (records.Job). `share`: cases of the
    same eager side come before or after it, and the slot lets them share what it measures of eager.
    """

    planned: Planned
    processes: int = 1
    further: bool = False
    role: str = "full"
    folder: str = ""
    share: bool = False


@dataclass
class ProcessOutcome:
    """How a case's process ended, with the events that it sent before."""

    events: list[dict[str, Any]] = field(default_factory=list)
    status: int | None = None  # of waitpid; None when the fork parent was lost with it
    limit: dict[str, Any] | None = None  # the one that it passed, as in records.Failure
    frozen: bool = False  # something of it was stopped (SIGSTOP), and so it was ended
    oom_killed: str | None = None  # limit: by its own memory limit; kernel: for want of memory
    memory_limit_bytes: int | None = None  # the one it ran under
    tail: list[str] = field(default_factory=list)  # the last lines of its output

    def find(self, name: str) -> dict[str, Any] | None:
        """The last event of a name."""
        return next((event for event in reversed(self.events) if event["event"] == name), None)


@dataclass
class Answer:
    """What came of an order: the outcomes of its main process and of its replicas.

    `where` says on what it was measured: {slot, host, cores}. `log` holds the text of the log where
    it was written elsewhere than in the run folder; `gpu` what the GPU's monitor reports of it
    (gpu_monitor.GpuMonitor.report), empty without one. `notes` are for the case's record.
    """

    outcomes: list[ProcessOutcome]
    started: str
    wall_s: float
    replica_s: float
    where: dict[str, Any]
    log: str | None = None
    gpu: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def to_text(value: Any) -> str:
    """An order, options or an answer as JSON text."""
    return json.dumps(asdict(value))


def options_from_text(text: str) -> Options:
    """The inverse of to_text."""
    data = json.loads(text)
    cores = tuple(tuple(cores) for cores in data["instance_cores"])
    return Options(**{**data, "sampling": Sampling(**data["sampling"]), "instance_cores": cores})


def order_from_text(text: str) -> Order:
    """The inverse of to_text."""
    data = json.loads(text)
    return Order(**{**data, "planned": planned_from_json(data["planned"])})


def answer_from_text(text: str) -> Answer:
    """The inverse of to_text."""
    data = json.loads(text)
    return Answer(**{**data, "outcomes": [ProcessOutcome(**outcome) for outcome in data["outcomes"]]})
