"""The words of a bisection: what is asked, what was seen, what is to be done next, what came out.

Plain values, so that what was seen can be written down and played back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from perfdash.bisection.evidence import RESOLUTION, Known

Side = Literal["good", "bad", "skip"]
Verdict = Literal["found", "not reproduced", "undecided", "cannot tell", "end not measured"]


@dataclass(frozen=True)
class Question:
    """Which of the places 1..`last` brought the change; 0 is the good end and `last` the bad one.

    answers: the builds give yes or no instead of numbers. build_cost: of each place 0..last in the unit
    of measure_cost; math.inf: never to be built. prior: weights of the places 1..last, none: all alike.
    jobs: builds at once. confidence: wanted of an answer. minimum_change: a smaller one is none.
    most_pairs: measurements of each end before it is decided whether they differ; most_repeats: of one
    build. known, resolution: see evidence.weigh.
    """

    last: int
    answers: bool = False
    build_cost: Sequence[float] = ()
    measure_cost: float = 1.0
    prior: Sequence[float] = ()
    jobs: int = 1
    confidence: float = 0.9
    minimum_change: float = 0.0
    most_pairs: int = 24
    most_repeats: int = 24
    known: Known | None = None
    resolution: float = RESOLUTION

    def __post_init__(self) -> None:
        if self.last < 1:
            raise ValueError("the two ends are one place: nothing lies between them")
        if self.build_cost and len(self.build_cost) != self.last + 1:
            raise ValueError(f"{len(self.build_cost)} costs for the places 0..{self.last}")
        if self.prior and (len(self.prior) != self.last or not sum(self.prior) > 0 or min(self.prior) < 0):
            raise ValueError(f"prior: a weight of each place 1..{self.last} is wanted, none negative")
        if not 0.5 < self.confidence < 1 or self.jobs < 1 or self.measure_cost <= 0:
            raise ValueError("confidence in 0.5..1, jobs of 1 or more and a measure_cost above 0 are wanted")


@dataclass(frozen=True)
class Built:
    place: int


@dataclass(frozen=True)
class Broken:
    """The build failed, or nothing can be measured of it."""

    place: int
    why: str = ""


@dataclass(frozen=True)
class Measured:
    """One measurement in a process of its own: a value, of even noise (the log of a time)."""

    place: int
    value: float


@dataclass(frozen=True)
class Answered:
    """One answer of a build: whether it shows the fault."""

    place: int
    fails: bool


@dataclass(frozen=True)
class Marked:
    """A person's word, which overrules what was measured."""

    place: int
    side: Side


@dataclass(frozen=True)
class Resumed:
    """Measuring was interrupted: the host may be another than before (a restart, a night)."""


Observation = Built | Broken | Measured | Answered | Marked | Resumed


@dataclass(frozen=True)
class Build:
    """Build these places, at once if there are several; answer each with Built or Broken."""

    places: tuple[int, ...]


@dataclass(frozen=True)
class Measure:
    """Measure this place once, on the host and under the conditions of all others."""

    place: int


@dataclass(frozen=True)
class Outcome:
    """What came out of the search in the places low..high.

    first, last: the culprit is one of these (0, 0: none). probability: that it is, all taken together.
    none: that there is no change at all. step: bad less good, step_low..step_high: with 95 %; NaN for
    answers. sd, bias: of a measurement and of a build. splittable: builds within were left untold.
    """

    verdict: Verdict
    low: int
    high: int
    first: int = 0
    last: int = 0
    probability: float = 0.0
    none: float = 1.0
    step: float = float("nan")
    step_low: float = float("nan")
    step_high: float = float("nan")
    sd: float = float("nan")
    bias: float = float("nan")
    splittable: bool = False


@dataclass(frozen=True)
class BuildSeen:
    """One build as measured: how often, its level (NaN for answers), failing share, chance to be bad."""

    place: int
    count: int
    level: float
    fails: float
    bad: float


@dataclass(frozen=True)
class Done:
    """outcomes: of the whole range first, then of the ranges left and right of each culprit."""

    outcomes: tuple[Outcome, ...]
    builds: tuple[BuildSeen, ...] = field(default=())

    @property
    def culprits(self) -> tuple[Outcome, ...]:
        return tuple(each for each in self.outcomes if each.verdict == "found")


Action = Build | Measure | Done
