"""How near the plan of slots and shards comes to the best possible makespan, by simulation.

    python benchmarks/schedule.py [--all]

The costs are the recorded compilation latencies of the 159 models of the Inductor CPU dashboard
(benchmarks/durations.csv, seconds; a model without one counts as zero). On 1 to 64 slots perfdash's
plan is compared with taking the longest case next (Graham), with durations as expected and when each
turns out up to 30 % longer or shorter. The best possible makespan is not known; its lower bounds are:
the longest case, the mean load, and, for each k, the k + 1 shortest of the k * slots + 1 longest cases,
since some slot must have k + 1 of them.

Exits with 1 where the plan is over 5 % above the bound.
"""

from __future__ import annotations

import csv
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from perfdash.runner.schedule import assign, makespan, order

SLOTS = range(1, 65)
LIMIT = 1.05


def durations() -> list[float]:
    """Seconds by model, in the order of the file."""
    with Path(__file__).with_name("durations.csv").open(newline="") as file:
        return [float(row["seconds"] or 0) for row in csv.DictReader(file)]


def bound(costs: Sequence[float], slots: int) -> float:
    """No schedule ends before this."""
    ordered = sorted(costs, reverse=True)
    best = max(ordered[0], sum(ordered) / slots)
    for k in range(1, (len(ordered) - 1) // slots + 1):
        best = max(best, sum(ordered[k * slots - k : k * slots + 1]))
    return best


def run(actual: Sequence[float], queue: Sequence[int], slots: int) -> float:
    """When the last slot is done, each taking the next case when it is free."""
    ends = [0.0] * slots
    for index in queue:
        ends[ends.index(min(ends))] += actual[index]
    return max(ends)


def main() -> int:
    costs = durations()
    longest_next = sorted(range(len(costs)), key=lambda index: -costs[index])
    rng = random.Random(0)
    actual = [cost * rng.uniform(0.7, 1.3) for cost in costs]
    worst = 0.0
    print(f"{len(costs)} models, {sum(costs):.0f} s in all, the longest {max(costs):.1f} s")
    print("                                             durations off by up to 30 %")
    print("slots   bound    plan  over  longest next     plan over  longest next")
    for slots in SLOTS:
        least, off_least = bound(costs, slots), bound(actual, slots)
        queue = order(costs, slots)
        planned = run(costs, queue, slots)
        shards = makespan(costs, assign(costs, slots))
        worst = max(worst, planned / least, shards / least)
        if "--all" in sys.argv or slots in (1, 2, 4, 8, 16, 24, 28, 32, 35, 40, 48, 64):
            print(
                f"{slots:>5} {least:>7.1f} {planned:>7.1f} {planned / least - 1:>5.1%} "
                f"{run(costs, longest_next, slots) / least - 1:>13.1%} "
                f"{run(actual, queue, slots) / off_least - 1:>13.1%} "
                f"{run(actual, longest_next, slots) / off_least - 1:>13.1%}"
            )
    print(f"worst of 1 to 64 slots or shards: {worst - 1:.1%} over the bound")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
