"""Replay a bisection's journal: its stages, their observations, and the next step. Pure.

Each nested search (finer range, merged branch, pinned dependency) is a stage with a parent. A culprit is
confirmed in environments built anew, beside the revision before it. If it is refuted, its stage is searched
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from perfdash.bisection import events
from perfdash.bisection.culprit_confirmation import REFUTATIONS, compared_places, confirmation, next_place
from perfdash.bisection.events import Build, Done, Event, Measure, RangeOutcome
from perfdash.bisection.metrics import METRICS, OF_COMMAND
from perfdash.bisection.stage import Stage
from perfdash.errors import UsageError
from perfdash.metrics import Metric

RUNG, MERGE, PIN = "rung", "merge", "pin"
REVERT = "revert"  # no finer range: the bad end against it with the culprit reverted
LONG_PAUSE_S = 600.0  # after which the host may be in another state
EXPLAINED = 0.5  # of a culprit's change, which the culprits of a finer range must show


@dataclass(frozen=True)
class SearchStep:
    """Build or measure in a stage, as its search asks."""

    stage: Stage
    action: Build | Measure


@dataclass(frozen=True)
class Descend:
    """Open a finer range behind a culprit: next rung, merged branch or pinned dependency."""

    stage: Stage
    outcome: RangeOutcome
    way: str


@dataclass(frozen=True)
class BuildFresh:
    """Build a place again, independently, to confirm a culprit."""

    stage: Stage
    place: int


@dataclass(frozen=True)
class Confirm:
    """Measure one side of a culprit in its fresh build."""

    stage: Stage
    outcome: RangeOutcome
    place: int


@dataclass(frozen=True)
class Reopen:
    """Search a stage again, because its culprit was refuted."""

    stage: Stage
    outcome: RangeOutcome


Step = SearchStep | Descend | BuildFresh | Confirm | Reopen


class Bisection:
    """The state of a bisection.

    begun: the first event of its journal, the request and the harness. line: the command that repeats it.
    """

    def __init__(self, recorded: Iterable[Event]) -> None:
        """Raises UsageError, with the line, for events that do not fit together."""
        self.begun: Event = {}
        self.line: tuple[str, ...] = ()
        self.stages: list[Stage] = []
        self.ended: Event | None = None
        self._until_sure = False
        self._at: str | None = None  # of the last event, but for marks, which people set during a pause
        for number, event in enumerate(recorded, start=1):
            try:
                self.apply(event)
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

    def apply(self, event: Event) -> None:
        """Apply the next event. Raises ValueError for an event that does not fit."""
        kind = event["event"]
        before = self._at
        if kind != events.MARKED:
            self._at = event.get("at")
        if kind == events.BEGUN:
            self.begun = event
            self.line = tuple(event.get("line", ()))
            self._until_sure = bool(event.get("until_sure"))
        elif kind == events.SESSION:
            self.line = tuple(event.get("line", self.line))
            other_host = _seconds(before, event.get("at")) > LONG_PAUSE_S
            self._until_sure = self._until_sure or bool(event.get("until_sure"))
            for stage in self.stages:
                stage.until_sure = self._until_sure
                stage.new_session(other_host)
        elif kind == events.ENDED:
            self.ended = event
            return
        elif kind == events.STAGE:
            if event["stage"] != len(self.stages):
                raise ValueError(f"stage {event['stage']} follows {len(self.stages)} stages")
            self.stages.append(Stage(event, self.metric, self._until_sure))
        elif kind == events.REFUTED:
            self._refute(self.stages[int(event["stage"])], tuple(event["culprit"]))
        else:
            self.stages[int(event["stage"])].apply(event)
        self.ended = None  # an event after an end has opened it again

    def _refute(self, stage: Stage, culprit: tuple[int, ...]) -> None:
        outcome = next((o for o in stage.culprits if (o.first, o.last) == culprit), None)
        if outcome is None:
            raise ValueError(f"{culprit} is no culprit of stage {stage.number}")
        stage.refute(outcome, confirmation(stage, outcome))

    def next_step(self) -> Step | None:
        """The next step; None at the end, or before the first stage."""
        return self._step(self.stages[0]) if self.stages else None

    def culprits(self) -> list[tuple[Stage, RangeOutcome]]:
        """The finest culprits found so far, in the order of the revisions."""
        return list(self._culprits(self.stages[0])) if self.stages else []

    def child(self, stage: Stage, place: int, way: str) -> Stage | None:
        """The finer stage of a place, if it was opened."""
        origin = {"stage": stage.number, "place": place, "way": way}
        return next((stage for stage in self.stages if stage.origin == origin), None)

    def ways(self, stage: Stage, outcome: RangeOutcome) -> list[str]:
        """The kinds of finer range behind a culprit. The first that can be opened is used."""
        if stage.more.get("rung", 0) < self.begun.get("rungs", 1) - 1:
            return [RUNG]
        if outcome.first != outcome.last:
            return []
        ways: list[str] = []
        before, parents = stage.revisions[outcome.first - 1], stage.revisions[outcome.first].parents
        for number, parent in enumerate(parents if len(parents) > 1 else (), start=1):
            if parent != before.id:
                ways += self._ways_into(stage, outcome.first, number)
        return [*ways, PIN] if self.begun.get("pins") else ways

    def _ways_into(self, stage: Stage, place: int, parent: int) -> list[str]:
        """The parts of what a merge brings by a parent, the newest first, as far as they are known."""
        newest = f"{MERGE} {parent}"
        child = self.child(stage, place, newest)
        parts = int(child.more.get("parts", 1)) if child else 1
        return [newest, *(f"{newest} part {part}" for part in range(2, parts + 1))]

    def finer(self, stage: Stage, outcome: RangeOutcome) -> Stage | None:
        """The finer stage whose culprits explain a culprit, if there is one."""
        children = (self.child(stage, outcome.first, way) for way in self.ways(stage, outcome))
        return next((child for child in children if child and explains(stage, outcome, child)), None)

    def is_dismissed(self, stage: Stage) -> bool:
        """Whether a finer stage was searched and does not explain the culprit above it."""
        if stage.origin is None or stage.done is None or stage.origin["way"] == REVERT:
            return False
        above, place = self.stages[int(stage.origin["stage"])], stage.origin["place"]
        return not any(
            explains(above, outcome, stage) for outcome in above.culprits if outcome.first == place
        )

    def _step(self, stage: Stage) -> Step | None:
        if stage.done is None:
            action = stage.search.action
            assert isinstance(action, Build | Measure)
            return SearchStep(stage, action)
        for outcome in stage.culprits:
            step = self._after_culprit(stage, outcome)
            if step is not None:
                return step
        return None

    def _after_culprit(self, stage: Stage, outcome: RangeOutcome) -> Step | None:
        """The next step for one culprit: a finer range, then confirming, then its revert."""
        for way in self.ways(stage, outcome):
            child = self.child(stage, outcome.first, way)
            if child is None:
                if (outcome.first, way) not in stage.dead_ends:
                    return Descend(stage, outcome, way)
                continue
            if child.done is None or explains(stage, outcome, child):
                return self._step(child)
        word = confirmation(stage, outcome).word if self.confirms else ""
        if word == "not confirmed" and _may_reopen(stage, outcome):
            return Reopen(stage, outcome)
        if word == "more":
            for place in compared_places(outcome):
                if place not in stage.fresh:
                    return BuildFresh(stage, place)
            return Confirm(stage, outcome, next_place(stage, outcome))
        return self._revert_step(stage, outcome)

    def _revert_step(self, stage: Stage, outcome: RangeOutcome) -> Step | None:
        """The next step in measuring the bad end with the culprit reverted (--revert)."""
        if not self.begun.get("revert") or outcome.first != outcome.last:
            return None
        child = self.child(stage, outcome.first, REVERT)
        if child is None:
            tried = (outcome.first, REVERT) in stage.dead_ends
            return None if tried else Descend(stage, outcome, REVERT)
        action = child.search.action
        return None if isinstance(action, Done) else SearchStep(child, action)

    def _culprits(self, stage: Stage) -> Iterator[tuple[Stage, RangeOutcome]]:
        for outcome in sorted(stage.culprits, key=lambda outcome: outcome.first):
            finer = self.finer(stage, outcome)
            yield from self._culprits(finer) if finer else [(stage, outcome)]

    def counts(self) -> dict[str, Any]:
        """The numbers of builds, failed builds and measurements, and the seconds of both."""
        builds = [build for stage in self.stages for build in (*stage.builds.values(), *stage.fresh.values())]
        searching = [measurement for stage in self.stages for measurement in stage.measurements]
        confirming = [
            measurement
            for stage in self.stages
            for pairs in (*stage.confirming.values(), *(r.measurements for r in stage.refuted))
            for measurement in pairs
        ]
        return {
            "builds": sum(not build.reused for build in builds),
            "reused": sum(build.reused for build in builds),
            "failed": sum(len(stage.logs) for stage in self.stages),
            "measurements": len(searching),
            "confirming": len(confirming),
            "build_s": sum(build.seconds for build in builds if not build.reused),
            "measure_s": sum(measurement.seconds for measurement in (*searching, *confirming)),
        }


def explains(stage: Stage, outcome: RangeOutcome, finer: Stage) -> bool:
    """Whether the culprits of a finer stage are a culprit's change: its direction, and half of its size.

    Of answers: the same status before, and a same one since. A merged branch may lack changes that were made
    before the good end, so that it shows others.
    """
    if stage.metric.is_answer:
        right = stage.answers(0)[:1]
        faults = [set(each.answers(each.question.last)) - set(right) for each in (stage, finer)]
        return bool(finer.culprits and finer.answers(0)[:1] == right and faults[0] & faults[1])
    step = sum(culprit.step for culprit in finer.culprits)
    return step * outcome.step >= EXPLAINED * outcome.step**2


def _may_reopen(stage: Stage, outcome: RangeOutcome) -> bool:
    """Whether a refuted culprit sends its stage back to the search: each once."""
    if len(stage.refuted) >= REFUTATIONS:
        return False
    refuted = {(earlier.outcome.first, earlier.outcome.last) for earlier in stage.refuted}
    return (outcome.first, outcome.last) not in refuted


def _seconds(before: str | None, after: str | None) -> float:
    """The seconds between two recorded times; 0 if one is missing."""
    if not before or not after:
        return 0.0
    return (datetime.fromisoformat(after) - datetime.fromisoformat(before)).total_seconds()
