"""The lines of a bisection's journal: what was begun, built, measured, marked, confirmed. Plain values.

Each line is one event with its name and time. replay.py decides what an event means.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perfdash.bisection.sources import Revision
from perfdash.stats.step_likelihood import RESOLUTION, KnownNoise

SCHEMA = 1

BEGUN, STAGE, DEAD_END = "begun", "stage", "dead end"
BUILT, BROKEN, MEASURED, MARKED = "built", "broken", "measured", "marked"
FRESH, NOT_FRESH, CONFIRMED = "fresh", "not fresh", "confirm"
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
    """A range that is to be searched; `origin`: the stage, place and way that it was come to by."""
    return {
        "event": STAGE,
        "stage": number,
        "recipe": recipe,
        "origin": dict(origin) if origin else None,
        "question": question_to_json(question),
        "more": dict(more or {}),
        "revisions": [dataclasses.asdict(each) for each in revisions],
    }


def at(event: str, number: int, place: int, revision: Revision, **more: Any) -> Event:
    """Something that happened to one place of a stage."""
    return {"event": event, "stage": number, "place": place, "commit": revision.id, **more}


def revision_from_json(data: Mapping[str, Any]) -> Revision:
    """The inverse of dataclasses.asdict. Raises ValueError for what is none."""
    try:
        known = {each.name for each in dataclasses.fields(Revision)}
        said = {key: value for key, value in data.items() if key in known}
        return Revision(**{**said, "parents": tuple(said.get("parents", ()))})
    except TypeError as error:
        raise ValueError(f"not a revision: {error}") from error


def question_to_json(question: Question) -> dict[str, Any]:
    """Costs that are infinite as null: JSON has no word for them."""
    said = dataclasses.asdict(question)
    said["build_cost"] = [cost if math.isfinite(cost) else None for cost in question.build_cost]
    return said


def question_from_json(data: Mapping[str, Any]) -> Question:
    """The inverse of question_to_json. Raises ValueError for what is none."""
    try:
        said = dict(data)
        said["build_cost"] = tuple(math.inf if cost is None else float(cost) for cost in said["build_cost"])
        said["prior"] = tuple(said["prior"])
        said["known"] = KnownNoise(**said["known"]) if said["known"] else None
        return Question(**said)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a question: {error}") from error


def finite(value: Any) -> Any:
    """Plain values with null for what is not finite: JSON has no word for it."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


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
    known: KnownNoise | None = None
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
class RangeOutcome:
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
class MeasuredBuild:
    """One build as measured: how often, its level (NaN for answers), failing share, chance to be bad."""

    place: int
    count: int
    level: float
    fails: float
    bad: float


@dataclass(frozen=True)
class Done:
    """outcomes: of the whole range first, then of the ranges left and right of each culprit."""

    outcomes: tuple[RangeOutcome, ...]
    builds: tuple[MeasuredBuild, ...] = field(default=())

    @property
    def culprits(self) -> tuple[RangeOutcome, ...]:
        return tuple(each for each in self.outcomes if each.verdict == "found")


Action = Build | Measure | Done
