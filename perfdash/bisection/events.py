"""The lines of a bisection's journal: what was begun, built, measured, marked, confirmed. Plain values.

Each line is one event with its name and time. What an event means is decided in course.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from perfdash.bisection.evidence import Known
from perfdash.bisection.question import Question
from perfdash.bisection.sources import Revision

SCHEMA = 1

BEGUN, STAGE, DEAD_END = "begun", "stage", "dead end"
BUILT, BROKEN, MEASURED, MARKED = "built", "broken", "measured", "marked"
FRESH, NOT_FRESH, CONFIRMED = "fresh", "not fresh", "confirm"
SESSION, ENDED = "session", "ended"

Event = dict[str, Any]


def stage(
    number: int,
    recipe: str,
    revisions: Sequence[Revision],
    question: Question,
    origin: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Event:
    """A range that is to be searched; `origin`: the stage, place and way that it was come to by."""
    return {
        "event": STAGE,
        "stage": number,
        "recipe": recipe,
        "origin": dict(origin) if origin else None,
        "question": question_to_json(question),
        "more": dict(more or {}),
        "revisions": [dataclasses.asdict(each) for each in revisions],
    }


def at(event: str, number: int, place: int, revision: Revision, **more: Any) -> Event:
    """Something that happened to one place of a stage."""
    return {"event": event, "stage": number, "place": place, "commit": revision.id, **more}


def revision_from_json(data: Mapping[str, Any]) -> Revision:
    """The inverse of dataclasses.asdict. Raises ValueError for what is none."""
    try:
        known = {each.name for each in dataclasses.fields(Revision)}
        said = {key: value for key, value in data.items() if key in known}
        return Revision(**{**said, "parents": tuple(said.get("parents", ()))})
    except TypeError as error:
        raise ValueError(f"not a revision: {error}") from error


def question_to_json(question: Question) -> dict[str, Any]:
    """Costs that are infinite as null: JSON has no word for them."""
    said = dataclasses.asdict(question)
    said["build_cost"] = [cost if math.isfinite(cost) else None for cost in question.build_cost]
    return said


def question_from_json(data: Mapping[str, Any]) -> Question:
    """The inverse of question_to_json. Raises ValueError for what is none."""
    try:
        said = dict(data)
        said["build_cost"] = tuple(math.inf if cost is None else float(cost) for cost in said["build_cost"])
        said["prior"] = tuple(said["prior"])
        said["known"] = Known(**said["known"]) if said["known"] else None
        return Question(**said)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a question: {error}") from error


def finite(value: Any) -> Any:
    """Plain values with null for what is not finite: JSON has no word for it."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
