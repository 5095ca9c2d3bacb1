"""Nights that were never measured, for what is told of them."""

from __future__ import annotations

from dataclasses import replace

from perfdash.detect.comparison import ComparedRuns
from perfdash.history.results import Row
from perfdash.records import Case
from perfdash.report.cause_text import of_changes
from perfdash.report.changes import (
    APPEARED,
    IMPROVEMENT,
    NEW_FAILURE,
    REGRESSION,
    REPAIRED,
    VANISHED,
    ChangeEnd,
    RunChange,
)
from perfdash.report.night import RUN_BEFORE, Night
from tests.history.made import run

GOOD = ChangeEnd("2026-11-19T01:00:00Z", "2.15.0", "a" * 40)
BAD = ChangeEnd("2026-11-20T01:00:00Z", "2.15.0", "b" * 40)
NOISE = {"null": {"worst": 0.0043}, "between_processes": {"relative_sd": 0.0149, "cases": 4}}


def row(suite, model, speedup=1.2, status="pass", details=None, **change):
    values = {
        "eager_ms": 10 * speedup, "backend_ms": 10.0, "speedup": speedup, "speedup_low": speedup * 0.98,
        "speedup_high": speedup * 1.02, "compilation_s": 20.04, "compilation_cpu_s": 19.0,
        "compression_ratio": 1.1, "eager_peak_bytes": 5.5e7, "backend_peak_bytes": 5e7, "graphs": 1,
        "graph_breaks": 0, "calls_captured": 100,
    }  # fmt: skip
    extra = {name: change.pop(name) for name in list(change) if name in values}
    if status not in ("pass", "pass_due_to_skip", "fail_accuracy"):
        values = {}
    return Row(
        Case(suite, model, **change), status, {**values, **extra}, verdict="faster", basis="pooled",
        details=details or {},
    )  # fmt: skip


def imported(rows, **other):
    return run("2026-11-20", rows, noise=NOISE, **other)


TIMM = [row("timm", "resnet18", 1.4567), row("timm", "vit_base", 0.951, graph_breaks=2)]
TORCHBENCH = [
    row("torchbench", "dcgan", 1.05),
    row("torchbench", "not_compiled", 1.0, graphs=0, graph_breaks=4, calls_captured=0),
]
HUGGINGFACE = [
    row("huggingface", "BertForMaskedLM", 0.81),
    row("huggingface", "Large", 1.3, "pass_due_to_skip"),
]

CRASHED = row(
    "timm", "vit_base", status="crash",
    details={"error": {"type": "SIGSEGV", "message": "ended by SIGSEGV\nmore"}, "failed_phase": "compile"},
)  # fmt: skip
WRONG = row(
    "timm", "wrong", 3.0, "fail_accuracy", details={"error": {"type": "Wrong", "message": "rmse 0.3"}}
)
CHANGES = (
    RunChange(
        NEW_FAILURE, CRASHED.case, "status", "pass", "crash", good=GOOD, bad=BAD, state="new", alert=4
    ),
    RunChange(
        REGRESSION, TIMM[0].case, "compiled latency", "20 ms", "23 ms", 0.1398, (0.113, 0.166), GOOD, BAD,
        state="confirmed", alert=3, metric="backend_ms",
        notes=("speedup 1.310x -> 1.140x", "torch: 2.15.0 a | 2.15.0 b"),
    ),
    RunChange(
        REGRESSION, None, "compilation CPU seconds", change=0.22, good=GOOD, bad=BAD, fresh=False,
        state="open", alert=2, metric="compilation_cpu_s",
    ),
    RunChange(
        REGRESSION, TORCHBENCH[0].case, "graph breaks", "0", "2", good=GOOD, bad=BAD, fresh=False,
        state="acknowledged", alert=1, metric="graph_breaks",
    ),
    RunChange(VANISHED, Case("timm", "gone"), "no longer measured", good=GOOD, bad=BAD, state="new", alert=5),
    RunChange(REPAIRED, Case("timm", "healed"), "status", "crash", "pass", state="fixed", alert=6),
    RunChange(
        IMPROVEMENT, Case("timm", "quick", dtype="amp", amp_dtype="bfloat16"), "eager latency", "9 ms",
        "8 ms", -0.1178, (-0.15, -0.09), GOOD, BAD, state="confirmed", alert=7, metric="eager_ms",
    ),
    RunChange(APPEARED, Case("timm", "fresh"), "not measured before", good=GOOD, bad=BAD),
)  # fmt: skip

HOSTILE = "a|b<script>alert(1)</script>`x` @team #12 ![i](http://e.vil/i.png) \U0001f600\nnew\u202eline"


def good_night():
    return Night(imported(TORCHBENCH + HUGGINGFACE + TIMM), against="30 runs before it, the last x")


def bad_night():
    rows = [*TORCHBENCH, *HUGGINGFACE, TIMM[0], CRASHED, WRONG]
    return Night(
        imported(rows, expected=9, state="interrupted"),
        tuple(of_changes(CHANGES)),
        "30 runs before it, the last x",
    )


def first_night():
    return Night(imported(TIMM), untold="first run of this kind, nothing to compare it with")


def all_failed():
    rows = [
        row("timm", "one", status="model_fail_to_load", details={"error": {"message": "Unknown model"}}),
        row("timm", "two", status="timeout", details={"error": {"message": "not done in time"}}),
        row("timm", "three", status="skipped", details={"skip_reason": "needs a GPU"}),
    ]
    return Night(imported(rows), against="30 runs before it, the last x")


def suite_missing():
    gone = [
        RunChange(
            VANISHED, case_row.case, "no longer measured", good=GOOD, bad=BAD, state="new", alert=number
        )
        for number, case_row in enumerate(HUGGINGFACE, 10)
    ]
    return Night(imported(TORCHBENCH + TIMM), tuple(of_changes(gone)), "30 runs before it, the last x")


def huge(models=30):
    rows = [
        row(suite, f"model_{number:03}", 0.8 + number / 50, batch_size=size, backend=backend, threads=threads)
        for threads in (1, 32)
        for backend in ("inductor", "torchscript")
        for suite in ("huggingface", "timm")
        for number in range(models)
        for size in (1,)
    ]
    changes = [
        replace(CHANGES[1], case=case_row.case, alert=place) for place, case_row in enumerate(rows[:70])
    ]
    return Night(imported(rows), tuple(of_changes(changes)), "30 runs before it, the last x")


def hostile():
    error = {"type": HOSTILE, "message": HOSTILE}
    rows = [
        row(HOSTILE, HOSTILE, backend=HOSTILE, details={"error": error}),
        row("timm", HOSTILE, float("nan"), "crash", details={"error": error}),
    ]
    changed = [replace(CHANGES[1], case=case_row.case, notes=(HOSTILE,), what=HOSTILE) for case_row in rows]
    return Night(imported(rows, name=HOSTILE, host_class=HOSTILE), tuple(of_changes(changed)), HOSTILE)


def after_a_bad_nightly():
    story = (
        "Before this nightly: 2 missing after 2026-11-17; 2026-11-17 partial (timm cpu amp was not measured)"
    )
    ends = [replace(GOOD, commits={"own": letter * 40, "same": "e" * 40}) for letter in "bc"]
    bisected = replace(
        CHANGES[1],
        good=ends[0],
        bad=replace(ends[1], started=BAD.started),
        notes=("culprit: 0123456789ab Slower sum by Ann (confirmed)",),
    )
    worker = {"torch": "2.15.0", "packages": {"timm": "1.0.31", "own": "0.1"}, "commits": {"own": "c" * 40}}
    night = Night(
        imported(TIMM, environment={"worker": worker}),
        tuple(of_changes([bisected])),
        "30 runs before it, the last x",
    )
    return replace(night, nightly=story)


FREEZING = '{"inductor_config":{"freezing":true}}'


def configurations():
    """Two suites under three configurations; the run's hours left out one case, freezing crashes once."""
    ways = ({}, {"dynamic": True, "configuration": "dynamic"},
            {"settings": FREEZING, "configuration": "freezing"})  # fmt: skip
    rows, before = [], []
    for models in (TIMM, TORCHBENCH):
        for place, way in enumerate(ways):
            of_way = [replace(one, case=replace(one.case, **way)) for one in models]
            before += of_way
            if place == 1 and models is TIMM:
                why = "other cases waited longer for the 2 hours of this run"
                of_way[0] = replace(
                    of_way[0], status="not_tonight", values={}, verdict=None, details={"skip_reason": why}
                )
            if place == 2 and models is TORCHBENCH:
                of_way[0] = replace(of_way[0], status="crash", values={}, verdict=None)
            rows += of_way
    previous = ComparedRuns(RUN_BEFORE, (imported(before),))
    return Night(imported(rows), (), "the 12 runs before it", baseline=previous)


NIGHTS = {
    "good_night": good_night, "bad_night": bad_night, "first_night": first_night, "all_failed": all_failed,
    "suite_missing": suite_missing, "huge": huge, "hostile": hostile,
    "after_a_bad_nightly": after_a_bad_nightly, "configurations": configurations,
}  # fmt: skip
