"""Selects the cases of a run from suites: models, batch sizes, dtypes and back ends."""

from __future__ import annotations

import fnmatch
import functools
import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import perfdash
from perfdash.errors import UsageError
from perfdash.records import DEFAULT_CONFIGURATION, Case, Job, Specification, declared_options
from perfdash.run_options import configuration_keys
from perfdash.settings import RunSettings
from perfdash.suggestions import did_you_mean
from perfdash.suites import suite_file
from perfdash.suites.configuration import OF_A_CASE, Configuration, chosen, named, settings_of_options
from perfdash.suites.suite_file import OWN, BatchSize, Model, OwnModels, Setting, Skip, Suite
from perfdash.suites.torchbench_checkout import find_checkout
from perfdash.worker import registry

# Default limits of the phases in seconds; the limit of the whole case holds as well. They are generous:
# they end phases that hang, not slow ones.
PHASE_TIMEOUTS: dict[str, float] = {
    "start": 300.0,
    "load": 900.0,
    "eager": 1800.0,
    "compile": 2700.0,
    "accuracy": 1800.0,
    "quality": 3600.0,
    "latency": 1800.0,
    "standalone": 900.0,
    "sizes": 3600.0,
    "instances": 3600.0,
    "memory": 1200.0,
}

_SIZES = (2, 4, 8)  # of scenario sizes, unless the suite or the user names others

# Options that act only where a back end reads them.
_OF_BACKENDS = ("compile_mode", "dynamic", "inductor_config")
# Options of inductor that choose the vector instructions that it compiles for.
_OF_VECTOR_ISA = ("cpp.simdlen", "cpp.vec_isa_ok")
# Modes of torch.compile that call a model through CUDA graphs.
_MODES_WITH_GRAPHS = ("reduce-overhead", "max-autotune")

# Fields of a specification that the user's option or the suite's key of the same name sets, without a rule.
_DECLARED = declared_options(Specification)


@dataclass(frozen=True)
class Planned(Specification):
    """A case that a run is to measure, or the reason why it does not."""

    env: dict[str, str] = field(default_factory=dict)  # of the worker
    skip_reason: str | None = None
    cost_s: float | None = None  # about how long it takes
    parameters: int | None = None

    @property
    def needs_cpp(self) -> bool:
        """Whether a C++ compiler makes the case's code."""
        return self.case.device == "cpu" and self.needs_inductor

    @property
    def needs_inductor(self) -> bool:
        """Whether inductor makes the case's code: it shares what a machine needs once."""
        try:
            backend = registry.backend_facts(self.backend_file or self.case.backend)
        except LookupError:  # the file is missing: the worker reports it
            return False
        return hasattr(backend, "vector_isa") and self.skip_reason is None

    @property
    def shares_as(self) -> Planned:
        """The case whose needs it shares: of a back end of the user's own that may use inductor, inductor's.

        Else its compilation latency would depend on whether inductor is measured in the same run.
        """
        if self.backend_file is None or self.needs_inductor:
            return self
        try:
            captures = getattr(registry.backend_facts(self.backend_file), "CAPTURES", True) is not False
        except LookupError:  # the file is missing: the worker reports it
            captures = False
        by_inductor = replace(self, case=replace(self.case, backend="inductor"), backend_file=None)
        return by_inductor if captures else self

    @property
    def chooses_vector_isa(self) -> bool:
        """Whether the case names its vector instructions, instead of compiling for the machine's own."""
        return "ATEN_CPU_CAPABILITY" in self.env or any(key in self.inductor_config for key in _OF_VECTOR_ISA)

    @property
    def eager_side(self) -> Case:
        """The case without its back end and configuration: equal in cases that have the same eager side."""
        return replace(self.case, backend="", dynamic=False, settings="", configuration=DEFAULT_CONFIGURATION)

    @property
    def folder_of_files(self) -> Path:
        """The folder that paths of the model's files begin at: of its file, the checkout, or perfdash."""
        if self.loader == "torchbench":
            return Path(self.config["checkout"])
        if self.loader == "models":
            return Path(perfdash.__file__).parents[1]
        return Path(self.target.rpartition(":")[0]).parent

    def job(self, **options: Any) -> Job:
        """One process of this case; `options` are the fields that Job adds, or replaces."""
        specification = {field.name: getattr(self, field.name) for field in fields(Specification)}
        return Job(**{**specification, **options})


def planned_from_json(data: dict[str, Any]) -> Planned:
    """The inverse of records.to_json for a Planned. Raises ValueError where it is not one."""
    names = {field.name for field in fields(Planned)}
    try:
        values = {key: value for key, value in data.items() if key in names and key != "case"}
        values["sizes"] = tuple(values.get("sizes") or ())  # JSON has lists only
        if values.get("timeout_s", 0) is None:  # JSON has no infinity, here and below
            values["timeout_s"] = math.inf
        limits = values.get("phase_timeouts", {})
        values["phase_timeouts"] = {key: math.inf if s is None else s for key, s in limits.items()}
        return Planned(case=Case(**data["case"]), **values)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a planned case: {error}") from error


def equal_configuration(settings: RunSettings) -> str | None:
    """Case.settings of a run without --configuration: those of the configuration that equals its options."""
    options = {
        key: value
        for key in configuration_keys().keys() - OF_A_CASE
        if (value := getattr(settings, key)) != RunSettings.model_fields[key].default
    }
    return settings_of_options(options)


def backend_names(settings: RunSettings, configuration: Configuration | None = None) -> tuple[str, ...]:
    """The back ends of a run: names, and absolute paths of a user's own files. Raises UsageError.

    A back end that its configuration names and that does not exist stays: its cases are skipped.
    """
    available = registry.names("backends")
    names = []
    for given in settings.backend:
        name = registry.backend_name(given)
        if not given.endswith(".py"):
            if name not in available and "backend" not in (configuration.values if configuration else ()):
                raise UsageError(
                    f"--backend: no back end named {given!r}{did_you_mean(given, available)}; there are: "
                    f"{', '.join(available)}, or a file of your own (mine.py)"
                )
            names.append(name)
            continue
        if name in available:
            raise UsageError(f"--backend {given}: {name} is one of perfdash's own: call the file otherwise")
        path = Path(os.path.abspath(Path(given).expanduser()))
        try:
            registry.backend_facts(str(path))
        except LookupError as error:
            raise UsageError(f"--backend {given}: {error}") from error
        names.append(str(path))
    return tuple(names)


def select(suites: Sequence[Suite], settings: RunSettings) -> list[Planned]:
    """The cases of some suites, none twice.

    Raises UsageError for a pattern that matches nothing in any of them, with near names, and for a
    selection that leaves nothing.
    """
    among = " or ".join(suite.name for suite in suites)
    listed = [suite for suite in suites if not isinstance(suite, OwnModels)]
    names = [model.name for suite in listed for model in suite.models]
    for pattern in settings.models:
        if not listed:
            raise UsageError(
                f"--models {pattern!r} selects models of suites, and this run has none: add --suite NAME, or "
                "leave --models out"
            )
        if not any(_matches(name, pattern) for name in names):
            raise UsageError(
                f"--models {pattern!r} matches no model of {' or '.join(suite.name for suite in listed)}"
                f"{did_you_mean(pattern, names)}; `perfdash list {_listed(listed[0])}` shows them all"
            )

    def wanted(suite: Suite, model: Model) -> bool:
        if isinstance(suite, OwnModels):
            return True
        if settings.models:
            return any(_matches(model.name, pattern) for pattern in settings.models)
        return model.quick or not settings.quick

    planned = [
        case
        for suite in suites
        for model in suite.models
        if wanted(suite, model)
        for configuration, under in _configured(settings)
        for case in _cases(suite, model, under, configuration)
    ]
    if not planned:
        raise UsageError(f"--quick: {among} marks no model with quick = true")
    data = _data(settings)
    if data and not any(case.data_path for case in planned):
        raise UsageError(
            f"--data {data}: it holds {suite_file.kind_of(data)}, and no chosen model "
            f"of {among} is scored on these"
        )
    return _without_repeats(planned)


def _listed(suite: Suite) -> str:
    """What `perfdash list` takes for a suite: the name of a shipped one or of a checkout, else its file."""
    is_named = suite.name in suite_file.suite_names() or suite.path.suffix != ".toml"
    return suite.name if is_named else shlex.quote(str(suite.path))


def _configured(settings: RunSettings) -> list[tuple[Configuration | None, RunSettings]]:
    """Each configuration of a run, with the settings of its cases; None without any. Raises UsageError."""
    if not settings.configuration:
        return [(None, settings)]
    return [(each, each.applied(settings)) for each in chosen(settings.configuration)]


def _cases(
    suite: Suite, model: Model, settings: RunSettings, configuration: Configuration | None
) -> list[Planned]:
    backends = backend_names(settings, configuration)
    return [
        _plan(suite, model, settings, dtype, backend, batch_size, configuration)
        for backend, dtype in ways(suite, settings, backends)
        for batch_size in _batch_sizes(suite, model, settings)
    ]


def _without_repeats(planned: Sequence[Planned]) -> list[Planned]:
    """Each case once.

    Raises UsageError where two back ends have one name, or two configurations are the same with the run's
    options.
    """
    first: dict[Case, Planned] = {}
    files: dict[str, str | None] = {}
    for each in planned:
        name = each.case.backend
        file = files.setdefault(name, each.backend_file)
        if file != each.backend_file:
            raise UsageError(
                f"--backend: {file or name} and {each.backend_file or name} are both called {name}, and "
                "results know them by this name: rename one"
            )
        other = first.setdefault(each.case, each)
        if other.case.configuration != each.case.configuration:
            raise UsageError(
                f"--configuration: with the options of this run {other.case.configuration} and "
                f"{each.case.configuration} measure the same ({each.case.model}); give one of them"
            )
    return list(first.values())


def ways(suite: Suite, settings: RunSettings, backends: Sequence[str]) -> list[tuple[str, str]]:
    """(back end, dtype) of each way that the suite's models are run in."""
    if suite.ways and not backends and not settings.dtype:
        every = [way for way in suite.ways if settings.device in way.devices]
        return [(way.backend, dtype) for way in every for dtype in way.dtypes]
    return [
        (backend, dtype) for dtype in settings.dtype or ("float32",) for backend in backends or ("inductor",)
    ]


def _plan(
    suite: Suite,
    model: Model,
    settings: RunSettings,
    dtype: str,
    backend: str,
    batch_size: int,
    configuration: Configuration | None,
) -> Planned:
    case = Case(
        suite=suite.name,
        model=model.name,
        device=settings.device,
        dtype=dtype,
        batch_size=batch_size,
        threads=settings.threads,
        scenario=settings.scenario or suite.scenario,
        backend=registry.backend_name(backend),
        dynamic=settings.dynamic,
        amp_dtype=_amp_dtype(settings) if dtype == "amp" else None,
        settings=configuration.settings if configuration else equal_configuration(settings) or "",
        configuration=configuration.name if configuration else DEFAULT_CONFIGURATION,
    )
    case = case if configuration else named(case)
    setting: Setting = functools.partial(suite.setting, model, scenario=case.scenario)
    skips: tuple[Skip, ...] = setting("skip", ())
    reasons = [s.reason for s in skips if settings.device in s.devices and dtype in s.dtypes]
    refused = None
    if configuration:
        own = suite.scenario if "scenario" in configuration.values else case.scenario
        refused = configuration.reason_against(case, own)
    module = None if refused else registry.backend_facts(backend)
    reasons += [refused] if refused else [*_not_taken(case, module), *_no_graphs(case, module, settings)]
    baseline = suite.baseline_dtype if dtype != suite.baseline_dtype else None
    target = _target(suite, model)
    data, data_path = None, None
    if case.scenario == "inference":
        data, data_path = suite_file.labelled_data(setting, suite.loader_of(model), target, _data(settings))
    memory_gb = settings.memory_limit or setting("memory_limit_gb")
    output_mb = settings.output_limit or setting("output_limit_mb", 64.0)
    freezing = bool(settings.inductor_config.get("freezing")) and "inductor_config" in _options_read(module)
    given = {name: getattr(settings, name, None) for name in _DECLARED}
    declared = {name: setting(name) if value is None else value for name, value in given.items()}
    declared["inputs"] = suite_file.inputs_on(settings.device, declared["inputs"] or {})
    declared["sizes"] = _sizes(declared["sizes"], case.scenario, settings)
    return Planned(
        case=case,
        loader=suite.loader_of(model),
        target=target,
        config=_config(setting("config", {}), suite, model, settings),
        tolerance=suite_file.tolerance(setting, case, freezing),
        factor=suite_file.factor(setting, dtype),
        env={**setting("env", {}), **settings.env},
        timeout_s=settings.timeout or setting("timeout_s", 3600.0),
        memory_limit_bytes=int(memory_gb * 2**30) if memory_gb else None,
        skip_reason="; ".join(reasons) or None,
        phase_timeouts={
            **PHASE_TIMEOUTS,
            **setting("phase_timeout_s", {}),
            **{str(phase): seconds for phase, seconds in settings.phase_timeout.items()},
        },
        output_limit_bytes=int(output_mb * 2**20),
        parameters=model.parameters,
        baseline_dtype=baseline,
        distance_bound=suite_file.distance_bound(
            setting, dtype, baseline, getattr(module, "LOSSY", False), model.variant or {}
        ),
        data=data,
        data_path=data_path,
        backend_file=backend if backend.endswith(".py") else None,
        compile_mode=settings.compile_mode,
        inductor_config=settings.inductor_config,
        variant=model.variant or {},
        cost_s=_cost(setting("cost_s"), suite.scenario, declared["sizes"]),
        **{name: value for name, value in declared.items() if value is not None},
    )


def _cost(of_one: float | None, scenario: str, sizes: tuple[int, ...]) -> float | None:
    """About how long a case takes, seconds; `of_one`: in the suite's own scenario.

    Scenario sizes compiles and measures once more for each size.
    """
    return of_one if of_one is None or scenario == "sizes" else of_one * (1 + len(sizes))


def _sizes(sizes: tuple[int, ...] | None, scenario: str, settings: RunSettings) -> tuple[int, ...]:
    """The sizes that one artefact runs in scenario `sizes`; none in any other. Raises UsageError."""
    if scenario != "sizes":
        if any(getattr(settings, name, None) for name in ("sizes", "sizes_of")):
            raise UsageError(f"--sizes and --sizes-of are for --scenario sizes, not for {scenario}")
        return tuple(sizes or ())
    if settings.instances:
        raise UsageError("--instances counts samples of one size: leave it out with --scenario sizes")
    if settings.allocator in ("jemalloc", "tcmalloc"):
        # It is loaded in the further processes only, and the main one times the artefacts of one size.
        raise UsageError(
            f"--allocator {settings.allocator} is for the timing of one artefact: leave it out with "
            "--scenario sizes"
        )
    sizes = sizes or _SIZES
    if len(set(sizes)) < max(2, len(sizes)) or min(sizes) < 1:
        given = ",".join(map(str, sizes))
        raise UsageError(f"--sizes {given}: give two or more different sizes of at least 1, e.g. 2,4,8")
    return tuple(sizes)


def _not_taken(case: Case, backend: Any) -> list[str]:
    """Why the back end is not for the case's device, dtype, scenario or configuration."""
    reasons = []
    for attribute, value in (("devices", case.device), ("dtypes", case.dtype), ("scenarios", case.scenario)):
        taken = getattr(backend, attribute.upper(), ("inference",) if attribute == "scenarios" else None)
        if taken is not None and value not in taken:
            reasons.append(f"back end {case.backend} is for {attribute} {', '.join(taken)}, not for {value}")
    if unread := sorted(_set_by_configuration(case) - set(_options_read(backend))):
        setting = f", which configuration {case.configuration} sets"
        setting = setting if case.configuration != DEFAULT_CONFIGURATION else ""
        reasons.append(f"back end {case.backend} does not read {', '.join(unread)}{setting}")
    return reasons


def _no_graphs(case: Case, backend: Any, settings: RunSettings) -> list[str]:
    """Why inductor cannot run a case through the CUDA graphs that the options ask for."""
    asked = settings.compile_mode in _MODES_WITH_GRAPHS or settings.inductor_config.get("triton.cudagraphs")
    by_inductor = asked and case.device == "cuda" and hasattr(backend, "vector_isa")
    if not by_inductor or case.scenario != "generation":
        return []
    return ["CUDA graphs cannot run generation: each step would overwrite the cache that the next one reads"]


def _options_read(backend: Any) -> tuple[str, ...]:
    """The options among _OF_BACKENDS that a back end reads; all where it does not say."""
    read: tuple[str, ...] = getattr(backend, "OPTIONS", _OF_BACKENDS)
    return read


def _set_by_configuration(case: Case) -> set[str]:
    """The options among _OF_BACKENDS by which the case's series differs from that without a configuration."""
    return {*_OF_BACKENDS} & {*case.options, *(["dynamic"] if case.dynamic else [])}


def _config(config: dict[str, Any], suite: Suite, model: Model, settings: RunSettings) -> dict[str, Any]:
    """The configuration; torchbench's models are found in the user's checkout."""
    if suite.loader_of(model) != "torchbench":
        return config
    return {**config, "checkout": str(find_checkout(settings.torchbench))}


def _data(settings: RunSettings) -> str | None:
    """The absolute path of the user's labelled data, an image folder or a CSV."""
    return str(settings.data.expanduser().absolute()) if settings.data else None


def _amp_dtype(settings: RunSettings) -> str:
    return settings.amp_dtype or ("float16" if settings.device == "cuda" else "bfloat16")


def _target(suite: Suite, model: Model) -> str:
    """The target; a file of the python loader is found relative to the suite file."""
    target = model.target or model.name
    if suite.loader_of(model) != "python":
        return target
    file, _, function = target.rpartition(":")
    path = (suite.path.parent / file).resolve()
    if not file or not path.is_file():
        where = f"--model {target}" if suite.name == OWN else f"{suite.path}: model {model.name!r}: {target}"
        if not file:
            raise UsageError(f"{where}: give it as file.py:function")
        raise UsageError(f"{where}: there is no file {path}")
    return f"{path}:{function}"


def _batch_sizes(suite: Suite, model: Model, settings: RunSettings) -> tuple[int, ...]:
    scenario = settings.scenario or suite.scenario
    several: tuple[int, ...] | None = suite.setting(model, "batch_sizes", scenario=scenario)
    sizes = settings.batch_size or several or (_batch_size(suite, model, settings),)
    climbs = suite.setting(model, "until_oom", scenario=scenario)
    return tuple(sorted(sizes)) if climbs else sizes


def _batch_size(suite: Suite, model: Model, settings: RunSettings) -> int:
    scenario = settings.scenario or suite.scenario
    sizes: BatchSize = suite.setting(model, "batch_size", BatchSize(), scenario=scenario)
    if settings.device == "cuda":
        return sizes.cuda
    return sizes.one_thread if settings.threads == 1 else sizes.cpu


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name.lower(), pattern.lower())
