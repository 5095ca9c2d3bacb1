"""One searched range of a bisection's journal: its builds, measurements and culprits. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from perfdash.bisection import events
from perfdash.bisection.events import (
    Answered,
    Broken,
    Built,
    Done,
    Event,
    Marked,
    Measured,
    Question,
    RangeOutcome,
    Refuted,
    Resumed,
    Same,
)
from perfdash.bisection.metrics import SKIP, Reading, answer_of, comparable, reading_from_json
from perfdash.bisection.posterior import culprits, look
from perfdash.bisection.search import RangeSearch
from perfdash.metrics import Metric

STRIKES = 2  # failed measurements in a row after which a revision is skipped
STRIKES_OF_AN_END = 4  # of an end that was measured before: it cannot be skipped, so the session stops
MARKS = ("good", "bad", "skip")
_TORCH = "torch (Python)"  # of the loaded files of a structure


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


Word = Literal["more", "confirmed", "not confirmed", "cannot tell"]


@dataclass(frozen=True)
class Confirmation:
    """Whether a culprit is confirmed against the revision before it, both built anew.

    step, low, high: bad less good with the 95 % interval, as the metric is compared; NaN for answers.
    wanted: about how many pairs in all would tell, where they cannot yet.
    """

    word: Word
    pairs: int = 0
    step: float = math.nan
    low: float = math.nan
    high: float = math.nan
    why: str = ""
    wanted: int | None = None


@dataclass(frozen=True)
class RefutedCulprit:
    """A culprit that its pairs refuted, so that the search went on. measurements: of the pairs."""

    outcome: RangeOutcome
    confirmation: Confirmation
    measurements: tuple[RevisionMeasurement, ...]


class Stage:
    """One searched range. Only events of the journal change it."""

    def __init__(self, event: Event, metric: Metric, until_sure: bool = False) -> None:
        """until_sure: more pairs may confirm a culprit. Raises ValueError for another kind of event."""
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
        self.until_sure = until_sure
        self.search = RangeSearch(self.question)
        self.builds: dict[int, BuildRecord] = {}
        self.broken: dict[int, str] = {}
        self.logs: dict[int, str] = {}  # of failed builds
        self.measurements: list[RevisionMeasurement] = []
        self.records: dict[
            int, Mapping[str, Any]
        ] = {}  # the first measured one of each place with a structure
        self.screened: dict[int, Mapping[str, Any]] = {}  # the structure of builds before they are timed
        self.fresh: dict[int, BuildRecord] = {}
        self.not_fresh: dict[int, str] = {}
        self.confirming: dict[tuple[int, int], list[RevisionMeasurement]] = {}
        self.refuted: list[RefutedCulprit] = []
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

    def answers(self, place: int) -> list[str]:
        """The statuses of a place that were answers."""
        return [
            measurement.reading.status
            for measurement in self.measurements
            if measurement.place == place and measurement.answer is not None
        ]

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
        elif kind == events.SCREENED:
            self.screened[place] = event["structure"]
            self._compare(place)
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

    def refute(self, outcome: RangeOutcome, judged: Confirmation) -> None:
        """Give the pairs of a refuted culprit to the search, which is then open again."""
        measurements = tuple(self.confirming.pop((outcome.first, outcome.last), ()))
        self.refuted.append(RefutedCulprit(outcome, judged, measurements))
        values = [value for m in measurements if (value := self._observation(m)) is not None]
        self.search.observe(Refuted(tuple(values)))

    def is_to_be_screened(self, place: int) -> bool:
        """Whether a build may be the same as another one, which is looked at before it is timed.

        Not where torch itself is what changes: each of its builds has its own commit in it. Nor where both
        neighbours differ in files that the comparison does not see.
        """
        if not 0 < place < self.question.last or place in self.screened or self.readings(place):
            return False
        if not any(self._differ_in_code_alone(place, other) for other in (place - 1, place + 1)):
            return False
        ends = [self._structure(end) for end in (0, self.question.last)]
        if None in map(_identity, ends):
            return False
        old, new = (end["loaded"].get(_TORCH) for end in ends)
        return old is not None and old == new

    def is_known_not_to_build(self, place: int) -> bool:
        """Whether a build failed before this bisection, so that it was not tried."""
        costs, tried = self.question.build_cost, {*self.builds, *self.broken}
        return bool(costs) and math.isinf(costs[place]) and place not in tried

    def twin_of(self, place: int) -> int | None:
        """The build that has the same code and libraries as this one, which is therefore not timed."""
        return self.search.state.same.get(place)

    def _structure(self, place: int) -> Mapping[str, Any]:
        return self.screened.get(place) or (self.records.get(place) or {}).get("structure") or {}

    def _compare(self, place: int) -> None:
        """Observe that a screened build is the same as one that was measured, or screened and is no twin."""
        own, state = _identity(self._structure(place)), self.search.state
        known = {*self.records, *self.screened} - {place, *state.same}
        others = sorted(
            other for other in known if state.measurable(other) and self._differ_in_code_alone(place, other)
        )
        twin = next((other for other in others if own and _identity(self._structure(other)) == own), None)
        if twin is not None:
            self.search.observe(Same(place, twin))

    def _differ_in_code_alone(self, place: int, other: int) -> bool:
        """Whether no revision after the older one of two places changes what the comparison does not see."""
        only_code, (older, newer) = self.question.only_code, sorted((place, other))
        return bool(only_code) and all(only_code[older:newer])

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
        observation, record = self._observation(measurement), event.get("record")
        if observation is not None:
            if isinstance(record, Mapping) and record.get("structure"):
                self.records.setdefault(place, record)
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
            of_bad = [*self.answers(last), *([reading.status] if place == last else [])]
            answer = answer_of(self.metric, reading.status, self.answers(0), of_bad)
        return RevisionMeasurement(
            place, reading, float(event.get("seconds", 0.0)), str(event.get("at", "")), answer
        )

    def _observation(self, measurement: RevisionMeasurement) -> Measured | Answered | None:
        if self.metric.is_answer:
            return None if measurement.answer is None else Answered(measurement.place, measurement.answer)
        value = measurement.reading.value
        if value is None or not math.isfinite(value) or (self.metric.comparison == "ratio" and value <= 0):
            return None
        return Measured(measurement.place, comparable(self.metric, value))


def _identity(structure: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The generated code, and the contents of all loaded files; None where one of them is unknown."""
    code, loaded = structure.get("text"), structure.get("loaded")
    return (code, loaded) if code and loaded else None


def why_not(reading: Reading) -> str:
    """Say in one line why a reading has no value."""
    first = next((line.strip() for line in reading.message.splitlines() if line.strip()), "")
    return f"{reading.status}: {first}" if first else reading.status
