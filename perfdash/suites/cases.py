"""Suites -> cases: selecting models, expanding batch sizes, dtypes and back ends."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from perfdash.errors import UsageError
from perfdash.records import Case, Job, Sampling
from perfdash.settings import RunSettings
from perfdash.suites import judging
from perfdash.suites.definition import BatchSize, Model, Skip, Suite, near
from perfdash.suites.judging import Setting
from perfdash.worker import registry

# Seconds that a phase may take, unless the suite or the user says otherwise; the case's own limit
# holds beside them. Generous: they are there for what hangs, not for what is slow.
PHASE_TIMEOUTS: dict[str, float] = {
    "start": 300.0,
    "load": 900.0,
    "eager": 1800.0,
    "compile": 2700.0,
    "accuracy": 1800.0,
    "quality": 3600.0,
    "latency": 1800.0,
    "memory": 1200.0,
}


@dataclass(frozen=True)
class Planned:
    """A case with all that is needed to measure it, or the reason why it is not measured."""

    case: Case
    loader: str
    target: str
    inputs: dict[str, Any]
    tolerance: float
    factor: float
    cosine: bool
    check_accuracy: bool
    env: dict[str, str]
    timeout_s: float
    memory_limit_bytes: int | None
    skip_reason: str | None = None
    phase_timeouts: dict[str, float] = field(default_factory=dict)
    output_limit_bytes: int = 64 << 20
    cost_s: float | None = None
    config: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    baseline_dtype: str | None = None
    distance_bound: float | None = None
    data: str | None = None
    data_path: str | None = None
    backend_file: str | None = None
    loss: str | None = None
    optimizer: str = "sgd"
    variant: dict[str, Any] = field(default_factory=dict)
    new_tokens: int = 32
    cache: str = "dynamic"
    until_oom: bool = False

    @property
    def needs_cpp(self) -> bool:
        """Whether a C++ compiler makes the case's code."""
        try:
            backend = registry.backend_facts(self.backend_file or self.case.backend)
        except LookupError:  # a file that is not here any more: the worker says so
            return False
        compiles = hasattr(backend, "vector_isa")
        return self.case.device == "cpu" and compiles and self.skip_reason is None

    def job(self, *, scratch: str, sampling: Sampling, **options: Any) -> Job:
        """The worker's order for this case."""
        return Job(
            case=self.case,
            loader=self.loader,
            target=self.target,
            config=self.config,
            inputs=self.inputs,
            tolerance=self.tolerance,
            factor=self.factor,
            cosine=self.cosine,
            check_accuracy=self.check_accuracy,
            timeout_s=self.timeout_s,
            memory_limit_bytes=self.memory_limit_bytes,
            output_limit_bytes=self.output_limit_bytes,
            phase_timeouts=self.phase_timeouts,
            baseline_dtype=self.baseline_dtype,
            distance_bound=self.distance_bound,
            data=self.data,
            data_path=self.data_path,
            backend_file=self.backend_file,
            loss=self.loss,
            optimizer=self.optimizer,
            variant=self.variant,
            new_tokens=self.new_tokens,
            cache=self.cache,
            until_oom=self.until_oom,
            scratch=scratch,
            sampling=sampling,
            **options,
        )


def planned_from_json(data: dict[str, Any]) -> Planned:
    """The inverse of records.to_json for a Planned. Raises ValueError where it is not one."""
    known = {each.name for each in fields(Planned)}
    try:
        rest = {key: value for key, value in data.items() if key in known and key != "case"}
        return Planned(case=Case(**data["case"]), **rest)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a planned case: {error}") from error


@dataclass(frozen=True)
class Selection:
    """What of a suite to measure, and how: the options of `perfdash run`, checked."""

    models: tuple[str, ...] = ()
    quick: bool = False
    batch_sizes: tuple[int, ...] = ()
    device: str = "cpu"
    dtypes: tuple[str, ...] = ()  # with no back end either: the suite's ways
    amp_dtype: str | None = None
    threads: int = 1
    scenario: str | None = None  # the suite's
    backends: tuple[str, ...] = ()
    dynamic: bool = False
    env: tuple[tuple[str, str], ...] = ()
    timeout_s: float | None = None
    phase_timeouts: tuple[tuple[str, float], ...] = ()
    memory_limit_gb: float | None = None
    output_limit_mb: float | None = None
    freezing: bool = False
    checkout: str | None = None  # of torchbench, for models that come by its loader
    data: str | None = None  # labelled data of the user's: an image folder, or a CSV of texts
    optimizer: str | None = None


def backend_names(settings: RunSettings) -> tuple[str, ...]:
    """The back ends of a run: names, and absolute paths of a user's own files. Raises UsageError."""
    available = registry.names("backends")
    names = []
    for given in settings.backend:
        name = registry.backend_name(given)
        if not given.endswith(".py"):
            if name not in available:
                raise UsageError(
                    f"--backend {given!r}: there are: {', '.join(available)}, or a file of your own"
                )
            names.append(name)
            continue
        if name in available:
            raise UsageError(f"--backend {given}: {name} is one of perfdash's own: call the file otherwise")
        path = Path(given).expanduser().absolute()
        try:
            registry.backend_facts(str(path))
        except LookupError as error:
            raise UsageError(f"--backend {given}: {error}") from error
        names.append(str(path))
    return tuple(names)


def select(suites: Sequence[Suite], selection: Selection) -> list[Planned]:
    """The cases of some suites, none twice.

    Raises UsageError for a pattern that matches nothing in any of them, with near names, and for a
    selection that leaves nothing.
    """
    names = [model.name for suite in suites for model in suite.models]
    among = " or ".join(suite.name for suite in suites)
    for pattern in selection.models:
        if not any(_matches(name, pattern) for name in names):
            raise UsageError(
                f"--models {pattern!r} matches no model of {among}{near(pattern, names)}; "
                f"`perfdash list {suites[0].name}` shows them all"
            )

    def wanted(model: Model) -> bool:
        if selection.models:
            return any(_matches(model.name, pattern) for pattern in selection.models)
        return model.quick or not selection.quick

    planned = [
        _plan(suite, model, selection, dtype, backend, batch_size)
        for suite in suites
        for model in suite.models
        if wanted(model)
        for backend, dtype in _ways(suite, selection)
        for batch_size in _batch_sizes(suite, model, selection)
    ]
    if not planned:
        raise UsageError(f"--quick: {among} marks no model with quick = true")
    if selection.data and not any(each.data_path for each in planned):
        raise UsageError(
            f"--data {selection.data}: it holds {judging.kind_of(selection.data)}, and no chosen model "
            f"of {among} is scored on these"
        )
    return list({each.case: each for each in planned}.values())


def _ways(suite: Suite, selection: Selection) -> list[tuple[str, str]]:
    """(back end, dtype) of each way that the suite's models are run in."""
    if suite.ways and not selection.backends and not selection.dtypes:
        every = [way for way in suite.ways if selection.device in way.devices]
        return [(way.backend, dtype) for way in every for dtype in way.dtypes]
    return [
        (backend, dtype)
        for dtype in selection.dtypes or ("float32",)
        for backend in selection.backends or ("inductor",)
    ]


def _plan(
    suite: Suite, model: Model, selection: Selection, dtype: str, backend: str, batch_size: int
) -> Planned:
    case = Case(
        suite=suite.name,
        model=model.name,
        device=selection.device,
        dtype=dtype,
        batch_size=batch_size,
        threads=selection.threads,
        scenario=selection.scenario or suite.scenario,
        backend=registry.backend_name(backend),
        dynamic=selection.dynamic,
        amp_dtype=_amp_dtype(selection) if dtype == "amp" else None,
    )
    setting: Setting = functools.partial(suite.setting, model, scenario=case.scenario)
    skips: tuple[Skip, ...] = setting("skip", ())
    reasons = [s.reason for s in skips if selection.device in s.devices and dtype in s.dtypes]
    module = registry.backend_facts(backend)
    reasons += _not_taken(case, module)
    baseline = suite.baseline_dtype if dtype != suite.baseline_dtype else None
    target = _target(suite, model)
    data, data_path = None, None
    if case.scenario == "inference":
        data, data_path = judging.labelled_data(setting, suite.loader_of(model), target, selection.data)
    memory_gb = selection.memory_limit_gb or setting("memory_limit_gb")
    output_mb = selection.output_limit_mb or setting("output_limit_mb", 64.0)
    return Planned(
        case=case,
        loader=suite.loader_of(model),
        target=target,
        config=_config(setting("config", {}), suite, model, selection),
        inputs=setting("inputs", {}),
        tolerance=judging.tolerance(setting, case, selection.freezing),
        factor=judging.factor(setting, dtype),
        cosine=setting("cosine", False),
        check_accuracy=setting("check_accuracy", True),
        env={**setting("env", {}), **dict(selection.env)},
        timeout_s=selection.timeout_s or setting("timeout_s", 3600.0),
        memory_limit_bytes=int(memory_gb * 2**30) if memory_gb else None,
        skip_reason="; ".join(reasons) or None,
        phase_timeouts={
            **PHASE_TIMEOUTS,
            **setting("phase_timeout_s", {}),
            **dict(selection.phase_timeouts),
        },
        output_limit_bytes=int(output_mb * 2**20),
        cost_s=setting("cost_s"),
        parameters=model.parameters,
        baseline_dtype=baseline,
        distance_bound=judging.distance_bound(
            setting, dtype, baseline, getattr(module, "LOSSY", False), model.variant or {}
        ),
        data=data,
        data_path=data_path,
        backend_file=backend if backend.endswith(".py") else None,
        loss=setting("loss"),
        optimizer=selection.optimizer or setting("optimizer", "sgd"),
        variant=model.variant or {},
        new_tokens=setting("new_tokens", 32),
        cache=setting("cache", "dynamic"),
        until_oom=setting("until_oom", False),
    )


def _not_taken(case: Case, backend: Any) -> list[str]:
    """Why the back end is not for the case's device or dtype."""
    found = []
    for what, value in (("devices", case.device), ("dtypes", case.dtype), ("scenarios", case.scenario)):
        taken = getattr(backend, what.upper(), ("inference",) if what == "scenarios" else None)
        if taken is not None and value not in taken:
            found.append(f"back end {case.backend} is for {what} {', '.join(taken)}, not for {value}")
    return found


def _config(config: dict[str, Any], suite: Suite, model: Model, selection: Selection) -> dict[str, Any]:
    """The configuration; torchbench's models are found in the user's checkout."""
    if suite.loader_of(model) != "torchbench":
        return config
    if selection.checkout is None:
        raise UsageError(
            f"model {model.name!r} comes from a checkout of torchbench: give its folder, --torchbench PATH"
        )
    return {**config, "checkout": selection.checkout}


def _amp_dtype(selection: Selection) -> str:
    return selection.amp_dtype or ("float16" if selection.device == "cuda" else "bfloat16")


def _target(suite: Suite, model: Model) -> str:
    """The target; a file of the python loader is found relative to the suite file."""
    target = model.target or model.name
    if suite.loader_of(model) != "python":
        return target
    file, _, function = target.rpartition(":")
    path = (suite.path.parent / file).resolve()
    if not file or not path.is_file():
        raise UsageError(
            f"{suite.path}: model {model.name!r}: target {target!r} must be file.py:function, "
            f"and {path} is not a file"
        )
    return f"{path}:{function}"


def _batch_sizes(suite: Suite, model: Model, selection: Selection) -> tuple[int, ...]:
    scenario = selection.scenario or suite.scenario
    several: tuple[int, ...] | None = suite.setting(model, "batch_sizes", scenario=scenario)
    found = selection.batch_sizes or several or (_batch_size(suite, model, selection),)
    climbs = suite.setting(model, "until_oom", scenario=scenario)
    return tuple(sorted(found)) if climbs else found


def _batch_size(suite: Suite, model: Model, selection: Selection) -> int:
    scenario = selection.scenario or suite.scenario
    sizes: BatchSize = suite.setting(model, "batch_size", BatchSize(), scenario=scenario)
    if selection.device == "cuda":
        return sizes.cuda
    return sizes.one_thread if selection.threads == 1 else sizes.cpu


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name.lower(), pattern.lower())
