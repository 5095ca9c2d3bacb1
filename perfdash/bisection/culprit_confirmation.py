"""Judge a culprit by pairs of fresh builds: it against the revision before it. Pure.

The pairs are planned from the step and the noise that the search found, and judged by the test that
`perfdash confirm` uses. Only a difference that disagrees with the step refutes a culprit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfdash.bisection.events import RangeOutcome
from perfdash.bisection.metrics import comparable
from perfdash.bisection.stage import Confirmation, RevisionMeasurement, Stage, Word
from perfdash.stats import confirmation_test

ANSWER_PAIRS, MOST_ANSWER_PAIRS = 2, 4
_FAILURES = 2  # failed measurements after which a culprit is neither confirmed nor refuted
MOST_PAIRS, MOST_PAIRS_UNTIL_SURE = 40, 120
PLANNED = 0.85  # of the step found: pairs are planned for a smaller one, since the largest are found
REFUTATIONS = 2  # refuted culprits of a stage after which the search goes on


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
    deviation = max(outcome.sd, stage.question.resolution)
    step, direction = abs(outcome.step), math.copysign(1.0, outcome.step)
    most = MOST_PAIRS_UNTIL_SURE if stage.until_sure else MOST_PAIRS
    measured_places = {measurement.place for measurement in stage.measurements}
    # The search may have counted a neighbour's change in the step: pairs that show half of it refute nothing.
    smallest = min(direction * outcome.step_low, direction * outcome.step_high, step / 2)
    test = confirmation_test.decide(
        differences,
        suspected=outcome.step or 1.0,
        at_least=max(smallest, 0.0),
        sd=deviation,
        df=max(len(stage.measurements) - len(measured_places), 1),
        minimum_change=0.0,
        pairs=confirmation_test.pairs_needed(PLANNED * step, deviation, most=most),
        most_pairs=most,
    )
    word: Word = "more"
    if test.decision == "stands":
        # A difference of less than half the step is not the step: that is mostly elsewhere.
        elsewhere = not _overlap(test, outcome) and direction * test.estimate < step / 2
        word = "not confirmed" if elsewhere else "confirmed"
    elif test.decision == "dismissed":
        word = "not confirmed"
    elif test.decision == "undecided":
        word = "cannot tell"
    return Confirmation(word, test.pairs, test.estimate, test.low, test.high, wanted=test.wanted)


def _overlap(test: confirmation_test.Remeasurement, outcome: RangeOutcome) -> bool:
    return test.low <= outcome.step_high and outcome.step_low <= test.high


def _of_counts(outcome: RangeOutcome, differences: Sequence[float]) -> Confirmation:
    """Judge counts, which have no noise."""
    if len(differences) < ANSWER_PAIRS:
        return Confirmation("more", len(differences))
    step = differences[0]
    word: Word = "confirmed" if step * outcome.step > 0 else "not confirmed"
    return Confirmation(word, len(differences), step, step, step)
