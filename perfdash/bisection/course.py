"""A whole bisection as its journal tells it, and what is to be done next. Pure: a replay of events.

A ladder, a merge that is descended into and a pin that is gone on with are stages of their own; each
knows the place in another stage that it came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from perfdash.bisection import events
from perfdash.bisection.confirming import confirmation, ends, next_place
from perfdash.bisection.events import Event
from perfdash.bisection.metrics import METRICS, OF_COMMAND
from perfdash.bisection.question import Build, Done, Measure, Outcome
from perfdash.bisection.stage import Stage
from perfdash.errors import UsageError
from perfdash.metrics import Metric

RUNG, MERGE, PIN = "rung", "merge", "pin"
REVERT = "revert"  # not a way down: the culprit taken back on top of the bad end
LONG_PAUSE_S = 600.0  # after which the host may be another than it was


@dataclass(frozen=True)
class Act:
    """Build or measure for the search in a stage."""

    stage: Stage
    action: Build | Measure


@dataclass(frozen=True)
class Descend:
    """Look for a finer range behind a culprit: the next rung, a merge's side, what is pinned."""

    stage: Stage
    outcome: Outcome
    way: str


@dataclass(frozen=True)
class MakeFresh:
    """Build a place once more, independently, for confirming."""

    stage: Stage
    place: int


@dataclass(frozen=True)
class Confirm:
    """Measure one side of a culprit in its fresh environment."""

    stage: Stage
    outcome: Outcome
    place: int


Step = Act | Descend | MakeFresh | Confirm


class Course:
    """The state of a bisection. `begun` is the first event: what was asked, with what it is measured."""

    def __init__(self, recorded: Iterable[Event]) -> None:
        """Raises UsageError, with the line, for events that do not fit together."""
        self.begun: Event = {}
        self.stages: list[Stage] = []
        self.sessions: list[Event] = []
        self.ended: Event | None = None
        self._at: str | None = None  # of the last event
        for number, event in enumerate(recorded, start=1):
            try:
                self.take(event)
            except (LookupError, ValueError, TypeError, AttributeError) as error:
                raise UsageError(
                    f"line {number} of the journal does not fit what is before it: {error}"
                ) from error

    @property
    def metric(self) -> Metric:
        name = str(self.begun["metric"])
        return OF_COMMAND[name] if self.begun["command"] else METRICS[name]

    @property
    def confirms(self) -> bool:
        """Whether culprits are to be confirmed."""
        return bool(self.begun.get("confirm", True))

    def take(self, event: Event) -> None:
        """One event more. Raises ValueError for one that does not fit."""
        kind = event["event"]
        self._at, before = event.get("at"), self._at
        if kind == events.BEGUN:
            self.begun = event
        elif kind == events.SESSION:
            self.sessions.append(event)
            other_host = _seconds(before, event.get("at")) > LONG_PAUSE_S
            for stage in self.stages:
                stage.new_session(other_host)
        elif kind == events.ENDED:
            self.ended = event
            return
        elif kind == events.STAGE:
            if event["stage"] != len(self.stages):
                raise ValueError(f"stage {event['stage']} follows {len(self.stages)} stages")
            self.stages.append(Stage(event, self.metric))
        else:
            self.stages[int(event["stage"])].take(event)
        self.ended = None  # what came after an end has opened it again

    def next_step(self) -> Step | None:
        """What is to be done next; None at the end, or before the first stage."""
        return self._step(self.stages[0]) if self.stages else None

    def culprits(self) -> list[tuple[Stage, Outcome]]:
        """The finest culprits found so far, in the order of the revisions."""
        return list(self._culprits(self.stages[0])) if self.stages else []

    def child(self, stage: Stage, place: int, way: str) -> Stage | None:
        """The stage that a way down has led to."""
        origin = {"stage": stage.number, "place": place, "way": way}
        return next((each for each in self.stages if each.origin == origin), None)

    def ways(self, stage: Stage, outcome: Outcome) -> list[str]:
        """Ways to go on from a culprit, the first that leads somewhere counts."""
        if stage.more.get("rung", 0) < self.begun.get("rungs", 1) - 1:
            return [RUNG]
        if outcome.first != outcome.last:
            return []
        ways = []
        if self.begun.get("first_parent", True):
            parents = len(stage.revisions[outcome.first].parents)
            ways += [f"{MERGE} {number}" for number in range(2, parents + 1)]
        return [*ways, PIN] if self.begun.get("pins") else ways

    def _step(self, stage: Stage) -> Step | None:
        if stage.done is None:
            action = stage.bisection.action
            assert isinstance(action, Build | Measure)
            return Act(stage, action)
        for outcome in stage.found:
            step = self._below(stage, outcome)
            if step is not None:
                return step
        return None

    def _below(self, stage: Stage, outcome: Outcome) -> Step | None:
        """What is left to do about one culprit."""
        for way in self.ways(stage, outcome):
            child = self.child(stage, outcome.first, way)
            if child is None:
                if (outcome.first, way) not in stage.closed:
                    return Descend(stage, outcome, way)
                continue
            step = self._step(child)
            if step is not None:
                return step
            if child.found:
                return None
        if self.confirms and confirmation(stage, outcome).word == "more":
            for place in ends(outcome):
                if place not in stage.fresh:
                    return MakeFresh(stage, place)
            return Confirm(stage, outcome, next_place(stage, outcome))
        return self._taking_back(stage, outcome)

    def _taking_back(self, stage: Stage, outcome: Outcome) -> Step | None:
        """Whether the culprit's revert is still to be made, or measured against the bad end."""
        if not self.begun.get("revert") or outcome.first != outcome.last:
            return None
        child = self.child(stage, outcome.first, REVERT)
        if child is None:
            known = (outcome.first, REVERT) in stage.closed
            return None if known else Descend(stage, outcome, REVERT)
        action = child.bisection.action
        return None if isinstance(action, Done) else Act(child, action)

    def _culprits(self, stage: Stage) -> Iterator[tuple[Stage, Outcome]]:
        for outcome in sorted(stage.found, key=lambda one: one.first):
            children = [self.child(stage, outcome.first, way) for way in self.ways(stage, outcome)]
            finer = [each for child in children if child for each in self._culprits(child)]
            yield from finer or [(stage, outcome)]

    def counts(self) -> dict[str, Any]:
        """Builds made, builds that failed, measurements, and hours of both."""
        made = [one for stage in self.stages for one in (*stage.builds.values(), *stage.fresh.values())]
        taken = [one for stage in self.stages for one in stage.taken]
        again = [one for stage in self.stages for pairs in stage.confirming.values() for one in pairs]
        return {
            "builds": sum(not one.reused for one in made),
            "reused": sum(one.reused for one in made),
            "failed": sum(len(stage.logs) for stage in self.stages),
            "measurements": len(taken),
            "confirming": len(again),
            "build_s": sum(one.seconds for one in made if not one.reused),
            "measure_s": sum(one.seconds for one in (*taken, *again)),
        }


def _seconds(before: str | None, after: str | None) -> float:
    """Between two times as they are written down; 0 where one is missing."""
    if not before or not after:
        return 0.0
    return (datetime.fromisoformat(after) - datetime.fromisoformat(before)).total_seconds()
