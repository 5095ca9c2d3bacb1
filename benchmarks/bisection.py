"""How often `perfdash bisect` names and confirms the right commit, and what it costs, by simulation.

    python benchmarks/bisection.py [--size small|full] [--trials N] [--keep FILE] [--jobs N] [SETTING ...]

Each trial plays the real search and confirmation (perfdash.bisection.replay), from the first measurement of
the ends to the last pair of fresh builds. With --keep every trial is a line of FILE as it ends, and the
command repeated goes on where it was.

A row of 128 commits, one of which (uniformly drawn) moves the value up or down by so many sigma, the
standard deviation of one measurement, which the search is not told. 5 % of measurements are off by
another 3 to 30 sigma, either way. Builds cost ten measurements; both ends count as builds, so do those
that fail. The search is told nothing else: sigma is drawn between 0.3 and 5 %, the level anywhere.

right: the commit, or where builds fail the smallest set that can be told. confirmed: right, and confirmed by
pairs of fresh builds. false: wrong, and confirmed. sure: of those found with 95 % or more, the share that is
right. interval: how many of the 95 % intervals of the step hold it. builds: without the fresh ones, of which
`fresh` are made. pairs: of fresh builds. ms: the slowest planning of a step (other programs' work on the core
included). The seed of each trial is fixed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from perfdash.bisection import events
from perfdash.bisection.culprit_confirmation import confirmation
from perfdash.bisection.events import Build, Question
from perfdash.bisection.metrics import BAD, GOOD, Reading
from perfdash.bisection.replay import Bisection, BuildFresh, Confirm, SearchStep
from perfdash.bisection.sources import Revision

COMMITS = 128
SURE = 0.95


@dataclass(frozen=True)
class Setting:
    """What the simulated truth is; steps, bias and drift in sigma.

    noise: gaussian, or t3 (Student's t with 3 degrees of freedom and scale sigma). bias: standard deviation
    of a build. own: correlation of the bias of two builds of one commit. broken: share of commits that do
    not build; in_runs: in runs of about 4. drift: of the host, a random walk with so much a measurement and
    1.5 times that a build. moved: the host is elsewhere after 20 measurements. second: another step 30 to 60
    commits off. answers: yes or no, of which a bad build fails so often (0: numbers).
    """

    name: str
    step: float
    noise: str = "gaussian"
    outliers: float = 0.05
    bias: float = 0.0
    own: float = 0.0
    broken: float = 0.0
    in_runs: bool = False
    drift: float = 0.0
    moved: float = 0.0
    second: float = 0.0
    answers: float = 0.0
    jobs: int = 1
    commits: int = COMMITS
    goal: float = 0.0  # share that is to be right
    confirmed: float = 0.0  # share that is to be right and confirmed
    share: float = 1.0  # of the trials: how many are run of it


SETTINGS = [
    Setting("2 sigma", 2, goal=0.95, confirmed=0.9),
    Setting("3 sigma", 3, goal=0.98, confirmed=0.97),
    Setting("5 sigma", 5, goal=0.995, confirmed=0.99),
    Setting("30 sigma", 30, goal=0.995, share=0.5),
    Setting("3 sigma, bias", 3, bias=0.5, goal=0.90, confirmed=0.88),
    Setting("3 sigma, bias of the commit", 3, bias=0.5, own=1.0, goal=0.90, confirmed=0.88),
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
    Setting("2 sigma, drift", 2, drift=0.15, confirmed=0.90),
    Setting("3 sigma, drift", 3, drift=0.15, confirmed=0.97),
    Setting("5 sigma, drift", 5, drift=0.15, confirmed=0.99),
    Setting("3 sigma, host moved by 5", 3, moved=5, share=0.5),
    Setting("3 sigma, three builders", 3, jobs=3, share=0.5),
    Setting("5 sigma, three builders", 5, jobs=3, share=0.5),
    Setting("3 sigma, 3 builders, broken", 3, jobs=3, broken=0.1, share=0.5),
    Setting("5 sigma and another of 4", 5, second=4, share=0.5),
    Setting("60 sigma and another of 10", 60, second=10, share=0.5),
    Setting("30 sigma, bias of 1", 30, bias=1.0, share=0.5),
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
        own = self.setting.own
        self.fresh_bias = own * self.bias
        if own < 1:
            new = rng.normal(0, self.setting.bias, n + 1)
            self.fresh_bias = self.fresh_bias + math.sqrt(1 - own**2) * new
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

    def builds(self, place: int) -> bool:
        """Whether a build succeeds; the host drifts meanwhile."""
        self.host += self.rng.normal(0, 1.5 * self.setting.drift)
        return not self.broken[place]

    def measure(self, place: int, fresh: bool = False) -> float:
        """One value of a build; of a yes-or-no question 1.0 for the fault."""
        setting, rng = self.setting, self.rng
        if setting.answers:
            return float(place >= self.culprit and rng.random() < setting.answers)
        self.taken += 1
        self.host += rng.normal(0, setting.drift)
        value = rng.standard_t(3) if setting.noise == "t3" else rng.normal()
        if rng.random() < setting.outliers:
            value += rng.choice([-1, 1]) * rng.uniform(3, 30)
        value += sum(size for at, size in self.steps if place >= at) + self.host
        value += (self.fresh_bias if fresh else self.bias)[place]
        value += setting.moved * (self.taken > 20)
        return self.level + self.sigma * float(value)


@dataclass(frozen=True)
class Trial:
    """One bisection: what was found, whether it is right and confirmed, what it took."""

    verdict: str
    right: bool
    sure: bool
    held: bool | None
    confirmed: bool
    words: tuple[str, ...]
    builds: int
    fresh: int
    rounds: int
    measurements: int
    pairs: int
    slowest_s: float


class Player:
    """Plays one bisection: each step is answered by the truth, as an event of the journal."""

    def __init__(self, setting: Setting, rng: np.random.Generator) -> None:
        self.truth, self.slowest, self.rounds = Truth(setting, rng), 0.0, 0
        self.revisions = [Revision(f"{place:040x}", str(place)) for place in range(setting.commits + 1)]
        question = Question(setting.commits, answers=bool(setting.answers), jobs=setting.jobs)
        metric = "exit-code" if setting.answers else "stdout"
        begun = {"event": events.BEGUN, "metric": metric, "command": ["measure"]}
        self.bisection = Bisection([begun, events.stage(0, "git", self.revisions, question)])
        while (step := self.bisection.next_step()) is not None:
            self.take(step)

    def take(self, step: object) -> None:
        if isinstance(step, BuildFresh):
            self.record(events.FRESH, step.place, environment="fresh")
        elif isinstance(step, Confirm):
            culprit = [step.outcome.first, step.outcome.last]
            self.record(events.CONFIRMED, step.place, culprit=culprit, reading=self.reading(step.place, True))
        elif not isinstance(step, SearchStep):
            self.record(events.REFUTED, step.outcome.first, culprit=[step.outcome.first, step.outcome.last])
        elif isinstance(step.action, Build):
            self.rounds += 1
            for place in step.action.places:
                if self.truth.builds(place):
                    self.record(events.BUILT, place, environment=str(place))
                else:
                    self.record(events.BROKEN, place, why="broken")
        else:
            place = step.action.place
            self.record(events.MEASURED, place, environment=str(place), reading=self.reading(place))
            if self.truth.setting.moved and self.truth.taken == 20:
                for stage in self.bisection.stages:
                    stage.new_session(other_host=True)

    def reading(self, place: int, fresh: bool = False) -> dict[str, object]:
        value = self.truth.measure(place, fresh)
        if self.truth.setting.answers:
            return Reading(BAD if value else GOOD).to_json()
        return Reading("pass", math.exp(value)).to_json()

    def record(self, kind: str, place: int, **more: object) -> None:
        began = time.perf_counter()
        self.bisection.apply(events.at(kind, 0, place, self.revisions[place], **more))
        self.slowest = max(self.slowest, time.perf_counter() - began)


def trial(setting: Setting, number: int) -> Trial:
    player = Player(setting, np.random.default_rng([zlib.crc32(setting.name.encode()), number]))
    truth, (stage,) = player.truth, player.bisection.stages
    assert stage.done is not None
    outcome = stage.done.outcomes[0]
    culprits = {(culprit.first, culprit.last) for culprit in stage.culprits}
    words = tuple(confirmation(stage, culprit).word for culprit in stage.culprits)
    sure = False
    if setting.step:
        right = culprits == {truth.smallest_set(at) for at, _ in truth.steps}
        sure = outcome.verdict == "found" and outcome.probability >= SURE
    else:
        right = outcome.verdict == "not reproduced"
    held = None
    if right and len(truth.steps) == 1 and not setting.answers:
        held = outcome.step_low <= truth.sigma * truth.steps[0][1] <= outcome.step_high
    return Trial(
        verdict=outcome.verdict,
        right=bool(right),
        sure=bool(sure),
        held=None if held is None else bool(held),
        confirmed=bool(words) and all(word == "confirmed" for word in words),
        words=words,
        builds=len(stage.builds) + sum(place not in stage.builds for place in stage.broken),
        fresh=len(stage.fresh),
        rounds=player.rounds,
        measurements=len(stage.measurements),
        pairs=player.bisection.counts()["confirming"] // 2,
        slowest_s=player.slowest,
    )


def once_each(setting: Setting, rng: np.random.Generator) -> bool:
    """Bisection as it is done by hand: one measurement a commit, the nearer end wins."""
    truth = Truth(setting, rng)
    good, bad = truth.measure(0), truth.measure(setting.commits)
    low, high = 0, setting.commits
    while high - low > 1:
        middle = (low + high) // 2
        value = truth.measure(middle)
        if abs(value - bad) < abs(value - good):
            high = middle
        else:
            low = middle
    return high == truth.culprit


def trials(setting: Setting, count: int, keep: Path | None = None, jobs: int = 1) -> list[Trial]:
    """The first `count` trials of a setting; those that FILE holds are not played again."""
    done = dict(kept(keep, setting)) if keep else {}
    left = [number for number in range(count) if number not in done]
    with ProcessPoolExecutor(jobs) if jobs > 1 else _InThisProcess() as pool:
        for number, result in zip(left, pool.map(partial(trial, setting), left), strict=True):
            done[number] = result
            if keep:
                line = {"setting": setting.name, "number": number, **dataclasses.asdict(result)}
                with keep.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    return [done[number] for number in range(count)]


class _InThisProcess:
    """As a pool, without processes: tests replace parts of this module."""

    map = staticmethod(map)

    def __enter__(self) -> _InThisProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def kept(keep: Path, setting: Setting) -> Iterator[tuple[int, Trial]]:
    for line in keep.read_text().splitlines() if keep.exists() else ():
        data = json.loads(line)
        number = data.pop("number")
        if data.pop("setting") == setting.name:
            yield number, Trial(**{**data, "words": tuple(data["words"])})


def row(setting: Setting, done: Sequence[Trial]) -> str:
    verdicts = Counter(trial.verdict for trial in done)
    verdicts.update(word for trial in done for word in trial.words if word != "confirmed")
    sure = [trial.right for trial in done if trial.sure]
    held = [trial.held for trial in done if trial.held is not None]
    others = ", ".join(f"{word} {count}" for word, count in verdicts.most_common())

    def share(values: Sequence[bool]) -> str:
        return f"{np.mean(values):.1%}" if values else ""

    def goal(value: float) -> str:
        return f"{value:.1%}" if value else ""

    builds, rounds = [trial.builds for trial in done], [trial.rounds for trial in done]
    cells = [
        str(len(done)),
        share([trial.right for trial in done]),
        goal(setting.goal),
        share([trial.right and trial.confirmed for trial in done]) if setting.step else "",
        goal(setting.confirmed),
        share([trial.confirmed and not trial.right for trial in done]),
        f"{share(sure)} of {len(sure)}" if sure else "",
        share(held),
        f"{np.mean(builds):.1f} ({max(builds)})",
        f"{np.mean([trial.fresh for trial in done]):.1f}",
        f"{np.mean(rounds):.1f} ({max(rounds)})",
        f"{np.mean([trial.measurements for trial in done]):.0f}",
        f"{np.mean([trial.pairs for trial in done]):.1f} ({max(trial.pairs for trial in done)})",
        f"{1000 * max(trial.slowest_s for trial in done):.0f}",
        others,
    ]
    return f"| {setting.name} | " + " | ".join(cells) + " |"


HEAD = (
    "setting | trials | right | goal | confirmed | goal | false | sure | interval | builds (most) | fresh | "
    "rounds (most) | measurements | pairs (most) | ms | words"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("settings", nargs="*", help="names of settings; without, all")
    parser.add_argument("--size", choices=["small", "full"], default="full")
    parser.add_argument("--trials", type=int, default=None)
    parser.add_argument("--keep", type=Path, default=None)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    wanted = options.settings or (
        SMALL if options.size == "small" else [setting.name for setting in SETTINGS]
    )
    count = options.trials or (30 if options.size == "small" else 1000)
    bound = 1.3 * math.log2(COMMITS) + 3
    print(f"{COMMITS} commits; at most {bound:.1f} builds on average are wanted\n")
    print(f"| {HEAD} |\n|{' --- |' * (HEAD.count('|') + 1)}")
    for setting in SETTINGS:
        if setting.name in wanted:
            trial_count = max(1, round(count * setting.share))
            print(row(setting, trials(setting, trial_count, options.keep, options.jobs)), flush=True)
    if options.size == "full" and not options.settings:
        print("\none measurement a commit, the nearer end wins (right):")
        rng = np.random.default_rng(0)
        for step in (2.0, 3.0, 5.0):
            plain = replace(SETTINGS[0], step=step)
            share = np.mean([once_each(plain, rng) for _ in range(2000)])
            print(f"  {step:.0f} sigma: {share:.1%}")


if __name__ == "__main__":
    main()
