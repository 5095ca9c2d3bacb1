"""Sampling of eager and compiled latency in pairs of random order (docs/method.md, Latency).

Only collects; what the samples mean is computed by perfdash.stats in the parent.
"""

from __future__ import annotations

import gc
import math
import os
import random
import statistics
import time
from typing import Any, Callable, Iterable, Optional, Tuple

from perfdash.records import Sampling
from perfdash.worker import failures, linux
from perfdash.worker.device import Cpu, Cuda, Sample

_SHORTEST_SAMPLE_NS = 1_000_000
_SLOW_CALL_NS = 300_000_000
_CLEAN_EXCESS = 0.01  # of the wall time may pass without the thread running
_FEWEST_CLEAN = 3  # pairs from which the steps of a part are known, as in stats.disturbance
# How long threads spin after a call before they sleep: GNU's OpenMP for milliseconds, Intel's for 0.2 s.
_LONGEST_SPIN_S = 0.3
_GC_EVERY = 50  # pairs


def is_clean(sample: Sample) -> bool:
    """Whether the thread had the core for (all but 1 % of) the whole sample.

    A sample in which the model itself waited (it gave the core up, and was never forced off it) is
    clean too: a sleep is the model's, not the machine's. Without a CPU time a sample is clean unless the
    scheduler took the core away from the process while it launched work for a GPU.
    """
    if sample.cpu_ns is None:
        return sample.involuntary == 0 or sample.lost_ns <= _CLEAN_EXCESS * sample.wall_ns
    if sample.wall_ns - sample.cpu_ns <= _CLEAN_EXCESS * sample.wall_ns:
        return True
    return sample.voluntary > 0 and sample.involuntary == 0


def warm_up(call: Callable[[], Any], device: Cpu | Cuda, budget_s: float = 2.5) -> float:
    """Call until the times stop falling; returns the nanoseconds of the best call.

    Ends when five calls in a row have not beaten the best by 1 %, or with the budget (at least two).
    """
    best, since, start, calls = math.inf, 0, time.monotonic(), 0
    while since < 5 and (calls < 2 or time.monotonic() - start < budget_s):
        wall = device.time(call, 1).wall_ns
        since = 0 if wall < 0.99 * best else since + 1
        best = min(best, wall)
        calls += 1
    return best


def half_width(ratios: list[float]) -> float:
    """Half the 95 % interval of the median of log ratios, by order statistics; inf below 6 values.

    The ranks are those of the normal approximation of the binomial (Conover, Practical
    Nonparametric Statistics, 3.2).
    """
    count = len(ratios)
    if count < 6:
        return math.inf
    ordered = sorted(ratios)
    reach = 0.98 * math.sqrt(count)
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach))
    return (ordered[high] - ordered[low]) / 2


def sample_pairs(
    eager: Callable[[], Any],
    backend: Callable[[], Any],
    device: Cpu | Cuda,
    sampling: Sampling,
    seed: int,
    cores: Optional[Iterable[int]] = None,
    own_threads: bool = False,
) -> dict[str, Any]:
    """Sample pairs until the interval is narrow enough or the time budget is used.

    `cores`: those of all threads of the calls; None: this thread's, which are all unless it is pinned.
    `own_threads`: each side computes in threads that the other does not use. Then each sample begins when all
    threads sleep, with an uncounted call that wakes its own. Otherwise those of the other side would spin on
    the cores.

    Returns nanoseconds per call, one entry a pair: eager_ns, backend_ns, their CPU times (None where the
    device has none), clean (both samples of the pair), and the disturbances meanwhile. eager_steps_ns and
    backend_steps_ns have one entry for each step of the last part, from the clean pairs.
    """
    order = random.Random(seed)
    with failures.of_eager():
        best = [warm_up(eager, device)]
    best.append(warm_up(backend, device))
    repeats = [max(1, math.ceil(_SHORTEST_SAMPLE_NS / max(1.0, call_ns))) for call_ns in best]
    budget_s = sampling.slow_budget_s if max(best) > _SLOW_CALL_NS else sampling.budget_s
    calls = (eager, backend)
    parts: list[list[list[float]]] = [[], []]  # by side and pair: nanoseconds a call, as `parts` names them
    samples: tuple[list[Sample], list[Sample]] = ([], [])
    ratios: list[float] = []
    stopped = "pairs"
    gc.collect()
    gc.freeze()
    gc.disable()
    stalled, retries = linux.cpu_stall_s(), device.allocator_retries()
    allocated = device.allocated()
    times_s: list[float] = []  # at which pairs ended, by the machine's monotonic clock
    cores = os.sched_getaffinity(0) if cores is None else set(cores)
    stolen, waited = linux.stolen_ticks(cores), linux.waited_s()
    waits, busy_s = dict.fromkeys(waited, 0.0), 0.0  # of own threads, by thread: during the calls alone
    side = 1
    try:
        sampling_start = time.monotonic()
        for pair in range(sampling.max_pairs):
            first = order.randrange(2)
            for side in (first, 1 - first):
                marks = getattr(calls[side], "marks", None)
                if own_threads:
                    linux.await_idle_threads(_LONGEST_SPIN_S)
                    waited, begin = linux.waited_s(), time.monotonic()
                    if best[side] <= _SLOW_CALL_NS:  # in a longer call the time to wake threads is nothing
                        calls[side]()
                if marks:
                    marks.clear()
                samples[side].append(device.time(calls[side], repeats[side]))
                if own_threads:
                    busy_s += time.monotonic() - begin
                    for thread, seconds in _grown(waited, linux.waited_s()).items():
                        waits[thread] = waits.get(thread, 0.0) + seconds
                if marks:
                    parts[side].append(mean_parts(marks, device))
            of_eager, of_backend = samples[0][-1], samples[1][-1]
            if is_clean(of_eager) and is_clean(of_backend):
                ratio = (of_eager.wall_ns / repeats[0]) / (of_backend.wall_ns / repeats[1])
                ratios.append(math.log(ratio))
            times_s.append(time.monotonic())
            spent = times_s[-1] - sampling_start
            # Only clean pairs count: disturbed ones do not narrow the interval.
            enough = len(ratios) >= sampling.min_pairs and spent >= sampling.min_s
            if enough and half_width(ratios) <= sampling.precision:
                stopped = "precision"
                break
            if spent >= budget_s and pair + 1 >= 6:
                stopped = "budget"
                break
            is_filling = device.allocated() - allocated > device.garbage_bytes
            if is_filling or pair % _GC_EVERY == _GC_EVERY - 1:
                gc.collect()
    except BaseException as error:
        if side == 0:
            failures.blame_eager(error)
        raise
    finally:
        gc.enable()
        gc.unfreeze()
    wall = time.monotonic() - sampling_start
    names = list(getattr(eager, "parts", ()))
    stalled_after = linux.cpu_stall_s()
    stolen_after = linux.stolen_ticks(cores)
    if not own_threads:
        waits, busy_s = _grown(waited, linux.waited_s()), wall
    steal = _most_stolen(stolen, stolen_after)
    all_samples = [*samples[0], *samples[1]]
    clean = [is_clean(a) and is_clean(b) for a, b in zip(*samples)]
    return {
        "eager_ns": [s.wall_ns / repeats[0] for s in samples[0]],
        "backend_ns": [s.wall_ns / repeats[1] for s in samples[1]],
        "eager_cpu_ns": [_per_call(s.cpu_ns, repeats[0]) for s in samples[0]],
        "backend_cpu_ns": [_per_call(s.cpu_ns, repeats[1]) for s in samples[1]],
        "clean": clean,
        "stopped": stopped,
        "repeats": {"eager": repeats[0], "backend": repeats[1]},
        # The share of samples in which the model itself gave the core up.
        "waiting": _mean([float(s.voluntary > 0) for s in all_samples]),
        # Shares of the time: taken by the hypervisor from the worst core, waited for a core by the worst
        # thread. A call waits for its slowest thread. None where the kernel does not count it.
        "steal": None if steal is None else round(min(1.0, steal * wall / busy_s), 4),
        "no_core": round(max(waits.values()) / busy_s, 4) if waits else None,
        "involuntary_switches": sum(s.involuntary for s in all_samples),
        "minor_faults_per_call": {
            "eager": _mean([s.faults / repeats[0] for s in samples[0]]),
            "backend": _mean([s.faults / repeats[1] for s in samples[1]]),
        },
        "cpu_pressure": (
            round((stalled_after - stalled) / wall, 4)
            if stalled is not None and stalled_after is not None
            else None
        ),
        "l2_flush": device.l2_flush,
        "times_s": [sampling_start, *times_s],
        "launch_ns": {"eager": _launch(samples[0], repeats[0]), "backend": _launch(samples[1], repeats[1])},
        "allocator_retries": device.allocator_retries() - retries,
        "parts": names,
        "eager_parts_ns": [folded(row, len(names)) for row in parts[0]],
        "backend_parts_ns": [folded(row, len(names)) for row in parts[1]],
        "eager_steps_ns": of_last_part(parts[0], clean, len(names)),
        "backend_steps_ns": of_last_part(parts[1], clean, len(names)),
    }


def sample_alone(
    call: Callable[[], Any], device: Cpu | Cuda, sampling: Sampling, cores: Iterable[int]
) -> dict[str, Any]:
    """Sample the back end alone, where eager is out of memory; returns what sample_pairs does."""
    figures = sample_pairs(call, call, device, sampling, 0, cores)
    return {**figures, "alone": True}


def mean_parts(marks: list[list[Any]], device: Cpu | Cuda) -> list[float]:
    """Nanoseconds from mark to mark, averaged over the calls of a sample; a row of marks a call."""
    rows = [[device.between(start, end) for start, end in zip(row, row[1:])] for row in marks]
    return [sum(column) / len(column) for column in zip(*rows)]


def folded(row: list[float], parts: int) -> list[float]:
    """One number a part: the last part is the sum of everything after the others."""
    return [*row[: parts - 1], sum(row[parts - 1 :])]


def of_last_part(rows: list[list[float]], clean: list[bool], parts: int) -> list[float]:
    """The median over the clean pairs of each step of the last part.

    Empty where it is a single step, or where too few pairs are clean.
    """
    kept = [row[parts - 1 :] for row, is_kept in zip(rows, clean) if is_kept]
    if len(kept) < min(_FEWEST_CLEAN, len(rows)) or not kept or len(kept[0]) <= 1:
        return []
    return [statistics.median(column) for column in zip(*kept)]


def _grown(before: dict[int, float], after: dict[int, float]) -> dict[int, float]:
    """By how much the seconds of each thread have grown, of the threads that were there before."""
    return {thread: seconds - before[thread] for thread, seconds in after.items() if thread in before}


def _most_stolen(before: dict[int, Tuple[int, int]], after: dict[int, Tuple[int, int]]) -> Optional[float]:
    """The largest share of a core's ticks that the hypervisor took; None where none is known."""
    shares = [
        (stolen - before[core][0]) / (ticks - before[core][1])
        for core, (stolen, ticks) in after.items()
        if core in before and ticks > before[core][1]
    ]
    return max(shares) if shares else None


def _per_call(nanoseconds: Optional[float], repeats: int) -> Optional[float]:
    return None if nanoseconds is None else nanoseconds / repeats


def _launch(samples: list[Sample], repeats: int) -> Optional[float]:
    """The median of what a call took to launch, in nanoseconds; None where calls end with their work."""
    launches = [sample.launch_ns / repeats for sample in samples if sample.launch_ns is not None]
    return statistics.median(launches) if launches else None


def _mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 2) if values else 0.0
