"""From a source of revisions to a stage: which there are, what each costs to build, how likely each is."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfdash.bisection import events
from perfdash.bisection.environments import Builder
from perfdash.bisection.events import Question
from perfdash.bisection.sources import Revision, Source
from perfdash.metrics import Metric


@dataclass(frozen=True)
class Wishes:
    """How a user wants it searched. priors: weights by patterns of touched paths; others have 1."""

    confidence: float = 0.9
    jobs: int = 1
    measure_cost_s: float = 30.0
    minimum_change: float = 0.0
    priors: Mapping[str, float] = field(default_factory=dict)


def stage_event(
    number: int,
    recipe: str,
    source: Source,
    builder: Builder,
    revisions: Sequence[Revision],
    metric: Metric,
    wishes: Wishes,
    *,
    origin: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
) -> events.Event:
    """The event of a stage over some revisions, the good one first."""
    touched = source.touched(revisions)
    question = Question(
        last=len(revisions) - 1,
        answers=metric.is_answer,
        build_cost=tuple(builder.costs(revisions, touched)),
        measure_cost=wishes.measure_cost_s,
        prior=weights(touched, wishes.priors),
        jobs=wishes.jobs,
        confidence=wishes.confidence,
        minimum_change=wishes.minimum_change,
    )
    return events.stage(number, recipe, revisions, question, origin, more)


def weights(touched: Sequence[Sequence[str]], priors: Mapping[str, float]) -> tuple[float, ...]:
    """The weight of each revision but the first by the files that it touches; none without priors.

    The largest weight of a pattern that matches one of its files; 1 where none does.
    """
    if not priors:
        return ()
    return tuple(
        max(
            (weight for pattern, weight in priors.items() if any(_matches(path, pattern) for path in paths)),
            default=1.0,
        )
        for paths in touched[1:]
    )


def _matches(path: str, pattern: str) -> bool:
    """As a shell does, `*` within a folder too; a folder stands for all in it."""
    return fnmatch.fnmatchcase(path, pattern) or path.startswith(pattern.rstrip("/") + "/")
