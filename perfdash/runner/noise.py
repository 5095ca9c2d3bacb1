"""How a run knows its own noise: the A/A null, and the cases measured in several processes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from perfdash.records import Case, Sampling
from perfdash.runner.watch import Outcome
from perfdash.suites.cases import Planned
from perfdash.worker import null_model

NULL_PROCESSES = 3
NULL_SAMPLING = Sampling(precision=0.003, min_pairs=50, min_s=0.5, budget_s=1.5)
# With all slots busy the null may be off by this much (the margin of the verdict); else fewer are.
NULL_BOUND = 0.02


def null_case(like: Planned) -> Planned:
    """A small model against itself, on the device and cores of another case."""
    case = Case(
        "null",
        "small",
        device=like.case.device,
        threads=like.case.threads,
        backend="eager",
    )
    target = f"{null_model.__file__}:small"
    return replace(
        like,
        case=case,
        loader="python",
        target=target,
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
        variant={},
        loss=None,
        until_oom=False,
    )


def null_ratios(outcomes: Sequence[Outcome]) -> list[float]:
    """Latency over latency of the same model, one a process; 1 where there is no noise."""
    return [round(eager / backend, 6) for eager, backend in _medians(outcomes)]


def null_ms(outcomes: Sequence[Outcome]) -> float | None:
    """The median latency of the null, milliseconds."""
    found = [eager / 1e6 for eager, _ in _medians(outcomes)]
    return statistics.median(found) if found else None


def within_bounds(ratios: Sequence[float], bound: float = NULL_BOUND) -> bool:
    """Whether at most one in twenty of the ratios is off by more than the bound; none is no."""
    off = sum(abs(math.log(ratio)) > math.log1p(bound) for ratio in ratios)
    return bool(ratios) and off <= len(ratios) // 20


def replication(cases: int) -> tuple[int, int]:
    """(how many cases of a run are replicated, in how many processes each), to know the spread."""
    return (1, 6) if cases == 1 else (2, 3) if cases <= 20 else (4, 3)


def spread_out(cases: int, count: int) -> list[int]:
    """`count` indices from all over `cases`."""
    return sorted({index * cases // count for index in range(min(count, cases))})


def _medians(outcomes: Sequence[Outcome]) -> list[tuple[float, float]]:
    """Nanoseconds per call of both sides, of each process that has sampled; clean pairs if any."""
    found = []
    for outcome in outcomes:
        event = outcome.find("latency")
        if event and event["eager_ns"]:
            keep = event["clean"] if any(event["clean"]) else [True] * len(event["clean"])
            sides = [
                statistics.median(value for value, use in zip(event[side], keep, strict=True) if use)
                for side in ("eager_ns", "backend_ns")
            ]
            found.append((sides[0], sides[1]))
    return found
