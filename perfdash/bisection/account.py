"""What a bisection has come to, as plain values for reports, for programs and for the history. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from perfdash.bisection.events import finite
from perfdash.bisection.sources import Revision
from perfdash.bisection.stage import Standing

FOUND, NOT_CONFIRMED, NOT_FINISHED = "found", "found, not confirmed", "not finished"
_HEAVY = 0.95  # of the chance that a build is bad, or good: what the table calls it


@dataclass(frozen=True)
class Change:
    """From one level to another: `ratio` 1.08 is 8 % more (of a count: the difference), with its 95 %
    interval; None for answers.
    """

    before: float | None = None
    after: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Culprit:
    """`revisions`: one, or those that could not be told apart. probability: that it is (one of) these.

    eager: how eager changed beside it, as a ratio with its interval, where compiled was looked at.
    """

    recipe: str
    stage: int
    revisions: tuple[Revision, ...]
    parent: Revision
    probability: float
    change: Change
    confirmed: str  # confirmed | not confirmed | cannot tell | more | "" (not asked for)
    confirmed_change: Change
    confirmed_pairs: int
    confirmed_why: str = ""
    eager: Change | None = None
    reverted: str = (
        ""  # found | not reproduced | ...: whether the bad end differs from it with this taken back
    )
    reverted_change: Change = Change()
    more: tuple[str, ...] = ()  # what is to be known of it besides


@dataclass(frozen=True)
class Tested:
    """A measured revision: its level in the metric's unit, or what it said; bad: chance that it is."""

    place: int
    label: str
    id: str
    title: str
    count: int
    level: float | None
    values: tuple[float, ...]
    said: dict[str, int]
    bad: float | None
    mark: str = ""

    @property
    def side(self) -> str:
        if self.bad is None:
            return ""
        return "bad" if self.bad >= _HEAVY else "good" if self.bad <= 1 - _HEAVY else "cannot tell"


@dataclass(frozen=True)
class Skipped:
    label: str
    id: str
    why: str
    log: str = ""


@dataclass(frozen=True)
class Range:
    """A stage: what was searched, how it was come to, what came out; standing while it is searched."""

    number: int
    recipe: str
    how: str
    good: Revision
    bad: Revision
    revisions: int
    verdict: str
    change: Change
    none: float
    sd: float | None
    tested: tuple[Tested, ...]
    skipped: tuple[Skipped, ...]
    standing: Standing
    last: int


@dataclass(frozen=True)
class Account:
    """The whole. word: found | found, not confirmed | not reproduced | undecided | cannot tell |
    end not measured | not finished.
    """

    name: str
    word: str
    metric: str
    title: str
    kind: str
    column: str | None
    more_is_worse: bool | None
    case: dict[str, Any] | None
    command: tuple[str, ...] | None
    host: str
    host_class: str
    began: str
    ended: str
    state: str
    line: tuple[str, ...]
    culprits: tuple[Culprit, ...]
    ranges: tuple[Range, ...]
    counts: dict[str, Any]
    notes: tuple[str, ...] = ()
    alert: int | None = None
    unexplained: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not finite is null."""
        said: dict[str, Any] = finite(dataclasses.asdict(self))
        return {"schema": 1, **said}
