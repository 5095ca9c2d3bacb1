"""What must be done so that the comments of a run say what they should: edits, new ones, removals. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdash.publish.marker import without


@dataclass(frozen=True)
class Seen:
    """A comment of ours that is there."""

    id: int
    body: str
    url: str = ""


@dataclass(frozen=True)
class Edit:
    id: int
    body: str


@dataclass(frozen=True)
class Create:
    body: str


@dataclass(frozen=True)
class Remove:
    id: int


Action = Edit | Create | Remove


def plan(existing: Sequence[Seen], wanted: Sequence[str]) -> list[Action]:
    """The actions that leave exactly `wanted`, in their order, of what exists.

    The oldest comment becomes part 1, and so on, whatever part it was: so parts stay in order where a
    person removed one, and of two who post at once both keep the same comments and remove the same.
    """
    there = sorted(existing, key=lambda one: one.id)
    edits = [
        Edit(one.id, body)
        for one, body in zip(there, wanted, strict=False)
        if _marked(one.body) != _marked(body) or without(one.body) != without(body)
    ]
    fresh = [Create(body) for body in wanted[len(there) :]]
    return [*edits, *fresh, *(Remove(one.id) for one in there[len(wanted) :])]


def _marked(body: str) -> str:
    return body.partition("\n")[0].rstrip()
