"""Schedule cases: which slot or shard measures a case, and in which order.

Pure and deterministic: shards are planned on several machines, and must agree.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from perfdash.records import Case, Result, Status
from perfdash.suites.case_selection import Planned

_ROUNDS = 40  # of bisection: the capacity is known to 1e-12 of its range
# Assumed for a case of unknown cost when no cost is known.
TYPICAL_S = 60.0


def costs(planned: Sequence[Planned], durations: Mapping[str, float]) -> list[float]:
    """Seconds that each case is expected to take.

    What is known of the very case (`durations`, by case name), else the suite's hint, else the mean
    of what is known of the others. Skipped cases cost nothing.
    """
    expected = [
        0.0 if case.skip_reason else durations.get(case.case.name, case.cost_s or None) for case in planned
    ]
    positive = [cost for cost, case in zip(expected, planned, strict=True) if cost and not case.skip_reason]
    otherwise = sum(positive) / len(positive) if positive else TYPICAL_S
    return [otherwise if cost is None else cost for cost in expected]


def assign(costs: Sequence[float], slots: int) -> list[list[int]]:
    """Assign jobs to slots, the longest first, so that the last slot ends early.

    The better of MULTIFIT (Coffman, Garey, Johnson, SIAM J. Comput. 7, 1978: first fit decreasing,
    the capacity found by bisection; at most 13/11 of the best makespan) and of longest first
    (Graham, SIAM J. Appl. Math. 17, 1969). Equal input gives equal output on every machine.
    """
    order = sorted(range(len(costs)), key=lambda index: (-costs[index], index))
    best = _longest_first(costs, order, slots)
    high = makespan(costs, best)
    low = max([sum(costs) / slots, *costs], default=0.0)
    for _ in range(_ROUNDS):
        capacity = (low + high) / 2
        packed = _first_fit(costs, order, slots, capacity)
        if packed is None:
            low = capacity
        elif makespan(costs, packed) < high:  # an assignment of equal length may leave slots empty
            best, high = packed, makespan(costs, packed)
        else:
            high = capacity
        if high <= low:
            break
    return best


def makespan(costs: Sequence[float], assigned: Sequence[Sequence[int]]) -> float:
    """When the last slot is done, seconds."""
    return max((sum(costs[index] for index in indices) for indices in assigned), default=0.0)


def order(costs: Sequence[float], slots: int) -> list[int]:
    """The jobs in the order in which assign() begins them, for free slots to take.

    With the costs as expected each slot then does what assign() gave it; where they turn out
    otherwise, whoever is free goes on, and nobody waits for a slot that is late.
    """
    begins = []
    for indices in assign(costs, slots):
        begin = 0.0
        for index in indices:
            begins.append((begin, -costs[index], index))
            begin += costs[index]
    return [index for _, _, index in sorted(begins)]


def seconds_left(
    finished: Sequence[tuple[float, float]],
    waiting: Sequence[float],
    running: Sequence[tuple[float, float]],
    slots: int,
) -> float:
    """Seconds until the last case is done.

    finished: (cost, seconds taken) of each case; waiting: costs; running: (cost, seconds so far). Costs are
    scaled by how long the finished cases took, since they were measured on another machine.
    """
    expected = sum(cost for cost, _ in finished)
    pace = sum(seconds for _, seconds in finished) / expected if expected else 1.0
    rests = [max(0.0, pace * cost - seconds) for cost, seconds in running]
    ahead = [pace * cost for cost in waiting]
    # No schedule is shorter than all work shared evenly, or than the longest case.
    return max([(sum(rests) + sum(ahead)) / max(slots, 1), *rests, *ahead], default=0.0)


def duration(seconds: float) -> str:
    """Seconds in words: "12 s", "7 min", "2.5 h"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{round(seconds / 60)} min"


def queue(planned: Sequence[Planned], costs: Sequence[float], slots: int) -> list[int]:
    """Indices of the cases to measure, in the order in which slots take them.

    Cases of one eager side follow one another: they share what is measured of eager. One slot goes on as
    planned, but by loader, since each has fork parents of its own; several such that the last case is done
    early.
    """
    alike: dict[Case, list[int]] = {}
    for index, case in enumerate(planned):
        if case.skip_reason is None:
            alike.setdefault(case.eager_side, []).append(index)
    groups = list(alike.values())
    if slots <= 1:
        loaders = list(dict.fromkeys(case.loader for case in planned))
        groups.sort(key=lambda group: loaders.index(planned[group[0]].loader))
    else:
        group_costs = [sum(costs[index] for index in group) for group in groups]
        groups = [groups[place] for place in order(group_costs, slots)]
    return [index for group in groups for index in group]


def _longest_first(costs: Sequence[float], order: Sequence[int], slots: int) -> list[list[int]]:
    assigned: list[list[int]] = [[] for _ in range(slots)]
    ends = [(0.0, slot) for slot in range(slots)]
    for index in order:
        end, slot = heapq.heappop(ends)
        assigned[slot].append(index)
        heapq.heappush(ends, (end + costs[index], slot))
    return assigned


def _first_fit(
    costs: Sequence[float], order: Sequence[int], slots: int, capacity: float
) -> list[list[int]] | None:
    """Put each job into the first slot with room; None if a job fits nowhere."""
    assigned: list[list[int]] = [[] for _ in range(slots)]
    room = [capacity] * slots
    for index in order:
        for slot in range(slots):
            if costs[index] <= room[slot] + 1e-9:
                assigned[slot].append(index)
                room[slot] -= costs[index]
                break
        else:
            return None
    return assigned


class SlotFailures:
    """Which slots fail by themselves, as one whose GPU is lost: other slots get their cases.

    A slot is out of service after infra_errors of two models in a row, if another slot has measured a case
    since the first of them. While all slots fail, the machine is to blame, and none is out of service.
    A process that was killed blames no slot, and has not measured either.
    """

    def __init__(self) -> None:
        self.out_of_service: set[int] = set()
        self._models: dict[int, set[str]] = {}  # that failed on a slot since it last measured a case
        self._others_measured: set[int] = set()  # slots of `_models`: another one measured a case since
        self._failed_on: dict[int, set[int]] = {}  # the slots on which a case failed, by its index

    def add(self, slot: int, index: int, result: Result) -> bool:
        """Add a failure that the machine caused; whether the slot is out of service from now on."""
        self._failed_on.setdefault(index, set()).add(slot)
        if result.status is not Status.INFRA_ERROR:  # a process was killed
            return False
        self._models.setdefault(slot, set()).add(result.case.model)
        if self._fails(slot) and slot in self._others_measured:
            self.out_of_service.add(slot)
        return slot in self.out_of_service

    def measured(self, slot: int) -> None:
        """Note that a slot measured a case."""
        self._models.pop(slot, None)
        self._others_measured = set(self._models)

    def may_start(self, slot: int, busy: Iterable[int]) -> bool:
        """Whether a slot may start a case now.

        A failing slot waits while one that does not fail is busy: it would empty the queue meanwhile.
        """
        if slot in self.out_of_service:
            return False
        is_unclear = self._fails(slot) and slot not in self._others_measured
        return not is_unclear or all(self._fails(other) for other in busy)

    def may_retry(self, slot: int, index: int, slots: int) -> bool:
        """Whether a slot may measure a case again: not one on which it failed, while there is another."""
        failed_on = self._failed_on.get(index, set())
        return slot not in failed_on or failed_on | self.out_of_service >= set(range(slots))

    def _fails(self, slot: int) -> bool:
        return len(self._models.get(slot, ())) > 1


# After these a larger batch would end in the same way, and take as long.
_ENDS_THE_CLIMB = frozenset({Status.OOM, Status.EAGER_OOM, Status.TIMEOUT})


def is_smaller_batch(case: Case, other: Case) -> bool:
    """Whether a case is another one with a smaller batch."""
    return case.batch_size < other.batch_size and replace(case, batch_size=other.batch_size) == other


def waits_for_smaller(planned: Planned, candidates: Iterable[Planned]) -> bool:
    """Whether a case runs until memory ends and waits for a smaller batch of it."""
    return planned.until_oom and any(is_smaller_batch(other.case, planned.case) for other in candidates)


def smaller_out_of_memory(planned: Planned, results: Iterable[Result]) -> Result | None:
    """The result of a smaller batch that ran out of memory, or of time.

    Where only eager ran out of memory, the back end was measured alone, and larger batches are tried;
    an abort (BadAlloc) does not say which side it was.
    """
    if not planned.until_oom:
        return None
    for result in results:
        aborted = result.error is not None and result.error.type == "BadAlloc"
        ended = result.status in _ENDS_THE_CLIMB and result.backend_ms is None and not aborted
        if ended and is_smaller_batch(result.case, planned.case):
            return result
    return None
