"""Writes results as the CSV files of the dynamo runners, for scripts that read those.

Where that harness's definition is wrong (memory in percent of memory, docs/method.md) the column
holds perfdash's number: gigabytes of peak memory, ratio eager / compiled.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfdash.history.results import setting_of_options
from perfdash.records import Case, Result, Status, variation

_STATS = (
    "calls_captured",
    "unique_graphs",
    "graph_breaks",
    "unique_graph_breaks",
    "autograd_captures",
    "autograd_compiles",
    "cudagraph_skips",
)
_RUN_OPTIONS = "run_options"  # of perfdash: names of the options that change the numbers or series of the run
PERFORMANCE = (
    "dev",
    "name",
    "batch_size",
    "speedup",
    "abs_latency",
    "compilation_latency",
    "compression_ratio",
    "eager_peak_mem",
    "dynamo_peak_mem",
    *_STATS,
    # Columns of perfdash: why the speedup of this row counts in no mean.
    "disturbed",
    "recompile_limit",  # dynamo's message
    _RUN_OPTIONS,
)
ACCURACY = ("dev", "name", "batch_size", "accuracy", *_STATS, _RUN_OPTIONS)

# That harness's words; it has none for the rest, which read as a model that did not run.
_WORDS = {
    Status.OOM: "OOM",
    Status.EAGER_OOM: "eager_1st_run_OOM",
    Status.EAGER_FAIL_TO_RUN: "eager_1st_run_fail",
    Status.MISSING_DEPENDENCY: "model_fail_to_load",
    Status.MISSING_DATA: "model_fail_to_load",
    Status.NEEDS_NETWORK: "model_fail_to_load",
    Status.CRASH: "fail_to_run",
}


def write(
    folder: Path,
    results: Sequence[Result],
    dynamo_names: dict[str, str],
    options: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Writes the pair of files of every setting in the results; the paths written.

    `dynamo_names` maps a suite to its name there (timm -> timm_models). `options`: those of the run, as in
    run.json.
    """
    run_options = ", ".join(setting_of_options(options or {})[0])
    settings: dict[str, list[Result]] = {}
    for result in results:
        if result.status not in (Status.SKIPPED, Status.NOT_TONIGHT):
            settings.setdefault(stem(result.case, dynamo_names), []).append(result)
    written = []
    for name, rows in settings.items():
        folder.mkdir(exist_ok=True)
        for kind, header, row in (
            ("performance", PERFORMANCE, _performance),
            ("accuracy", ACCURACY, _accuracy),
        ):
            path = folder / f"{name}_{kind}.csv"
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(header)
                writer.writerows([*row(result), run_options] for result in rows)
            written.append(path)
    return written


def stem(case: Case, dynamo_names: dict[str, str]) -> str:
    """`inductor_timm_models_float32_inference_cpu`, as benchmarks/dynamo/runner.py names it.

    The name of a configuration follows: `..._cpu_dynamic`.
    """
    suite = dynamo_names.get(case.suite, case.suite)
    backend = case.backend.replace("-", "_")
    name = f"{backend}_{suite}_{case.dtype}_{case.scenario}_{case.device}"
    configuration = variation(case.configuration, case.dynamic)  # that harness has no word for it
    return f"{name}_{re.sub(r'[^A-Za-z0-9]+', '_', configuration)}" if configuration else name


def _performance(result: Result) -> list[object]:
    case = result.case
    return [
        case.device,
        case.model,
        case.batch_size,
        result.speedup.value if result.speedup else 0.0,
        result.backend_ms.median if result.backend_ms else "",
        result.compilation_s if result.compilation_s is not None else "",
        result.compression_ratio if result.compression_ratio is not None else "",
        _gigabytes(result.eager_peak_bytes),
        _gigabytes(result.backend_peak_bytes),
        *_stats(result),
        result.conditions.get("disturbed", ""),
        result.capture.get("recompile_limit") or "",
    ]


def _accuracy(result: Result) -> list[object]:
    case = result.case
    word = _WORDS.get(result.status, result.status.value)
    return [case.device, case.model, case.batch_size, word, *_stats(result)]


def _stats(result: Result) -> list[object]:
    if not result.capture:  # a back end without dynamo, or a failure before compiling: not measured
        return [""] * len(_STATS)
    capture = {**result.capture, "unique_graphs": result.capture.get("graphs", 0)}
    return [capture.get(key, 0) for key in _STATS]


def _gigabytes(count: int | None) -> object:
    return "" if count is None else round(count / 1e9, 6)
