"""Measure with few samples: for tests of commands, where the numbers themselves are not the point.

`python -m tests.few_samples ...` is `perfdash ...` with it; `command(..., quickly=True)` does the same.
Only this changes: how often something is sampled; warm workers count all samples, also those that other
programs disturb, so that no result depends on how busy the machine is; the A/A null takes one process instead
of three, and that of the start stands for that of the end; no further processes follow where two disagree, as
they do with so few samples; a stopped process is found sooner.
"""

from __future__ import annotations

import os
from pathlib import Path

UNDISTURBED = "TEST_UNDISTURBED"  # the variable that tells a warm worker to count all samples


def take_few_samples() -> None:
    """Changes this process only: workers are told in their orders how much to sample."""
    from perfdash.records import Sampling
    from perfdash.runner import cpu_quota, noise, slot, worker_limits

    Sampling.__init__.__defaults__ = (0.05, 16, 200, 0.0, 0.6, 0.6)
    noise.NULL_PROCESSES = 1
    noise.null_at_end = lambda executor, like, info, say: noise._record(
        "end", info.noise["null"]["start"], info, say
    )
    noise.NULL_SAMPLING = Sampling(precision=0.02, min_pairs=10, min_s=0.0, budget_s=0.2)
    noise.NULL_BOUND = 1.0  # so few say nothing of how many slots may be busy at once
    cpu_quota.CGROUPS = Path("/nowhere")  # the quota of this container, if any, is that of all tests
    slot.FURTHER = 0
    os.environ[UNDISTURBED] = "yes"
    worker_limits._STOPPED_EVERY_S = 1.0


if __name__ == "__main__":
    from perfdash.cli import main

    take_few_samples()
    main()
