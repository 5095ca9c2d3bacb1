"""The events of a bisection's journal, and the observations and actions of its search. Plain values.

Each line of the journal is one event with its name and time. replay.py says what an event means.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perfdash.bisection.sources import Revision
from perfdash.files import finite
from perfdash.stats.step_likelihood import RESOLUTION, KnownNoise

SCHEMA = 1

BEGUN, STAGE, DEAD_END = "begun", "stage", "dead end"
BUILT, BROKEN, MEASURED, MARKED = "built", "broken", "measured", "marked"
SCREENED = "screened"
FRESH, NOT_FRESH, CONFIRMED, REFUTED = "fresh", "not fresh", "confirm", "refuted"
SESSION, ENDED = "session", "ended"

Event = dict[str, Any]


def stage(
    number: int,
    recipe: str,
    revisions: Sequence[Revision],
    question: Question,
    origin: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Event:
    """The event of a range to be searched. origin: the stage, place and way that led to it."""
    return {
        "event": STAGE,
        "stage": number,
        "recipe": recipe,
        "origin": dict(origin) if origin else None,
        "question": question_to_json(question),
        "more": dict(more or {}),
        "revisions": [dataclasses.asdict(revision) for revision in revisions],
    }


def at(event: str, number: int, place: int, revision: Revision, **more: Any) -> Event:
    """The event of one place of a stage."""
    return {"event": event, "stage": number, "place": place, "commit": revision.id, **more}


def revision_from_json(data: Mapping[str, Any]) -> Revision:
    """The inverse of dataclasses.asdict. Raises ValueError if it is not a revision."""
    try:
        names = {field.name for field in dataclasses.fields(Revision)}
        values = {key: value for key, value in data.items() if key in names}
        return Revision(**{**values, "parents": tuple(values.get("parents", ()))})
    except TypeError as error:
        raise ValueError(f"not a revision: {error}") from error


def question_to_json(question: Question) -> dict[str, Any]:
    """Plain values; an infinite cost is null."""
    return dict(finite(dataclasses.asdict(question)))


def question_from_json(data: Mapping[str, Any]) -> Question:
    """The inverse of question_to_json. Raises ValueError if it is not a question."""
    try:
        values = dict(data)
        values["build_cost"] = tuple(math.inf if cost is None else float(cost) for cost in data["build_cost"])
        values["prior"] = tuple(data["prior"])
        values["only_code"] = tuple(data.get("only_code", ()))  # absent in a journal of before
        values["known"] = KnownNoise(**data["known"]) if data["known"] else None
        return Question(**values)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a question: {error}") from error


Side = Literal["good", "bad", "skip"]
Verdict = Literal["found", "not reproduced", "undecided", "cannot tell", "end not measured"]


@dataclass(frozen=True)
class Question:
    """Which of the places 1..`last` brought the change? Place 0 is the good end, `last` the bad one.

    answers: builds answer yes or no instead of a number. build_cost: of each place 0..last, in the unit of
    measure_cost; math.inf: never build it. prior: weights of the places 1..last; empty: all alike. only_code:
    of the places 1..last, whether they change Python code and documents only; empty: unknown. jobs: builds
    side by side. confidence: wanted for a culprit. minimum_change: a smaller change is ignored. most_pairs:
    measurements of each end until they must be judged; most_repeats: of one build. known, resolution: see
    stats.step_likelihood.weigh.
    """

    last: int
    answers: bool = False
    build_cost: Sequence[float] = ()
    measure_cost: float = 1.0
    prior: Sequence[float] = ()
    only_code: Sequence[bool] = ()
    jobs: int = 1
    confidence: float = 0.9
    minimum_change: float = 0.0
    most_pairs: int = 24
    most_repeats: int = 24
    known: KnownNoise | None = None
    resolution: float = RESOLUTION

    def __post_init__(self) -> None:
        if self.last < 1:
            raise ValueError("the two ends are one place: nothing lies between them")
        if self.build_cost and len(self.build_cost) != self.last + 1:
            raise ValueError(f"{len(self.build_cost)} costs for the places 0..{self.last}")
        if self.prior and (len(self.prior) != self.last or not sum(self.prior) > 0 or min(self.prior) < 0):
            raise ValueError(f"prior: a weight of each place 1..{self.last} is wanted, none negative")
        if self.only_code and len(self.only_code) != self.last:
            raise ValueError(f"{len(self.only_code)} values of only_code for the places 1..{self.last}")
        if not 0.5 < self.confidence < 1 or self.jobs < 1 or self.measure_cost <= 0:
            raise ValueError("confidence in 0.5..1, jobs of 1 or more and a measure_cost above 0 are wanted")


@dataclass(frozen=True)
class Built:
    """The build succeeded."""

    place: int


@dataclass(frozen=True)
class Broken:
    """The build failed, or cannot be measured."""

    place: int
    why: str = ""


@dataclass(frozen=True)
class Measured:
    """One measurement in its own process. value: with even noise, such as the log of a time."""

    place: int
    value: float


@dataclass(frozen=True)
class Answered:
    """One answer of a build: whether it has the fault."""

    place: int
    fails: bool


@dataclass(frozen=True)
class Marked:
    """A mark by a person, which overrules measurements."""

    place: int
    side: Side


@dataclass(frozen=True)
class Same:
    """A build that has the code and libraries of another one, `twin`: nothing between them is the culprit."""

    place: int
    twin: int


@dataclass(frozen=True)
class Resumed:
    """Measuring was interrupted so long that the host may be in another state."""


@dataclass(frozen=True)
class Refuted:
    """Pairs of fresh builds refuted a culprit: their values, in order. The range is searched again."""

    values: tuple[Measured | Answered, ...]


Observation = Built | Broken | Measured | Answered | Marked | Same | Resumed | Refuted


@dataclass(frozen=True)
class Build:
    """Build these places side by side; observe Built or Broken for each."""

    places: tuple[int, ...]


@dataclass(frozen=True)
class Measure:
    """Measure this place once, in the same conditions as all others."""

    place: int


@dataclass(frozen=True)
class RangeOutcome:
    """The outcome of the search in the places low..high; of several culprits, up to its neighbours.

    first, last: the culprit is one of these (0, 0: none). probability: that it is. none: probability that
    nothing changed. step: bad less good, step_low..step_high its 95 % interval; NaN for answers. sd, bias:
    standard deviations of a measurement and between builds. splittable: builds in first..last could still be
    measured.
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
class MeasuredBuild:
    """A measured build: measurements, level (NaN for answers), failing share, probability to be bad."""

    place: int
    count: int
    level: float
    fails: float
    bad: float


@dataclass(frozen=True)
class Done:
    """The end of the search. outcomes: of the whole range, then of the ranges beside each culprit."""

    outcomes: tuple[RangeOutcome, ...]
    builds: tuple[MeasuredBuild, ...] = field(default=())

    @property
    def culprits(self) -> tuple[RangeOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.verdict == "found")


Action = Build | Measure | Done
