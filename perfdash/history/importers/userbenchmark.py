"""Import metrics JSON of torchbench's userbenchmarks: {"name", "environ", "metrics": {name: number}}.

Described in pytorch/benchmark, userbenchmark/ADDING_USERBENCHMARKS.md. The file's name contains the local
time at which it was written (`metrics-20230420004336.json`), which is taken as UTC.

Three of them name model and test in the metric: torch-nightly (`test_eval[alexnet-cpu-eager]_latency`),
test_bench and group_bench (`model=alexnet, test=eval, device=cpu, bs=None, extra_args=[],
metric=latencies`) and cpu (`alexnet-eval_latency`). Latencies are medians in ms. Memory is stored in
`others`, because on CPU it is 100 times too large. A metric with any other name becomes a case of its own,
with its number in `value`.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from perfdash.history.importers import dynamo_vocabulary
from perfdash.history.importers.foreign_files import (
    FileBeginning,
    FilePlace,
    checked_batch_size,
    checked_metric,
    checked_name,
    finite_number,
    is_number,
    json_values,
    parsed_number,
    shown,
    whole_text,
)
from perfdash.history.importers.import_options import UNSPECIFIED, ImportOptions, run_row, threads
from perfdash.history.results import Imported, Row, RunRow, thinned
from perfdash.records import Case, Status

NAME = "userbenchmark"
TITLE = 'metrics JSON of a torchbench userbenchmark ({"name", "environ", "metrics"})'
_KEYS = (re.compile(r'"environ"\s*:\s*\{'), re.compile(r'"metrics"\s*:\s*\{'))
_STAMP = re.compile(r"(?:metrics|regression)-(\d{14})\b")
Value = float | str | tuple[float, ...]

_NIGHTLY = re.compile(
    r"test_(?P<test>train|eval)\[(?P<model>.+)-(?P<device>[a-z]+)-(?P<backend>\w+)\]_(?P<metric>\w+)"
)
_NAMED = re.compile(
    r"model=(?P<model>.+?), test=(?P<test>train|eval), device=(?P<device>[a-z]+), bs=(?P<size>\w+), "
    r"extra_args=(?P<arguments>.*), metric=(?P<metric>\w+)"
)
_CPU = re.compile(
    r"(?P<model>.+)-(?P<test>train|eval)(?:-(?P<backend>\w+))?"
    r"_(?P<metric>latency|iter_latencies|throughput|iter_throughputs|cmem)"
)
_TESTS = {"train": "training", "eval": "inference"}
_LATENCY = ("latency", "iter_latencies")
_SKIPPED = {"skip", "skip_by_dryrun", "not_implemented"}
_PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "amp_bf16": "amp", "amp_fp16": "amp"}
_AMP = {"amp_bf16": "bfloat16", "amp_fp16": "float16"}


def recognises(sample: FileBeginning) -> bool:
    head = sample.head.lstrip()
    return head.startswith("{") and all(key.search(head) for key in _KEYS)


def read(paths: Sequence[Path], options: ImportOptions) -> list[Imported]:
    """One run for each file."""
    return [_run(path, options) for path in paths]


def _run(path: Path, options: ImportOptions) -> Imported:
    documents = list(json_values(path))
    where, document = documents[0]
    if len(documents) > 1:
        raise documents[1][0].wrong("a second JSON document in one file: import each alone")
    environ, metrics = document.get("environ"), document.get("metrics")
    if not isinstance(environ, dict) or not isinstance(metrics, dict) or not metrics:
        raise where.wrong("environ or metrics is missing or empty: nothing to import")
    benchmark = checked_name(document.get("name"), where, "name")
    notes: list[str] = []
    thread_count = threads(options, FilePlace(path))
    placed = dict(zip(metrics, _places(path, metrics), strict=True))
    values = {name: (placed[name], value_of(value, placed[name], name)) for name, value in metrics.items()}
    rows = rows_of_metrics(values, benchmark, device_of(environ), options, thread_count)
    return Imported(side_run(NAME, benchmark, "", path, environ, options, started_by_name(path), notes), rows)


def _places(path: Path, names: Iterable[str]) -> Iterator[FilePlace]:
    """The place of each name in the document, if the names are in order."""
    text = whole_text(path)
    position = counted = text.find('"metrics"')
    line = text.count("\n", 0, position) + 1
    for name in names:
        if position >= 0:
            position = text.find(json.dumps(name), position)
        if position >= 0:
            line, counted = line + text.count("\n", counted, position), position
        yield FilePlace(path, line)


def device_of(environ: dict[str, Any]) -> str | None:
    """The device type of an environment, whose `device` is cpu or a GPU's name."""
    device = environ.get("device")
    return None if not device else "cpu" if device == "cpu" else "cuda"


def started_by_name(path: Path) -> tuple[str, str] | None:
    """When a file was written, by its name."""
    if match := _STAMP.match(path.name):
        try:
            moment = datetime.strptime(match[1], "%Y%m%d%H%M%S")
        except ValueError:
            return None
        return f"{moment:%Y-%m-%dT%H:%M:%SZ}", "the file's name, taken as UTC"
    return None


def side_run(
    origin: str,
    benchmark: str,
    side: str,
    path: Path,
    environ: dict[str, Any],
    options: ImportOptions,
    started: tuple[str, str] | None,
    notes: Sequence[str],
) -> RunRow:
    """The run of a set of metrics; `side` is its side in a comparison, else empty."""
    plain = {
        shown(str(name), 80): shown(str(value))
        for name, value in environ.items()
        if isinstance(value, str | int | float)
    }
    device = plain.get("device", "")
    return run_row(
        origin,
        " ".join(filter(None, [benchmark, shown(path.stem), side])),
        [path],
        options,
        started=started,
        host_class=None if device in ("", "cpu") else device,
        harness=f"userbenchmark {benchmark}",
        environment={
            "worker": {
                "torch": plain.get("pytorch_version"),
                "torch_git_version": plain.get("pytorch_git_version") or plain.get("git_commit_hash"),
            },
            "environ": plain,
        },
        notes=notes,
    )


@dataclass
class CaseMetrics:
    """The metrics of one case so far."""

    where: FilePlace
    metrics: set[str] = field(default_factory=set)
    values: dict[str, float] = field(default_factory=dict)
    others: dict[str, float] = field(default_factory=dict)
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def value_of(value: Any, where: FilePlace, name: str) -> Value:
    """A metric's value: a number, a list of numbers, or text (a status, an error).

    PyYAML takes 1e-05, which has no point, for text; it is a number all the same.
    """
    if isinstance(value, str) and not is_number(value):
        return shown(value, 2000)
    if isinstance(value, list) and value:
        return tuple(_one_number(number, where, name) for number in value)
    return _one_number(value, where, name)


def _one_number(value: Any, where: FilePlace, name: str) -> float:
    read = parsed_number if isinstance(value, str) else finite_number
    return read(value, where, shown(name, 80))


def rows_of_metrics(
    metrics: Mapping[str, tuple[FilePlace, Value]],
    benchmark: str,
    device: str | None,
    options: ImportOptions,
    threads: int,
) -> tuple[Row, ...]:
    """The rows of one side. `device`: the device in its environment, if any."""
    cases: dict[Case, CaseMetrics] = {}
    for name, (where, value) in metrics.items():
        case, metric = case_of(name, where, benchmark, device, options, threads)
        row = cases.setdefault(case, CaseMetrics(where))
        metric = "latency" if metric == "latencies" else metric
        if metric in row.metrics:
            raise where.wrong(f"{shown(name, 80)} is there twice for one case: remove one of them")
        row.metrics.add(metric)
        _put(row, case, metric, value, where)
    return tuple(_row(case, row) for case, row in cases.items())


def case_of(
    name: str, where: FilePlace, benchmark: str, device: str | None, options: ImportOptions, threads: int
) -> tuple[Case, str]:
    """The case that a metric's name describes, and the name of the metric itself."""
    match = _NAMED.fullmatch(name) or _NIGHTLY.fullmatch(name)
    if match is None and benchmark == "cpu":
        match, device = _CPU.fullmatch(name), "cpu"
    parts: dict[str, str | None] = match.groupdict() if match else {}
    backend, dtype, amp_dtype = parts.get("backend"), None, None
    if "arguments" in parts:
        backend, precision = _arguments(parts["arguments"] or "")
        dtype, amp_dtype = _PRECISIONS.get(precision or "", precision), _AMP.get(precision or "")
    case = Case(
        suite=options.suite or ("torchbench" if match else benchmark),
        model=checked_name(parts.get("model") or name, where, "the metric's name"),
        device=_first(options, "device", parts.get("device") or device, where),
        dtype=_first(options, "dtype", dtype, where),
        batch_size=checked_batch_size(parts.get("size"), where),
        threads=threads,
        scenario=_first(options, "scenario", _TESTS.get(parts.get("test") or ""), where),
        backend=_first(options, "backend", backend, where),
        amp_dtype=amp_dtype,
    )
    return case, parts.get("metric") or "value"


def _first(options: ImportOptions, option: str, in_file: str | None, where: FilePlace) -> str:
    if in_file is None and getattr(options, option) is None:
        return UNSPECIFIED
    return options.agreed(option, in_file, where)


def _arguments(text: str) -> tuple[str, str | None]:
    """Back end and precision in extra_args, which is the repr of a list, or words."""
    words = re.sub(r"[\[\]',\"]", " ", text).replace("=", " ").split()
    options: dict[str, str] = {}
    for option in ("--torchdynamo", "--backend", "--precision"):
        if option in words[:-1]:
            at = words.index(option)
            options[option] = words[at + 1]
            del words[at : at + 2]
    backend = options.get("--torchdynamo") or options.get("--backend") or "eager"
    other_words = [word for word in words if word != "--accuracy"]
    return backend.replace("_", "-") + (f"[{' '.join(other_words)}]" if other_words else ""), options.get(
        "--precision"
    )


def _put(row: CaseMetrics, case: Case, metric: str, value: Value, where: FilePlace) -> None:
    if isinstance(value, str):
        row.texts[metric] = value
        return
    side = None if case.backend == UNSPECIFIED else "eager_ms" if case.backend == "eager" else "backend_ms"
    number = value if isinstance(value, float) else statistics.median(value)
    if metric in _LATENCY and side:
        if isinstance(value, tuple):
            checked = (checked_metric(side, latency, where, metric) for latency in value)
            row.samples[side] = thinned(checked)
            row.notes.append(f"{metric}: the median of {len(value)} values")
            row.values.setdefault(side, number)
        else:
            row.values[side] = checked_metric(side, number, where, metric)
        return
    if isinstance(value, tuple):
        row.notes.append(f"{metric}: the median of {len(value)} values")
    row.others["latency_ms" if metric == "latency" else metric] = number


def _row(case: Case, row: CaseMetrics) -> Row:
    status, notes = _status(case, row)
    details: dict[str, Any] = {"origin": row.where.origin}
    if row.texts:
        details["texts"] = row.texts
    if row.notes or notes:
        details["notes"] = row.notes + notes
    return Row(case, str(status), row.values, others=row.others, samples=row.samples, details=details)


def _status(case: Case, row: CaseMetrics) -> tuple[Status, list[str]]:
    if word := row.texts.get("accuracy"):
        if word in _SKIPPED:
            return Status.SKIPPED, [word]
        translated = dynamo_vocabulary.known_status(word)
        return (translated, []) if translated else (Status.FAIL_TO_RUN, [f"accuracy: {word}"])
    failed = next((text for name, text in row.texts.items() if name in _LATENCY or name == "value"), None)
    if failed is not None:
        if failed in _SKIPPED:
            return Status.SKIPPED, [failed]
        return (Status.EAGER_FAIL_TO_RUN if case.backend == "eager" else Status.FAIL_TO_RUN), [failed]
    return Status.PASS_DUE_TO_SKIP, ["accuracy was not checked: only numbers are known"]
