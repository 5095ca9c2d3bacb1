"""How often runs of one build are told apart: every two of some runs, compared as `perfdash compare` does.

    for i in 1 2 3 4 5; do perfdash run --suite torchbench,huggingface,timm --quick --no-history; done
    python benchmarks/same_build.py RUN RUN RUN ...

Nothing changed between the runs, so each change that is called significant is false. Printed are its share of
the comparisons by metric, and for each model the largest speedup over the smallest, and how many pairs of
runs agree within their intervals (sqrt(2) wider, as for another run).
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from itertools import combinations

import perfdash
from perfdash.records import Case, Result


def main() -> None:
    runs = [perfdash.load(name) for name in sys.argv[1:]]
    if len(runs) < 2:
        sys.exit("usage: python benchmarks/same_build.py RUN RUN ...")
    compared: dict[str, list[bool]] = defaultdict(list)
    for old, new in combinations(runs, 2):
        for case in perfdash.compare(old, new).sides.both:
            for metric, delta in case.deltas.items():
                if delta.p is not None:
                    compared[metric].append(delta.significant)
    for metric, significant in compared.items():
        print(f"{metric:<22}{sum(significant):>4} of {len(significant):>4} called different")
    results: dict[Case, list[Result]] = defaultdict(list)
    for run in runs:
        for result in run:
            if result.speedup and result.speedup.ci_low and result.speedup.ci_high:
                results[result.case].append(result)
    print(f"\n{'model':<36}{'runs':>5}{'largest / smallest':>20}{'agree':>12}")
    for case, measured in results.items():
        values = [result.speedup.value for result in measured if result.speedup]
        pairs = list(combinations(measured, 2))
        agree = sum(_agree(first, second) for first, second in pairs)
        print(f"{case.model:<36}{len(values):>5}{max(values) / min(values):>20.3f}{agree:>7} of {len(pairs)}")


def _agree(first: Result, second: Result) -> bool:
    """Whether two speedups differ by no more than their intervals of another run allow."""
    old, new = first.speedup, second.speedup
    if not (old and new and old.ci_low and old.ci_high and new.ci_low and new.ci_high):
        return False
    reach = math.hypot(math.log(old.ci_high / old.ci_low), math.log(new.ci_high / new.ci_low)) / 2
    return abs(math.log(old.value / new.value)) <= reach


if __name__ == "__main__":
    main()
