"""The runs and results that the history stores, from run folders and foreign files.

Each becomes a RunRow with Rows. The decisions here: which runs are the same run (`key`), which results have
changed (`content`), and which runs may be compared (`testbed`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any

from perfdash import methods
from perfdash.errors import UsageError
from perfdash.files import finite
from perfdash.metrics import PARTS
from perfdash.records import Case, Failure, Result, RunInfo

# Facts that change from run to run and do not describe how fast the host is.
BY_HOST = "by_host"  # in the environment of a run of several machines: the facts in which they differ
VOLATILE = ("load", "memory_available_bytes", "worker", "host", "core_list")
MAX_SAMPLES = 200  # for each side: enough to describe a latency; the run folder has all


# What the series of a size is called in Row.others, after the size.
TITLES_OF_SIZES = {"speedup": "speedup over eager", "cost": "times the static artefact's latency"}


@dataclass(frozen=True)
class Row:
    """One result of a case.

    `values`: its numbers by column (perfdash.metrics), without those that were not measured. `others`:
    metrics without a column, by name: of a foreign benchmark, or of each size of scenario sizes. `samples`:
    latencies in ms, by `eager_ms` and `backend_ms`. `details`: error, reasons and conditions, as plain JSON.
    `structure`: what compiling produced, as in records.Result, with what was captured. `code`: the generated
    code by file name, compressed (history.generated_code).
    """

    case: Case
    status: str
    values: Mapping[str, float]
    started: str | None = None
    verdict: str | None = None
    basis: str | None = None
    others: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    structure: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRow:
    """One run. `started` and `ended` are UTC, ISO 8601, to the second.

    `name`: its name for people. `origin`: the format it came from (`perfdash`, `dynamo-csv`, ...). `source`:
    the file or folder. `host`: the machine that measured it; several are joined by `+`. `host_class` and
    `setting`: both must be equal before two runs are compared. `environment`: host and packages, as in
    run.json, as far as they are known. `method`: the version of each metric in its records
    (perfdash.methods); empty: version 1 of each.
    """

    name: str
    started: str
    origin: str
    source: str
    host: str
    host_class: str
    setting: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    ended: str | None = None
    state: str = "done"
    command: tuple[str, ...] = ()
    noise: Mapping[str, Any] = field(default_factory=dict)
    expected: int | None = None  # number of cases in the plan
    perfdash: str | None = None
    uid: str | None = None  # identifies a run of perfdash
    # Of a foreign file: its name, assumptions. Of a merged run: `merged_from`, the names of its shards,
    # `merged_keys`, their keys, and `first_name`, its name before they were merged again. Of a run that was
    # replaced after it was judged: `judged_as`, its testbeds and starts then, until it is judged again.
    imported: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, int] = field(default_factory=dict)

    @property
    def testbed_digest(self) -> str:
        """The identity of the testbed. Only runs of one testbed are compared."""
        return digest([self.host_class, dict(self.setting)])

    @property
    def hosts(self) -> list[str]:
        """The machines that measured it."""
        return self.host.split("+")

    @property
    def merged_from(self) -> tuple[str, ...]:
        """The names of the runs that were merged into this one; empty for any other run."""
        return tuple(self.imported.get("merged_from") or ())

    @property
    def merged_keys(self) -> tuple[str, ...]:
        """The keys of the runs that were merged into this one; empty where they were not recorded."""
        return tuple(self.imported.get("merged_keys") or ())

    @property
    def way_of_measuring(self) -> str:
        """A digest of host class and options: the testbed without the line of builds."""
        options = {name: value for name, value in self.setting.items() if name != "line"}
        return digest([self.host_class, options])

    @property
    def facts(self) -> dict[str, Any]:
        """What the environment says of the host, without what changes from run to run."""
        return {name: value for name, value in self.environment.items() if name not in VOLATILE}

    @property
    def worker(self) -> Mapping[str, Any]:
        """The Python environment that was measured; empty where it is unknown."""
        worker: Mapping[str, Any] = self.environment.get("worker") or {}
        return worker

    @property
    def torch(self) -> str | None:
        return self.worker.get("torch")

    @property
    def torch_git_version(self) -> str | None:
        return self.worker.get("torch_git_version")

    @property
    def torch_build(self) -> str:
        """torch's version and the first ten digits of its commit; "?" for an unknown version."""
        return f"{self.torch or '?'} {(self.torch_git_version or '')[:10]}".strip()

    @property
    def python(self) -> str | None:
        return self.worker.get("python")

    @property
    def packages(self) -> dict[str, str]:
        """The versions of the installed packages."""
        return dict(self.worker.get("packages") or {})

    @property
    def commits(self) -> dict[str, str]:
        """The commits of the packages that come from a repository."""
        return dict(self.worker.get("commits") or {})

    @property
    def repositories(self) -> dict[str, str]:
        """Where pip took packages with a commit from."""
        return dict(self.worker.get("repositories") or {})


@dataclass(frozen=True)
class Imported:
    """A run with its results.

    `copied`: key and content of the original, for a run of another history. `taken_in`: when that history
    stored it.
    """

    run: RunRow
    rows: tuple[Row, ...]
    copied: tuple[str, str] | None = None
    taken_in: str | None = None

    @cached_property
    def key(self) -> str:
        """The identity of a run: the same for every import of it from anywhere.

        Shards merged in any order are the same run. A foreign file is identified by its name, start, host
        and settings, so that a corrected file replaces the first one.
        """
        if self.copied:
            return self.copied[0]
        run = self.run
        if run.uid:
            return _run_key(run.origin, run.uid)
        names = ("suite", "device", "dtype", "amp_dtype", "threads", "scenario", "backend", "dynamic")
        settings = sorted({tuple(str(getattr(row.case, name)) for name in names) for row in self.rows})
        machine = [run.host, run.host_class, dict(run.setting)]
        return digest([run.origin, self.file_name, run.started, machine, settings])

    @property
    def earlier_key(self) -> str:
        """The key of a foreign file in stores of perfdash 0.1, which included its numbers."""
        run = self.run
        return digest([run.origin, self.file_name, run.started, run.host, self._numbers()])

    @property
    def file_name(self) -> str:
        """The run's name in its foreign file. In the history, its start precedes the name."""
        return str(self.run.imported.get("name") or self.run.name)

    @cached_property
    def content(self) -> str:
        """A digest of the results; it differs after a run was resumed or corrected.

        It covers only columns of the first schema, so that a column added later changes no old run's digest.
        """
        if self.copied:
            return self.copied[1]
        parts = [self.run.state, self.run.ended, self._numbers()]
        if not self.run.uid:  # a correction of a foreign file may change any number
            parts.append([dict(row.values) for row in self.rows])
        return digest(parts)

    def _numbers(self) -> list[Any]:
        names = (
            "eager_ms",
            "backend_ms",
            "speedup",
            "speedup_low",
            "speedup_high",
            "compilation_s",
            "wall_s",
        )
        return [
            [case_digest(row.case), row.status, row.started, *(row.values.get(name) for name in names),
             dict(row.others)]
            for row in self.rows
        ]  # fmt: skip


@lru_cache(maxsize=1 << 14)
def case_digest(case: Case) -> str:
    """A digest that identifies a case.

    Fields at their default are left out, so that a field added later changes no digest.
    """
    plain = {each.name: getattr(case, each.name) for each in fields(case) if each.compare}
    return digest({name: value for name, value in plain.items() if value != _CASE_DEFAULTS.get(name, ...)})


_CASE_DEFAULTS = {option.name: option.default for option in fields(Case) if option.default is not MISSING}


def digest(value: Any) -> str:
    """A hexadecimal SHA-256 of plain values."""
    text = json.dumps(value, sort_keys=True, default=_plain, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def pruned_content(content: str) -> str:
    """The `content` of a run whose samples were removed."""
    return digest(["pruned", content])


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def from_run(info: RunInfo, results: Iterable[Result], source: str) -> Imported:
    """A run of perfdash as the history keeps it.

    Raises UsageError where its records were measured by different methods.
    """
    results = list(results)
    host_class, setting, case_settings = testbed(info)
    run = RunRow(
        name=info.id,
        started=info.started,
        origin="perfdash",
        source=source,
        host=_host(info, results),
        host_class=host_class,
        setting=setting,
        environment=info.environment,
        ended=info.ended,
        state=info.state,
        command=tuple(info.command),
        noise=finite(info.noise),
        expected=info.cases,
        perfdash=info.perfdash,
        uid=uid(info),
        imported=_of_shards(info),
        method=one_method(results, source),
    )
    return Imported(run, tuple(_configured(from_result(result), case_settings) for result in results))


def _host(info: RunInfo, results: Iterable[Result]) -> str:
    """The machines that measured the results; that of the command where an older perfdash recorded none."""
    hosts = {str(result.conditions["host"]) for result in results if result.conditions.get("host")}
    return "+".join(sorted(hosts)) or info.host


def _of_shards(info: RunInfo) -> dict[str, Any]:
    """What `RunRow.imported` says of a merged run."""
    if not info.merged_from:
        return {}
    keys = [_run_key("perfdash", shard) for shard in info.merged_uids]
    return {"merged_from": list(info.merged_from), **({"merged_keys": keys} if keys else {})}


def _run_key(origin: str, uid: str) -> str:
    return digest([origin, uid])


def _configured(row: Row, case_settings: str) -> Row:
    """A row under the configuration that equals the options of its run, where it says none itself."""
    from perfdash.suites.configuration import named

    case = named(replace(row.case, settings=row.case.settings or case_settings))
    return replace(row, case=case)


def one_method(results: Iterable[Result], source: str) -> dict[str, int]:
    """The method that all records of a run share. Raises UsageError if they differ."""
    first: Result | None = None
    for result in results:
        first = first or result
        if differences := methods.changes(first.method, result.method):
            raise UsageError(
                f"{source}: {first.case.name} and {result.case.name} were measured by different methods "
                f"({', '.join(differences)}), which are never mixed: remove the records of one method"
            )
    return dict(first.method) if first else {}


def uid(info: RunInfo) -> str:
    """The uid of a run: from its plan or its shards, else from name, start and host."""
    if info.merged_uids:
        return digest(sorted(info.merged_uids))
    if info.merged_from:
        plan = info.plan.get("fingerprint")
        return digest([plan, sorted(info.merged_from), sorted(info.host.split("+"))])
    return str(info.plan.get("uid") or digest([info.id, info.started, info.host]))


# Options of a run that change the meaning of its numbers, or say which series they belong to, and are no
# fields of a case.
_DEFAULTS: dict[str, Any] = {
    "allocator": "steady", "bind_memory": False, "compile_mode": None, "env": {}, "inductor_config": {},
    "line": None, "optimizer": None, "sizes": None, "sizes_of": None, "tf32": None, "weights": "random",
}  # fmt: skip
_SETTINGS = tuple(_DEFAULTS)
_SELECTS_GPUS = "CUDA_VISIBLE_DEVICES"  # of the host, whose GPUs are of one kind: it changes no number
_OF_THE_RUN = ("allocator", "line", "weights")  # of these: no configuration sets them


def testbed(info: RunInfo) -> tuple[str, dict[str, Any], str]:
    """The host class and the setting of a run, and the settings of its cases that these replace.

    Runs that differ in host class or setting are never compared. The setting names only options that differ
    from their defaults, so that an option added later leaves old runs on their testbeds. It includes the
    number of cases measured side by side on a host. Options that equal a configuration are settings of the
    cases instead (Case.settings), whether or not the run named the configuration.
    """
    environment = info.environment
    setting, case_settings = setting_of_options(info.configuration)
    setting |= _of_slots(info)
    # An earlier perfdash recorded the GPUs of the host also for runs on the CPU.
    if environment.get("gpus") and info.configuration.get("device") != "cpu":
        setting["gpus"] = environment["gpus"]
    return str(environment.get("host_class") or f"host {info.host}"), setting, case_settings


def setting_of_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """What the options of a run add to its setting, and to the settings of its cases (see testbed).

    `options`: as in run.json, so that both are known before the run measures anything.
    """
    env = {name: value for name, value in (options.get("env") or {}).items() if name != _SELECTS_GPUS}
    options = {**options, "env": env}
    setting = {
        name: options[name] for name in _SETTINGS if name in options and options[name] != _DEFAULTS[name]
    }
    return _without_configuration(setting, options.get("configuration"))


def without_machine(setting: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a setting that the options of the run decide, without cores and GPUs of the machine."""
    return {name: value for name, value in setting.items() if name in _SETTINGS}


def _of_slots(info: RunInfo) -> dict[str, Any]:
    """What the setting of a run says of its slots.

    `side_by_side`: the cases at a time on a host, of the kind with most slots, if several. `side_by_side_of`:
    those of all kinds, if sessions of one kind differ, or if one of several kinds was reduced
    (noise.null_at_start). An ordinary run has none: its other kinds follow from the machine and its options.
    """
    slot_counts: dict[tuple[int, bool], int] = {}  # by kind: threads, and whether they are bound
    at_a_time: dict[tuple[int, bool], set[int]] = {}
    compile_cores: dict[tuple[int, bool], int] = {}
    is_reduced = False
    for session in info.sessions:
        slots: list[dict[str, Any]] = session.get("slots", [])
        if not slots:  # a resumed run with nothing left to measure
            continue
        kind = len(slots[0].get("cores", ())), bool(session.get("bind_memory"))
        hosts = {slot.get("host", info.host) for slot in slots}
        at_once = session.get("at_once", len(slots))  # fewer where the null of all slots was out of bounds
        is_reduced = is_reduced or at_once < len(slots)
        at_a_time.setdefault(kind, set()).add(max(1, at_once // len(hosts)))
        slot_counts[kind] = max(len(slots), slot_counts.get(kind, 0))
        wider = max(slot.get("compile_cores", 0) for slot in slots)
        compile_cores[kind] = max(wider, compile_cores.get(kind, 0))
    if not slot_counts:
        return {}
    main = min(slot_counts, key=lambda kind: (-slot_counts[kind], kind))
    setting: dict[str, Any] = {}
    if max(at_a_time[main]) > 1:
        setting["side_by_side"] = max(at_a_time[main])
    is_mixed = any(len(numbers) > 1 for numbers in at_a_time.values())
    if is_mixed or (is_reduced and len(at_a_time) > 1):
        setting["side_by_side_of"] = {_kind(*kind): sorted(at_a_time[kind]) for kind in sorted(at_a_time)}
    if compile_cores[main]:
        setting["compile_cores"] = compile_cores[main]
    return setting


def _kind(threads: int, binds: bool) -> str:
    """A kind of slots in words: `1 thread`, `8 bound threads`."""
    return f"{threads}{' bound' if binds else ''} thread{'s' if threads != 1 else ''}"


def _without_configuration(
    setting: dict[str, Any], names: Sequence[str] | None
) -> tuple[dict[str, Any], str]:
    """The setting without the options that equal a configuration, and these; `names`: of --configuration."""
    from perfdash.suites.configuration import settings_of_options

    options = {name: value for name, value in setting.items() if name not in _OF_THE_RUN}
    case_settings = None if names or not options else settings_of_options(options)
    if case_settings is None:
        return setting, ""
    return {name: value for name, value in setting.items() if name in _OF_THE_RUN}, case_settings


def clock_of(row: Row) -> str | None:
    """The clock of both sides' latencies: wall or cpu; None if unknown."""
    conditions = row.details.get("conditions")
    clock = conditions.get("clock") if isinstance(conditions, Mapping) else None
    return clock if clock in ("wall", "cpu") else None


def is_cpu_time(row: Row) -> bool:
    """Whether the latencies of both sides are CPU time instead of wall time."""
    return clock_of(row) == "cpu"


def from_result(result: Result) -> Row:
    """Convert a result of perfdash; values that are not finite count as not measured."""
    values: dict[str, float | None] = {"wall_s": result.wall_s}
    for name, latency in (("eager_ms", result.eager_ms), ("backend_ms", result.backend_ms)):
        if latency:
            values[name] = latency.median
            values[f"{name}_low"], values[f"{name}_high"] = latency.ci_low, latency.ci_high
    speed = result.speedup
    if speed:
        values["speedup"] = speed.value
        if speed.basis != "within":
            values["speedup_low"], values["speedup_high"] = speed.ci_low, speed.ci_high
    ratios = result.conditions.get("process_ratios") or ()
    if result.conditions.get("within_variance") is not None and ratios:
        # The standard deviation of the mean over the processes, from the samples within each process.
        values["speedup_sd"] = math.sqrt(result.conditions["within_variance"] / len(ratios))
    for name in (
        "compilation_s", "compilation_cpu_s", "first_call_s", "warm_compilation_s", "compression_ratio",
        "eager_peak_bytes", "backend_peak_bytes", "compile_peak_bytes", "compile_held_bytes", "weights_bytes",
    ):  # fmt: skip
        values[name] = getattr(result, name)
    values.update(_parts(result))
    # Records of before have counts of 0 for back end eager, which compiles nothing.
    capture = {} if result.case.backend == "eager" else result.capture
    for name in ("graphs", "graph_breaks", "calls_captured"):
        values[name] = capture.get(name)
    values["recompiles"] = result.structure.get("recompiles")
    for side, counted in result.instructions.items():
        values[f"{side}_instructions"] = counted.get("median")
    fallbacks = capture.get("fallbacks")
    values["fallbacks"] = sum(fallbacks.values()) if isinstance(fallbacks, dict) else None
    details: dict[str, Any] = {
        "error": _failure(result.error) if result.error else None,
        "failed_phase": result.failed_phase,
        "skip_reason": result.skip_reason,
        "accuracy": result.accuracy,  # with the distance to eager, where it was measured
        "quality": result.quality,
        "artifact": result.artifact,
        "sizes": result.sizes,
        "instances": result.instances,
        "parts_ms": result.parts_ms,
        "spread_ms": {
            side: {"mean": latency.mean, "stdev": latency.stdev, "n": latency.n}
            for side, latency in (("eager", result.eager_ms), ("backend", result.backend_ms))
            if latency and result.parts_ms
        },
        "parameters": result.memory.get("parameters"),
        "compile_phases_s": result.compile_phases_s,
        "instructions": result.instructions,
        "load_s": result.phases_s.get("load"),  # from configuration or file to a model on its device
        "break_reasons": result.capture.get("break_reasons"),
        "recompile_limit": result.capture.get("recompile_limit"),
        "structure": _structure(result.structure),
        "conditions": {
            name: value for name, value in result.conditions.items() if isinstance(value, int | float | str)
        },
        # For the intervals of later nights (history.earlier_nights).
        "processes": {"ratios": list(ratios), "within": result.conditions.get("within_variance")}
        if len(ratios) > 1
        else None,
        "notes": result.notes,
    }
    details = finite(details)
    return Row(
        case=result.case,
        status=str(result.status),
        started=result.started,
        values={k: v for k, v in values.items() if v is not None and math.isfinite(v)},
        verdict=speed.verdict if speed else None,
        basis=speed.basis if speed else None,
        others=_series_of_sizes(result.sizes),
        samples={
            name: thinned(latency.samples)
            for name, latency in (("eager_ms", result.eager_ms), ("backend_ms", result.backend_ms))
            if latency and latency.samples
        },
        details={name: value for name, value in details.items() if value},
        structure=finite(_whole_structure(result)),
    )


def _whole_structure(result: Result) -> dict[str, Any]:
    """What compiling produced, with the breaks and fallbacks by name."""
    if not result.structure:
        return {}
    names = (
        "graphs", "graph_breaks", "calls_captured", "break_reasons", "break_places", "fallbacks",
        "recompile_limit", "cudagraph_skips",
    )  # fmt: skip
    captured = {name: result.capture[name] for name in names if name in result.capture}
    return {**result.structure, **captured}


def _parts(result: Result) -> dict[str, float]:
    """The median milliseconds of the parts of the compiled step that have a column."""
    parts = result.parts_ms.get("backend") or {}
    medians = {f"{name}_ms": part.get("median") for name, part in parts.items()}
    return {name: value for name, value in medians.items() if name in PARTS and value}


def _series_of_sizes(sizes: Mapping[str, Any]) -> dict[str, float]:
    """The speedup, and the cost beside an artefact of that size alone, of each size and of all."""
    every = {**(sizes.get("by_size") or {}), "all sizes": sizes.get("overall") or {}}
    return {
        f"{size}: {title}": float(value)
        for size, figures in every.items()
        for name, title in TITLES_OF_SIZES.items()
        if (value := _value(figures.get(name))) is not None
    }


def _value(figure: Any) -> float | None:
    """The number of a figure that may have an interval; None where it is not finite."""
    value = figure.get("value") if isinstance(figure, Mapping) else figure
    return value if value is not None and math.isfinite(value) else None


def _structure(structure: Mapping[str, Any]) -> dict[str, Any]:
    """What compiling produced, without the single kernels, which stay in the run folder."""
    names = (
        "guards",
        "graph_nodes",
        "kernel_calls",
        "code_bytes",
        "version",
        "fingerprint",
        "frames_given_up",
    )
    kept = {name: structure[name] for name in names if structure.get(name) is not None}
    if "kernels" in structure:
        kept["kernels"] = len(structure["kernels"])
    if "library_calls" in structure:
        kept["library_calls"] = sum(structure["library_calls"].values())
    return kept


def _failure(error: Failure) -> dict[str, Any]:
    """A failure without its log, which stays in the run folder."""
    plain: dict[str, Any] = {"type": error.type, "message": error.message}
    return plain | ({"tail": [line[:500] for line in error.tail]} if error.tail else {})


def thinned(samples: Iterable[float]) -> tuple[float, ...]:
    """Keep at most MAX_SAMPLES samples, spread evenly over the time of sampling."""
    values = tuple(samples)
    if len(values) <= MAX_SAMPLES:
        return values
    return tuple(values[index * len(values) // MAX_SAMPLES] for index in range(MAX_SAMPLES))
