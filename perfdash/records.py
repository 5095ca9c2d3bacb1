"""The shared language: what a case is, what was measured of it, how it ended.

Standard library only (methods.py too), and no syntax newer than Python 3.9: the worker imports this file
under any interpreter that has torch. The JSON forms are read by other programs, so a name here is never
changed, only added; a change of meaning raises SCHEMA, and another way of measuring raises the metric's
number in methods.py.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional, get_args, get_origin, get_type_hints

from perfdash import methods

Dtype = Literal["float32", "bfloat16", "float16", "amp"]
Phase = Literal[
    "start", "load", "eager", "compile", "accuracy", "quality", "latency", "standalone", "sizes",
    "memory", "instances",
]  # fmt: skip
SCHEMA = 4
DEFAULT_CONFIGURATION = "default"
# Shipped configurations with dynamic shapes, whose names say so.
NAMED_DYNAMIC = frozenset({"dynamic", "dynamic-cpp-wrapper"})
NOT_TONIGHT = "not tonight: "  # begins the reason of a case of that status
_LONGEST_NAME = 160  # characters: file systems take 255 bytes, and more is appended to it


class Status(str, enum.Enum):
    """How a case ended. One word a row, whatever happened."""

    PASS = "pass"
    PASS_DUE_TO_SKIP = "pass_due_to_skip"
    FAIL_ACCURACY = "fail_accuracy"
    FAIL_TO_RUN = "fail_to_run"
    EAGER_FAIL_TO_RUN = "eager_fail_to_run"
    EAGER_TWO_RUNS_DIFFER = "eager_two_runs_differ"
    NO_FINITE_OUTPUT = "no_finite_output"
    MODEL_FAIL_TO_LOAD = "model_fail_to_load"
    MISSING_DEPENDENCY = "missing_dependency"
    NEEDS_NETWORK = "needs_network"
    MISSING_DATA = "missing_data"
    OOM = "oom"
    EAGER_OOM = "eager_oom"
    TIMEOUT = "timeout"
    CRASH = "crash"
    INFRA_ERROR = "infra_error"
    SKIPPED = "skipped"
    NOT_TONIGHT = "not_tonight"  # the run's budget of hours went to other cases

    def __str__(self) -> str:
        return self.value


PASSING = frozenset({Status.PASS, Status.PASS_DUE_TO_SKIP})
# The case did not run to its end. This is true whichever method checks its outputs.
FAILED_TO_RUN = frozenset(
    {
        Status.FAIL_TO_RUN,
        Status.EAGER_FAIL_TO_RUN,
        Status.MODEL_FAIL_TO_LOAD,
        Status.MISSING_DEPENDENCY,
        Status.NEEDS_NETWORK,
        Status.MISSING_DATA,
        Status.OOM,
        Status.EAGER_OOM,
        Status.TIMEOUT,
        Status.CRASH,
    }
)
# Wheels of PyTorch's own libraries, which name the commit of these repositories that they were built from.
COMMIT_IN_WHEEL = {
    "torchvision": "https://github.com/pytorch/vision",
    "torchaudio": "https://github.com/pytorch/audio",
    "torchtext": "https://github.com/pytorch/text",
    "torchdata": "https://github.com/pytorch/data",
}
# The case was not measured, for a reason that is not the build's.
NOT_MEASURED = frozenset({Status.SKIPPED, Status.NOT_TONIGHT, Status.INFRA_ERROR})


@dataclass(frozen=True)
class Case:
    """One model in one setting: the identity by which results are compared over time."""

    suite: str
    model: str
    device: str = "cpu"
    dtype: str = "float32"
    batch_size: int = 1
    threads: int = 1
    scenario: str = "inference"
    backend: str = "inductor"
    dynamic: bool = False
    amp_dtype: Optional[str] = None
    # What the configuration sets beyond the fields above, as JSON with sorted keys; empty for nothing. The
    # name of the configuration is no part of the identity: two with equal settings measure the same.
    settings: str = ""
    configuration: str = field(default=DEFAULT_CONFIGURATION, compare=False)

    @property
    def name(self) -> str:
        """A file name of at most 160 characters, for one case.

        Where characters are lost, or many are cut off, a digest keeps cases apart. Of `a_b` and `a-b` both
        are `a-b`: names of models have underscores for the most part, and stay readable.
        """
        parts = [
            self.suite,
            self.model,
            self.device,
            f"amp-{self.amp_dtype}" if self.dtype == "amp" else self.dtype,
            f"bs{self.batch_size}",
            f"t{self.threads}",
            self.scenario,
            self.backend,
        ]
        parts += [word for word in [variation(self.configuration, self.dynamic)] if word]
        plain = [re.sub(r"[^A-Za-z0-9.-]+", "-", part).strip(".") for part in parts]
        name = "_".join(plain)
        if len(name) <= _LONGEST_NAME and plain == [part.replace("_", "-") for part in parts]:
            return name
        digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:8]
        return f"{name[: _LONGEST_NAME - 9]}-{digest}"

    @property
    def options(self) -> dict[str, Any]:
        """What the configuration sets beyond the fields of a case."""
        options: dict[str, Any] = json.loads(self.settings) if self.settings else {}
        return options


def variation(configuration: str, dynamic: bool) -> str:
    """A word for a configuration: its name, `dynamic` for dynamic shapes without one, empty for default.

    `freezing+dynamic` where a configuration has dynamic shapes and its name does not say so.
    """
    if configuration == DEFAULT_CONFIGURATION:
        return "dynamic" if dynamic else ""
    return f"{configuration}+dynamic" if dynamic and configuration not in NAMED_DYNAMIC else configuration


def variation_in_words(configuration: str, dynamic: bool, settings: str = "") -> list[str]:
    """The configuration for a title: none for default, else one text; with its settings where it has some."""
    word = variation(configuration, dynamic)
    if word in ("", "dynamic"):
        return ["dynamic shapes"] if word else []
    options = json.loads(settings) if settings else {}
    pairs = [
        f"{key}={json.dumps(item)}" if isinstance(value, dict) else f"{name}={value}"
        for name, value in options.items()
        for key, item in (value.items() if isinstance(value, dict) else [(name, value)])
    ]
    return [f"configuration {word}" + (f" ({' '.join(pairs)})" if pairs else "")]


@dataclass(frozen=True)
class Sampling:
    """When the latency sampling of one process ends: never because a result looks significant."""

    precision: float = 0.01  # half width of the within-process 95 % interval, relative
    min_pairs: int = 20
    max_pairs: int = 2000
    min_s: float = 0.5
    budget_s: float = 8.0  # after the warm-up
    slow_budget_s: float = 14.0  # the same, where a call takes over 0.3 s


@dataclass(frozen=True)
class Option:
    """How users set a field that is annotated with it.

    A field of Specification becomes a key of suite files (suites/suite_file.py). With a help text it also
    becomes an option of `perfdash run`, as every field of run_options.RunOptions does: a flag
    (cli/settings_flags.py), a PERFDASH_ variable and a key of perfdash.toml (settings.py). `above` and
    `at_least` are lower bounds. `configuration`: of a field of RunOptions: it is also a key of configuration
    files, as every option of Specification with a help text is.
    """

    help: str = ""
    duration: bool = False  # seconds, which users may also write as 90s, 30m or 2h
    above: Optional[float] = None
    at_least: Optional[float] = None
    infinite: bool = False  # `inf` is accepted, for no limit
    words: tuple[str, ...] = ()  # accepted beside a number, and resolved by settings.py
    training: bool = False  # in suite files only among the keys of `training`
    configuration: bool = False


@dataclass(frozen=True)
class Specification:
    """How a case is built, run and judged, by its suite and the run's settings.

    A new option of a case is a field with an Option here. The suite's value, or the user's, reaches the plan
    and the worker under the field's name.
    """

    case: Case
    loader: str
    target: str  # the model, as its loader knows it
    config: dict[str, Any] = field(default_factory=dict)  # of the model, as its loader understands it
    inputs: Annotated[dict[str, Any], Option()] = field(default_factory=dict)
    tolerance: float = 1e-3
    factor: float = 2.0  # how many times eager's own error the back end's may be
    cosine: Annotated[bool, Option()] = False
    check_accuracy: Annotated[bool, Option()] = True
    # The dtype of the eager side; None: that of the case. Where they differ, or the back end is lossy by
    # intent, outputs are judged by their distance to eager's, which may be so large.
    baseline_dtype: Optional[str] = None
    distance_bound: Optional[float] = None
    # What makes one number of the outputs in a training step (worker/losses): the model's own loss, the cross
    # entropy with labels drawn at random, the mean of the outputs, or the mean of their squares.
    loss: Annotated[
        Optional[Literal["model", "cross_entropy", "mean", "mean_square"]], Option(training=True)
    ] = None
    optimizer: Annotated[
        Literal["sgd", "adam", "none"],
        Option(
            "The optimizer of a training step: sgd, adam, none.  [default: that of the suite, or sgd]",
            training=True,
        ),
    ] = "sgd"
    new_tokens: Annotated[int, Option(above=0)] = 32  # of a generation
    cache: Annotated[Literal["dynamic", "static"], Option()] = "dynamic"  # of a generation's keys and values
    sizes: Annotated[
        tuple[int, ...],
        Option("With --scenario sizes: run one compiled model at these sizes.  [default: 2,4,8]"),
    ] = ()
    sizes_of: Annotated[
        Literal["batch", "sequence", "image"],
        Option(
            "The dimension that --sizes changes: batch, sequence, image.  "
            "[default: that of the suite, or batch]"
        ),
    ] = "batch"
    variant: dict[str, Any] = field(default_factory=dict)  # of the configuration, on the back end's side
    data: Optional[str] = None  # a kind of labelled data (worker/datasets) for the quality
    data_path: Optional[str] = None  # where it lies, unless the kind brings its own
    backend_file: Optional[str] = None  # of a back end of the user's own
    # Of float32 on a GPU: all sides and back ends round the factors of products to TF32, or none does.
    tf32: Annotated[
        bool,
        Option(
            "On a GPU, let eager and compiled both use TF32 for float32.  "
            "[default: that of the suite, or off]"
        ),
    ] = False
    compile_mode: Optional[str] = None
    inductor_config: dict[str, Any] = field(default_factory=dict)
    # Of several batch sizes those after the first that is out of memory are not run. Eager may run out of
    # memory; then the back end is measured without it.
    until_oom: Annotated[bool, Option()] = False
    memory_limit_bytes: Optional[int] = None
    output_limit_bytes: int = 64 << 20
    timeout_s: float = 3600.0
    phase_timeouts: dict[str, float] = field(default_factory=dict)  # seconds, by phase

    @property
    def backend(self) -> str:
        """The back end as worker.registry finds it: its name, or its file."""
        return self.backend_file or self.case.backend


@dataclass(frozen=True)
class ProcessOptions:
    """How every process of a run measures, whatever the case.

    A new option of that kind is a field here and in run_options.RunOptions. Its name brings it to the worker.
    """

    weights: str = "random"  # random | pretrained | the path of a file
    seed: int = 1337
    allocator: str = "steady"  # steady | default | jemalloc | tcmalloc
    no_code: bool = False  # the generated code is not kept
    bind_memory: bool = False  # to the nodes of the cores, and each thread to a core of its own
    # The cores of each process that runs the case at once with the others; () for none (worker/instances).
    instance_cores: tuple[tuple[int, ...], ...] = ()
    # Whether the packages of the interpreter are what is measured: a model file must hide none of them.
    of_build: bool = False
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class Job(ProcessOptions, Specification):
    """One process of a case: the specification, and how this process measures."""

    scratch: str = ""  # an empty folder of the case's own: caches, temporary files
    # full | untimed (all but latency) | replica (latency only, compiled code from the case's cache) |
    # load (nothing but that) | check (load, and eager once) | try_eager, try_backend (that side alone: does
    # memory suffice) | profile (times per kernel, into `folder`) | subgraph (the smallest part that is
    # compiled wrongly, into `folder`) | probe (what the interpreter can do) | isa (what inductor compiles
    # for)
    role: str = "full"
    process: int = 0  # which of the case's processes: each has its own order of pairs
    # The folder of what inductor makes once a machine: C++ headers, tests of vector instructions.
    machine_cache: Optional[str] = None
    # The cores that compiling for a GPU may use beside the case's own; empty: those alone.
    compile_cores: tuple[int, ...] = ()
    folder: str = ""  # of the roles profile and subgraph: where they write
    shared: str = ""  # the folder of what cases of one eager side share (worker/shared_eager); none: nothing
    group: Optional[str] = None  # cgroup.procs of the group that holds it to its memory limit


def declared_options(cls: Any) -> dict[str, tuple[Any, Option]]:
    """(type, Option) of each field of a class that is annotated with an Option."""
    hints = get_type_hints(cls, include_extras=True)
    parts = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Annotated}
    return {name: (kind, option) for name, (kind, option, *_) in parts.items() if isinstance(option, Option)}


@dataclass
class Measurement:
    """A latency in milliseconds: median, its 95 % interval, and the clean samples."""

    median: float
    ci_low: float
    ci_high: float
    mean: float
    stdev: float
    n: int
    samples: list[float] = field(default_factory=list)


# The verdict where other programs spoilt the samples, and measuring again did not mend that.
DISTURBED = "disturbed"


@dataclass
class Speedup:
    """Eager latency / backend latency, with the 95 % interval of the truth.

    Before method 3 of `speedup` the interval was of what another run would report.

    basis says what the interval covers: `processes` (the case was sampled in several processes), `pooled`
    (in one, and the spread between processes is that of the run's other cases or of earlier nights) or
    `within` (one process only: too narrow, and never enough for a verdict). A single pair of samples has no
    interval: both ends are None.
    """

    value: float
    ci_low: float | None
    ci_high: float | None
    verdict: str  # faster | slower | equivalent | inconclusive | disturbed
    basis: str = "within"


@dataclass
class Failure:
    """Why a case did not finish: the error, the log's name and last lines.

    limit, where one was passed: {what: time | memory | output, scope: case | phase, limit, unit}.
    """

    type: str
    message: str
    log: Optional[str] = None
    tail: list[str] = field(default_factory=list)
    limit: Optional[dict[str, Any]] = None


@dataclass
class Result:
    """The record of one finished case (`results.jsonl`); None stands for "not measured"."""

    case: Case
    started: str
    wall_s: float
    status: Status
    schema: int = SCHEMA
    method: dict[str, int] = field(default_factory=lambda: dict(methods.CURRENT))  # a version per metric
    failed_phase: Optional[str] = None
    error: Optional[Failure] = None
    skip_reason: Optional[str] = None
    eager_ms: Optional[Measurement] = None
    backend_ms: Optional[Measurement] = None
    speedup: Optional[Speedup] = None
    # Milliseconds of the parts of a step, by side and part: {"eager": {"forward": {median, ci_low, ci_high,
    # mean, stdev, n}, ...}, "backend": ...}; of decode also steps: {n, first, median, slowest, slowest_at}.
    parts_ms: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    compilation_s: Optional[float] = None
    compilation_cpu_s: Optional[float] = None
    first_call_s: Optional[float] = None
    # Exclusive wall seconds by phase (worker/compile_phases), and the rest: their sum is compilation_s.
    compile_phases_s: Optional[dict[str, float]] = None
    # compilation_s of a further process, which finds the compiler caches that the first one has filled.
    warm_compilation_s: Optional[float] = None
    # Instructions per call, of one thread in user mode, by side: {eager, backend: {median, low, high, n}};
    # empty on machines that show no hardware counters.
    instructions: dict[str, Any] = field(default_factory=dict)
    eager_peak_bytes: Optional[int] = None
    backend_peak_bytes: Optional[int] = None
    compile_peak_bytes: Optional[int] = None
    compile_held_bytes: Optional[int] = None
    weights_bytes: Optional[int] = None
    compression_ratio: Optional[float] = None
    memory: dict[str, Any] = field(default_factory=dict)  # the parts behind the peaks
    accuracy: dict[str, Any] = field(default_factory=dict)
    capture: dict[str, Any] = field(default_factory=dict)
    # What compiling produced (worker/structure): {kernels: [{name, kind, operators, graph, calls, bytes,
    # fingerprint, text}], kernel_calls, library_calls {name: calls}, code_bytes, guards, graph_nodes,
    # graph_operators, recompiles, recompiles_by_phase, frames_given_up {reason: frames}, failed_guards
    # {guard: times}, isa, settings, version, fingerprint, text (of the code without isa and settings), loaded
    # {library or package: digest}, model_files {path: digest} of a model of no library, model {key of its
    # suite: value}; of eager also eager_operators {name: calls in one step} and registered_operators (by
    # Python code of the model)}. Empty for a back end without dynamo; without a key that this torch does not
    # tell.
    structure: dict[str, Any] = field(default_factory=dict)
    # The file that a back end makes (aot-inductor, export): {kind, package_bytes, export_s, compile_s,
    # load_s, standalone}, the last of a fresh process without the model's code
    # (worker/standalone_package): {runs, reason, import_s, load_s, first_call_s, grown_bytes, equal,
    # largest_difference}.
    artifact: dict[str, Any] = field(default_factory=dict)
    # Of --instances, all at once (worker/instances): {count, threads, cores, eager, backend, speedup}, a side
    # {throughput (samples/s), slowest_ms, median_ms [by instance]}, or {failed: reason}.
    instances: dict[str, Any] = field(default_factory=dict)
    # Of scenario sizes (runner/sized_record): {of, sizes, by_size {name: {eager_ms, backend_ms, speedup,
    # first_call_s, graphs, static_ms, static_first_call_s, cost}}, overall {speedup, cost}, fixed,
    # automatic, failed {static | automatic: why it is not known}}.
    sizes: dict[str, Any] = field(default_factory=dict)
    quality: dict[str, Any] = field(default_factory=dict)
    phases_s: dict[str, float] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    # Attempts that failed because of the machine and were retried: {started, status, error, where}.
    attempts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def nothing_captured(self) -> bool:
        """Whether dynamo captured nothing, so that the compiled side is eager; False where it is unknown."""
        counts = (self.capture.get("graphs"), self.capture.get("calls_captured"))
        return self.case.backend != "eager" and 0 in counts

    @property
    def marked_status(self) -> str:
        """The status, marked where nothing was captured: such a 1.00x means nothing."""
        if self.status is Status.PASS and self.nothing_captured:
            return "pass (nothing captured)"
        if self.status is Status.PASS and self.capture.get("recompile_limit"):
            return "pass (recompile limit)"
        if self.status is Status.PASS and self.speedup and self.speedup.verdict == DISTURBED:
            return "pass (disturbed)"
        if self.status is Status.CRASH and self.error:
            return f"crash ({self.error.type})"
        return str(self.status)

    def _facts(self) -> dict[str, str]:
        """The main numbers with their units, as texts by their names; what was not measured is left out."""
        facts = {"status": self.marked_status}
        if self.speedup:
            ends = (self.speedup.ci_low, self.speedup.ci_high)
            interval = "" if None in ends else " [{:.3f}, {:.3f}]".format(*ends)
            facts["speedup"] = f"{self.speedup.value:.3f}x{interval} {self.speedup.verdict}"
        for name, latency in (("eager", self.eager_ms), (self.case.backend, self.backend_ms)):
            if latency:
                facts[name] = f"{latency.median:.4g} ms"
        if self.compilation_s is not None:
            facts["compilation"] = f"{self.compilation_s:.1f} s"
        if self.compression_ratio:
            facts["compression ratio"] = f"{self.compression_ratio:.3f}x"
        if self.error:
            facts["error"] = f"in {self.failed_phase}: {self.error.type}: {self.error.message.strip()}"
        if self.skip_reason:
            facts["skipped"] = self.skip_reason
        return facts

    def __repr__(self) -> str:
        facts = self._facts()
        lines = [f"{self.case.name}: {facts.pop('status')}"]
        return "\n".join([*lines, *(f"  {name}: {text}" for name, text in facts.items())])

    def _repr_html_(self) -> str:
        """The result as a notebook shows it: a table of the main numbers, escaped."""
        import html

        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
            for name, text in self._facts().items()
        )
        return f"<p>{html.escape(self.case.name)}</p>\n<table>{rows}</table>"


@dataclass
class RunInfo:
    """What `run.json` says: when, where, with what; one a run."""

    id: str
    started: str
    host: str
    command: list[str]
    configuration: dict[str, Any]
    environment: dict[str, Any]
    cases: int
    perfdash: str
    schema: int = SCHEMA
    ended: Optional[str] = None
    state: str = "running"  # running | done | interrupted | failed | incomplete (merged, some missing)
    noise: dict[str, Any] = field(default_factory=dict)
    # What was to be measured: {fingerprint, total, shard, dynamo_names}; the same fingerprint in all shards.
    plan: dict[str, Any] = field(default_factory=dict)
    # One entry each time it was started or resumed, for each kind of slots: {started, ended, state, command,
    # slots}; at_once: fewer slots measured at a time; bind_memory: whether their memory is bound;
    # out_of_service: slots that failed while others measured: {slot, host, cores, gpu, since, error}.
    sessions: list[dict[str, Any]] = field(default_factory=list)
    merged_from: list[str] = field(default_factory=list)  # the names of its shards
    merged_uids: list[str] = field(default_factory=list)  # and their uids, since names may be equal


def to_json(record: Any) -> dict[str, Any]:
    """A record as plain dicts, lists, numbers and strings, ready for json.dumps."""
    plain = dataclasses.asdict(record)
    if isinstance(record, Result):
        plain["status"] = record.status.value
    return plain


def _build(cls: Any, data: dict[str, Any]) -> Any:
    names = {f.name for f in dataclasses.fields(cls)}
    return cls(**{key: value for key, value in data.items() if key in names})


def job_from_json(data: dict[str, Any]) -> Job:
    """The inverse of to_json for a Job."""
    data = dict(data)
    data["case"] = _build(Case, data["case"])
    data["sampling"] = _build(Sampling, data["sampling"])
    data["compile_cores"] = tuple(data.get("compile_cores", ()))
    data["sizes"] = tuple(data.get("sizes") or ())
    data["instance_cores"] = tuple(tuple(cores) for cores in data.get("instance_cores") or ())
    job: Job = _build(Job, data)
    return job


def result_from_json(data: dict[str, Any]) -> Result:
    """The inverse of to_json for a Result. Raises ValueError for a newer schema or a broken record.

    A record of schema 1 has no method: it counts as version 1 of every metric. Records before schema 3 have
    neither the phases of compiling nor the warm compilation latency.
    """
    if data.get("schema", 0) > SCHEMA:
        raise ValueError(
            f"record has schema {data['schema']}, this perfdash knows up to {SCHEMA}: update perfdash"
        )
    data = dict(data)
    try:
        data["case"] = _build(Case, data["case"])
        data["status"] = Status(data["status"])
        of_record = data.get("method", dict.fromkeys(methods.CURRENT, 1))
        data["method"] = {str(name): int(number) for name, number in of_record.items()}
        for key, cls in (
            ("error", Failure),
            ("eager_ms", Measurement),
            ("backend_ms", Measurement),
            ("speedup", Speedup),
        ):
            if data.get(key) is not None:
                data[key] = _build(cls, data[key])
        result: Result = _build(Result, data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a perfdash result record: {error}") from error
    return result


def run_info_from_json(data: dict[str, Any]) -> RunInfo:
    """The inverse of to_json for a RunInfo. Raises ValueError for a newer schema or a broken file."""
    if data.get("schema", 0) > SCHEMA:
        raise ValueError(f"run.json has schema {data['schema']}, newer than {SCHEMA}: update perfdash")
    try:
        info: RunInfo = _build(RunInfo, data)
    except TypeError as error:
        raise ValueError(f"not a perfdash run.json: {error}") from error
    return info
