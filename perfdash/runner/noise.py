"""The noise of a run: a model against itself (A/A null), at its start and its end."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfdash.records import Case, RunInfo, Sampling
from perfdash.runner import cpu_quota
from perfdash.runner.messages import ProcessOutcome
from perfdash.stats.intervals import Array, log_ratio
from perfdash.stats.speedup import NULL_ALARM, NULL_EXPECTED, null_warning
from perfdash.suites.case_selection import Planned

if TYPE_CHECKING:  # the executors' slots import this module
    from perfdash.runner.executors import Executor

NULL_PROCESSES = 2  # one under each of the parents that time cases
NULL_SAMPLING = Sampling(precision=0.005, min_pairs=40, min_s=0.3, budget_s=0.8)
_MOST_THROTTLED = 0.01  # of the time of the slots' threads, that the container's CPU quota may take
# With all slots busy the null may be off by this much; else fewer are.
NULL_BOUND = NULL_EXPECTED


def null_case(like: Planned) -> Planned:
    """The null: a small model against itself, on the device and cores of another case."""
    case = Case(
        "null",
        "small",
        device=like.case.device,
        threads=like.case.threads,
        backend="eager",
    )
    return replace(
        like,
        case=case,
        loader="models",
        target="small_convnet",
        config={},
        inputs={},
        parameters=None,
        timeout_s=120.0,
        skip_reason=None,
        baseline_dtype=None,
        distance_bound=None,
        data=None,
        data_path=None,
        backend_file=None,
        compile_mode=None,
        inductor_config={},
        variant={},
        loss=None,
        until_oom=False,
    )


def null_ratios(outcomes: Sequence[ProcessOutcome]) -> list[float]:
    """Latency over latency of the same model, one a process; 1 where there is no noise."""
    return [round(math.exp(log_ratio(*sides)), 6) for sides in _counted(outcomes)]


def null_ms(outcomes: Sequence[ProcessOutcome]) -> float | None:
    """The median latency of the null, milliseconds."""
    latencies = [float(np.median(eager)) / 1e6 for eager, _ in _counted(outcomes)]
    return statistics.median(latencies) if latencies else None


def within_bounds(ratios: Sequence[float]) -> bool:
    """Whether at most one in twenty ratios is off by more than NULL_BOUND; False without any ratio."""
    off = sum(abs(math.log(ratio)) > math.log1p(NULL_BOUND) for ratio in ratios)
    return bool(ratios) and off <= len(ratios) // 20


def within_strict_bounds(ratios: Sequence[float]) -> bool:
    """Whether the ratios are within bounds, and none is so far off that the run would be warned of."""
    return within_bounds(ratios) and all(abs(ratio - 1) <= NULL_ALARM for ratio in ratios)


def _counted(outcomes: Sequence[ProcessOutcome]) -> list[tuple[Array, Array]]:
    """Nanoseconds per call of both sides, of each process that has sampled; clean pairs if any."""
    counted = []
    for outcome in outcomes:
        event = outcome.find("latency")
        if event and event["eager_ns"]:
            keep = np.array(event["clean"] if any(event["clean"]) else [True] * len(event["clean"]))
            eager, backend = (np.array(event[side], dtype=float)[keep] for side in ("eager_ns", "backend_ns"))
            counted.append((eager, backend))
    return counted


Say = Callable[[str], None]


def null_at_start(executor: Executor, like: Planned, info: RunInfo, say: Say) -> None:
    """Measure the null on all slots at once, and give up slots until it is within bounds.

    Cases are measured side by side only where that does not spoil the numbers. The run's noise records
    every try: the ratios, and how much longer the null takes than on one slot alone.
    """
    tried: list[dict[str, Any]] = []
    alone = null_ms(executor.null(like, 1, slots=1)[0]) if executor.slots > 1 else None
    while True:
        count = executor.slots
        throttled_s, start = cpu_quota.throttled_s(), time.monotonic()
        outcomes = executor.null(like, NULL_PROCESSES)
        threads_s = count * like.case.threads * (time.monotonic() - start)
        throttled = (cpu_quota.throttled_s() - throttled_s) / threads_s
        entry: dict[str, Any] = {
            "slots": count,
            "null": [ratio for slot in outcomes for ratio in null_ratios(slot)],
        }
        busy = [ms for slot in outcomes if (ms := null_ms(slot))]
        if alone and busy:
            entry["slowdown"] = round(statistics.median(busy) / alone, 4)
        tried.append(entry)
        # Clean pairs, which the ratios are of, are those that no quota has interrupted.
        is_throttled = throttled > _MOST_THROTTLED
        if is_throttled:
            entry["throttled"] = round(throttled, 4)
        if count == 1 or (within_bounds(entry["null"]) and not is_throttled):
            break
        executor.shrink(max(1, count // 2))
        if info.sessions:
            info.sessions[-1]["at_once"] = executor.slots
        why = f"A/A null with {count} slots busy is out of bounds (beyond {NULL_BOUND:.0%})"
        if is_throttled:
            why = f"With {count} slots busy the container's CPU quota keeps threads from running"
        say(f"{why}: --jobs reduced to {executor.slots}")
    if alone:
        info.noise["slots"] = tried
        say(
            f"{executor.slots} slot{'s' if executor.slots > 1 else ''}: with all busy the null takes "
            f"{tried[-1].get('slowdown', 1.0):.2f} times as long as on one alone"
        )
    _record("start", tried[-1]["null"], info, say)


def lacks_end(info: RunInfo) -> bool:
    """Whether a run ended before the null at its end, so that --strict cannot judge it."""
    null = info.noise.get("null") or {}
    return bool(null) and "end" not in null


def null_at_end(executor: Executor, like: Planned, info: RunInfo, say: Say) -> None:
    """Measure the null again on all slots."""
    outcomes = executor.null(like, NULL_PROCESSES)
    _record("end", [ratio for slot in outcomes for ratio in null_ratios(slot)], info, say)


def _record(when: str, ratios: list[float], info: RunInfo, say: Say) -> None:
    """Keep the ratios in the run's noise; `worst` covers all sessions of a run that was resumed."""
    null = info.noise.setdefault("null", {})
    null[when] = ratios
    worst = [null.get("worst", 0.0), *(abs(ratio - 1) for ratio in ratios)]
    if ratios:
        null["worst"] = round(max(worst), 6)
    if ratios:
        say(
            f"A/A null at the {when}: a model against itself is off by at most "
            f"{max(abs(ratio - 1) for ratio in ratios):.2%}"
        )
        if warning := null_warning(max(abs(ratio - 1) for ratio in ratios)):
            say(f"WARNING: {warning}")
    else:
        say("A/A null: could not be measured (logs/null.log)")
