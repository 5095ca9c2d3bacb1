"""What is known so far: observations in order, added up. Nothing here decides."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from perfdash.bisection.host import LONG_PAUSE, without_host
from perfdash.bisection.question import (
    Answered,
    Broken,
    Built,
    Marked,
    Observation,
    Outcome,
    Question,
    Resumed,
    Side,
)

PAUSE = 5.0  # a build takes the host as far as so many measurements


@dataclass(frozen=True)
class Range:
    """The places low..high; `whole`: the step that was found beside it, 0 in the whole row.

    reproduced: its ends were seen to differ.
    """

    low: int
    high: int
    whole: float = 0.0
    reproduced: bool = False


@dataclass(frozen=True)
class State:
    """built, broken (place: why), marks; the measurements in order as places, times and values.

    pending: ranges yet to be searched, the first now; outcomes: of those that were. second_thoughts:
    how often all outcomes were dropped, for they did not explain what the ends show.
    """

    question: Question
    built: frozenset[int] = frozenset()
    broken: Mapping[int, str] = field(default_factory=dict)
    marks: Mapping[int, Side] = field(default_factory=dict)
    places: tuple[int, ...] = ()
    times: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    clock: float = 0.0
    pending: tuple[Range, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    second_thoughts: int = 0

    def measurable(self, place: int) -> bool:
        """Whether it is, or may yet be, built and measured."""
        if place in self.broken or self.marks.get(place) == "skip":
            return False
        costs = self.question.build_cost
        within = 0 < place < self.question.last
        return place in self.built or not (within and costs and math.isinf(costs[place]))

    def told(self, place: int) -> bool:
        """Whether a person has said which side it is on."""
        return self.marks.get(place) in ("good", "bad")

    def by_place(self, raw: bool = False) -> dict[int, list[float]]:
        """Values of each measured place, rising; of numbers without what the host did to all alike.

        raw: as they were measured.
        """
        values = self.values
        if not self.question.answers and not raw:
            values = tuple(float(v) for v in without_host(self.places, self.times, self.values))
        found: dict[int, list[float]] = {}
        for place, value in zip(self.places, values, strict=True):
            if self.measurable(place):
                found.setdefault(place, []).append(value)
        return dict(sorted(found.items()))

    def count(self, place: int) -> int:
        return self.places.count(place)


def start(question: Question) -> State:
    return State(question, pending=(Range(0, question.last),))


def seen(state: State, observation: Observation) -> State:
    """The state with one observation more.

    Raises ValueError for one that the question cannot hold, and for a mark that contradicts another.
    """
    if isinstance(observation, Resumed):
        return dataclasses.replace(state, clock=state.clock + LONG_PAUSE)
    question, place = state.question, observation.place
    if not 0 <= place <= question.last:
        raise ValueError(f"{observation}: the places are 0..{question.last}")
    if isinstance(observation, Built):
        broken = {k: why for k, why in state.broken.items() if k != place}
        return dataclasses.replace(
            state, built=state.built | {place}, broken=broken, clock=state.clock + PAUSE
        )
    if isinstance(observation, Broken):
        return dataclasses.replace(
            state,
            built=state.built - {place},
            broken={**state.broken, place: observation.why},
            clock=state.clock + PAUSE,
        )
    if isinstance(observation, Marked):
        # A person knows better than what was concluded: all is thought over.
        marks = {**state.marks, place: observation.side}
        goods = (x for x, side in marks.items() if side == "good")
        bads = (x for x, side in marks.items() if side == "bad")
        if max(goods, default=0) >= min(bads, default=question.last):
            raise ValueError(
                "the marks contradict each other: a place marked bad lies before one marked good"
            )
        return dataclasses.replace(
            state,
            marks=marks,
            pending=(Range(0, question.last),),
            outcomes=(),
            second_thoughts=0,
        )
    if isinstance(observation, Answered) != question.answers:
        raise ValueError(
            f"{observation}: this bisection is about {'answers' if question.answers else 'numbers'}"
        )
    value = float(observation.fails) if isinstance(observation, Answered) else observation.value
    if not math.isfinite(value):
        raise ValueError(f"{observation}: a finite value is wanted")
    return dataclasses.replace(
        state,
        built=state.built | {place},
        places=(*state.places, place),
        times=(*state.times, state.clock),
        values=(*state.values, value),
        clock=state.clock + 1,
    )
