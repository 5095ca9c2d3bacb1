"""One range of a bisection as its journal tells it: revisions, and what was built, measured and marked. Pure.

Readings become observations here: a measurement that fails is made once more, and a revision that fails
twice in a row counts as one that cannot be measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfdash.bisection import events
from perfdash.bisection.events import Event
from perfdash.bisection.loop import Bisection
from perfdash.bisection.metrics import SKIP, Reading, answer, comparable, reading_from_json
from perfdash.bisection.question import (
    Answered,
    Broken,
    Built,
    Done,
    Marked,
    Measured,
    Observation,
    Outcome,
    Question,
    Resumed,
)
from perfdash.bisection.search import culprits
from perfdash.bisection.sources import Revision
from perfdash.bisection.view import look
from perfdash.metrics import Metric

STRIKES = 2  # failed measurements in a row after which a revision is given up
STRIKES_OF_AN_END = 4  # of one that was measured before: all rests on it, so it is stopped for now
MARKS = ("good", "bad", "skip")


@dataclass(frozen=True)
class Taken:
    """A measurement as it was taken: when, how long it took, what it said; `answer`: of a status."""

    place: int
    reading: Reading
    seconds: float
    at: str
    answer: bool | None = None


@dataclass(frozen=True)
class Making:
    """A build that succeeded: the environment's key, seconds that it took, whether it was there before."""

    key: str
    seconds: float
    reused: bool
    notes: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Standing:
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
        self.bisection = Bisection(self.question)
        self.builds: dict[int, Making] = {}
        self.broken: dict[int, str] = {}
        self.logs: dict[int, str] = {}  # of what could not be built
        self.taken: list[Taken] = []
        self.fresh: dict[int, Making] = {}
        self.not_fresh: dict[int, str] = {}
        self.confirming: dict[tuple[int, int], list[Taken]] = {}
        self.closed: dict[tuple[int, str], str] = {}  # ways down that lead nowhere, and why
        self.open_again: set[tuple[int, str]] = set()  # of these: those that another session may try again
        self._strikes: dict[int, int] = {}

    @property
    def done(self) -> Done | None:
        """What came out of it, once the search is at its end."""
        return self.bisection.action if isinstance(self.bisection.action, Done) else None

    @property
    def found(self) -> tuple[Outcome, ...]:
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
        return [each.reading for each in self.taken if each.place == place]

    def end_fails(self, place: int) -> bool:
        """Whether an end that was measured before has now failed so often that it is not gone on."""
        return place not in self.broken and self._strikes.get(place, 0) >= STRIKES_OF_AN_END

    def standing(self) -> Standing:
        """What the search is at, for who looks at it meanwhile."""
        state = self.bisection.state
        if self.done or not state.pending:
            return Standing("done")
        now = state.pending[0]
        if not now.reproduced:
            return Standing("comparing the two ends" if now.whole == 0 else "looking for a second change")
        view = look(state, now, 0.5)
        found = culprits(view.belief, view.measurable, self.question.confidence)
        chance = found.probability * (1 - view.belief.none)
        return Standing("searching", now.low + found.first, now.low + found.last, chance)

    def take(self, event: Event) -> None:
        """One event more. Raises ValueError for one that does not belong here."""
        kind, place = event["event"], int(event["place"])
        if not 0 <= place <= self.question.last or event.get("commit") != self.revisions[place].id:
            raise ValueError(f"place {place} of stage {self.number} is not {event.get('commit')}")
        if kind == events.BUILT:
            self._built(place, event)
        elif kind == events.BROKEN:
            self.broken[place] = str(event["why"])
            self.logs[place] = str(event.get("log") or "")
            self.bisection.observe(Broken(place, self.broken[place]))
        elif kind == events.MEASURED:
            self._measured(place, event)
        elif kind == events.MARKED:
            if event["side"] not in MARKS:
                raise ValueError(f"a mark is one of {', '.join(MARKS)}, not {event['side']!r}")
            self.bisection.observe(Marked(place, event["side"]))
        elif kind == events.FRESH:
            self.fresh[place] = _making(event)
        elif kind == events.NOT_FRESH:
            self.not_fresh[place] = str(event["why"])
        elif kind == events.CONFIRMED:
            first, last = event["culprit"]
            self.confirming.setdefault((first, last), []).append(self._taken(place, event))
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
            self.bisection.observe(Resumed())
        for key in self.open_again:
            self.closed.pop(key, None)
        self.open_again.clear()

    def _built(self, place: int, event: Event) -> None:
        made = _making(event)
        if place in self.builds and self.builds[place].key != made.key:
            raise ValueError(f"{self.revisions[place].label} was built as {self.builds[place].key} before")
        self.builds[place] = made
        self.broken.pop(place, None)
        self.bisection.observe(Built(place))

    def _measured(self, place: int, event: Event) -> None:
        key = event.get("environment")
        if place in self.builds and key != self.builds[place].key:
            raise ValueError(f"{self.revisions[place].label} was measured in another environment, {key}")
        taken = self._taken(place, event)
        self.taken.append(taken)
        seen = self._observation(taken)
        if seen is not None:
            self._strikes[place] = 0
            self.bisection.observe(seen)
            return
        self._strikes[place] = self._strikes.get(place, 0) + 1
        if place in (0, self.question.last) and self.bisection.state.count(place):
            return
        if self._strikes[place] >= STRIKES or taken.reading.status == SKIP:
            self.broken[place] = why_not(taken.reading)
            self.bisection.observe(Broken(place, self.broken[place]))

    def _taken(self, place: int, event: Event) -> Taken:
        reading = reading_from_json(event["reading"])
        of = {end: [one.reading.status for one in self.taken if one.place == end and one.answer is not None]
              for end in (0, self.question.last)}  # fmt: skip
        said = None
        if self.metric.is_answer:
            of_bad = [*of[self.question.last], *([reading.status] if place == self.question.last else [])]
            said = answer(self.metric, reading.status, of[0], of_bad)
        return Taken(place, reading, float(event.get("seconds", 0.0)), str(event.get("at", "")), said)

    def _observation(self, taken: Taken) -> Observation | None:
        if self.metric.is_answer:
            return None if taken.answer is None else Answered(taken.place, taken.answer)
        value = taken.reading.value
        if value is None or not math.isfinite(value) or (self.metric.comparison == "ratio" and value <= 0):
            return None
        return Measured(taken.place, comparable(self.metric, value))


def why_not(reading: Reading) -> str:
    """In one line, why a reading tells nothing."""
    first = next((line.strip() for line in reading.message.splitlines() if line.strip()), "")
    return f"{reading.status}: {first}" if first else reading.status


def names(revisions: Sequence[Revision]) -> str:
    """A few revisions by their labels."""
    labels = [each.label for each in revisions]
    return ", ".join(labels if len(labels) <= 4 else [*labels[:2], "...", labels[-1]])


def _making(event: Event) -> Making:
    return Making(
        str(event["environment"]),
        float(event.get("seconds", 0.0)),
        bool(event.get("reused")),
        tuple(event.get("notes", ())),
        dict(event.get("packages", {})),
    )
