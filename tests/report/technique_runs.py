"""Runs in which models were measured in several ways, for what is told of them; none was ever measured."""

from __future__ import annotations

from dataclasses import replace

from perfdash.history.results import Row
from perfdash.records import Case
from perfdash.report.night import Night
from perfdash.stats.speedup import verdict as verdict_of
from tests.history.made import run
from tests.report.nights import HOSTILE, NOISE

SIZES = (1, 16, 32, 64)
EAGER = ("eager", "float32")
# How much faster than eager float32, how far from it, its F1, its memory as a part of eager's.
WAYS = {
    EAGER: (1.0, 0.0, 0.9723, 1.0),
    ("eager", "bfloat16"): (1.12, 4.1e-3, 0.9723, 0.62),
    ("eager", "amp"): (1.05, 3.9e-3, 0.9696, 1.1),
    ("torchscript", "float32"): (1.1, 2e-7, 0.9723, 0.98),
    ("inductor", "float32"): (1.4, 3e-7, 0.9723, 0.9),
    ("inductor", "bfloat16"): (1.7, 4.2e-3, 0.9723, 0.55),
    ("inductor-freezing", "float32"): (1.45, 3e-7, 0.9723, 0.91),
    ("onnxruntime", "float32"): (1.68, 2.5e-7, 0.9723, 0.8),
    ("openvino", "float32"): (1.3, 2.6e-7, 0.9723, 0.85),
    ("int8-dynamic", "float32"): (0.8, 1.1e-2, 0.9695, 0.5),
    ("int8-static", "float32"): (2.1, 6e-2, 0.9401, 0.45),
}
WORKER = {
    "torch": "2.15.0", "torch_git_version": "b" * 40,
    "packages": {"onnxruntime": "1.31.0", "torchao": "0.18.0", "openvino": "2026.4.0", "pip": "26.0"},
}  # fmt: skip
ENVIRONMENT = {
    "cpu": "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz",
    "vector_isa": "AVX512",
    "worker": WORKER,
}


def measured(model="resnet18", backend="eager", dtype="float32", size=1, status="pass", *, speedup=1.0,
             reach=0.02, basis="processes", verdict=None, f1=None, distance=None, peak=5e7, count=200,
             details=None, suite="techniques", baseline="float32", **case):  # fmt: skip
    """A result with all its numbers: eager float32 takes 10 ms a sample. reach: of the interval."""
    eager = 10.0 * size
    middle = eager / speedup
    low, high = speedup * (1 - reach), speedup * (1 + reach)
    values = {
        "eager_ms": eager, "eager_ms_low": eager * 0.995, "eager_ms_high": eager * 1.004,
        "backend_ms": middle, "backend_ms_low": middle * 0.996, "backend_ms_high": middle * 1.006,
        "speedup": speedup,
        "compilation_s": 0.0 if backend == "eager" else 12.34, "backend_peak_bytes": peak,
        "eager_peak_bytes": 5e7, "weights_bytes": 4.4e7,
    }  # fmt: skip
    if basis != "within":
        values |= {"speedup_low": low, "speedup_high": high}
    facts = {"conditions": {"allocator": "steady", "baseline_dtype": baseline}}
    if distance is not None:
        facts["accuracy"] = {
            "status": "pass",
            "detail": "x",
            "distance": {"relative_rmse": distance, "cosine": 1.0},
        }
    if f1 is not None:
        facts["quality"] = {
            "metric": "f1", "value": f1, "eager_value": 0.9723, "samples": 360, "top1": f1,
            "eager_top1": 0.9723, "agreement": 0.99, "classes": 10,
        }  # fmt: skip
    amp = {"amp_dtype": "bfloat16"} if dtype == "amp" else {}
    return Row(
        Case(suite, model, dtype=dtype, batch_size=size, backend=backend, **amp, **case), status, values,
        verdict="inconclusive" if basis == "within" else verdict or verdict_of(low, high), basis=basis,
        samples={"backend_ms": tuple(middle * (0.99 + 0.0005 * (n * 37 % 100)) for n in range(count))},
        details=facts | (details or {}),
    )  # fmt: skip


def failed(model, backend, dtype, size, status, message, **more):
    error = {"type": "RuntimeError", "message": message}
    return Row(
        Case("techniques", model, dtype=dtype, batch_size=size, backend=backend), status, {},
        details={"error": error, "failed_phase": "compile", **more},
    )  # fmt: skip


def grid_of(model="resnet18", sizes=SIZES, *, scored=True, ways=tuple(WAYS), **more):
    rows = []
    for size in sizes:
        for way in ways:
            speedup, distance, f1, memory = WAYS[way]
            rows.append(
                measured(model, *way, size, speedup=speedup, distance=distance, f1=f1 if scored else None,
                         peak=memory * 5e7 * (1 + size / 64), **more)
            )  # fmt: skip
    return rows


def changed(rows, backend, dtype, sizes, new):
    """The rows, those of a way and batch sizes as `new` makes them; None leaves one out."""
    changed_rows = []
    for row in rows:
        case = row.case
        mine = (case.backend, case.dtype) == (backend, dtype) and case.batch_size in sizes
        row = new(row) if mine else row
        changed_rows += [row] if row else []
    return changed_rows


def night(rows, **other):
    other = {"environment": ENVIRONMENT} | other
    return Night(run("2026-11-20", rows, noise=NOISE, **other))


def full():
    name = "resnet18"
    wrong = {"detail": "0: relative rmse 0.31 is beyond 0.05", "distance": {"relative_rmse": 0.31}}
    missing = "openvino is not installed: pip install 'perfdash[openvino]'"
    traced = {"notes": ["traced: control flow is that of the sample inputs"]}
    rows = changed(
        grid_of(name), "openvino", "float32", SIZES,
        lambda row: failed(name, "openvino", "float32", row.case.batch_size, "missing_dependency", missing),
    )  # fmt: skip
    rows = changed(
        rows, "int8-dynamic", "float32", (64,),
        lambda row: failed(name, "int8-dynamic", "float32", 64, "oom", "more than 4.0 GB\nin the allocator"),
    )  # fmt: skip
    rows = changed(
        rows, "inductor", "bfloat16", (32, 64),
        lambda row: replace(row, status="fail_accuracy", details=row.details | {"accuracy": wrong}),
    )  # fmt: skip
    rows = changed(rows, "eager", "amp", (1,), lambda row: replace(row, status="pass_due_to_skip"))
    rows = changed(
        rows, "torchscript", "float32", (16,), lambda row: replace(row, details=row.details | traced)
    )
    rows = changed(rows, "inductor-freezing", "float32", (64,), lambda row: None)
    second = grid_of("vit_b_16", (1, 16), scored=False, ways=(EAGER, ("torchscript", "float32")))
    slower = {"speedup": 0.97, "speedup_low": 0.95, "speedup_high": 0.99}
    second = changed(
        second, "torchscript", "float32", SIZES,
        lambda row: replace(row, verdict="slower", values=row.values | slower),
    )  # fmt: skip
    return night(rows + second, setting={"weights": "pretrained"})


def without_quality():
    ways = (EAGER, ("inductor", "float32"), ("onnxruntime", "float32"))
    rows = grid_of("bert", (1, 16), scored=False, ways=ways, basis="within", count=47)
    return night([*rows, failed("t5", "inductor", "float32", 1, "crash", "ended by SIGSEGV")],
                 state="interrupted", expected=12)  # fmt: skip


def hostile():
    error = {"type": HOSTILE, "message": HOSTILE}
    odd = {"quality": {"metric": HOSTILE, "reason": HOSTILE}, "notes": [HOSTILE]}
    rows = [
        measured(HOSTILE, "eager", suite=HOSTILE, details=odd),
        measured(HOSTILE, HOSTILE, HOSTILE, suite=HOSTILE, speedup=1.5, verdict=HOSTILE, details=odd,
                 scenario=HOSTILE),
        measured(HOSTILE, "inductor", suite=HOSTILE, speedup=1.5, verdict=HOSTILE,
                 details={"quality": {"metric": HOSTILE, "value": 0.5, "eager_value": 0.9}}),
        replace(failed(HOSTILE, HOSTILE, "float32", 1, HOSTILE, HOSTILE), details={"error": error}),
        failed("", "inductor", "float32", 1, "crash", ""),
    ]  # fmt: skip
    packages = {"onnxruntime": HOSTILE}
    environment = {"cpu": HOSTILE, "worker": {"torch": HOSTILE, "packages": packages}}
    return night(rows, name=HOSTILE, state=HOSTILE, setting={HOSTILE: HOSTILE}, environment=environment)


def single_size():
    return night(
        grid_of("digits_fcn", (1,), ways=(EAGER, ("inductor", "float32"), ("int8-static", "float32")))
    )


NIGHTS = {
    "full": full, "without_quality": without_quality, "hostile": hostile, "single_size": single_size,
}  # fmt: skip
