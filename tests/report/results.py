"""Results of a run that was never measured: passed, failed, skipped."""

from perfdash.records import Case, Failure, Measurement, Result, RunInfo, Speedup, Status


def info(cases, state="done"):
    return RunInfo(
        "2026-11-21T00-00-00Z_host", "2026-11-21T00:00:00Z", "host", ["perfdash"],
        {"cores": [1]}, {"cpu": "Xeon", "worker": {"torch": "2.15.0"}}, cases, "0.1.0", state=state,
        noise={"null": {"worst": 0.0043}, "between_processes": {"relative_sd": 0.0149, "cases": 4}},
    )  # fmt: skip


def good(model, ratio, verdict, basis="pooled", **change):
    return Result(
        Case("timm", model, **change), "2026-11-21T00:00:00Z", 60.0, Status.PASS,
        eager_ms=Measurement(10 * ratio, 9 * ratio, 11 * ratio, 10 * ratio, 0.1, 40, [1.0]),
        backend_ms=Measurement(10.0, 9.9, 10.1, 10.0, 0.1, 40, [1.0]),
        speedup=Speedup(ratio, ratio * 0.98, ratio * 1.02, verdict, basis),
        compilation_s=20.0, compilation_cpu_s=19.0, compression_ratio=1.1,
        capture={"graphs": 1, "graph_breaks": 0},
        phases_s={"load": 0.5, "compile": 40.0, "latency": 19.0},
        method={"latency": 3, "memory": 1},
    )  # fmt: skip


def failed(model, status, phase, message):
    error = Failure("RuntimeError", message, "a.log", ["last line"])
    method = {"latency": 3, "memory": 1}
    return Result(Case("timm", model), "t", 3.0, status, failed_phase=phase, error=error, method=method)


def a_night():
    uncaptured = good("uncaptured", 1.0, "equivalent")
    uncaptured.capture = {"graphs": 0, "graph_breaks": 3}
    uncaptured.notes.append("nothing was captured: the compiled side is eager")
    wrong = good("wrong", 3.0, "faster")
    wrong.status = Status.FAIL_ACCURACY
    return [
        good("fast", 1.4, "faster", basis="processes"),
        good("slow", 0.7, "slower"),
        uncaptured,
        wrong,
        failed("crashed", Status.CRASH, "compile", "ended by SIGSEGV in phase compile"),
        failed("too_big", Status.OOM, "memory", "can't allocate memory\nwith more lines"),
        Result(
            Case("timm", "left_out"),
            "t",
            0.0,
            Status.SKIPPED,
            skip_reason="needs a GPU",
            method={"latency": 3, "memory": 1},
        ),
    ]
