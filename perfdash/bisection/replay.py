"""Replay a bisection's journal: its stages, their observations, and the next step. Pure.

Each nested search (finer range, merged branch, pinned dependency) is a stage with a parent. A culprit is
confirmed in environments built anew, beside the revision before it. If it is refuted, its stage is searched
again.
"""

from __future__ import annotations

import itertools
import math
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
EXPLAINED = 0.5  # of a culprit's change, which the culprits of finer ranges must show together
_CERTAIN_REST = 1.5  # half-widths of its 95 % interval by which a rest must differ from 0 (99.7 %)


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


@dataclass(frozen=True)
class Rest:
    """What finer stages leave of a culprit's change, with its 95 % interval. found: what they explain.

    All as the metric is compared: of a ratio its logarithm.
    """

    found: float
    step: float
    low: float
    high: float


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
        found = self._culprits(self.stages[0]) if self.stages else ()
        # Two merged branches may share commits.
        return list({_ids(stage, outcome): (stage, outcome) for stage, outcome in found}.values())

    def child(self, stage: Stage, place: int, way: str) -> Stage | None:
        """The finer stage of a place, if it was opened."""
        origin = {"stage": stage.number, "place": place, "way": way}
        return next((stage for stage in self.stages if stage.origin == origin), None)

    def ways(self, stage: Stage, outcome: RangeOutcome) -> list[str]:
        """The finer ranges behind a culprit, in the order in which they are searched."""
        if stage.more.get("rung", 0) < self.begun.get("rungs", 1) - 1:
            return [RUNG]
        if outcome.first != outcome.last:
            return []
        ways: list[str] = []
        before, parents = stage.revisions[outcome.first - 1], stage.revisions[outcome.first].parents
        for number, parent in enumerate(parents if len(parents) > 1 else (), start=1):
            if parent != before.id:
                ways += self._ways_into(stage, outcome.first, number)
        return [*ways, *self._ways_into_pins(stage, outcome.first)] if self.begun.get("pins") else ways

    def _ways_into(self, stage: Stage, place: int, parent: int) -> list[str]:
        """The parts of what a merge brings by a parent, the newest first, as far as they are known."""
        newest = f"{MERGE} {parent}"
        child = self.child(stage, place, newest)
        parts = int(child.more.get("parts", 1)) if child else 1
        return [newest, *(f"{newest} part {part}" for part in range(2, parts + 1))]

    def _ways_into_pins(self, stage: Stage, place: int) -> list[str]:
        """The first pin of those that a revision changes, then the others, once they are known."""
        child = self.child(stage, place, PIN)
        return [PIN, *(f"{PIN} {name}" for name in child.more.get("other_pins", ()))] if child else [PIN]

    def finer(self, stage: Stage, outcome: RangeOutcome) -> list[Stage]:
        """The finer stages that together explain a culprit; none if they do not.

        They are of one kind: a pin that a merge changes is mostly changed on its branch.
        """
        for _, ways in itertools.groupby(self.ways(stage, outcome), key=kind_of):
            children = [child for way in ways if (child := self.child(stage, outcome.first, way))]
            if shown := _explaining(stage, outcome, children):
                return shown
        return []

    def rest(self, stage: Stage, outcome: RangeOutcome) -> Rest | None:
        """What the finer stages leave of the change that they explain; None if that may be nothing."""
        finer = self.finer(stage, outcome)
        if stage.metric.is_answer or not finer:
            return None
        found = sum(_shares(finer))
        parts = [outcome, *(culprit for child in finer for culprit in child.culprits)]
        half = math.hypot(*((part.step_high - part.step_low) / 2 for part in parts))
        rest = outcome.step - found
        size = math.copysign(1.0, outcome.step) * rest
        if not size > _CERTAIN_REST * half or size < stage.question.minimum_change:
            return None
        return Rest(found, rest, rest - half, rest + half)

    def next_way(self, stage: Stage, outcome: RangeOutcome) -> str | None:
        """The finer range to open next, while those that were searched leave a part of the change."""
        finer = self.finer(stage, outcome)
        if finer and self.rest(stage, outcome) is None:
            return None
        kinds = {kind_of(str(child.origin["way"])) for child in finer if child.origin}
        for way in self.ways(stage, outcome):
            is_open = self.child(stage, outcome.first, way) or (outcome.first, way) in stage.dead_ends
            if not is_open and (not kinds or kind_of(way) in kinds):
                return way
        return None

    def is_dismissed(self, stage: Stage) -> bool:
        """Whether a finer stage was searched and does not explain the culprit above it."""
        if stage.origin is None or stage.done is None or stage.origin["way"] == REVERT:
            return False
        above, place = self.stages[int(stage.origin["stage"])], stage.origin["place"]
        return not any(
            stage in self.finer(above, outcome) for outcome in above.culprits if outcome.first == place
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
        """The next step for one culprit: finer ranges, then confirming, then its revert."""
        finer = self.finer(stage, outcome)
        for way in self.ways(stage, outcome):
            child = self.child(stage, outcome.first, way)
            if child and (child.done is None or child in finer):
                step = self._step(child)
                if step is not None:
                    return step
        next_way = self.next_way(stage, outcome)
        if next_way is not None:
            return Descend(stage, outcome, next_way)
        if finer:
            return None
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
            if not finer:
                yield stage, outcome
            for child in reversed(finer):  # the newest part of a branch was searched first
                yield from self._culprits(child)

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


def kind_of(way: str) -> str:
    """The kind of a way: rung, merge, pin or revert."""
    return way.split()[0]


def _ids(stage: Stage, outcome: RangeOutcome) -> tuple[str, ...]:
    """The revisions that a culprit may be."""
    return tuple(revision.id for revision in stage.revisions[outcome.first : outcome.last + 1])


def _shares(children: Iterable[Stage]) -> Iterator[float]:
    """The sum of the steps that each stage found, without those that an earlier one found, too."""
    seen: set[tuple[str, ...]] = set()
    for child in children:
        steps = {_ids(child, culprit): culprit.step for culprit in child.culprits}
        yield sum(step for ids, step in steps.items() if ids not in seen)
        seen |= set(steps)


def _explaining(stage: Stage, outcome: RangeOutcome, children: list[Stage]) -> list[Stage]:
    """The stages that together show a culprit's change: those of its direction, if they are half of its size.

    Of answers: the first with the same status before, and a same one since. A merged branch may lack changes
    that were made before the good end, so that it shows others.
    """
    if stage.metric.is_answer:
        right, fault = stage.answers(0)[:1], set(stage.answers(stage.question.last))
        return [
            child
            for child in children
            if child.culprits
            and child.answers(0)[:1] == right
            and (fault & set(child.answers(child.question.last))) - set(right)
        ][:1]
    shares = zip(children, _shares(children), strict=True)
    shown = [(child, share) for child, share in shares if share * outcome.step > 0]
    is_explained = sum(share for _, share in shown) * outcome.step >= EXPLAINED * outcome.step**2
    return [child for child, _ in shown] if is_explained else []


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
