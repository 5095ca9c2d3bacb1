"""Makes the result record of a case from the events of its worker. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from perfdash.records import NOT_TONIGHT, Failure, Measurement, Result, Status
from perfdash.redaction import redact_all, remember, secrets_of
from perfdash.runner.case_status import edited_in, failure_in, is_measured, status_of
from perfdash.runner.gpu_monitor import fault
from perfdash.runner.messages import Answer, ProcessOutcome
from perfdash.runner.sized_record import notes_of, of_sizes
from perfdash.stats.disturbance import (
    MOST_STEAL,
    CountedPairs,
    ProcessSamples,
    counted_pairs,
    too_few_for_parts,
)
from perfdash.stats.intervals import CONFIDENCE, median_interval
from perfdash.stats.process_spread import ProcessRatios
from perfdash.stats.speedup import Pairs, ratios_of, set_speedups
from perfdash.suites.case_selection import Planned
from perfdash.worker import registry

_TRANSIENT_ERROR_BYTES = 1 << 20  # transient memory on the CPU is known to that, at best
_MOST_LOST = 0.05  # share of the time without a core, from which a wider interval is no remedy
_FILE_SHARE = 0.1  # of the back end's held bytes that may be pages of a file without a note
_RATIO_ERROR = 0.03  # that a compression ratio may have


def assemble(
    planned: Planned,
    answer: Answer,
    allocator: str,
    log: str | None = None,
    executed: dict[str, str] | None = None,
) -> Result:
    """The record of a case, from the events of its main process and its replicas (outcomes[1:]).

    Its interval rests on its own processes alone; stats.speedup makes it anew from the whole run.
    What a failed case had measured before it failed is in the record. `executed`: the user's own files that
    the run has executed so far (case_status.edited_in); of a case with others nothing is in the record.
    """
    outcomes = answer.outcomes
    if edited := edited_in(planned, outcomes, {} if executed is None else executed):
        edited = replace(edited, log=log)
        conditions = {**_compared(planned), **answer.where}
        return Result(
            planned.case, answer.started, round(answer.wall_s, 3), Status.INFRA_ERROR,
            failed_phase="load", error=edited, conditions=conditions,
        )  # fmt: skip
    main = outcomes[0]
    status, failed_phase, failure = status_of(main)
    timed = next((outcome for outcome in outcomes if outcome.find("latency")), None)
    if failure is None and timed is None and len(outcomes) > 1:
        # Its timing was another process's (a preloaded malloc), and none of those came to it.
        status, failed_phase, failure = status_of(outcomes[1])
        main = replace(main, tail=outcomes[1].tail)
    # Whatever was measured on it: the machine's fault, measured again.
    if broken := fault(answer.gpu, status, failure):
        status, failure = Status.INFRA_ERROR, broken
    result = Result(planned.case, answer.started, round(answer.wall_s, 3), status, failed_phase=failed_phase)
    if failure is not None:
        result.error = replace(failure, log=log, tail=main.tail)
    if status is Status.SKIPPED and failure is not None:  # only its loader could tell
        result.skip_reason, result.error = failure.message, None
    result.phases_s = {
        event["name"]: round(event["seconds"], 4) for event in main.events if event["event"] == "phase_end"
    }
    _fill_compilation(result, main, outcomes[1:])
    _fill_artifact(result, main)
    _fill_memory(result, main)
    accuracy = main.find("accuracy")
    if accuracy:
        result.accuracy = {key: value for key, value in accuracy.items() if key != "event"}
        beside_eager = accuracy["status"] == "pass" and accuracy.get("metric") in ("cosine", "relative_rmse")
        if beside_eager and (why := accuracy.get("no_judge")):
            result.notes.append(f"outputs were compared with eager's alone, without a float64 judge: {why}")
    _keep_differences(result, main)
    quality = main.find("quality")
    if quality:
        result.quality = {key: value for key, value in quality.items() if key != "event"}
    _fill_latency(result, outcomes, allocator, answer.gpu.get("trouble") or ())
    if answer.gpu:
        result.conditions["gpu_readings"] = {
            k: v for k, v in answer.gpu.items() if k not in ("uuid", "trouble")
        }
    if sized := main.find("sizes"):
        ended = failure_in("sizes", main)
        result.sizes = _sizes(sized, outcomes, answer.gpu.get("trouble") or (), ended)
        result.notes += notes_of(result.sizes)
    if at_once := main.find("instances"):
        result.instances = {key: value for key, value in at_once.items() if key != "event"}
        if failed := result.instances.get("failed"):
            result.notes.append(f"the {at_once['count']} instances at once were not measured: {failed}")
    elif failure := failure_in("instances", main):
        result.instances = {"failed": failure.message}
        result.notes.append(f"the instances at once were not measured: {failure.message}")
    if planned.case.scenario == "sizes":
        result.conditions |= {"sizes": ",".join(map(str, planned.sizes)), "sizes_of": planned.sizes_of}
    if result.conditions and planned.case.scenario == "generation":
        result.conditions["new_tokens"] = planned.new_tokens
        result.conditions["cache"] = planned.cache
        if isinstance(planned.inputs.get("sequence"), int):
            result.conditions["prompt_tokens"] = planned.inputs["sequence"]
    result.conditions.update(_compared(planned))
    result.notes += answer.notes
    result = _without_secrets(result, planned)
    result.conditions.update(answer.where)
    return result


def _without_secrets(result: Result, planned: Planned) -> Result:
    """The record with *** for secrets that the model, or whatever failed, wrote into a message."""
    remember(*secrets_of(planned.env))
    names = (
        "skip_reason",
        "accuracy",
        "capture",
        "structure",
        "artifact",
        "sizes",
        "instances",
        "quality",
        "conditions",
        "notes",
    )
    texts: dict[str, Any] = {name: redact_all(getattr(result, name)) for name in names}
    if result.error:
        error = result.error
        texts["error"] = replace(error, message=redact_all(error.message), tail=redact_all(error.tail))
    return replace(result, **texts)


def _keep_differences(result: Result, main: ProcessOutcome) -> None:
    """Keep that two runs of eager differ, where the case then fails for another reason."""
    differ = (main.find("eager") or {}).get("differ")
    if differ and result.status is not Status.EAGER_TWO_RUNS_DIFFER:
        result.accuracy = result.accuracy or {"status": "eager_two_runs_differ", "detail": differ}
        result.notes.append(f"two runs of eager differ, whatever the compiled side does: {differ}")


def _compared(planned: Planned) -> dict[str, Any]:
    """What the back end is compared with; a case without numbers has it too."""
    conditions: dict[str, Any] = {}
    if planned.case.device == "cuda":
        conditions["tf32"] = planned.tf32
    if planned.variant:
        conditions["variant"] = ", ".join(f"{key}={value}" for key, value in planned.variant.items())
    if planned.baseline_dtype:
        conditions["baseline_dtype"] = planned.baseline_dtype  # of the eager side
    return conditions


def skipped(planned: Planned, started: str) -> Result:
    """The record of a case that is not measured: never, or not within the hours of this run."""
    reason = planned.skip_reason or ""
    status = Status.NOT_TONIGHT if reason.startswith(NOT_TONIGHT) else Status.SKIPPED
    reason = reason.removeprefix(NOT_TONIGHT)
    return Result(planned.case, started, 0.0, status, skip_reason=reason, conditions=_compared(planned))


def not_run_after_smaller(planned: Planned, smaller: Result, started: str) -> Result:
    """The record of a case that was not run because a smaller batch ran out of memory or time."""
    result = Result(planned.case, started, 0.0, smaller.status, failed_phase="start")
    result.conditions = _compared(planned)
    resource = "time" if smaller.status is Status.TIMEOUT else "memory"
    message = f"not run: batch size {smaller.case.batch_size} was out of {resource}"
    result.error = Failure(f"SmallerWasOutOf{resource.capitalize()}", message)
    return result


def _fill_compilation(result: Result, main: ProcessOutcome, further: Sequence[ProcessOutcome]) -> None:
    compiled = main.find("compiled")
    if not compiled:
        return
    warm = [event["compilation_s"] for outcome in further if (event := outcome.find("compiled"))]
    if warm:
        result.warm_compilation_s = round(float(np.median(warm)), 4)
    phases = compiled.get("phases_s")
    if phases:
        result.compile_phases_s = {phase: round(seconds, 4) for phase, seconds in phases.items()}
    for name in ("compilation_s", "compilation_cpu_s", "first_call_s"):
        setattr(result, name, round(compiled[name], 4))
    result.compile_peak_bytes = compiled["compile_peak_bytes"]
    result.compile_held_bytes = compiled["compile_held_bytes"]
    # Eager compiles nothing: a count of 0 would read as a model of which nothing was captured.
    result.capture = {} if result.case.backend == "eager" else compiled["capture"]
    result.structure = dict(compiled.get("structure") or {})
    recompiled = main.find("recompiled")
    if result.structure and recompiled:
        by_phase = recompiled["by_phase"]
        result.structure |= {
            "recompiles": sum(by_phase.values()) if by_phase else None,
            "recompiles_by_phase": by_phase,
            "frames_given_up": recompiled["given_up"],
            "failed_guards": recompiled.get("guards"),
        }
    if result.structure and (operators := (main.find("eager") or {}).get("operators")):
        result.structure |= {
            "eager_operators": operators["calls"],
            "registered_operators": operators["registered"],
        }
    if result.nothing_captured:
        own = result.case.backend not in registry.names("backends")
        hint = "; a back end without dynamo declares CAPTURES = False" if own else ""
        result.notes.append(f"nothing was captured: the compiled side is eager{hint}")
    result.notes += compiled.get("notes", [])


def _fill_artifact(result: Result, main: ProcessOutcome) -> None:
    """The file that the back end made, and whether it runs without the model's code."""
    compiled, alone = main.find("compiled"), main.find("standalone")
    result.artifact = dict((compiled or {}).get("artifact") or {})
    if alone is None:
        return
    trial = {key: value for key, value in alone.items() if key not in ("event", "package_bytes")}
    result.artifact["standalone"] = trial
    if "package_bytes" in alone:
        result.artifact["package_bytes"] = alone["package_bytes"]
    if not trial["runs"]:
        result.notes.append(f"it does not run in a process without the model's code: {trial['reason']}")
    elif not trial["equal"]:
        result.notes.append(
            "in a process without the model's code its outputs differ from those here by up to "
            f"{trial['largest_difference']:.2g}"
            if trial["largest_difference"] is not None
            else "in a process without the model's code its outputs differ from those here"
        )


def _fill_memory(result: Result, main: ProcessOutcome) -> None:
    loaded, eager, backend = main.find("loaded"), main.find("eager"), main.find("memory")
    if loaded:
        result.weights_bytes = loaded["weights_bytes"]
        result.memory = {"held_bytes": loaded["held_bytes"], "parameters": loaded["parameters"]}
        result.notes += loaded.get("notes", [])
    if loaded and eager:
        result.eager_peak_bytes = _peak(loaded, eager["memory"])
        result.memory["eager"] = eager["memory"]
        if eager.get("compiles_itself"):
            result.notes.append("the model calls torch.compile itself: parts of its eager side are compiled")
    if loaded and backend:
        figures = {key: value for key, value in backend.items() if key != "event"}
        result.backend_peak_bytes = _peak(loaded, figures)
        if lost := figures.get("lost"):
            result.notes.append(f"no memory was left to measure the back end's in: {lost}")
        elif result.backend_peak_bytes is None and "peak_bytes" in figures:
            result.notes.append("its memory on the GPU is not torch's: the peak is unknown")
        elif result.backend_peak_bytes is None:
            result.notes.append("this kernel gives no high-water mark of memory: peaks are unknown")
        result.memory["backend"] = figures
        file_bytes, held = figures.get("file_bytes") or 0, figures.get("held_bytes") or 0
        if file_bytes >= _TRANSIENT_ERROR_BYTES and file_bytes > _FILE_SHARE * held:
            held_mib, file_mib = held / 2**20, file_bytes / 2**20
            result.notes.append(
                f"of the {held_mib:.0f} MiB that the back end holds {file_mib:.0f} are pages of its file, "
                "which the kernel may drop and read again"
            )
    _note_growth(result)
    _fill_compression(result)


def _note_growth(result: Result) -> None:
    """Note that memory grows with every call; on a GPU the compiled side's peak is then not known."""
    figures = {"eager": result.memory.get("eager"), "the compiled side": result.memory.get("backend")}
    known = {side: (of_side or {}).get("grown_bytes") for side, of_side in figures.items()}
    grown = {side: count for side, count in known.items() if count is not None}  # a case may end before that
    if max(grown.values(), default=0) < _TRANSIENT_ERROR_BYTES:
        return
    peaks = "the peaks are those after a few calls"
    if result.case.device == "cuda" and result.backend_peak_bytes is not None:
        result.backend_peak_bytes = None
        peaks = "the compiled side's peak is not known, because it contains what the timed calls kept"
    sizes = ", ".join(f"{side} by {count / 2**20:.1f} MiB" for side, count in grown.items())
    result.notes.append(f"memory grows with every call: {sizes}; {peaks}")


def _fill_compression(result: Result) -> None:
    """Set the compression ratio, unless the peaks are too small; a GPU's allocator is exact."""
    eager, backend = result.eager_peak_bytes, result.backend_peak_bytes
    if not eager or not backend:
        return
    smaller = min(eager, backend)
    if result.case.device == "cpu" and _RATIO_ERROR * smaller < _TRANSIENT_ERROR_BYTES:
        result.notes.append(
            f"a peak of {smaller / 2**20:.1f} MiB is too small for a compression ratio: 1 MiB of transient "
            f"memory more or less would move it by over {_RATIO_ERROR:.0%}"
        )
        return
    result.compression_ratio = round(eager / backend, 4)


def _peak(loaded: dict[str, Any], figures: dict[str, Any]) -> int | None:
    """The peak of one side in bytes: from CUDA's allocator, or held + transient on the CPU."""
    if "peak_bytes" in figures:
        return None if figures["peak_bytes"] is None else int(figures["peak_bytes"])
    if figures["transient_bytes"] is None:
        return None
    held = figures.get("held_bytes", loaded["held_bytes"])  # the back end's own, where it has another model
    return int(held + figures["constants_bytes"] + figures["transient_bytes"])


def _fill_latency(
    result: Result, outcomes: Sequence[ProcessOutcome], allocator: str, trouble: Sequence[Sequence[Any]]
) -> None:
    """Fill in latencies and conditions. `trouble`: [from, to, why] of a GPU that was not the case's alone."""
    events = [event for outcome in outcomes if (event := outcome.find("latency"))]
    if not events:
        return
    sampled = [_sampled(event, trouble) for event in events]
    chosen = counted_pairs(sampled)
    processes = chosen.processes
    summary = ratios_of(processes)
    alone = bool(events[0].get("alone"))
    sides = ("backend",) if alone else ("eager", "backend")  # alone, both hold samples of the back end
    result.eager_ms = None if alone else _measurement([p.eager for p in processes])
    result.backend_ms = _measurement([p.backend for p in processes])
    first = events[0]
    result.conditions = {
        "cpu_pressure": first["cpu_pressure"],
        "load": first["load"],
        "involuntary_switches": sum(event["involuntary_switches"] for event in events),
        "clean_fraction": round(min(float(samples.clean.mean()) for samples in sampled), 4),
        "clean_pairs": [int(samples.clean.sum()) for samples in sampled],
        "clock": chosen.clock,
        "pairs": chosen.pairs,
        "clocks": _by_clock(sampled, sides),
        "no_core": max((event["no_core"] for event in events if event["no_core"] is not None), default=None),
        "steal": max((samples.steal for samples in sampled if samples.steal is not None), default=None),
        "core": first["cores"],
        "torch_threads": first["torch_threads"],
        **{name: first[name] for name in ("pinned", "memory_nodes", "whole_socket") if name in first},
        "allocator": allocator,
        "minor_faults_per_call": {side: first["minor_faults_per_call"][side] for side in sides},
        "processes": len(events),
        "process_ratios": [round(math.exp(ratio), 6) for ratio in summary.ratios],
        "within_variance": summary.within if math.isfinite(summary.within) else None,
        "samples_per_process": [len(p.eager) for p in processes],
        "stopped": [event["stopped"] for event in events],
        "probe_ms": first["probe_ms"],
        "l2_flush": first["l2_flush"],
    }
    _fill_recompiles(result, events)
    result.instructions = first.get("instructions") or {}
    if retries := sum(event.get("allocator_retries", 0) for event in events):
        result.notes.append(
            f"while timing, CUDA's allocator released and reallocated its memory {retries} times, because "
            "memory was short; the times include this"
        )
    if work := _gpu_work(first, sides):
        result.conditions["gpu_work"] = work
    times = [event.get("times_s") or (-math.inf, math.inf) for event in events]
    causes = [why for start, *_, end in times for why in _troubles(start, end, trouble)]
    _note_disturbance(result, sampled, chosen, None if alone else summary, list(dict.fromkeys(causes)))
    if (why := too_few_for_parts([samples.clean for samples in sampled])) is None:
        result.parts_ms = _parts(events, sampled, sides)
    elif first.get("parts"):
        result.notes.append(f"the parts of the step are not known: {why}")
    if alone:  # there is no ratio
        del result.conditions["process_ratios"], result.conditions["within_variance"]
        return
    set_speedups([result])
    lost = sum(not is_measured(outcome) for outcome in outcomes)
    if lost:
        result.notes.append(f"{lost} of {len(outcomes)} processes failed")


def _fill_recompiles(result: Result, events: Sequence[dict[str, Any]]) -> None:
    """Note that dynamo compiled more graphs while the model was timed, or gave up compiling."""
    if not result.capture:
        return
    recompiles = sum(event.get("recompiles", 0) for event in events)
    limit = next((event["recompile_limit"] for event in events if event.get("recompile_limit")), None)
    result.capture |= {"recompiles": recompiles, "recompile_limit": limit}
    if limit:
        result.notes.append(
            f"dynamo reached its limit of recompiles: part of the compiled side ran in eager ({limit})"
        )
    elif recompiles:
        result.notes.append(
            f"dynamo compiled {recompiles} more graphs while the model was timed: the times include that"
        )


def _parts(
    events: Sequence[dict[str, Any]], sampled: Sequence[ProcessSamples], sides: Sequence[str]
) -> dict[str, Any]:
    """Summarize the parts of a step by side, over clean samples: they have the wall's clock alone."""
    names = list(events[0].get("parts") or ())
    parts: dict[str, Any] = {side: {} for side in sides} if names else {}
    for side in parts:
        for place, name in enumerate(names):
            processes = []
            for event, samples in zip(events, sampled, strict=True):
                column = np.array([row[place] for row in event[f"{side}_parts_ns"]], dtype=float)
                processes.append(column[samples.clean] / 1e6)
            measured = asdict(_measurement(processes))
            del measured["samples"]
            parts[side][name] = measured
        steps = events[0].get(f"{side}_steps_ns")
        # Of the main process, by the pairs that it knew to be clean.
        if steps and sampled[0].clean.tolist() == list(events[0]["clean"]):
            parts[side][names[-1]]["steps"] = _steps(steps)
    return parts


def _steps(nanoseconds: Sequence[float]) -> dict[str, Any]:
    """Summarize equal steps of a part in milliseconds: first, median, slowest and its place."""
    slowest = max(nanoseconds)
    return {
        "n": len(nanoseconds),
        "first": round(nanoseconds[0] / 1e6, 6),
        "median": round(float(np.median(nanoseconds)) / 1e6, 6),
        "slowest": round(slowest / 1e6, 6),
        "slowest_at": nanoseconds.index(slowest) + 1,
    }


def process_ratios(outcomes: Sequence[ProcessOutcome]) -> ProcessRatios | None:
    """The log ratios of the processes that have sampled both sides; None where none has."""
    events = [event for outcome in outcomes if (event := outcome.find("latency"))]
    if not events or events[0].get("alone"):
        return None
    return ratios_of(counted_pairs([_sampled(event) for event in events]).processes)


def _gpu_work(event: dict[str, Any], sides: Sequence[str]) -> dict[str, Any]:
    """By side, what a call costs the host and the GPU apart (device.kernel_account); empty on the CPU.

    launch_ms: until the call had returned to the host, the median over the samples.
    """
    work: dict[str, Any] = {}
    for side in sides:
        account = (event.get("accounts") or {}).get(side) or {}
        launch_ns = (event.get("launch_ns") or {}).get(side)
        if account or launch_ns is not None:
            work[side] = {**account, "launch_ms": None if launch_ns is None else round(launch_ns / 1e6, 6)}
    return work


def _sizes(
    sized: dict[str, Any],
    outcomes: Sequence[ProcessOutcome],
    trouble: Sequence[Sequence[Any]],
    ended: Failure | None,
) -> dict[str, Any]:
    """The figures by size, of pairs without trouble. `ended`: why the main process ended among them."""

    def untroubled(event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "clean": _without_trouble(event, trouble)}

    if sized.get("static"):
        sized = {**sized, "static": untroubled(sized["static"])}
    timed = [untroubled(event) for outcome in outcomes if (event := outcome.find("latency"))]
    build_s = (outcomes[0].find("compiled") or {}).get("build_s", 0.0)
    return of_sizes(sized, timed, ended.message if ended else None, build_s)


def _troubles(start: float, end: float, trouble: Sequence[Sequence[Any]]) -> list[str]:
    """Why the GPU was not the case's alone between two times."""
    return [str(why) for since, until, why in trouble if start < until and end > since]


def _without_trouble(event: dict[str, Any], trouble: Sequence[Sequence[Any]]) -> list[bool]:
    """Which pairs are clean, now that spans of trouble are known; pairs without times stay as they are."""
    clean, times = list(event["clean"]), event.get("times_s") or ()
    if len(times) == len(clean) + 1:
        for pair, (start, end) in enumerate(itertools.pairwise(times)):
            if _troubles(start, end, trouble):
                clean[pair] = False
    return clean


def _sampled(event: dict[str, Any], trouble: Sequence[Sequence[Any]] = ()) -> ProcessSamples:
    """The samples of one process in milliseconds a call."""

    def pairs(clock: str) -> Pairs:
        return Pairs(
            *(np.array(event[f"{side}_{clock}"], dtype=float) / 1e6 for side in ("eager", "backend"))
        )

    has_cpu_time = all(
        value is not None for side in ("eager", "backend") for value in event[f"{side}_cpu_ns"]
    )
    return ProcessSamples(
        pairs("ns"),
        pairs("cpu_ns") if has_cpu_time else None,
        np.array(_without_trouble(event, trouble), dtype=bool),
        event.get("steal"),
        event.get("waiting", 0.0),
    )


def _by_clock(sampled: Sequence[ProcessSamples], sides: Sequence[str]) -> dict[str, Any]:
    """Medians in ms, and the speedup of two sides, by clock: wall, CPU, and wall over the clean pairs."""
    every: dict[str, list[Pairs]] = {
        "wall": [samples.wall for samples in sampled],
        "cpu": [samples.cpu for samples in sampled if samples.cpu is not None],
        "wall_clean": [samples.clean_pairs(samples.wall) for samples in sampled if samples.clean.any()],
    }
    by_clock: dict[str, Any] = {}
    for name, processes in every.items():
        if not processes:
            by_clock[name] = None
            continue
        medians = {
            side: float(np.median(np.concatenate([getattr(samples, side) for samples in processes])))
            for side in sides
        }
        by_clock[name] = {f"{side}_ms": round(median, 6) for side, median in medians.items()}
        if "eager" in medians:
            ratio = round(math.exp(ratios_of(processes).mean), 6) if medians["backend"] else None
            by_clock[name]["speedup"] = ratio
    return by_clock


def _note_disturbance(
    result: Result,
    sampled: Sequence[ProcessSamples],
    chosen: CountedPairs,
    summary: ProcessRatios | None,
    trouble: Sequence[str],
) -> None:
    """Note how other programs on the cores or the GPU were dealt with, where not by clean pairs alone.

    `summary` is None for the back end alone, which has no ratio and so no interval of one.
    """
    if result.case.device != "cpu":
        if chosen.pairs != "clean":
            share = 1 - min(float(samples.clean.mean()) for samples in sampled)
            why = "; ".join(trouble) or "the core that launches its kernels was taken away"
            result.conditions["disturbed"] = f"during {share:.0%} of the pairs: {why}"
            result.notes.append(f"too few clean pairs, {result.conditions['disturbed']}; all were used")
        return
    if any(samples.cpu is None for samples in sampled):
        no_core = result.conditions["no_core"]
        lost = (no_core or 0.0) + (result.conditions["steal"] or 0.0)
        cause = f"a thread of the model waited for a core during {lost:.1%} of the time"
        cause += ": other programs ran on these cores"
        if no_core is None:
            cause = f"the hypervisor took {lost:.1%} of the worst core's time"
            result.notes.append(
                "this kernel does not count how long threads wait for a core, so nothing shows whether other "
                "programs ran on these cores"
            )
        if lost > MOST_STEAL:
            if summary is not None:
                result.conditions["widened_by"] = round(lost, 4)
                cause += ", and the interval is wider by as much on both sides"
            result.notes.append(cause)
            if lost > _MOST_LOST:
                result.conditions["disturbed"] = f"a thread of it had no core during {lost:.0%} of the time"
        return
    if chosen.pairs == "clean":
        return
    share = 1 - min(float(samples.clean.mean()) for samples in sampled)
    cause = f"other programs used this core during {share:.0%} of the pairs"
    if chosen.clock == "cpu":
        result.notes.append(f"{cause}; CPU time was used instead of wall time")
        return
    result.notes.append(
        f"{cause}, and CPU time cannot replace wall time: {chosen.why_not_cpu}; all pairs were used"
    )
    result.conditions["disturbed"] = cause
    if summary is None:
        return
    by_cpu = ratios_of([samples.cpu for samples in sampled if samples.cpu is not None]).mean
    result.conditions["cpu_ratio"] = round(math.exp(by_cpu), 6)
    if abs(by_cpu - summary.mean) > summary.reach_within(CONFIDENCE):
        result.notes.append(
            f"the ratio of CPU times, {math.exp(by_cpu):.3f}, disagrees: the interval includes it"
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
