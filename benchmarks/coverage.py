"""How often the interval covers the true speedup, and another run's, by simulation at full size.

    python benchmarks/coverage.py [REPEATS]

Processes differ by a normal log ratio of 1.5 %, pairs have common drift and one-sided noise. Beside
perfdash's interval stands the percentile bootstrap over processes, then pairs, which is too narrow
for few processes.
"""

from __future__ import annotations

import sys

import numpy as np

from perfdash.stats.intervals import Spread
from perfdash.stats.speedup import Pairs, estimate, log_ratios_of, verdict

BETWEEN, TRUTH = 0.015, 1.4


def process(rng: np.random.Generator, ratio: float, pairs: int = 60) -> Pairs:
    drift = np.exp(rng.normal(0, 0.05, pairs).cumsum() / 20)
    noise = np.exp(np.abs(rng.normal(0, 0.03, (2, pairs))))
    return Pairs(10 * drift * noise[0] * ratio * np.exp(rng.normal(0, BETWEEN)), 10 * drift * noise[1])


def bootstrap(rng: np.random.Generator, processes: list[Pairs], resamples: int = 300) -> tuple[float, float]:
    values = []
    for _ in range(resamples):
        logs = []
        for k in rng.integers(0, len(processes), len(processes)):
            rows = rng.integers(0, len(processes[k].eager), len(processes[k].eager))
            logs.append(np.log(np.median(processes[k].eager[rows]) / np.median(processes[k].backend[rows])))
        values.append(np.mean(logs))
    low, high = np.exp(np.quantile(values, [0.025, 0.975]))
    return float(low), float(high)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    rng = np.random.default_rng(0)
    print("               perfdash                          bootstrap")
    print("processes  basis      truth  another run  width  truth  width  A/A called faster or slower")
    for count in (1, 2, 3, 6, 10):
        hits = others = boot_hits = called = 0
        widths, boot_widths = [], []
        basis = ""
        for repeat in range(repeats):
            pooled = Spread()
            if count == 1:
                for _ in range(2):
                    own = estimate(log_ratios_of([process(rng, 1.2) for _ in range(3)]), Spread()).own
                    pooled = pooled.plus(own.variance, own.df)
            some = [process(rng, TRUTH) for _ in range(count)]
            found = estimate(log_ratios_of(some, seed=repeat), pooled)
            basis = found.basis
            hits += found.ci_low <= TRUTH <= found.ci_high
            other = estimate(log_ratios_of([process(rng, TRUTH) for _ in range(count)], seed=repeat), pooled)
            others += found.ci_low <= other.value <= found.ci_high
            widths.append(found.ci_high - found.ci_low)
            low, high = bootstrap(rng, some)
            boot_hits += low <= TRUTH <= high
            boot_widths.append(high - low)
            null = estimate(log_ratios_of([process(rng, 1.0) for _ in range(count)], seed=repeat), pooled)
            called += verdict(null.basis, null.ci_low, null.ci_high) in ("faster", "slower")
        print(
            f"{count:>9}  {basis:<9}  {hits / repeats:>5.1%}  {others / repeats:>11.1%}  "
            f"{np.mean(widths):.3f}  "
            f"{boot_hits / repeats:>5.1%}  {np.mean(boot_widths):.3f}  {called / repeats:>6.1%}"
        )


if __name__ == "__main__":
    main()
