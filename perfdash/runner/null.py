"""The A/A null of a run: at its start with all slots busy, and at its end."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from perfdash.records import RunInfo
from perfdash.runner import noise
from perfdash.runner.executor import Executor
from perfdash.stats.speedup import null_warning
from perfdash.suites.cases import Planned

Say = Callable[[str], None]


def at_start(executor: Executor, like: Planned, info: RunInfo, say: Say) -> None:
    """Measures it on all slots at the same time, and gives up slots until it is within bounds.

    Cases may be measured side by side only where that does not spoil the numbers. What was tried
    stands in the run's noise: ratios, and how much longer the null takes than on one slot alone.
    """
    tried: list[dict[str, Any]] = []
    alone = noise.null_ms(executor.null(like, 1, slots=1)[0]) if executor.slots > 1 else None
    while True:
        count = executor.slots
        outcomes = executor.null(like, noise.NULL_PROCESSES)
        entry: dict[str, Any] = {
            "slots": count,
            "null": [ratio for slot in outcomes for ratio in noise.null_ratios(slot)],
        }
        busy = [ms for slot in outcomes if (ms := noise.null_ms(slot))]
        if alone and busy:
            entry["slowdown"] = round(statistics.median(busy) / alone, 4)
        tried.append(entry)
        if count == 1 or noise.within_bounds(entry["null"]):
            break
        executor.shrink(max(1, count // 2))
        say(
            f"A/A null with {count} slots busy is out of bounds (beyond {noise.NULL_BOUND:.0%}): "
            f"--jobs reduced to {executor.slots}"
        )
    if alone:
        info.noise["slots"] = tried
        say(
            f"{executor.slots} slot{'s' if executor.slots > 1 else ''}: with all busy the null takes "
            f"{tried[-1].get('slowdown', 1.0):.2f} times as long as on one alone"
        )
    _tell("start", tried[-1]["null"], info, say)


def at_end(executor: Executor, like: Planned, info: RunInfo, say: Say) -> None:
    """Measures it again on all slots."""
    outcomes = executor.null(like, noise.NULL_PROCESSES)
    _tell("end", [ratio for slot in outcomes for ratio in noise.null_ratios(slot)], info, say)


def _tell(when: str, ratios: list[float], info: RunInfo, say: Say) -> None:
    """Into the run's noise; `worst` is over all times that the run was started or resumed."""
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
