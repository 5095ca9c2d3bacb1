"""From the events of a worker to the result record: pure, and where statuses are decided."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfdash.cases import Planned
from perfdash.records import Failure, Measurement, Result, Speedup, Status
from perfdash.runner.launcher import Outcome
from perfdash.stats.intervals import Spread, median_interval
from perfdash.stats.speedup import Estimate, Pairs, estimate, verdict

_EAGER_PHASES = ("start", "load", "eager")
_ACCURACY_STATUS = {
    "pass": Status.PASS,
    "fail": Status.FAIL_ACCURACY,
    "skipped": Status.PASS_DUE_TO_SKIP,
    "eager_two_runs_differ": Status.EAGER_TWO_RUNS_DIFFER,
}


def assemble(
    planned: Planned,
    outcomes: Sequence[Outcome],
    pooled: Spread,
    *,
    started: str,
    wall_s: float,
    allocator: str,
    log: str | None = None,
    log_tail: Sequence[str] = (),
) -> tuple[Result, Spread]:
    """The record of a case, from its main process and its replicas (outcomes[1:]).

    Also returns the case's own spread between processes, for pooling. What a failed case had
    measured before it failed is in the record.
    """
    main = outcomes[0]
    status, failed_phase, message = _status(main)
    result = Result(planned.case, started, round(wall_s, 3), status, failed_phase=failed_phase)
    if message is not None:
        result.error = Failure(message[0], message[1], log, list(log_tail))
    result.phases_s = {
        event["name"]: round(event["seconds"], 4) for event in main.events if event["event"] == "phase_end"
    }
    _fill_compilation(result, main)
    _fill_memory(result, main)
    accuracy = main.find("accuracy")
    if accuracy:
        result.accuracy = {key: value for key, value in accuracy.items() if key != "event"}
    own = _fill_latency(result, outcomes, pooled, allocator)
    return result, own


def skipped(planned: Planned, started: str) -> Result:
    """The record of a case that the suite says not to measure."""
    return Result(planned.case, started, 0.0, Status.SKIPPED, skip_reason=planned.skip_reason)


def _status(outcome: Outcome) -> tuple[Status, str | None, tuple[str, str] | None]:
    """(status, failed phase, (error type, message)) of a case's main process."""
    phase = outcome.find("phase")
    where = phase["name"] if phase else "start"
    eager = where in _EAGER_PHASES
    failed = outcome.find("failed")
    if failed:
        return Status(failed["status"]), failed["phase"], (failed["type"], failed["message"])
    if outcome.timed_out:
        return Status.TIMEOUT, where, ("Timeout", f"not done in time; ended in phase {where}")
    if outcome.status is None:
        return Status.INFRA_ERROR, where, ("WorkerLost", f"the fork parent ended, in phase {where}")
    number = _signal(outcome)
    if number is not None:
        name = signal.Signals(number).name if number in signal.Signals.__members__.values() else str(number)
        if number == signal.SIGKILL and outcome.oom_killed:
            oom = Status.EAGER_OOM if eager else Status.OOM
            return oom, where, ("OutOfMemory", "killed by the kernel for want of memory")
        return Status.CRASH, where, (name, f"ended by {name} in phase {where}")
    if outcome.find("done") is None:
        return Status.CRASH, where, ("NoAnswer", f"the process ended in phase {where} without a word")
    accuracy = outcome.find("accuracy") or {"status": "skipped"}
    return _ACCURACY_STATUS[accuracy["status"]], None, None


def _signal(outcome: Outcome) -> int | None:
    """The signal that ended the case's process, or the child in which it measures eager."""
    died = outcome.find("died")
    if died and died["signal"]:
        return int(died["signal"])
    if outcome.status is not None and os.WIFSIGNALED(outcome.status):
        return os.WTERMSIG(outcome.status)
    return None


def _fill_compilation(result: Result, main: Outcome) -> None:
    compiled = main.find("compiled")
    if not compiled:
        return
    for name in ("compilation_s", "compilation_cpu_s", "first_call_s"):
        setattr(result, name, round(compiled[name], 4))
    result.compile_peak_bytes = compiled["compile_peak_bytes"]
    result.compile_held_bytes = compiled["compile_held_bytes"]
    result.capture = compiled["capture"]
    if result.case.backend == "inductor" and compiled["capture"]["graphs"] == 0:
        result.notes.append("nothing was captured: the compiled side is eager")


def _fill_memory(result: Result, main: Outcome) -> None:
    loaded, eager, backend = main.find("loaded"), main.find("eager"), main.find("memory")
    if loaded:
        result.weights_bytes = loaded["weights_bytes"]
        result.memory = {"held_bytes": loaded["held_bytes"], "parameters": loaded["parameters"]}
    if loaded and eager:
        result.eager_peak_bytes = _peak(loaded, eager["memory"])
        result.memory["eager"] = eager["memory"]
    if loaded and backend:
        figures = {key: value for key, value in backend.items() if key != "event"}
        result.backend_peak_bytes = _peak(loaded, figures)
        if result.backend_peak_bytes is None:
            result.notes.append("this kernel gives no high-water mark of memory: peaks are unknown")
        result.memory["backend"] = figures
    if result.eager_peak_bytes and result.backend_peak_bytes:
        result.compression_ratio = round(result.eager_peak_bytes / result.backend_peak_bytes, 4)


def _peak(loaded: dict[str, Any], figures: dict[str, Any]) -> int | None:
    """CUDA's allocator tells the peak itself; on the CPU it is held + transient."""
    if "peak_bytes" in figures:
        return int(figures["peak_bytes"])
    if figures["transient_bytes"] is None:
        return None
    return int(loaded["held_bytes"] + figures["constants_bytes"] + figures["transient_bytes"])


def _fill_latency(result: Result, outcomes: Sequence[Outcome], pooled: Spread, allocator: str) -> Spread:
    events = [event for outcome in outcomes if (event := outcome.find("latency"))]
    if not events:
        return Spread()
    clean_fractions = [sum(event["clean"]) / len(event["clean"]) for event in events]
    processes = [
        _pairs(event, "ns", fraction >= 0.5) for event, fraction in zip(events, clean_fractions, strict=True)
    ]
    found = estimate(processes, pooled)
    if min(clean_fractions) < 0.5:
        result.notes.append(
            f"only {min(clean_fractions):.0%} of the pairs had the core for themselves: all pairs are used"
        )
        found = _cross_check(result, events, pooled, found)
    result.speedup = Speedup(
        round(found.value, 6),
        round(found.ci_low, 6),
        round(found.ci_high, 6),
        verdict(found),
        found.basis,
    )
    result.eager_ms = _measurement([p.eager for p in processes])
    result.backend_ms = _measurement([p.backend for p in processes])
    first = events[0]
    result.conditions = {
        "cpu_pressure": first["cpu_pressure"],
        "load": first["load"],
        "involuntary_switches": sum(event["involuntary_switches"] for event in events),
        "clean_fraction": round(min(clean_fractions), 4),
        "core": first["cores"],
        "torch_threads": first["torch_threads"],
        "allocator": allocator,
        "minor_faults_per_call": first["minor_faults_per_call"],
        "processes": len(events),
        "process_ratios": [round(float(np.median(p.eager) / np.median(p.backend)), 6) for p in processes],
        "samples_per_process": [len(p.eager) for p in processes],
        "stopped": [event["stopped"] for event in events],
        "probe_ms": first["probe_ms"],
        "l2_flush": first["l2_flush"],
    }
    lost = sum(not outcome.find("done") for outcome in outcomes)
    if lost:
        result.notes.append(f"{lost} of {len(outcomes)} processes failed")
    return found.own


def _pairs(event: dict[str, Any], clock: str, clean_only: bool) -> Pairs:
    keep = np.array(event["clean"] if clean_only else [True] * len(event["clean"]))
    return Pairs(
        np.array(event[f"eager_{clock}"], dtype=float)[keep] / 1e6,
        np.array(event[f"backend_{clock}"], dtype=float)[keep] / 1e6,
    )


def _cross_check(
    result: Result, events: Sequence[dict[str, Any]], pooled: Spread, found: Estimate
) -> Estimate:
    """The estimate, its intervals widened to take in the ratio of CPU times where that disagrees."""
    if any(value is None for event in events for value in event["eager_cpu_ns"]):
        return found
    by_cpu = estimate([_pairs(event, "cpu_ns", False) for event in events], pooled).value
    if not found.ci_low <= by_cpu <= found.ci_high:
        result.notes.append(f"the ratio of CPU times, {by_cpu:.3f}, disagrees: the interval takes it in")
    return replace(
        found,
        ci_low=min(found.ci_low, by_cpu),
        ci_high=max(found.ci_high, by_cpu),
    )


def _measurement(processes: Sequence[Any]) -> Measurement:
    """A latency over processes: the median of all samples, its interval by order statistics.

    With several processes the interval at least spans the processes' own medians.
    """
    values = np.concatenate(processes)
    low, high = median_interval(values.tolist())
    medians = [float(np.median(process)) for process in processes]
    return Measurement(
        median=round(float(np.median(values)), 6),
        ci_low=round(min([low, *medians]), 6),
        ci_high=round(max([high, *medians]), 6),
        mean=round(float(np.mean(values)), 6),
        stdev=round(float(np.std(values, ddof=1)) if len(values) > 1 else math.nan, 6),
        n=len(values),
        samples=[round(float(value), 6) for value in values],
    )
