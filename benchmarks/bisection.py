"""How often `perfdash bisect` names the right commit, and what it costs, by simulation.

    python benchmarks/bisection.py [--size small|full] [--trials N] [SETTING ...]

A row of 128 commits, one of which (uniformly drawn) moves the value up or down by so many sigma, the
standard deviation of one measurement, which the search is not told. 5 % of measurements are off by
another 3 to 30 sigma, either way. Builds cost ten measurements; both ends count as builds, so do those
that fail. The search is told nothing else: sigma is drawn between 0.3 and 5 %, the level anywhere.

right: the commit, or where builds fail the smallest set that can be told. sure: of those said with 95 %
or more, the share that is right. interval: how many of the 95 % intervals of the step hold it. ms: the
slowest planning of a step (other programs' work on the core included). The seed of each setting is fixed.
"""

from __future__ import annotations

import argparse
import math
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from perfdash.bisection.events import (
    Answered,
    Broken,
    Build,
    Built,
    Done,
    Measured,
    Question,
    RangeOutcome,
    Resumed,
)
from perfdash.bisection.search import RangeSearch

COMMITS = 128
SURE = 0.95


@dataclass(frozen=True)
class Setting:
    """What the simulated truth is; steps, bias and drift in sigma.

    noise: gaussian, or t3 (Student's t with 3 degrees of freedom and scale sigma). bias: standard
    deviation of a build. broken: share of commits that do not build; in_runs: in runs of about 4. drift:
    of the host, a random walk with so much a measurement and 1.5 times that a build. moved: the host is
    elsewhere after 20 measurements. second: another step 30 to 60 commits off. answers: yes or no, of
    which a bad build fails so often (0: numbers).
    """

    name: str
    step: float
    noise: str = "gaussian"
    outliers: float = 0.05
    bias: float = 0.0
    broken: float = 0.0
    in_runs: bool = False
    drift: float = 0.0
    moved: float = 0.0
    second: float = 0.0
    answers: float = 0.0
    jobs: int = 1
    commits: int = COMMITS
    goal: float = 0.0  # share that is to be right
    share: float = 1.0  # of the trials: how many are run of it


SETTINGS = [
    Setting("2 sigma", 2, goal=0.95),
    Setting("3 sigma", 3, goal=0.98),
    Setting("5 sigma", 5, goal=0.995),
    Setting("30 sigma", 30, goal=0.995, share=0.5),
    Setting("3 sigma, bias", 3, bias=0.5, goal=0.90),
    Setting("2 sigma, 10 % broken", 2, broken=0.1, goal=0.95),
    Setting("3 sigma, 10 % broken", 3, broken=0.1, goal=0.98),
    Setting("5 sigma, 10 % broken", 5, broken=0.1, goal=0.995),
    Setting("3 sigma, broken in runs", 3, broken=0.1, in_runs=True, share=0.5),
    Setting("3 sigma, bias, 10 % broken", 3, bias=0.5, broken=0.1, goal=0.90, share=0.5),
    Setting("no effect", 0, goal=0.98),
    Setting("no effect, t3", 0, noise="t3", goal=0.98, share=0.5),
    Setting("no effect, drift", 0, drift=0.15, goal=0.98, share=0.5),
    Setting("no effect, bias", 0, bias=0.5, share=0.5),
    Setting("3 sigma, no outliers", 3, outliers=0.0, share=0.5),
    Setting("3 scales, t3", 3, noise="t3", share=0.5),
    Setting("3 sigma, drift", 3, drift=0.15, share=0.5),
    Setting("2 sigma, drift", 2, drift=0.15, share=0.5),
    Setting("3 sigma, host moved by 5", 3, moved=5, share=0.5),
    Setting("3 sigma, three builders", 3, jobs=3, share=0.5),
    Setting("5 sigma, three builders", 5, jobs=3, share=0.5),
    Setting("3 sigma, 3 builders, broken", 3, jobs=3, broken=0.1, share=0.5),
    Setting("5 sigma and another of 4", 5, second=4, share=0.5),
    Setting("answers", 1, answers=1.0, share=0.5),
    Setting("answers, bad fails half", 1, answers=0.5, share=0.5),
    Setting("3 sigma, 10,000 commits", 3, commits=10_000, share=0.2),
]
SMALL = ["2 sigma", "3 sigma", "5 sigma", "3 sigma, bias", "3 sigma, 10 % broken", "no effect"]


@dataclass
class Truth:
    """One drawn world: what a measurement of a place gives."""

    setting: Setting
    rng: np.random.Generator
    sigma: float = 0.0
    host: float = 0.0
    taken: int = 0
    steps: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n, rng = self.setting.commits, self.rng
        self.sigma = math.exp(rng.uniform(math.log(0.003), math.log(0.05)))
        self.level = rng.uniform(-5, 5)
        direction = rng.choice([-1, 1])
        self.culprit = int(rng.integers(1, n + 1))
        if self.setting.step:
            self.steps.append((self.culprit, direction * self.setting.step))
        if self.setting.second:
            away = int(rng.integers(30, 60)) * (1 if self.culprit <= n // 2 else -1)
            self.steps.append((self.culprit + away, direction * self.setting.second))
        self.bias = rng.normal(0, self.setting.bias, n + 1)
        share = self.setting.broken / (4 if self.setting.in_runs else 1)
        self.broken = rng.random(n + 1) < share
        if self.setting.in_runs:
            for place in np.flatnonzero(self.broken):
                self.broken[place : place + int(rng.geometric(0.25))] = True
        self.broken[[0, n]] = False

    def smallest_set(self, culprit: int) -> tuple[int, int]:
        """The culprit and what no build can tell from it."""
        first = last = culprit
        while self.broken[first - 1]:
            first -= 1
        while self.broken[last]:
            last += 1
        return first, last

    def build(self, place: int) -> Built | Broken:
        self.host += self.rng.normal(0, 1.5 * self.setting.drift)
        return Broken(place) if self.broken[place] else Built(place)

    def measure(self, place: int) -> Measured | Answered:
        setting, rng = self.setting, self.rng
        if setting.answers:
            return Answered(place, place >= self.culprit and rng.random() < setting.answers)
        self.taken += 1
        self.host += rng.normal(0, setting.drift)
        value = rng.standard_t(3) if setting.noise == "t3" else rng.normal()
        if rng.random() < setting.outliers:
            value += rng.choice([-1, 1]) * rng.uniform(3, 30)
        value += sum(size for at, size in self.steps if place >= at) + self.bias[place] + self.host
        value += setting.moved * (self.taken > 20)
        return Measured(place, self.level + self.sigma * float(value))


@dataclass(frozen=True)
class Trial:
    """One bisection: what was said, whether it is so, what it took."""

    outcome: RangeOutcome
    right: bool
    sure: bool
    held: bool | None
    builds: int
    rounds: int
    measurements: int
    slowest_s: float


def trial(setting: Setting, rng: np.random.Generator) -> Trial:
    truth = Truth(setting, rng)
    search = RangeSearch(Question(setting.commits, answers=bool(setting.answers), jobs=setting.jobs))
    builds = rounds = measurements = 0
    slowest = 0.0
    while not isinstance(search.action, Done):
        if isinstance(search.action, Build):
            rounds += 1
            builds += len(search.action.places)
            seen = [truth.build(place) for place in search.action.places]
        else:
            measurements += 1
            seen = [truth.measure(search.action.place)]
        for observation in seen:
            began = time.perf_counter()
            search.observe(observation)
            slowest = max(slowest, time.perf_counter() - began)
            if setting.moved and truth.taken == 20 and isinstance(observation, Measured):
                search.observe(Resumed())
    outcome = search.action.outcomes[0]
    culprits = {(culprit.first, culprit.last) for culprit in search.action.culprits}
    if setting.step:
        right = culprits == {truth.smallest_set(at) for at, _ in truth.steps}
        sure = outcome.verdict == "outcome" and outcome.probability >= SURE
    else:
        right, sure = outcome.verdict == "not reproduced", False
    held = None
    if right and len(truth.steps) == 1 and not setting.answers:
        held = outcome.step_low <= truth.sigma * truth.steps[0][1] <= outcome.step_high
    return Trial(outcome, right, sure, held, builds, rounds, measurements, slowest)


def once_each(setting: Setting, rng: np.random.Generator) -> bool:
    """Bisection as it is done by hand: one measurement a commit, the nearer end wins."""
    truth = Truth(setting, rng)
    values = {end: truth.measure(end) for end in (0, setting.commits)}
    good, bad = (
        float(observation.value) for observation in values.values() if isinstance(observation, Measured)
    )
    low, high = 0, setting.commits
    while high - low > 1:
        middle = (low + high) // 2
        seen = truth.measure(middle)
        assert isinstance(seen, Measured)
        if abs(seen.value - bad) < abs(seen.value - good):
            high = middle
        else:
            low = middle
    return high == truth.culprit


def trials(setting: Setting, count: int) -> list[Trial]:
    rng = np.random.default_rng(zlib.crc32(setting.name.encode()))
    return [trial(setting, rng) for _ in range(count)]


def row(setting: Setting, done: list[Trial]) -> str:
    words = Counter(trial.outcome.verdict for trial in done)
    sure = [trial.right for trial in done if trial.sure]
    held = [trial.held for trial in done if trial.held is not None]
    others = ", ".join(f"{word} {count}" for word, count in words.most_common())
    return (
        f"{setting.name:<28}{len(done):>6}{np.mean([trial.right for trial in done]):>8.1%}"
        f"{f'{setting.goal:.1%}' if setting.goal else '':>8}"
        f"{f'{np.mean(sure):.1%} of {len(sure)}' if sure else '':>16}"
        f"{f'{np.mean(held):.1%}' if held else '':>10}"
        f"{np.mean([trial.builds for trial in done]):>8.1f}{max(trial.builds for trial in done):>5}"
        f"{np.mean([trial.rounds for trial in done]):>8.1f}{max(trial.rounds for trial in done):>4}"
        f"{np.mean([trial.measurements for trial in done]):>7.0f}"
        f"{1000 * max(trial.slowest_s for trial in done):>7.0f}   {others}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("settings", nargs="*", help="names of settings; without, all")
    parser.add_argument("--size", choices=["small", "full"], default="full")
    parser.add_argument("--trials", type=int, default=None)
    options = parser.parse_args()
    wanted = options.settings or (
        SMALL if options.size == "small" else [setting.name for setting in SETTINGS]
    )
    count = options.trials or (30 if options.size == "small" else 1000)
    bound = 1.3 * math.log2(COMMITS) + 3
    print(f"{COMMITS} commits; at most {bound:.1f} builds on average are wanted")
    print(
        f"{'setting':<28}{'trials':>6}{'right':>8}{'goal':>8}{'sure':>16}{'interval':>10}{'builds':>8}{'max':>5}"
        f"{'rounds':>8}{'max':>4}{'meas.':>7}{'ms':>7}"
    )
    for setting in SETTINGS:
        if setting.name in wanted:
            print(row(setting, trials(setting, max(1, round(count * setting.share)))), flush=True)
    if options.size == "full" and not options.settings:
        print("\none measurement a commit, the nearer end wins (right):")
        rng = np.random.default_rng(0)
        for step in (2.0, 3.0, 5.0):
            plain = replace(SETTINGS[0], step=step)
            share = np.mean([once_each(plain, rng) for _ in range(2000)])
            print(f"  {step:.0f} sigma: {share:.1%}")


if __name__ == "__main__":
    main()
