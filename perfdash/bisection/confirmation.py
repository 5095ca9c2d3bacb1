"""Whether a culprit stands when it is measured against its parent again, in environments made anew. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from perfdash.bisection.events import Outcome
from perfdash.bisection.metrics import comparable
from perfdash.stats import confirmation_test

if TYPE_CHECKING:
    from perfdash.bisection.replay import Stage, Taken

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


def ends(outcome: Outcome) -> tuple[int, int]:
    """The places that are held against each other: the last good one, and the (last possible) culprit."""
    return outcome.first - 1, outcome.last


def confirmation(stage: Stage, outcome: Outcome) -> Confirmation:
    """What the pairs so far say of a culprit."""
    good, bad = ends(outcome)
    for place in (good, bad):
        if place in stage.not_fresh:
            label = stage.revisions[place].label
            return Confirmation("cannot tell", why=f"{label} cannot be built anew: {stage.not_fresh[place]}")
    taken = stage.confirming.get((outcome.first, outcome.last), [])
    failed = [one for one in taken if _failed(stage, one)]
    if len(failed) >= _FAILURES:
        why = f"{stage.revisions[failed[-1].place].label}: {failed[-1].reading.status}"
        return Confirmation("cannot tell", why=f"it was not measured ({why})")
    usable = [one for one in taken if not _failed(stage, one)]
    sides = [one for one in usable if one.place == good], [one for one in usable if one.place == bad]
    pairs = list(zip(*sides, strict=False))
    return _of_answers(pairs) if stage.metric.is_answer else _of_numbers(stage, outcome, pairs)


def next_place(stage: Stage, outcome: Outcome) -> int:
    """Which of the two is next: good, bad, bad, good, so that a drift of the host hits both alike."""
    good, bad = ends(outcome)
    taken = [
        one for one in stage.confirming.get((outcome.first, outcome.last), []) if not _failed(stage, one)
    ]
    count = {place: sum(one.place == place for one in taken) for place in (good, bad)}
    if count[good] != count[bad]:
        return min((good, bad), key=lambda place: count[place])
    return taken[-1].place if taken else good


def _failed(stage: Stage, one: Taken) -> bool:
    return one.answer is None if stage.metric.is_answer else one.reading.value is None


def _of_answers(pairs: Sequence[tuple[Taken, Taken]]) -> Confirmation:
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


def _of_numbers(stage: Stage, outcome: Outcome, pairs: Sequence[tuple[Taken, Taken]]) -> Confirmation:
    metric = stage.metric
    differences = [
        comparable(metric, other.reading.value) - comparable(metric, one.reading.value)
        for one, other in pairs
        if one.reading.value is not None and other.reading.value is not None
    ]
    if metric.comparison == "count" and (len(differences) < ANSWER_PAIRS or len(set(differences)) == 1):
        return _of_counts(outcome, differences)
    count = len(stage.taken)
    found = confirmation_test.decide(
        differences,
        suspected=outcome.step or 1.0,
        sd=max(outcome.sd, stage.question.resolution),
        df=max(count - len({one.place for one in stage.taken}), 1),
        minimum_change=0.0,
    )
    word: Word = "more"
    if found.decision == "stands":
        word = "confirmed"
    elif found.decision == "dismissed":
        # What may well be true, only too small for so few pairs, is not refuted.
        word = "cannot tell" if found.low <= outcome.step <= found.high else "not confirmed"
    return Confirmation(word, found.pairs, found.estimate, found.low, found.high)


def _of_counts(outcome: Outcome, differences: Sequence[float]) -> Confirmation:
    """Whole numbers that do not scatter."""
    if len(differences) < ANSWER_PAIRS:
        return Confirmation("more", len(differences))
    step = differences[0]
    word: Word = "confirmed" if step * outcome.step > 0 else "not confirmed"
    return Confirmation(word, len(differences), step, step, step)
