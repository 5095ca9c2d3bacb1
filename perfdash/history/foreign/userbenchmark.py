"""The metric names of torchbench's userbenchmarks as cases and columns (pytorch/benchmark, userbenchmark/).

Three of them name model and test in the metric: torch-nightly (`test_eval[alexnet-cpu-eager]_latency`),
test_bench and group_bench (`model=alexnet, test=eval, device=cpu, bs=None, extra_args=[],
metric=latencies`) and cpu (`alexnet-eval_latency`). Latencies are medians in ms. Memory stays among
`others`: it is in gigabytes, but on CPU 100 times too large. A metric of any other name is a case of
its own, its number under `value`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfdash.history.foreign import dynamo, quantities
from perfdash.history.foreign.reading import Where, shown
from perfdash.history.foreign.telling import UNSPECIFIED, Told
from perfdash.history.rows import Row, thinned
from perfdash.records import Case, Status

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


@dataclass
class Found:
    """What is gathered of one case."""

    where: Where
    metrics: set[str] = field(default_factory=set)
    values: dict[str, float] = field(default_factory=dict)
    others: dict[str, float] = field(default_factory=dict)
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def value_of(value: Any, where: Where, name: str) -> Value:
    """A metric's value: a number, a list of numbers, or text (a status, an error)."""
    if isinstance(value, str):
        return shown(value, 2000)
    if isinstance(value, list) and value:
        return tuple(quantities.finite(one, where, name) for one in value)
    return quantities.finite(value, where, shown(name, 80))


def rows(
    metrics: Mapping[str, tuple[Where, Value]], benchmark: str, device: str | None, told: Told, threads: int
) -> tuple[Row, ...]:
    """The rows of one side. `device` is what its environment tells of it, if anything."""
    found: dict[Case, Found] = {}
    for name, (where, value) in metrics.items():
        case, metric = case_of(name, where, benchmark, device, told, threads)
        row = found.setdefault(case, Found(where))
        metric = "latency" if metric == "latencies" else metric
        if metric in row.metrics:
            raise where.wrong(f"{shown(name, 80)} is there twice for one case: remove one of them")
        row.metrics.add(metric)
        _put(row, case, metric, value, where)
    return tuple(_row(case, row) for case, row in found.items())


def case_of(
    name: str, where: Where, benchmark: str, device: str | None, told: Told, threads: int
) -> tuple[Case, str]:
    """The case that a metric's name tells of, and which metric of it."""
    match = _NAMED.fullmatch(name) or _NIGHTLY.fullmatch(name)
    if match is None and benchmark == "cpu":
        match, device = _CPU.fullmatch(name), "cpu"
    parts: dict[str, str | None] = match.groupdict() if match else {}
    backend, dtype, amp_dtype = parts.get("backend"), None, None
    if "arguments" in parts:
        backend, precision = _arguments(parts["arguments"] or "")
        dtype, amp_dtype = _PRECISIONS.get(precision or "", precision), _AMP.get(precision or "")
    case = Case(
        suite=told.suite or ("torchbench" if match else benchmark),
        model=quantities.name(parts.get("model") or name, where, "the metric's name"),
        device=_first(told, "device", parts.get("device") or device, where),
        dtype=_first(told, "dtype", dtype, where),
        batch_size=quantities.batch_size(parts.get("size"), where),
        threads=threads,
        scenario=_first(told, "scenario", _TESTS.get(parts.get("test") or ""), where),
        backend=_first(told, "backend", backend, where),
        amp_dtype=amp_dtype,
    )
    return case, parts.get("metric") or "value"


def _first(told: Told, option: str, found: str | None, where: Where) -> str:
    if found is None and getattr(told, option) is None:
        return UNSPECIFIED
    return told.agreed(option, found, where)


def _arguments(text: str) -> tuple[str, str | None]:
    """Back end and precision of extra_args: a list as Python shows it, or words."""
    words = re.sub(r"[\[\]',\"]", " ", text).replace("=", " ").split()
    told: dict[str, str] = {}
    for option in ("--torchdynamo", "--backend", "--precision"):
        if option in words[:-1]:
            at = words.index(option)
            told[option] = words[at + 1]
            del words[at : at + 2]
    backend = told.get("--torchdynamo") or told.get("--backend") or "eager"
    rest = [word for word in words if word != "--accuracy"]
    return backend.replace("_", "-") + (f"[{' '.join(rest)}]" if rest else ""), told.get("--precision")


def _put(row: Found, case: Case, metric: str, value: Value, where: Where) -> None:
    if isinstance(value, str):
        row.texts[metric] = value
        return
    side = None if case.backend == UNSPECIFIED else "eager_ms" if case.backend == "eager" else "backend_ms"
    number = value if isinstance(value, float) else statistics.median(value)
    if metric in _LATENCY and side:
        if isinstance(value, tuple):
            checked = (quantities.metric(side, one, where, metric) for one in value)
            row.samples[side] = thinned(checked)
            row.notes.append(f"{metric}: the median of {len(value)} values")
            row.values.setdefault(side, number)
        else:
            row.values[side] = quantities.metric(side, number, where, metric)
        return
    if isinstance(value, tuple):
        row.notes.append(f"{metric}: the median of {len(value)} values")
    row.others["latency_ms" if metric == "latency" else metric] = number


def _row(case: Case, row: Found) -> Row:
    status, notes = _status(case, row)
    details: dict[str, Any] = {"origin": row.where.origin}
    if row.texts:
        details["texts"] = row.texts
    if row.notes or notes:
        details["notes"] = row.notes + notes
    return Row(case, str(status), row.values, others=row.others, samples=row.samples, details=details)


def _status(case: Case, row: Found) -> tuple[Status, list[str]]:
    if word := row.texts.get("accuracy"):
        if word in _SKIPPED:
            return Status.SKIPPED, [word]
        known = dynamo.known_status(word)
        return (known, []) if known else (Status.FAIL_TO_RUN, [f"accuracy: {word}"])
    failed = next((text for name, text in row.texts.items() if name in _LATENCY or name == "value"), None)
    if failed is not None:
        if failed in _SKIPPED:
            return Status.SKIPPED, [failed]
        return (Status.EAGER_FAIL_TO_RUN if case.backend == "eager" else Status.FAIL_TO_RUN), [failed]
    return Status.PASS_DUE_TO_SKIP, ["accuracy was not checked: only numbers are known"]
