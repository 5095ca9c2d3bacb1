"""What perfdash itself costs per case, from the phases of a finished run.

    python benchmarks/harness_cost.py RUN_FOLDER

A case needs loading, compiling, checking and sampling; all else (measuring memory, forking, writing
the journal, waiting) is the harness's own. At most 1.5 s and 5 % of the case are wanted. Replicas are
sampling; the time that they take is left out of the case here, so that the share is not flattered.
"""

from __future__ import annotations

import sys
from pathlib import Path

from perfdash.runner.run_journal import read_results

NEEDED = ("load", "compile", "accuracy", "latency")


def main() -> None:
    print(f"{'model':<36} {'case s':>7} {'compile s':>9} {'own s':>6} {'share':>6}")
    for result in read_results(Path(sys.argv[1])):
        case_s = result.wall_s - result.phases_s.get("replicas", 0.0)
        own = case_s - sum(result.phases_s.get(phase, 0.0) for phase in NEEDED)
        compile_s = result.phases_s.get("compile", 0.0)
        print(f"{result.case.model:<36} {case_s:>7.1f} {compile_s:>9.1f} {own:>6.2f} {own / case_s:>6.1%}")


if __name__ == "__main__":
    main()
