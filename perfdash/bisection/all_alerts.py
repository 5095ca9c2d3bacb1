"""Bisect all open alerts, one member of each cause; what was begun before is resumed.

It knows neither journals nor builds: each attempt is made by a function that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from perfdash.bisection.alert_culprits import explaining
from perfdash.bisection.open_alerts import AlertGroup
from perfdash.bisection.replay import Bisection
from perfdash.bisection.result import FOUND, NOT_FINISHED, BisectionResult, result_of
from perfdash.detect.causes import can_be_bisected
from perfdash.errors import MachineError, PerfdashError, UsageError

BISECTED, IN_PASSING, KNOWN, FAILED, SKIPPED = "bisected", "in passing", "known", "failed", "skipped"
INTERRUPTED = "interrupted"
NOT_OF_ONE = "it is not of one model and of a metric that can be bisected"


@dataclass(frozen=True)
class FoundStep:
    """A culprit of the outermost range of a bisection, and the revision before it.

    found: the full names of what the bisection found in the end, such as a commit of a merged branch.
    """

    recipe: str
    before: str
    culprit: str
    label: str
    alert: int
    found: frozenset[str]


@dataclass(frozen=True)
class Attempt:
    """One bisection of an alert, or what is left of it. folder: of its journal."""

    result: BisectionResult
    folder: str
    steps: tuple[FoundStep, ...] = ()
    interrupted: bool = False


@dataclass(frozen=True)
class GroupOutcome:
    """How the bisection of a group ended.

    how: bisected, in passing (only the builds around another group's culprit were measured), known (found
    before), failed, skipped or interrupted. why: of a failure. culprits: lines of what was known.
    is_explained: what was found explains the alert.
    """

    number: int
    alerts: tuple[int, ...]
    title: str
    how: str
    attempt: Attempt | None = None
    beside: int | None = None
    why: str = ""
    exit_code: int = 0
    culprits: tuple[str, ...] = ()
    is_explained: bool = True


class Bisect(Protocol):
    """Bisects alerts. Each may raise PerfdashError, which ends only the group."""

    def __call__(self, group: AlertGroup, step: FoundStep | None) -> Attempt:
        """Begin, resume or read a bisection; of a step only between the two builds around it."""

    def is_inside(self, group: AlertGroup, step: FoundStep) -> bool:
        """Whether another group's culprit lies in this group's range."""

    def known(self, group: AlertGroup) -> Sequence[str]:
        """The culprits that other bisections found for a group, a line each."""


def bisect_all(
    groups: Sequence[AlertGroup], bisect: Bisect, *, describe: Callable[[AlertGroup], str]
) -> Iterator[GroupOutcome]:
    """Bisect one member of each group, in their order. After an interruption the rest is left out.

    Where a culprit of an earlier group lies in a group's range, its member is first measured on the two
    builds around that culprit, which are there already. If it differs there, this is its culprit, too. A
    merge may hold a culprit of each group: then the later group is bisected by itself.
    """
    steps: list[FoundStep] = []
    for group in groups:
        numbers = tuple(sorted(member.alert.id or 0 for member in group.members))
        outcome = GroupOutcome(group.number, numbers, describe(group), SKIPPED, why=NOT_OF_ONE)
        if can_be_bisected(group.chosen):
            outcome = _outcome(replace(outcome, why=""), group, steps, bisect)
        yield outcome
        if outcome.how == INTERRUPTED:
            return
        if outcome.attempt and outcome.how == BISECTED:
            steps += outcome.attempt.steps


def _outcome(
    outcome: GroupOutcome, group: AlertGroup, steps: Sequence[FoundStep], bisect: Bisect
) -> GroupOutcome:
    """Bisect a group: its outcome, also of a failure."""
    try:
        if lines := tuple(bisect.known(group)):
            return replace(outcome, how=KNOWN, culprits=lines)
        for step in steps:
            if bisect.is_inside(group, step):
                try:
                    attempt = bisect(group, step)
                except UsageError:  # a build there cannot be measured for this alert; its own ends may be
                    continue
                if attempt.interrupted:
                    return replace(outcome, how=INTERRUPTED, attempt=attempt)
                if attempt.result.word == NOT_FINISHED:
                    return replace(outcome, how=BISECTED, attempt=attempt)
                if has_same_culprit(group, step, attempt.result):
                    return replace(outcome, how=IN_PASSING, attempt=attempt, beside=step.alert)
        attempt = bisect(group, None)
        how = INTERRUPTED if attempt.interrupted else BISECTED
        is_explained = attempt.result.word != FOUND or explains(group, attempt.result)
        return replace(outcome, how=how, attempt=attempt, is_explained=is_explained)
    except PerfdashError as error:
        return replace(outcome, how=FAILED, why=str(error), exit_code=error.exit_code)
    except Exception as error:  # a fault of perfdash itself must not end the other groups
        why = f"internal error: {type(error).__name__}: {error}"
        return replace(outcome, how=FAILED, why=why, exit_code=MachineError.exit_code)


def explains(group: AlertGroup, result: BisectionResult) -> bool:
    """Whether a culprit of a bisection explains the alert of a group."""
    return result.word == FOUND and bool(explaining(group.chosen.alert, result))


def has_same_culprit(group: AlertGroup, step: FoundStep, result: BisectionResult) -> bool:
    """Whether another group's culprit explains the alert of a group, by a bisection of that step."""
    if not explains(group, result):
        return False
    own = explaining(group.chosen.alert, result)
    return all(any(revision.id in step.found for revision in culprit.revisions) for culprit in own)


def found_steps(bisection: Bisection, alert: int) -> tuple[FoundStep, ...]:
    """The single culprits of a bisection's outermost range; none if one was refuted."""
    if not bisection.stages or result_of(bisection).word != FOUND:
        return ()
    stage = bisection.stages[0]
    found = frozenset(
        finest.revisions[place].id
        for finest, outcome in bisection.culprits()
        for place in range(outcome.first, outcome.last + 1)
    )
    return tuple(
        FoundStep(
            str(bisection.begun["asked"]["recipe"]),
            stage.revisions[outcome.first - 1].id,
            stage.revisions[outcome.first].id,
            stage.revisions[outcome.first].label,
            alert,
            found,
        )
        for outcome in stage.culprits
        if outcome.first and outcome.first == outcome.last
    )
