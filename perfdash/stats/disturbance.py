"""Choose the pairs and the clock that count when other programs disturbed samples. Pure.

Clean pairs where there are enough of them, whatever their share: what a neighbour does to the others is
no part of the model. Else the thread's CPU time of all pairs, which the neighbour's turns are not in; but
the hypervisor's are, and what the model waits for is not. Else the wall time of all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfdash.stats.speedup import Pairs

ENOUGH = 30  # clean pairs over all processes
_FEWEST = 3  # of each process
MOST_STEAL = 0.01
_AGREE = 0.02  # of both clocks, on clean pairs: the margin of the verdict
_WAITS = 0.1  # share of samples in which a model that waits for nothing may give the core up


@dataclass(frozen=True)
class ProcessSamples:
    """All samples of one process: pairs by the wall's clock and by the thread's (None: it says nothing).

    `clean` by pair; `steal`: share of the time that the hypervisor took, None where it is not known;
    `waiting`: share of the samples in which the model gave the core up.
    """

    wall: Pairs
    cpu: Pairs | None
    clean: NDArray[np.bool_]
    steal: float | None = None
    waiting: float = 0.0

    def clean_pairs(self, pairs: Pairs) -> Pairs:
        """The clean pairs of either clock."""
        return Pairs(pairs.eager[self.clean], pairs.backend[self.clean])


@dataclass(frozen=True)
class CountedPairs:
    """The pairs of each process that count. `clock`: wall | cpu; `pairs`: clean | all.

    `why_not_cpu`: of all pairs by the wall's clock, why CPU time does not stand in for it.
    """

    processes: list[Pairs]
    clock: str
    pairs: str
    why_not_cpu: str | None = None


def counted_pairs(processes: Sequence[ProcessSamples]) -> CountedPairs:
    """The pairs of one case that count, chosen alike for all its processes."""
    if enough_clean(
        [int(process.clean.sum()) for process in processes], [len(process.clean) for process in processes]
    ):
        return CountedPairs([process.clean_pairs(process.wall) for process in processes], "wall", "clean")
    why = _why_not_cpu(processes)
    if why is None:
        return CountedPairs([process.cpu for process in processes if process.cpu is not None], "cpu", "all")
    return CountedPairs([process.wall for process in processes], "wall", "all", why)


def enough_clean(clean: Sequence[int], pairs: Sequence[int]) -> bool:
    """Whether the clean pairs alone may count: 30 of them, or half of what a slow model has had time for.

    Both by process; never under 3 in one of them, unless there are no others.
    """
    if list(clean) == list(pairs):
        return True
    return min(clean) >= _FEWEST and sum(clean) >= min(ENOUGH, math.ceil(sum(pairs) / 2))


def too_few_for_parts(clean: Sequence[Sequence[bool] | NDArray[np.bool_]]) -> str | None:
    """Why the parts of a step, which have wall times alone, are not known; `clean` by process and pair."""
    if any(sum(pairs) < min(_FEWEST, len(pairs)) for pairs in clean):
        return f"a process has fewer than {_FEWEST} clean pairs"
    return None


def _why_not_cpu(processes: Sequence[ProcessSamples]) -> str | None:
    if any(process.cpu is None for process in processes):
        return "CPU time says nothing of several threads"
    steals = [process.steal for process in processes]
    if any(steal is None for steal in steals):
        return "the kernel does not say what the hypervisor took"
    worst = max(steal for steal in steals if steal is not None)
    if worst >= MOST_STEAL:
        return f"the hypervisor took {worst:.1%} of the time"
    for side in ("eager", "backend"):
        wall = np.concatenate([getattr(process.clean_pairs(process.wall), side) for process in processes])
        cpu = np.concatenate(
            [getattr(process.clean_pairs(process.cpu), side) for process in processes if process.cpu]
        )
        if len(wall) and float(np.median(wall)) > (1 + _AGREE) * float(np.median(cpu)):
            return "on clean pairs wall time is longer than CPU time: the model waits for something"
    if (
        not any(process.clean.any() for process in processes)
        and max(process.waiting for process in processes) > _WAITS
    ):
        return "no pair is clean, and the model waits for something"
    return None
