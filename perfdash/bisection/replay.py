"""Replay a bisection's journal: its stages, their observations, and the next step. Pure.

Each nested search (finer range, merged branch, pinned dependency) is a stage with a parent. A culprit is
confirmed in environments built anew, beside the revision before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from perfdash.bisection import events
from perfdash.bisection.events import (
    Answered,
    Broken,
    Build,
    Built,
    Done,
    Event,
    Marked,
    Measure,
    Measured,
    Observation,
    Question,
    RangeOutcome,
    Resumed,
)
from perfdash.bisection.metrics import (
    METRICS,
    OF_COMMAND,
    SKIP,
    Reading,
    answer_of,
    comparable,
    reading_from_json,
)
from perfdash.bisection.posterior import culprits, look
from perfdash.bisection.search import RangeSearch
from perfdash.errors import UsageError
from perfdash.metrics import Metric
from perfdash.stats import confirmation_test

STRIKES = 2  # failed measurements in a row after which a revision is skipped
STRIKES_OF_AN_END = 4  # of an end that was measured before: it cannot be skipped, so the session stops
MARKS = ("good", "bad", "skip")


@dataclass(frozen=True)
class RevisionMeasurement:
    """One measurement of a place; `answer`: whether its status is the fault."""

    place: int
    reading: Reading
    seconds: float
    at: str
    answer: bool | None = None


@dataclass(frozen=True)
class BuildRecord:
    """A build that succeeded. key: of its environment. reused: it came from the cache."""

    key: str
    seconds: float
    reused: bool

    @classmethod
    def from_event(cls, event: Event) -> BuildRecord:
        """Raises KeyError for an event of something else."""
        return cls(str(event["environment"]), float(event.get("seconds", 0.0)), bool(event.get("reused")))


@dataclass(frozen=True)
class Progress:
    """The phase of a search. first, last: the places that hold the culprit (0, 0: all)."""

    phase: str
    first: int = 0
    last: int = 0
    probability: float = 0.0


class Stage:
    """One searched range. Only events of the journal change it."""

    def __init__(self, event: Event, metric: Metric) -> None:
        """Raises ValueError for an event that is not a stage's."""
        try:
            self.number = int(event["stage"])
            self.recipe = str(event["recipe"])
            self.origin: Mapping[str, Any] | None = event["origin"]
            self.more: Mapping[str, Any] = event["more"]
            self.revisions = [events.revision_from_json(revision) for revision in event["revisions"]]
            self.question: Question = events.question_from_json(event["question"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a stage: {error}") from error
        if len(self.revisions) != self.question.last + 1:
            raise ValueError(f"{len(self.revisions)} revisions for the places 0..{self.question.last}")
        self.metric = metric
        self.search = RangeSearch(self.question)
        self.builds: dict[int, BuildRecord] = {}
        self.broken: dict[int, str] = {}
        self.logs: dict[int, str] = {}  # of failed builds
        self.measurements: list[RevisionMeasurement] = []
        self.fresh: dict[int, BuildRecord] = {}
        self.not_fresh: dict[int, str] = {}
        self.confirming: dict[tuple[int, int], list[RevisionMeasurement]] = {}
        self.dead_ends: dict[tuple[int, str], str] = {}  # by place and way: why no finer stage was opened
        self._retried: set[tuple[int, str]] = set()  # dead ends that the next session tries again
        self._strikes: dict[int, int] = {}

    @property
    def done(self) -> Done | None:
        """The outcome of the search, once it has ended."""
        return self.search.action if isinstance(self.search.action, Done) else None

    @property
    def culprits(self) -> tuple[RangeOutcome, ...]:
        """The culprits; none while it is searched."""
        return self.done.culprits if self.done else ()

    def place_of(self, word: str) -> int | None:
        """The place of a revision by label, name or its start. None if none or several fit."""
        places = [
            place for place, revision in enumerate(self.revisions) if word in (revision.id, revision.label)
        ]
        if not places and len(word) >= 4:
            places = [place for place, revision in enumerate(self.revisions) if revision.id.startswith(word)]
        return places[0] if len(places) == 1 else None

    def readings(self, place: int) -> list[Reading]:
        """The readings of a place in order, without those that confirm a culprit."""
        return [measurement.reading for measurement in self.measurements if measurement.place == place]

    def end_fails(self, place: int) -> bool:
        """Whether an end that was measured before fails so often now that the session stops."""
        return place not in self.broken and self._strikes.get(place, 0) >= STRIKES_OF_AN_END

    def progress(self) -> Progress:
        """The state of the search, for a report of an unfinished bisection."""
        state = self.search.state
        if self.done or not state.pending:
            return Progress("done")
        now = state.pending[0]
        if not now.reproduced:
            return Progress("comparing the two ends" if now.whole == 0 else "looking for a second change")
        view = look(state, now, 0.5)
        suspects = culprits(view.belief, view.measurable, self.question.confidence)
        chance = suspects.probability * (1 - view.belief.none)
        return Progress("searching", now.low + suspects.first, now.low + suspects.last, chance)

    def apply(self, event: Event) -> None:
        """Apply the next event. Raises ValueError for an event that does not fit this stage."""
        kind, place = event["event"], int(event["place"])
        if not 0 <= place <= self.question.last or event.get("commit") != self.revisions[place].id:
            raise ValueError(f"place {place} of stage {self.number} is not {event.get('commit')}")
        if kind == events.BUILT:
            self._built(place, event)
        elif kind == events.BROKEN:
            self.broken[place] = str(event["why"])
            self.logs[place] = str(event.get("log") or "")
            self.search.observe(Broken(place, self.broken[place]))
        elif kind == events.MEASURED:
            self._measured(place, event)
        elif kind == events.MARKED:
            if event["side"] not in MARKS:
                raise ValueError(f"a mark is one of {', '.join(MARKS)}, not {event['side']!r}")
            self.search.observe(Marked(place, event["side"]))
        elif kind == events.FRESH:
            self.fresh[place] = BuildRecord.from_event(event)
        elif kind == events.NOT_FRESH:
            self.not_fresh[place] = str(event["why"])
        elif kind == events.CONFIRMED:
            first, last = event["culprit"]
            self.confirming.setdefault((first, last), []).append(self._measurement(place, event))
        elif kind == events.DEAD_END:
            self.dead_ends[place, str(event["way"])] = str(event["why"])
            if event.get("again"):
                self._retried.add((place, str(event["way"])))
        else:
            raise ValueError(f"no event of a stage: {kind!r}")

    def new_session(self, other_host: bool = False) -> None:
        """Continue after a resume: some dead ends are tried again.

        other_host: the pause was so long that the host may be in another state.
        """
        if other_host:
            self.search.observe(Resumed())
        for key in self._retried:
            self.dead_ends.pop(key, None)
        self._retried.clear()

    def _built(self, place: int, event: Event) -> None:
        build = BuildRecord.from_event(event)
        if place in self.builds and self.builds[place].key != build.key:
            raise ValueError(f"{self.revisions[place].label} was built as {self.builds[place].key} before")
        self.builds[place] = build
        self.broken.pop(place, None)
        self.search.observe(Built(place))

    def _measured(self, place: int, event: Event) -> None:
        key = event.get("environment")
        if place in self.builds and key != self.builds[place].key:
            raise ValueError(f"{self.revisions[place].label} was measured in another environment, {key}")
        measurement = self._measurement(place, event)
        self.measurements.append(measurement)
        observation = self._observation(measurement)
        if observation is not None:
            self._strikes[place] = 0
            self.search.observe(observation)
            return
        self._strikes[place] = self._strikes.get(place, 0) + 1
        if place in (0, self.question.last) and self.search.state.count(place):
            return
        if self._strikes[place] >= STRIKES or measurement.reading.status == SKIP:
            self.broken[place] = why_not(measurement.reading)
            self.search.observe(Broken(place, self.broken[place]))

    def _measurement(self, place: int, event: Event) -> RevisionMeasurement:
        reading, answer = reading_from_json(event["reading"]), None
        if self.metric.is_answer:
            last = self.question.last
            of_bad = [*self._answers(last), *([reading.status] if place == last else [])]
            answer = answer_of(self.metric, reading.status, self._answers(0), of_bad)
        return RevisionMeasurement(
            place, reading, float(event.get("seconds", 0.0)), str(event.get("at", "")), answer
        )

    def _answers(self, place: int) -> list[str]:
        """The statuses of a place that were answers."""
        return [
            measurement.reading.status
            for measurement in self.measurements
            if measurement.place == place and measurement.answer is not None
        ]

    def _observation(self, measurement: RevisionMeasurement) -> Observation | None:
        if self.metric.is_answer:
            return None if measurement.answer is None else Answered(measurement.place, measurement.answer)
        value = measurement.reading.value
        if value is None or not math.isfinite(value) or (self.metric.comparison == "ratio" and value <= 0):
            return None
        return Measured(measurement.place, comparable(self.metric, value))


def why_not(reading: Reading) -> str:
    """Say in one line why a reading has no value."""
    first = next((line.strip() for line in reading.message.splitlines() if line.strip()), "")
    return f"{reading.status}: {first}" if first else reading.status


Word = Literal["more", "confirmed", "not confirmed", "cannot tell"]
ANSWER_PAIRS, MOST_ANSWER_PAIRS = 2, 4
_FAILURES = 2  # failed measurements after which a culprit is neither confirmed nor refuted


@dataclass(frozen=True)
class Confirmation:
    """Whether a culprit is confirmed against the revision before it, both built anew.

    step, low, high: bad less good with the 95 % interval, as the metric is compared; NaN for answers.
    """

    word: Word
    pairs: int = 0
    step: float = math.nan
    low: float = math.nan
    high: float = math.nan
    why: str = ""


def compared_places(outcome: RangeOutcome) -> tuple[int, int]:
    """The two places that confirming compares: the last good one and the (last possible) culprit."""
    return outcome.first - 1, outcome.last


def confirmation(stage: Stage, outcome: RangeOutcome) -> Confirmation:
    """Judge a culprit by the pairs measured so far."""
    good, bad = compared_places(outcome)
    for place in (good, bad):
        if place in stage.not_fresh:
            label = stage.revisions[place].label
            return Confirmation("cannot tell", why=f"{label} cannot be built anew: {stage.not_fresh[place]}")
    measurements = stage.confirming.get((outcome.first, outcome.last), [])
    failed = [measurement for measurement in measurements if not _is_usable(stage, measurement)]
    if len(failed) >= _FAILURES:
        why = f"{stage.revisions[failed[-1].place].label}: {failed[-1].reading.status}"
        return Confirmation("cannot tell", why=f"it was not measured ({why})")
    usable = [measurement for measurement in measurements if _is_usable(stage, measurement)]
    sides = ([measurement for measurement in usable if measurement.place == place] for place in (good, bad))
    pairs = list(zip(*sides, strict=False))
    return _of_answers(pairs) if stage.metric.is_answer else _of_numbers(stage, outcome, pairs)


def next_place(stage: Stage, outcome: RangeOutcome) -> int:
    """The place to measure next. Good, bad, bad, good: drift of the host affects both alike."""
    good, bad = compared_places(outcome)
    measurements = stage.confirming.get((outcome.first, outcome.last), [])
    places = [measurement.place for measurement in measurements if _is_usable(stage, measurement)]
    if places.count(good) != places.count(bad):
        return min((good, bad), key=places.count)
    return places[-1] if places else good


def _is_usable(stage: Stage, measurement: RevisionMeasurement) -> bool:
    return (measurement.answer if stage.metric.is_answer else measurement.reading.value) is not None


def _of_answers(pairs: Sequence[tuple[RevisionMeasurement, RevisionMeasurement]]) -> Confirmation:
    good = [bool(before.answer) for before, _ in pairs]
    bad = [bool(after.answer) for _, after in pairs]
    n = len(pairs)
    if n >= ANSWER_PAIRS and all(bad) and not any(good):
        return Confirmation("confirmed", n)
    if n < MOST_ANSWER_PAIRS:
        return Confirmation("more", n)
    # A fault that shows only at times is a fault.
    if sum(bad) > sum(good):
        return Confirmation("cannot tell" if any(good) else "confirmed", n)
    return Confirmation("not confirmed", n)


def _of_numbers(
    stage: Stage, outcome: RangeOutcome, pairs: Sequence[tuple[RevisionMeasurement, RevisionMeasurement]]
) -> Confirmation:
    metric = stage.metric
    differences = [
        comparable(metric, after.reading.value) - comparable(metric, before.reading.value)
        for before, after in pairs
        if before.reading.value is not None and after.reading.value is not None
    ]
    if metric.comparison == "count" and (len(differences) < ANSWER_PAIRS or len(set(differences)) == 1):
        return _of_counts(outcome, differences)
    measured_places = {measurement.place for measurement in stage.measurements}
    test = confirmation_test.decide(
        differences,
        suspected=outcome.step or 1.0,
        sd=max(outcome.sd, stage.question.resolution),
        df=max(len(stage.measurements) - len(measured_places), 1),
        minimum_change=0.0,
    )
    word: Word = "more"
    if test.decision == "stands":
        word = "confirmed"
    elif test.decision == "dismissed":
        # A step that may well be there, but too small for so few pairs, is not refuted.
        word = "cannot tell" if test.low <= outcome.step <= test.high else "not confirmed"
    return Confirmation(word, test.pairs, test.estimate, test.low, test.high)


def _of_counts(outcome: RangeOutcome, differences: Sequence[float]) -> Confirmation:
    """Judge counts, which have no noise."""
    if len(differences) < ANSWER_PAIRS:
        return Confirmation("more", len(differences))
    step = differences[0]
    word: Word = "confirmed" if step * outcome.step > 0 else "not confirmed"
    return Confirmation(word, len(differences), step, step, step)


RUNG, MERGE, PIN = "rung", "merge", "pin"
REVERT = "revert"  # no finer range: the bad end against it with the culprit reverted
LONG_PAUSE_S = 600.0  # after which the host may be in another state


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


Step = SearchStep | Descend | BuildFresh | Confirm


class Bisection:
    """The state of a bisection. `begun` is the first event of its journal: the request and the harness."""

    def __init__(self, recorded: Iterable[Event]) -> None:
        """Raises UsageError, with the line, for events that do not fit together."""
        self.begun: Event = {}
        self.stages: list[Stage] = []
        self.ended: Event | None = None
        self._at: str | None = None  # of the last event
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
        self._at, before = event.get("at"), self._at
        if kind == events.BEGUN:
            self.begun = event
        elif kind == events.SESSION:
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
            self.stages[int(event["stage"])].apply(event)
        self.ended = None  # an event after an end has opened it again

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
        ways = []
        if self.begun.get("first_parent", True):
            parents = len(stage.revisions[outcome.first].parents)
            ways += [f"{MERGE} {number}" for number in range(2, parents + 1)]
        return [*ways, PIN] if self.begun.get("pins") else ways

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
            step = self._step(child)
            if step is not None:
                return step
            if child.culprits:
                return None
        if self.confirms and confirmation(stage, outcome).word == "more":
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
            children = [self.child(stage, outcome.first, way) for way in self.ways(stage, outcome)]
            finer = [culprit for child in children if child for culprit in self._culprits(child)]
            yield from finer or [(stage, outcome)]

    def counts(self) -> dict[str, Any]:
        """The numbers of builds, failed builds and measurements, and the seconds of both."""
        builds = [build for stage in self.stages for build in (*stage.builds.values(), *stage.fresh.values())]
        searching = [measurement for stage in self.stages for measurement in stage.measurements]
        confirming = [
            measurement
            for stage in self.stages
            for pairs in stage.confirming.values()
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


def _seconds(before: str | None, after: str | None) -> float:
    """The seconds between two recorded times; 0 if one is missing."""
    if not before or not after:
        return 0.0
    return (datetime.fromisoformat(after) - datetime.fromisoformat(before)).total_seconds()
