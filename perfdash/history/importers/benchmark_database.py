"""Import JSON of the PyTorch OSS benchmark database, schema v3: a record per metric.

{"benchmark": {name, mode, dtype, extra_info}, "model": {name, type, backend, origins}, "metric": {name,
benchmark_values, target_value, extra_info}, "runners": [...], "dependencies": {"pytorch": {sha, ...}}} as
an object, a list or JSON lines. Described in pytorch's wiki "How to integrate with PyTorch OSS benchmark
database" and, as a table, in pytorch/test-infra (benchmark.oss_ci_benchmark_v3); written for the dynamo
runners by output_json of benchmarks/dynamo/common.py. The schema has no unit: a metric gets a column only if
it is a metric of the dynamo runners, in a unit that fits, or names its unit ("unit", or "latency(ms)").
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfdash.history.importers import dynamo_vocabulary
from perfdash.history.importers.foreign_files import (
    MEMORY_BYTES,
    TIME_MS,
    FileBeginning,
    FilePlace,
    checked_batch_size,
    checked_metric,
    checked_name,
    finite_number,
    json_values,
    shown,
)
from perfdash.history.importers.import_options import ImportOptions, from_seconds, run_row, threads
from perfdash.history.results import Imported, Row, thinned
from perfdash.records import Case, Status

NAME = "benchmark-database"
TITLE = "JSON of the PyTorch OSS benchmark database (records of benchmark, model and metric)"
_METRIC = re.compile(r'"metric"\s*:\s*\{')
_OTHER = re.compile(r'"(benchmark|model)"\s*:\s*\{')
_DTYPES = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp64": "float64"}
_MODES = {"eval": "inference", "train": "training"}
_WITH_UNIT = re.compile(r"(?P<name>.+?)\s*\((?P<unit>[^()]{1,20})\)")
# The columns of the dynamo runners, with their units.
_DYNAMO = {"speedup": "", "abs_latency": "ms", "compilation_latency": "s", "compression_ratio": "",
           "eager_peak_mem": "gb", "dynamo_peak_mem": "gb", "unique_graphs": "", "graph_breaks": "",
           "calls_captured": ""}  # fmt: skip
_OF_RATIOS_AND_COUNTS = ("x", "ratio", "count")
_LATENCIES = {"latency", "median_latency", "inference_latency"}
_COMPILATIONS = {"compilation_time", "compile_time", "compilation_latency"}
_ACCURACY_RUN_COMPILATION = "accuracy_run_compilation_s"
_PEAKS = {"peak_memory", "peak_memory_usage", "peak_mem"}


@dataclass(frozen=True)
class Entry:
    """One metric of one case."""

    where: FilePlace
    values: tuple[float, ...]
    texts: tuple[str, ...]
    unit: str | None


Metrics = dict[str, Entry]  # by name


def recognises(sample: FileBeginning) -> bool:
    head = sample.head.lstrip()
    return head[:1] in ("{", "[") and bool(_METRIC.search(head)) and bool(_OTHER.search(head))


@dataclass
class _Group:
    """The records of one commit, runner and workflow. `tables`: the metrics of each case, by file."""

    where: FilePlace
    record: Mapping[str, Any]
    tables: dict[Path, dict[Case, Metrics]] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)


def read(paths: Sequence[Path], options: ImportOptions) -> list[Imported]:
    """One run for each file, or pair of the dynamo runners, and each commit, runner and workflow."""
    named = [path for path in paths if _kind_of(path)]
    files = [[path] for path in paths if path not in named]
    files += [list(pair.values()) for pair in dynamo_vocabulary.pairs(named, _kind_of)]
    return [run for of_run in files for run in _runs(of_run, options)]


def _kind_of(path: Path) -> str:
    """The kind that a file of the dynamo runners has in its name; empty for any other file."""
    return next((kind for kind in dynamo_vocabulary.KINDS if path.stem.endswith(f"_{kind}")), "")


def _runs(paths: Sequence[Path], options: ImportOptions) -> list[Imported]:
    groups: dict[str, _Group] = {}
    for path in paths:
        _read_into(groups, path, options)
    stem = dynamo_vocabulary.without_kind(paths[0]) if len(paths) > 1 else paths[0].stem
    imported = []
    names: list[str] = []
    for group in groups.values():
        where, record = group.where, group.record
        started = None
        if group.times:
            started = from_seconds(min(group.times), where, "timestamp"), "timestamp of its records"
        commit = _commit(record, where)
        name = " ".join(filter(None, [stem, commit[:10]]))
        names.append(name)
        if names.count(name) > 1:  # same commit, other runner or workflow
            name = f"{name} {names.count(name)}"
        host, host_class = _host(record, where)
        run = run_row(
            NAME,
            name,
            list(group.tables),
            options,
            started=started,
            host=host,
            host_class=host_class,
            harness=_harness(record, where),
            environment=_environment(record, where, commit),
        )
        is_pair = len(group.tables) > 1
        notes: dict[Case, list[str]] = {}
        cases = _joined(list(group.tables.values()), notes)
        rows = (_row(case, metrics, is_pair, notes.get(case, [])) for case, metrics in cases.items())
        imported.append(Imported(run, tuple(rows)))
    return imported


def _read_into(groups: dict[str, _Group], path: Path, options: ImportOptions) -> None:
    """Add the records of a file to their groups."""
    thread_count = threads(options, FilePlace(path))
    is_empty = True
    for where, record in json_values(path):
        is_empty = False
        if not isinstance(record, dict) or not isinstance(record.get("metric"), dict):
            raise where.wrong("not a record with a metric, as the benchmark database has them: remove it")
        key = json.dumps([_commit(record, where), _identity(record, where), _workflow(record)])
        group = groups.setdefault(key, _Group(where, record))
        if "timestamp" in record:
            group.times.append(finite_number(record["timestamp"], where, "timestamp"))
        table = group.tables.setdefault(path, {})
        metrics = table.setdefault(_case(record, where, options, thread_count), {})
        name, entry = _entry(record["metric"], where)
        if name in metrics:
            raise where.wrong(
                f"{name} of this case again, it is in line {metrics[name].where.line} too: remove one of them"
            )
        metrics[name] = entry
    if is_empty:
        raise FilePlace(path).wrong("no records in it: nothing to import")


def _joined(tables: Sequence[Mapping[Case, Metrics]], notes: dict[Case, list[str]]) -> dict[Case, Metrics]:
    """The metrics of each case from the files of a run; the first file with a metric counts.

    `tables`: of one file, or of the performance and the accuracy file. `notes` gets notes about cases.
    """
    cases = _cases_of_pair(tables[0], tables[1], notes) if len(tables) == 2 else {}
    joined: dict[Case, Metrics] = {}
    for table in tables:
        for case, metrics in table.items():
            metrics = _of_its_run(metrics)
            before = joined.setdefault(cases.get(case, case), {})
            for name in ("speedup", "accuracy"):
                if name in before and name in metrics:
                    raise metrics[name].where.wrong(
                        f"{name} of this case again, it is in {before[name].where} too: remove one of them"
                    )
            for name, entry in metrics.items():
                before.setdefault(name, entry)
    return joined


def _cases_of_pair(
    timed: Mapping[Case, Metrics], checked: Mapping[Case, Metrics], notes: dict[Case, list[str]]
) -> dict[Case, Case]:
    """The case of each pair of cases that differ only in the batch size, one in each file.

    Raises UsageError where these are not of one run.
    """
    alone: dict[Case, tuple[list[Case], list[Case]]] = {}
    for side, (table, other) in enumerate(((timed, checked), (checked, timed))):
        for case in table.keys() - other.keys():
            alone.setdefault(replace(case, batch_size=0), ([], []))[side].append(case)
    cases: dict[Case, Case] = {}
    for of_timed, of_checked in alone.values():
        if len(of_timed) == len(of_checked) == 1:
            first, second = of_timed[0], of_checked[0]
            where, other_place = (next(iter(m.values())).where for m in (timed[first], checked[second]))
            found: list[str] = []
            size = dynamo_vocabulary.size_of_pair(
                first.batch_size, where, second.batch_size, other_place, found
            )
            cases[first] = cases[second] = replace(first, batch_size=size)
            notes[cases[first]] = found
    return cases


def _of_its_run(metrics: Metrics) -> Metrics:
    """Give the compilation latency of an accuracy run, which is all of dynamo's time, its own name."""
    if "accuracy" not in metrics or "speedup" in metrics:
        return metrics
    names = {"compilation_latency": _ACCURACY_RUN_COMPILATION}
    return {names.get(name, name): entry for name, entry in metrics.items()}


def _part(value: Mapping[str, Any], name: str, where: FilePlace) -> dict[str, Any]:
    """An object within an object; empty if it is missing."""
    part = value.get(name)
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise where.wrong(f"{name} is no JSON object: not of this format, or damaged")
    return part


def _text(value: Mapping[str, Any], name: str, where: FilePlace) -> str | None:
    """Text in an object; None where it is missing or empty."""
    text = value.get(name)
    return None if text in (None, "") else checked_name(text, where, name)


def _runners(record: Mapping[str, Any], where: FilePlace) -> list[dict[str, Any]]:
    runners = record.get("runners") or []
    if not isinstance(runners, list) or not all(isinstance(runner, dict) for runner in runners):
        raise where.wrong("runners is no list of objects: not of this format, or damaged")
    return runners


def _identity(record: Mapping[str, Any], where: FilePlace) -> list[list[str]]:
    names = ("name", "type", "cpu_info", "cpu_count", "gpu_info", "gpu_count")
    return [[str(runner.get(name, "")) for name in names] for runner in _runners(record, where)]


def _host(record: Mapping[str, Any], where: FilePlace) -> tuple[str | None, str | None]:
    runners = _identity(record, where)
    host = ", ".join(filter(None, (runner[0] for runner in runners)))
    kinds = [" ".join(filter(None, runner[1:])) for runner in runners]
    return shown(host) or None, shown(" + ".join(filter(None, kinds))) or None


def _commit(record: Mapping[str, Any], where: FilePlace) -> str:
    dependencies = _part(record, "dependencies", where)
    sha = _text(_part(dependencies, "pytorch", where), "sha", where)
    if sha is None and record.get("repo", "pytorch/pytorch") == "pytorch/pytorch":
        sha = _text(record, "head_sha", where)
    return sha or ""


def _workflow(record: Mapping[str, Any]) -> list[str]:
    return [str(record.get(name, "")) for name in ("workflow_id", "run_attempt")]


def _harness(record: Mapping[str, Any], where: FilePlace) -> str:
    name = _text(_part(record, "benchmark", where), "name", where) or NAME
    return dynamo_vocabulary.HARNESS if name == "TorchInductor" else name


def _environment(record: Mapping[str, Any], where: FilePlace, commit: str) -> dict[str, Any]:
    dependencies = _part(record, "dependencies", where)
    version = _text(_part(dependencies, "pytorch", where), "version", where)
    facts = ("repo", "head_branch", "head_sha", "workflow_id", "run_attempt", "job_id")
    return {
        "worker": {"torch": version, "torch_git_version": commit or None},
        "dependencies": dependencies,
        "runners": _runners(record, where),
        "workflow": {name: record[name] for name in facts if name in record},
    }


def _case(record: Mapping[str, Any], where: FilePlace, options: ImportOptions, thread_count: int) -> Case:
    benchmark, model = _part(record, "benchmark", where), _part(record, "model", where)
    extra = _part(benchmark, "extra_info", where)
    origins = model.get("origins") or []
    if not isinstance(origins, list):
        raise where.wrong("model.origins is no list: not of this format, or damaged")
    origin = _text({"origin": origins[0]}, "origin", where) if origins else None
    suite = dynamo_vocabulary.suite(origin.lower()) if origin else _text(benchmark, "name", where)
    dtype, mode = _text(benchmark, "dtype", where), _text(benchmark, "mode", where)
    if dtype is not None:
        dtype = dtype.removeprefix("torch.")
    backend = _text(model, "backend", where)
    if backend is not None:
        backend = backend.replace("_", "-")
        if quantization := _text(extra, "quantization", where):
            backend += f"[{quantization}]"
    dtype = options.agreed("dtype", _DTYPES.get(dtype or "", dtype), where)
    return Case(
        suite=options.agreed("suite", suite, where),
        model=checked_name(model.get("name"), where, "model.name"),
        device=options.agreed("device", _text(extra, "device", where), where),
        dtype=dtype,
        batch_size=checked_batch_size(extra.get("batch_size"), where),
        threads=thread_count,
        scenario=options.agreed("scenario", _MODES.get(mode or "", mode), where),
        backend=options.agreed("backend", backend, where),
        dynamic=str(extra.get("is_dynamic", extra.get("dynamic", False))).lower() == "true",
        amp_dtype=options.amp_dtype if dtype == "amp" else None,
    )


def _entry(metric: Mapping[str, Any], where: FilePlace) -> tuple[str, Entry]:
    name, unit = (
        checked_name(metric.get("name"), where, "metric.name"),
        _text(metric, "unit", where),
    )
    if (match := _WITH_UNIT.fullmatch(name)) and _is_unit(match["unit"]):
        name, unit = match["name"], unit or match["unit"]
    texts = _part(metric, "extra_info", where).get("benchmark_values")
    values = metric.get("benchmark_values")
    if values is None and isinstance(texts, list) and texts and all(isinstance(t, str) for t in texts):
        return name, Entry(where, (), tuple(shown(text) for text in texts), unit)
    if not isinstance(values, list) or not values:
        raise where.wrong("metric.benchmark_values is no list of numbers, or empty: remove the record")
    return name, Entry(where, tuple(finite_number(v, where, name) for v in values), (), unit)


def _is_unit(text: str) -> bool:
    """Whether text in brackets is a unit; p50 in `ttft (p50)` belongs to the name."""
    units = (*TIME_MS, *MEMORY_BYTES, *_OF_RATIOS_AND_COUNTS, "%")
    return text.lower() in units or "/" in text  # tokens/s


def _row(case: Case, metrics: Metrics, is_pair: bool, notes: list[str]) -> Row:
    """`is_pair`: whether the run has both files, so that a case without accuracy or speedup failed."""
    where = next(iter(metrics.values())).where
    details: dict[str, Any] = {"origin": where.origin}
    samples: dict[str, tuple[float, ...]] = {}
    dynamo_numbers: dict[str, float | None] = {}  # under the names and in the units of the dynamo runners
    columns: dict[str, float] = {}
    others: dict[str, float] = {}
    accuracy: Status | None = None
    side = "eager" if case.backend == "eager" else "backend"
    for name, entry in metrics.items():
        if entry.texts:
            if name == "accuracy" and len(entry.texts) == 1:
                accuracy = dynamo_vocabulary.status(entry.texts[0], entry.where)
            details.setdefault("texts", {})[name] = list(entry.texts)
            continue
        if len(entry.values) > 1:
            notes.append(f"{name}: the median of {len(entry.values)} values")
        value, unit = statistics.median(entry.values), (entry.unit or "").lower()
        if unit:
            details.setdefault("units", {})[name] = entry.unit
        factor = _factor(unit, _DYNAMO[name]) if name in _DYNAMO else None
        target = _column(name, unit, side)
        if name in _DYNAMO and factor is None:
            notes.append(
                f"{name} in {shown(unit, 40)}: kept without a column, because that unit is not understood"
            )
        if name == _ACCURACY_RUN_COMPILATION:
            seconds = _factor(unit, "s")
            others[name if seconds else "compilation_latency"] = value * (seconds or 1)
        elif factor:
            dynamo_numbers[name] = value * factor
        elif target:
            column, factor = target
            if column in columns:
                raise entry.where.wrong(f"{column} of this case under two names: remove one of them")
            scaled = round(value * factor) if column.endswith("_bytes") else value * factor
            columns[column] = checked_metric(column, scaled, entry.where, name)
            if column.endswith("_ms") and len(entry.values) > 1:
                samples[column] = thinned(value * factor for value in entry.values)
        else:
            others[name] = value
    measured = dynamo_vocabulary.measured(dynamo_numbers, where, case.device)
    if twice := columns.keys() & measured.values.keys():
        raise where.wrong(f"{', '.join(sorted(twice))} of this case under two names: remove one of them")
    status = dynamo_vocabulary.ended(
        accuracy,
        others["speedup"] != 0 if "speedup" in others else measured.ran,
        checked=is_pair or accuracy is not None,
        timed=is_pair or "speedup" in metrics,
        notes=notes,
    )
    details |= {"notes": notes + measured.notes} if notes or measured.notes else {}
    details |= {"derived": measured.derived} if measured.derived else {}
    values, others = measured.values | columns, measured.others | others
    return Row(case, str(status), values, others=others, samples=samples, details=details)


def _factor(unit: str, expected: str) -> float | None:
    """The factor from `unit` to the expected unit ("": a ratio or count); None if there is none."""
    if not unit or (not expected and unit in _OF_RATIOS_AND_COUNTS):
        return 1.0
    for units in (TIME_MS, MEMORY_BYTES):
        if unit in units and expected in units:
            return units[unit] / units[expected]
    return None


def _column(name: str, unit: str, side: str) -> tuple[str, float] | None:
    """The column and factor for a metric that names its unit; None for other metrics."""
    base = name.lower().replace(" ", "_")
    if unit in TIME_MS:
        factor = TIME_MS[unit]
        if base in _COMPILATIONS:
            return "compilation_s", factor / 1000
        return (f"{side}_ms", factor) if base in _LATENCIES else None
    if unit in MEMORY_BYTES and base in _PEAKS:
        return f"{side}_peak_bytes", MEMORY_BYTES[unit]
    return None
