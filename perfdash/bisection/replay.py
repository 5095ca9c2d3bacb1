"""Replay a bisection's journal: its stages, their observations, and the next action. Pure.

Each nested search (finer range, merged branch, pinned dependency) is a stage with a parent and the place
there that it came from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from perfdash.bisection.sources import Revision
from perfdash.errors import UsageError
from perfdash.metrics import Metric
from perfdash.stats import confirmation_test

Word = Literal["more", "confirmed", "not confirmed", "cannot tell"]
ANSWER_PAIRS, MOST_ANSWER_PAIRS = 2, 4
_FAILURES = 2  # measurements that may fail


@dataclass(frozen=True)
class Confirmation:
    """step, low, high: bad less good with the 95 % interval, as the metric is compared; NaN for answers."""

    word: Word
    pairs: int = 0
    step: float = math.nan
    low: float = math.nan
    high: float = math.nan
    why: str = ""


def ends(outcome: RangeOutcome) -> tuple[int, int]:
    """The places that are held against each other: the last good one, and the (last possible) culprit."""
    return outcome.first - 1, outcome.last


def confirmation(stage: Stage, outcome: RangeOutcome) -> Confirmation:
    """What the pairs so far say of a culprit."""
    good, bad = ends(outcome)
    for place in (good, bad):
        if place in stage.not_fresh:
            label = stage.revisions[place].label
            return Confirmation("cannot tell", why=f"{label} cannot be built anew: {stage.not_fresh[place]}")
    measurements = stage.confirming.get((outcome.first, outcome.last), [])
    failed = [one for one in measurements if _failed(stage, one)]
    if len(failed) >= _FAILURES:
        why = f"{stage.revisions[failed[-1].place].label}: {failed[-1].reading.status}"
        return Confirmation("cannot tell", why=f"it was not measured ({why})")
    usable = [one for one in measurements if not _failed(stage, one)]
    sides = [one for one in usable if one.place == good], [one for one in usable if one.place == bad]
    pairs = list(zip(*sides, strict=False))
    return _of_answers(pairs) if stage.metric.is_answer else _of_numbers(stage, outcome, pairs)


def next_place(stage: Stage, outcome: RangeOutcome) -> int:
    """Which of the two is next: good, bad, bad, good, so that a drift of the host hits both alike."""
    good, bad = ends(outcome)
    measurements = [
        one for one in stage.confirming.get((outcome.first, outcome.last), []) if not _failed(stage, one)
    ]
    count = {place: sum(one.place == place for one in measurements) for place in (good, bad)}
    if count[good] != count[bad]:
        return min((good, bad), key=lambda place: count[place])
    return measurements[-1].place if measurements else good


def _failed(stage: Stage, one: Measurement) -> bool:
    return one.answer is None if stage.metric.is_answer else one.reading.value is None


def _of_answers(pairs: Sequence[tuple[Measurement, Measurement]]) -> Confirmation:
    good = [bool(one.answer) for one, _ in pairs]
    bad = [bool(other.answer) for _, other in pairs]
    n = len(pairs)
    if n >= ANSWER_PAIRS and all(bad) and not any(good):
        return Confirmation("confirmed", n)
    if n < MOST_ANSWER_PAIRS:
        return Confirmation("more", n)
    # A fault that shows only at times is one.
    if sum(bad) > sum(good):
        return Confirmation("cannot tell" if any(good) else "confirmed", n)
    return Confirmation("not confirmed", n)


def _of_numbers(
    stage: Stage, outcome: RangeOutcome, pairs: Sequence[tuple[Measurement, Measurement]]
) -> Confirmation:
    metric = stage.metric
    differences = [
        comparable(metric, other.reading.value) - comparable(metric, one.reading.value)
        for one, other in pairs
        if one.reading.value is not None and other.reading.value is not None
    ]
    if metric.comparison == "count" and (len(differences) < ANSWER_PAIRS or len(set(differences)) == 1):
        return _of_counts(outcome, differences)
    count = len(stage.measurements)
    found = confirmation_test.decide(
        differences,
        suspected=outcome.step or 1.0,
        sd=max(outcome.sd, stage.question.resolution),
        df=max(count - len({one.place for one in stage.measurements}), 1),
        minimum_change=0.0,
    )
    word: Word = "more"
    if found.decision == "stands":
        word = "confirmed"
    elif found.decision == "dismissed":
        # What may well be true, only too small for so few pairs, is not refuted.
        word = "cannot tell" if found.low <= outcome.step <= found.high else "not confirmed"
    return Confirmation(word, found.pairs, found.estimate, found.low, found.high)


def _of_counts(outcome: RangeOutcome, differences: Sequence[float]) -> Confirmation:
    """Whole numbers that do not scatter."""
    if len(differences) < ANSWER_PAIRS:
        return Confirmation("more", len(differences))
    step = differences[0]
    word: Word = "confirmed" if step * outcome.step > 0 else "not confirmed"
    return Confirmation(word, len(differences), step, step, step)


STRIKES = 2  # failed measurements in a row after which a revision is given up
STRIKES_OF_AN_END = 4  # of one that was measured before: all rests on it, so it is stopped for now
MARKS = ("good", "bad", "skip")


@dataclass(frozen=True)
class Measurement:
    """A measurement as it was taken: when, how long it took, what it said; `answer`: of a status."""

    place: int
    reading: Reading
    seconds: float
    at: str
    answer: bool | None = None


@dataclass(frozen=True)
class BuildRecord:
    """A build that succeeded: the environment's key, seconds that it took, whether it was there before."""

    key: str
    seconds: float
    reused: bool
    notes: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """Where a search is: what it is at, and the places that hold the culprit so far (0, 0: all)."""

    phase: str
    first: int = 0
    last: int = 0
    probability: float = 0.0


class Stage:
    """The state of a range, changed by nothing but the events of its journal."""

    def __init__(self, event: Event, metric: Metric) -> None:
        """Raises ValueError for an event that is none of a stage."""
        try:
            self.number = int(event["stage"])
            self.recipe = str(event["recipe"])
            self.origin: Mapping[str, Any] | None = event["origin"]
            self.more: Mapping[str, Any] = event["more"]
            self.revisions = [events.revision_from_json(each) for each in event["revisions"]]
            self.question: Question = events.question_from_json(event["question"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a stage: {error}") from error
        if len(self.revisions) != self.question.last + 1:
            raise ValueError(f"{len(self.revisions)} revisions for the places 0..{self.question.last}")
        self.metric = metric
        self.began = str(event.get("at", ""))
        self.search = RangeSearch(self.question)
        self.builds: dict[int, BuildRecord] = {}
        self.broken: dict[int, str] = {}
        self.logs: dict[int, str] = {}  # of what could not be built
        self.measurements: list[Measurement] = []
        self.fresh: dict[int, BuildRecord] = {}
        self.not_fresh: dict[int, str] = {}
        self.confirming: dict[tuple[int, int], list[Measurement]] = {}
        self.closed: dict[tuple[int, str], str] = {}  # ways down that lead nowhere, and why
        self.open_again: set[tuple[int, str]] = set()  # of these: those that another session may try again
        self._strikes: dict[int, int] = {}

    @property
    def done(self) -> Done | None:
        """What came out of it, once the search is at its end."""
        return self.search.action if isinstance(self.search.action, Done) else None

    @property
    def found(self) -> tuple[RangeOutcome, ...]:
        """The culprits; none as long as it is searched."""
        return self.done.culprits if self.done else ()

    def place_of(self, word: str) -> int | None:
        """The place of a revision by its name, label or the beginning of its name; None: none or several."""
        named = [place for place, each in enumerate(self.revisions) if word in (each.id, each.label)]
        if not named and len(word) >= 4:
            named = [place for place, each in enumerate(self.revisions) if each.id.startswith(word)]
        return named[0] if len(named) == 1 else None

    def readings(self, place: int) -> list[Reading]:
        """What was measured of a place, in order, confirmations left out."""
        return [each.reading for each in self.measurements if each.place == place]

    def end_fails(self, place: int) -> bool:
        """Whether an end that was measured before has now failed so often that it is not gone on."""
        return place not in self.broken and self._strikes.get(place, 0) >= STRIKES_OF_AN_END

    def standing(self) -> Progress:
        """What the search is at, for who looks at it meanwhile."""
        state = self.search.state
        if self.done or not state.pending:
            return Progress("done")
        now = state.pending[0]
        if not now.reproduced:
            return Progress("comparing the two ends" if now.whole == 0 else "looking for a second change")
        view = look(state, now, 0.5)
        found = culprits(view.belief, view.measurable, self.question.confidence)
        chance = found.probability * (1 - view.belief.none)
        return Progress("searching", now.low + found.first, now.low + found.last, chance)

    def apply(self, event: Event) -> None:
        """One event more. Raises ValueError for one that does not belong here."""
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
            self.fresh[place] = _making(event)
        elif kind == events.NOT_FRESH:
            self.not_fresh[place] = str(event["why"])
        elif kind == events.CONFIRMED:
            first, last = event["culprit"]
            self.confirming.setdefault((first, last), []).append(self._measurement(place, event))
        elif kind == events.DEAD_END:
            self.closed[place, str(event["way"])] = str(event["why"])
            if event.get("again"):
                self.open_again.add((place, str(event["way"])))
        else:
            raise ValueError(f"no event of a stage: {kind!r}")

    def new_session(self, other_host: bool = False) -> None:
        """Somebody goes on with it: ways that lacked something may be tried again.

        other_host: so long after that what was known of the host no longer holds.
        """
        if other_host:
            self.search.observe(Resumed())
        for key in self.open_again:
            self.closed.pop(key, None)
        self.open_again.clear()

    def _built(self, place: int, event: Event) -> None:
        made = _making(event)
        if place in self.builds and self.builds[place].key != made.key:
            raise ValueError(f"{self.revisions[place].label} was built as {self.builds[place].key} before")
        self.builds[place] = made
        self.broken.pop(place, None)
        self.search.observe(Built(place))

    def _measured(self, place: int, event: Event) -> None:
        key = event.get("environment")
        if place in self.builds and key != self.builds[place].key:
            raise ValueError(f"{self.revisions[place].label} was measured in another environment, {key}")
        measurement = self._measurement(place, event)
        self.measurements.append(measurement)
        seen = self._observation(measurement)
        if seen is not None:
            self._strikes[place] = 0
            self.search.observe(seen)
            return
        self._strikes[place] = self._strikes.get(place, 0) + 1
        if place in (0, self.question.last) and self.search.state.count(place):
            return
        if self._strikes[place] >= STRIKES or measurement.reading.status == SKIP:
            self.broken[place] = why_not(measurement.reading)
            self.search.observe(Broken(place, self.broken[place]))

    def _measurement(self, place: int, event: Event) -> Measurement:
        reading, answer = reading_from_json(event["reading"]), None
        if self.metric.is_answer:
            last = self.question.last
            of_bad = [*self._answers(last), *([reading.status] if place == last else [])]
            answer = answer_of(self.metric, reading.status, self._answers(0), of_bad)
        return Measurement(place, reading, float(event.get("seconds", 0.0)), str(event.get("at", "")), answer)

    def _answers(self, place: int) -> list[str]:
        """The statuses of a place that were answers."""
        return [
            measurement.reading.status
            for measurement in self.measurements
            if measurement.place == place and measurement.answer is not None
        ]

    def _observation(self, measurement: Measurement) -> Observation | None:
        if self.metric.is_answer:
            return None if measurement.answer is None else Answered(measurement.place, measurement.answer)
        value = measurement.reading.value
        if value is None or not math.isfinite(value) or (self.metric.comparison == "ratio" and value <= 0):
            return None
        return Measured(measurement.place, comparable(self.metric, value))


def why_not(reading: Reading) -> str:
    """In one line, why a reading tells nothing."""
    first = next((line.strip() for line in reading.message.splitlines() if line.strip()), "")
    return f"{reading.status}: {first}" if first else reading.status


def names(revisions: Sequence[Revision]) -> str:
    """A few revisions by their labels."""
    labels = [each.label for each in revisions]
    return ", ".join(labels if len(labels) <= 4 else [*labels[:2], "...", labels[-1]])


def _making(event: Event) -> BuildRecord:
    return BuildRecord(
        str(event["environment"]),
        float(event.get("seconds", 0.0)),
        bool(event.get("reused")),
        tuple(event.get("notes", ())),
        dict(event.get("packages", {})),
    )


RUNG, MERGE, PIN = "rung", "merge", "pin"
REVERT = "revert"  # not a way down: the culprit taken back on top of the bad end
LONG_PAUSE_S = 600.0  # after which the host may be another than it was


@dataclass(frozen=True)
class SearchStep:
    """Build or measure for the search in a stage."""

    stage: Stage
    action: Build | Measure


@dataclass(frozen=True)
class Descend:
    """Look for a finer range behind a culprit: the next rung, a merge's side, what is pinned."""

    stage: Stage
    outcome: RangeOutcome
    way: str


@dataclass(frozen=True)
class BuildFresh:
    """Build a place once more, independently, for confirming."""

    stage: Stage
    place: int


@dataclass(frozen=True)
class Confirm:
    """Measure one side of a culprit in its fresh environment."""

    stage: Stage
    outcome: RangeOutcome
    place: int


Step = SearchStep | Descend | BuildFresh | Confirm


class Bisection:
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
            self.stages[int(event["stage"])].apply(event)
        self.ended = None  # what came after an end has opened it again

    def next_step(self) -> Step | None:
        """What is to be done next; None at the end, or before the first stage."""
        return self._step(self.stages[0]) if self.stages else None

    def culprits(self) -> list[tuple[Stage, RangeOutcome]]:
        """The finest culprits found so far, in the order of the revisions."""
        return list(self._culprits(self.stages[0])) if self.stages else []

    def child(self, stage: Stage, place: int, way: str) -> Stage | None:
        """The stage that a way down has led to."""
        origin = {"stage": stage.number, "place": place, "way": way}
        return next((each for each in self.stages if each.origin == origin), None)

    def ways(self, stage: Stage, outcome: RangeOutcome) -> list[str]:
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
            action = stage.search.action
            assert isinstance(action, Build | Measure)
            return SearchStep(stage, action)
        for outcome in stage.found:
            step = self._below(stage, outcome)
            if step is not None:
                return step
        return None

    def _below(self, stage: Stage, outcome: RangeOutcome) -> Step | None:
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
                    return BuildFresh(stage, place)
            return Confirm(stage, outcome, next_place(stage, outcome))
        return self._taking_back(stage, outcome)

    def _taking_back(self, stage: Stage, outcome: RangeOutcome) -> Step | None:
        """Whether the culprit's revert is still to be made, or measured against the bad end."""
        if not self.begun.get("revert") or outcome.first != outcome.last:
            return None
        child = self.child(stage, outcome.first, REVERT)
        if child is None:
            known = (outcome.first, REVERT) in stage.closed
            return None if known else Descend(stage, outcome, REVERT)
        action = child.search.action
        return None if isinstance(action, Done) else SearchStep(child, action)

    def _culprits(self, stage: Stage) -> Iterator[tuple[Stage, RangeOutcome]]:
        for outcome in sorted(stage.found, key=lambda one: one.first):
            children = [self.child(stage, outcome.first, way) for way in self.ways(stage, outcome)]
            finer = [each for child in children if child for each in self._culprits(child)]
            yield from finer or [(stage, outcome)]

    def counts(self) -> dict[str, Any]:
        """Builds made, builds that failed, measurements, and hours of both."""
        made = [one for stage in self.stages for one in (*stage.builds.values(), *stage.fresh.values())]
        measurements = [one for stage in self.stages for one in stage.measurements]
        again = [one for stage in self.stages for pairs in stage.confirming.values() for one in pairs]
        return {
            "builds": sum(not one.reused for one in made),
            "reused": sum(one.reused for one in made),
            "failed": sum(len(stage.logs) for stage in self.stages),
            "measurements": len(measurements),
            "confirming": len(again),
            "build_s": sum(one.seconds for one in made if not one.reused),
            "measure_s": sum(one.seconds for one in (*measurements, *again)),
        }


def _seconds(before: str | None, after: str | None) -> float:
    """Between two times as they are written down; 0 where one is missing."""
    if not before or not after:
        return 0.0
    return (datetime.fromisoformat(after) - datetime.fromisoformat(before)).total_seconds()
