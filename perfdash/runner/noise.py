"""How a run knows its own noise: the A/A null, and the cases measured in several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfdash.cases import Planned
from perfdash.records import Sampling
from perfdash.worker import null_model

NULL_PROCESSES = 3
NULL_SAMPLING = Sampling(precision=0.003, min_pairs=50, min_s=0.5, budget_s=3.0)


def null_case(like: Planned) -> Planned:
    """A small model against itself, on the device and cores of another case."""
    case = replace(like.case, suite="null", model="small", backend="eager", batch_size=1, dtype="float32")
    target = f"{null_model.__file__}:small"
    return replace(like, case=case, loader="python", target=target, inputs={}, timeout_s=120.0)


def replication(cases: int) -> tuple[int, int]:
    """(how many cases of a run are replicated, in how many processes each), to know the spread."""
    return (1, 6) if cases == 1 else (2, 3) if cases <= 20 else (4, 3)


def replicated_first(planned: Sequence[Planned]) -> list[Planned]:
    """The cases in the order they are measured: those to be replicated first, taken from all over."""
    count, _ = replication(len(planned))
    chosen = {index * len(planned) // count for index in range(count)}
    return [planned[index] for index in sorted(range(len(planned)), key=lambda i: i not in chosen)]
