"""Measure beside a program that computes on the same core half of the time, and compare with a quiet run.

    python benchmarks/neighbour.py run --period 1 --core 1 -- perfdash run --quick --suite timm --cores 1
    python benchmarks/neighbour.py compare QUIET_RUN DISTURBED_RUN ...

Wanted: speedups within 3 % of the quiet ones, at most 2 of 10 cases `disturbed`, at most twice the wall time,
for periods of 0.02, 1 and 60 s. `run` prints the wall time of the command and ends with its exit code.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from multiprocessing import Process

import perfdash

WANTED = 0.03  # the largest distance to the quiet speedup


def compute_half_of_the_time(core: int, period_s: float) -> None:
    """Multiply on one core for half of each period and sleep for the other half; never returns."""
    os.sched_setaffinity(0, {core})
    while True:
        end = time.monotonic() + period_s / 2
        value = 1.0
        while time.monotonic() < end:
            for _ in range(1000):
                value = value * 1.0000001
        time.sleep(period_s / 2)


def run_beside(core: int, period_s: float, command: list[str]) -> int:
    """Run a command while the neighbour computes; the command's exit code."""
    neighbour = Process(target=compute_half_of_the_time, args=(core, period_s), daemon=True)
    neighbour.start()
    began = time.monotonic()
    try:
        code = subprocess.run(command, check=False).returncode
    finally:
        neighbour.kill()
        neighbour.join()
    print(f"period {period_s:g} s: {time.monotonic() - began:.0f} s of wall time, exit code {code}")
    return code


def compare(quiet_name: str, disturbed_names: list[str]) -> None:
    """Print each case's speedup beside the neighbour over the quiet one."""
    quiet = {result.case: result for result in perfdash.load(quiet_name)}
    for name in disturbed_names:
        distances, disturbed = [], 0
        print(f"\n{name}\n{'model':<34}{'quiet':>8}{'beside':>8}{'ratio':>8}  {'95 % interval':<16} verdict")
        for result in perfdash.load(name):
            before = quiet.get(result.case)
            if not (before and before.speedup and result.speedup):
                print(f"{result.case.model:<34} no speedup: {result.status.value}")
                continue
            speedup, disturbed = result.speedup, disturbed + (result.speedup.verdict == "disturbed")
            distances.append(abs(math.log(speedup.value / before.speedup.value)))
            interval = (
                f"{speedup.ci_low:.3f} to {speedup.ci_high:.3f}" if speedup.ci_low and speedup.ci_high else ""
            )
            print(
                f"{result.case.model:<34}{before.speedup.value:>8.3f}{speedup.value:>8.3f}"
                f"{speedup.value / before.speedup.value:>8.3f}  {interval:<16} {speedup.verdict}"
            )
        far = sum(distance > math.log1p(WANTED) for distance in distances)
        print(f"{far} of {len(distances)} farther than {WANTED:.0%} from quiet, {disturbed} disturbed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--period", type=float, required=True, help="seconds")
    run.add_argument("--core", type=int, required=True)
    run.add_argument("words", nargs="+")
    comparison = commands.add_parser("compare")
    comparison.add_argument("quiet")
    comparison.add_argument("disturbed", nargs="+")
    asked = parser.parse_args()
    if asked.command == "run":
        sys.exit(run_beside(asked.core, asked.period, asked.words))
    compare(asked.quiet, asked.disturbed)


if __name__ == "__main__":
    main()
