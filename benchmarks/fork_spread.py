"""Whether forks of one parent spread as fresh interpreters do, and how far models of one parent err together.

    python benchmarks/fork_spread.py [PROCESSES [MODEL ...]]

Each model of timm is compiled once. Then it is sampled in so many processes (20) forked from one parent, and
in as many of which each has a parent of its own; such a parent forks one process for each model. What the
models of one parent have in common is the covariance of their log ratios over parents (SHARED_SD of
stats/means.py is its root).
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfdash.files import TemporaryFolder
from perfdash.records import Job
from perfdash.runner.cores import slots_of
from perfdash.runner.messages import options_of
from perfdash.runner.plan import make_plan
from perfdash.runner.result_record import process_ratios
from perfdash.runner.slot import Slot
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned

MODELS = ("lcnet_050", "mobilenetv3_large_100", "deit_tiny_patch16_224.fb_in1k")


def sampled(slot: Slot, planned: Planned, job: Job, number: int, log: Path) -> float:
    """The log ratio of one more process of a case that is compiled already."""
    replica = replace(job, role="replica", process=number)
    outcome = slot._process(planned, replica, log)
    ratios = process_ratios([outcome])
    if ratios is None:
        raise SystemExit(f"{planned.case.model}: {outcome.find('failed')}")
    return ratios.mean


def spread(ratios: list[float]) -> str:
    """The standard deviation with its 95 % interval (chi square, by the normal approximation of its log)."""
    deviation = float(np.std(ratios, ddof=1))
    factor = math.exp(1.96 / math.sqrt(2 * (len(ratios) - 1)))
    return f"{deviation:.2%} ({deviation / factor:.2%} to {deviation * factor:.2%})"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    models = tuple(sys.argv[2:]) or MODELS
    settings = RunSettings(suite=("timm",), models=models, batch_size=(1,), no_history=True)
    plan, _ = make_plan(settings)
    log = Path(tempfile.mkdtemp()) / "fork_spread.log"
    forks: dict[str, list[float]] = {}
    fresh: dict[str, list[float]] = {}
    start = time.monotonic()
    with Slot(slots_of(settings)[0], options_of(settings)) as slot:
        slot.introduce(plan.cases)
        scratches = {planned.case: TemporaryFolder() for planned in plan.cases}
        jobs = {case: slot._job(planned, scratch.path) for (case, scratch), planned in
                zip(scratches.items(), plan.cases, strict=True)}  # fmt: skip
        try:
            for planned in plan.cases:
                first = slot._process(planned, jobs[planned.case], log)
                if not first.find("done"):
                    raise SystemExit(f"{planned.case.model}: {first.find('failed')}")
                ratios = [sampled(slot, planned, jobs[planned.case], k, log) for k in range(count)]
                forks[planned.case.model] = ratios
                print(f"{planned.case.model}: {count} forks of one parent {spread(ratios)}", flush=True)
            for number in range(count):
                slot.renew()
                for planned in plan.cases:
                    ratio = sampled(slot, planned, jobs[planned.case], number, log)
                    fresh.setdefault(planned.case.model, []).append(ratio)
        finally:
            for scratch in scratches.values():
                scratch.remove()
    for model, ratios in fresh.items():
        shift = np.mean(ratios) - np.mean(forks[model])
        print(f"{model}: {count} parents, a fork each {spread(ratios)}; their mean differs by {shift:+.2%}")
    covariance = np.cov(np.array(list(fresh.values())))
    shared = covariance[np.triu_indices(len(fresh), 1)]
    error = float(np.mean(np.diag(covariance))) / math.sqrt(count - 1) / math.sqrt(max(1, len(shared)))
    print(
        f"models of one parent: covariance {np.mean(shared):.2e} +- {1.96 * error:.1e}, "
        f"a shared deviation of {math.sqrt(max(0.0, float(np.mean(shared)))):.2%}, "
        f"at most {math.sqrt(max(0.0, float(np.mean(shared)) + 1.96 * error)):.2%}"
    )
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
