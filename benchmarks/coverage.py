"""How often the interval covers the true speedup, and another run's, by simulation at full size.

    python benchmarks/coverage.py [RUNS]

A run has 159 models, whose processes differ by a normal log ratio with a standard deviation of their own
(log-normal around 1.2 %), and pairs with common drift and one-sided noise. A third of the models are slow:
a call takes over a second, and each process has 6 to 12 pairs. Two more processes are taken where the first
two disagree, as a run does. The truth of every model is 1, so each verdict but `equivalent` and
`inconclusive` is wrong.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field

import numpy as np

from perfdash.stats.process_spread import ProcessRatios, disagree, spread_of_run
from perfdash.stats.speedup import SURE, Pairs, ratios_of, verdict

MEDIAN, SIGMA, MODELS, SLOW = 0.012, 0.6, 159, 52
NOISE = 0.03  # one-sided, of a sample


@dataclass(frozen=True)
class Design:
    title: str
    models: int = MODELS
    nights: int = 0
    median: float = MEDIAN
    odd: float = 0.0  # share of the models that are five times as variable


@dataclass
class Tally:
    """What came of the models of one group, over all runs."""

    truth: list[bool] = field(default_factory=list)
    another: list[bool] = field(default_factory=list)
    called: list[bool] = field(default_factory=list)
    half_widths: list[float] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{np.median(self.half_widths):>9.2%}  {np.mean(self.truth):>6.1%}  "
            f"{np.mean(self.another):>11.1%}  {np.mean(self.called):>6.1%}"
        )


def process(rng: np.random.Generator, between: float, pairs: int) -> Pairs:
    drift = np.exp(rng.normal(0, 0.05, pairs).cumsum() / 20)
    noise = np.exp(np.abs(rng.normal(0, NOISE, (2, pairs))))
    return Pairs(10 * drift * noise[0] * np.exp(rng.normal(0, between)), 10 * drift * noise[1])


def case(rng: np.random.Generator, between: float, slow: bool) -> ProcessRatios:
    """The processes of one model in one run."""

    def sampled(count: int) -> list[Pairs]:
        return [process(rng, between, int(rng.integers(6, 13)) if slow else 60) for _ in range(count)]

    processes = sampled(2)
    if disagree(ratios_of(processes)):
        processes += sampled(2)
    return ratios_of(processes)


def run(rng: np.random.Generator, spreads: np.ndarray, slow: np.ndarray) -> list[ProcessRatios]:
    return [case(rng, between, late) for between, late in zip(spreads, slow, strict=True)]


def simulate(design: Design, runs: int) -> dict[str, Tally]:
    rng = np.random.default_rng(1)
    groups = {"all": Tally(), "noisiest quarter": Tally(), "slow": Tally()}
    for _ in range(max(1, runs * MODELS // (design.models * (1 + design.nights)))):
        spreads = design.median * np.exp(SIGMA * rng.normal(size=design.models))
        spreads = np.where(rng.random(design.models) < design.odd, 5 * spreads, spreads)
        slow = rng.random(design.models) < SLOW / MODELS
        noisy = spreads >= design.median * math.exp(0.674 * SIGMA)
        nights = [run(rng, spreads, slow) for _ in range(design.nights)]
        earlier = [[night[place] for night in nights] for place in range(design.models)]
        cases, others = run(rng, spreads, slow), run(rng, spreads, slow)
        spread = spread_of_run(cases, earlier)
        for place, (case_ratios, other) in enumerate(zip(cases, others, strict=True)):
            reach, sure = spread.reach(place, case_ratios), spread.reach(place, case_ratios, SURE)
            word = verdict(
                math.exp(case_ratios.mean - reach),
                math.exp(case_ratios.mean + reach),
                (math.exp(case_ratios.mean - sure), math.exp(case_ratios.mean + sure)),
            )
            kinds = ["all", *["noisiest quarter"] * bool(noisy[place]), *["slow"] * bool(slow[place])]
            for kind in kinds:
                tally = groups[kind]
                tally.truth.append(abs(case_ratios.mean) <= reach)
                tally.another.append(abs(case_ratios.mean - other.mean) <= math.sqrt(2) * reach)
                tally.called.append(word in ("faster", "slower"))
                tally.half_widths.append(reach)
    return groups


DESIGNS = (
    Design("a night of 159 models, the first"),
    Design("the same after 8 nights", nights=8),
    Design("one model in 20 five times as variable", odd=0.05),
    Design("a noisy machine, 3 %", median=0.03),
    Design("a quiet machine, 0.4 %", median=0.004),
    Design("the quick set, 10 models", models=10),
    Design("one model", models=1),
)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print(f"{'':<58}half width   truth  another run  A/A called")
    for design in DESIGNS:
        for kind, tally in simulate(design, runs).items():
            if tally.truth:
                print(f"{design.title:<40} {kind:<17} {tally.line()}", flush=True)


if __name__ == "__main__":
    main()
