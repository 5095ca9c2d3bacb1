"""From a course to its account: the culprits, what was tested and skipped, how much it took. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from perfdash.bisection.account import (
    FOUND,
    NOT_CONFIRMED,
    NOT_FINISHED,
    Account,
    Change,
    Culprit,
    Range,
    Skipped,
    Tested,
)
from perfdash.bisection.confirming import Confirmation, confirmation
from perfdash.bisection.course import MERGE, PIN, REVERT, RUNG, Course
from perfdash.bisection.evidence import robust_level, weigh
from perfdash.bisection.metrics import comparable, plain
from perfdash.bisection.question import BuildSeen, Outcome
from perfdash.bisection.stage import Stage
from perfdash.metrics import Metric


def account(course: Course) -> Account:
    """What a course has come to so far."""
    begun, metric = course.begun, course.metric
    culprits = tuple(_culprit(course, stage, outcome) for stage, outcome in course.culprits())
    last = [stage.taken[-1].at for stage in course.stages if stage.taken]
    return Account(
        name=str(begun.get("name", "")),
        word=_word(course, culprits),
        metric=metric.name,
        title=metric.bisect_title,
        kind=metric.comparison,
        column=metric.column,
        more_is_worse=metric.more_is_worse,
        case=begun.get("case"),
        command=tuple(begun["command"]) if begun.get("command") else None,
        host=str(begun.get("host", "")),
        host_class=str(begun.get("host_class", "")),
        began=str(begun.get("at", "")),
        ended=str(course.ended["at"]) if course.ended else max(last, default=""),
        state=str(course.ended["state"]) if course.ended else "running",
        line=tuple(begun.get("line", ())),
        culprits=culprits,
        ranges=tuple(_range(course, stage) for stage in course.stages),
        counts=course.counts(),
        notes=tuple(begun.get("notes", ())),
        alert=begun.get("alert"),
        unexplained=tuple(_unexplained(course)),
    )


def _word(course: Course, culprits: Sequence[Culprit]) -> str:
    if not course.stages or course.stages[0].done is None:
        return NOT_FINISHED
    if culprits:
        return NOT_CONFIRMED if any(one.confirmed == "not confirmed" for one in culprits) else FOUND
    return course.stages[0].done.outcomes[0].verdict


def _unexplained(course: Course) -> list[str]:
    """Ranges in which something is left that could not be told."""
    found = []
    for stage in course.stages:
        for outcome in stage.done.outcomes[1:] if stage.done else ():
            if outcome.verdict in ("cannot tell", "undecided"):
                low, high = stage.revisions[outcome.low], stage.revisions[outcome.high]
                found.append(f"between {low.label} and {high.label}: {outcome.verdict}")
    return found


def _culprit(course: Course, stage: Stage, outcome: Outcome) -> Culprit:
    stands = confirmation(stage, outcome) if course.confirms else None
    ways = [why for (place, _), why in stage.closed.items() if place == outcome.first]
    back = course.child(stage, outcome.first, REVERT)
    tried = back.done.outcomes[0] if back and back.done else None
    children = [
        child for way in course.ways(stage, outcome) if (child := course.child(stage, outcome.first, way))
    ]
    ways += [
        f"{_how(child)} it shows no such change, so it is what the commit itself does"
        for child in children
        if child.done and not child.found
    ]
    return Culprit(
        recipe=stage.recipe,
        stage=stage.number,
        revisions=tuple(stage.revisions[outcome.first : outcome.last + 1]),
        parent=stage.revisions[outcome.first - 1],
        probability=outcome.probability,
        change=_change(stage, outcome),
        confirmed=stands.word if stands else "",
        confirmed_change=_confirmed(stage.metric, stands),
        confirmed_pairs=stands.pairs if stands else 0,
        confirmed_why=stands.why if stands else "",
        eager=_eager(stage, outcome),
        reverted=tried.verdict if tried else "",
        reverted_change=_change(back, tried) if back and tried else Change(),
        more=tuple(ways),
    )


def _confirmed(metric: Metric, stands: Confirmation | None) -> Change:
    if stands is None or not math.isfinite(stands.step):
        return Change()
    return Change(None, None, *(_scaled(metric, value) for value in (stands.step, stands.low, stands.high)))


def _change(stage: Stage, outcome: Outcome) -> Change:
    metric = stage.metric
    if metric.is_answer or not math.isfinite(outcome.step):
        return Change()
    first, last = (outcome.first, outcome.last) if outcome.first else (outcome.high, outcome.high)
    sides = (range(outcome.low, first), range(last, outcome.high + 1))
    before, after = (_level(metric, [v for p in side for v in _values(stage, p)]) for side in sides)
    steps = (outcome.step, outcome.step_low, outcome.step_high)
    return Change(before, after, *(_scaled(metric, step) for step in steps))


def _scaled(metric: Metric, step: float) -> float | None:
    if not math.isfinite(step):
        return None
    return math.exp(max(-700.0, min(step, 700.0))) if metric.comparison == "ratio" else float(step)


def _values(stage: Stage, place: int) -> list[float]:
    """As they were measured, in the metric's unit."""
    return [one.value for one in stage.readings(place) if one.value is not None]


def _level(metric: Metric, values: Sequence[float]) -> float | None:
    compared = [comparable(metric, v) for v in values if v > 0 or metric.comparison != "ratio"]
    return plain(metric, robust_level(np.array(compared))) if compared else None


def _eager(stage: Stage, outcome: Outcome) -> Change | None:
    """How eager changed at the culprit, where compiled or the ratio of the two was looked at."""
    if stage.metric.name not in ("backend", "speedup"):
        return None
    sides = [
        [
            math.log(value)
            for place in places
            for one in stage.readings(place)
            if (value := one.beside.get("eager_ms", 0.0)) > 0
        ]
        for places in (range(outcome.low, outcome.first), range(outcome.last, outcome.high + 1))
    ]
    if any(len(side) < 2 for side in sides):
        return None
    found = weigh(sides)
    before, after = (math.exp(robust_level(np.array(side))) for side in sides)
    return Change(before, after, math.exp(found.step), math.exp(found.low), math.exp(found.high))


def _range(course: Course, stage: Stage) -> Range:
    outcome = stage.done.outcomes[0] if stage.done else None
    told = stage.done and outcome and outcome.verdict in ("found", "cannot tell")
    seen = {each.place: each for each in stage.done.builds} if stage.done and told else {}
    marks = stage.bisection.state.marks
    measured = sorted({one.place for one in stage.taken})
    skipped = [
        Skipped(stage.revisions[place].label, stage.revisions[place].id, why, stage.logs.get(place, ""))
        for place, why in sorted(stage.broken.items())
    ]
    skipped += [
        Skipped(stage.revisions[place].label, stage.revisions[place].id, "marked skip")
        for place, side in sorted(marks.items())
        if side == "skip"
    ]
    return Range(
        number=stage.number,
        recipe=stage.recipe,
        how=_how(stage, course),
        good=stage.revisions[0],
        bad=stage.revisions[-1],
        revisions=len(stage.revisions),
        verdict=outcome.verdict if outcome else NOT_FINISHED,
        change=_change(stage, outcome) if outcome else Change(),
        none=outcome.none if outcome else 1.0,
        sd=outcome.sd if outcome and math.isfinite(outcome.sd) else None,
        tested=tuple(
            _tested(stage, place, seen.get(place)) for place in measured if place not in stage.broken
        ),
        skipped=tuple(skipped),
        standing=stage.standing(),
        last=stage.question.last,
    )


def _tested(stage: Stage, place: int, seen: BuildSeen | None) -> Tested:
    revision, readings = stage.revisions[place], stage.readings(place)
    values = _values(stage, place)
    said: dict[str, int] = {}
    for one in readings:
        said[one.status] = said.get(one.status, 0) + 1
    level = _level(stage.metric, values)
    return Tested(
        place,
        revision.label,
        revision.id,
        revision.title,
        len(readings),
        level,
        tuple(values),
        said,
        seen.bad if seen else None,
        stage.bisection.state.marks.get(place, ""),
    )


def _how(stage: Stage, course: Course | None = None) -> str:
    """How a stage was come to, in words; nothing for the first."""
    if not stage.origin:
        return ""
    way = str(stage.origin["way"])
    where = ""
    if course:
        above = course.stages[int(stage.origin["stage"])]
        where = f" of {above.revisions[int(stage.origin['place'])].label}"
    if way == RUNG:
        return f"between the builds around {where.removeprefix(' of ')}".rstrip()
    if way.startswith(MERGE):
        return f"inside the merge{where}"
    if way == REVERT:
        return f"the change{where} taken back"
    if way == PIN:
        name = stage.more.get("inside", {}).get("name", "what is pinned")
        return f"inside {name}, pinned anew by{where.removeprefix(' of')}"
    return way
