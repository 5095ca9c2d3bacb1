"""Build and measure revisions on this machine: recipes, environments, cores and their locks."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from perfdash.bisection import events
from perfdash.bisection.engine import NoWay
from perfdash.bisection.environments import Builder, Built, Unbuildable, open_builder
from perfdash.bisection.events import Question
from perfdash.bisection.metrics import Reading, reading_of
from perfdash.bisection.recipes import Recipe
from perfdash.bisection.replay import MERGE, REVERT, RUNG, Course, Descend, Stage
from perfdash.bisection.sources import Inside, Revision, Source, Where, open_source
from perfdash.bisection.sources.finer_range import between, pin_changes
from perfdash.bisection.sources.git_repository import taken_back
from perfdash.errors import UsageError
from perfdash.files import finite
from perfdash.metrics import Metric
from perfdash.records import to_json
from perfdash.runner.cores import Locks, available_cores, core_names
from perfdash.runner.paired_measurement import AlternatingBuilds, Environment
from perfdash.suites.cases import Planned


class Measurer(Protocol):
    """Measures a build, holding its cores until the end."""

    def __enter__(self) -> Measurer:
        """Takes the cores."""

    def __exit__(self, *_: object) -> None:
        """Gives them up."""

    def measure(self, built: Built, log: Path) -> tuple[Reading, dict[str, Any]]:
        """Once."""

    def stop(self) -> None:
        """From another thread."""


class CaseMeasurer:
    """A case by perfdash's own worker."""

    def __init__(self, turns: AlternatingBuilds, planned: Planned, metric: Metric) -> None:
        self._turns = turns
        self._planned = planned
        self._metric = metric
        self.stop = turns.stop

    def __enter__(self) -> CaseMeasurer:
        self._turns.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._turns.__exit__(*error)

    def measure(self, built: Built, log: Path) -> tuple[Reading, dict[str, Any]]:
        environment = Environment(str(built.python), tuple(sorted(built.variables().items())))
        result = self._turns.measure(self._planned, environment, log)
        return reading_of(self._metric, result), finite(to_json(result))


class LocalWorkbench:
    """See engine.Workbench. Use as a context manager: it holds the measured cores."""

    def __init__(
        self,
        rungs: Sequence[Recipe],
        where: Where,
        measurer: Measurer,
        metric: Metric,
        wishes: Wishes,
        pin_repos: Mapping[str, str],
    ) -> None:
        self._rungs = rungs
        self._where = where
        self._measurer = measurer
        self._metric = metric
        self._wishes = wishes
        self._pin_repos = pin_repos
        self.folder = Path()  # of the bisection, once it is known
        self._stack = ExitStack()

    def __enter__(self) -> LocalWorkbench:
        self._stack.enter_context(self._measurer)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def first(self, source: Source, builder: Builder, revisions: Sequence[Revision]) -> events.Event:
        """The event of the first stage."""
        return self._event(0, 0, source, builder, revisions)

    def open(self, stage: Stage) -> Builder:
        """The builder of a stage."""
        recipe, place = self._rungs[int(stage.more.get("rung", 0))], self._inside(stage.more.get("inside"))
        if own := stage.more.get("repo"):
            place = dataclasses.replace(place, repo=Path(own))
        return open_builder(recipe, place)

    def measure(self, built: Built, log: Path, fresh: bool) -> tuple[Reading, dict[str, Any]]:
        """One measurement."""
        return self._measurer.measure(built, log)

    def stop(self) -> None:
        """Ends the measurement that is under way."""
        self._measurer.stop()

    def descend(self, course: Course, step: Descend, builder: Builder) -> events.Event:
        """The event of a finer stage. Raises NoWay."""
        stage, outcome = step.stage, step.outcome
        origin = {"stage": stage.number, "place": outcome.first, "way": step.way}
        rung, inside = int(stage.more.get("rung", 0)), stage.more.get("inside")
        try:
            if step.way == RUNG:
                rung += 1
                if self._where.repo is None:
                    raise NoWay("to go on by commits, give the repository: --repo, with --resume", again=True)
                names = between(self._rungs[rung - 1], self._where.repo, *self._around(step, builder))
                source, builder = self._opened(rung, None)
                revisions = source.revisions(*names)
            elif step.way == REVERT:
                return self._taken_back(course, step, origin)
            elif step.way.startswith(MERGE):
                source = open_source(self._rungs[rung], self._inside(inside))
                revisions = source.inside(stage.revisions[outcome.first], int(step.way.split()[1]))
                if len(revisions) < 2:
                    raise NoWay("the merge brought in nothing of its own")
            else:
                inside, names = self._pin(step, rung, inside)
                source, builder = self._opened(rung, inside)
                revisions = source.revisions(*names)
        except UsageError as error:
            raise NoWay(str(error), again=True) from error
        more = {"rung": rung, **({"inside": inside} if inside else {})}
        return self._event(len(course.stages), rung, source, builder, revisions, origin, more)

    def _taken_back(self, course: Course, step: Descend, origin: Mapping[str, Any]) -> events.Event:
        """The bad end, and it with the culprit taken back. Raises NoWay, UsageError."""
        stage, rung = step.stage, int(step.stage.more.get("rung", 0))
        if self._rungs[rung].kind != "commits" or stage.more.get("inside") or self._where.repo is None:
            raise NoWay("only a commit of --repo can be taken back")
        top = next(each for each in course.stages if each.more.get("rung", 0) == rung)
        bad, culprit = top.revisions[-1], stage.revisions[step.outcome.first]
        own = self.folder / f"without-{culprit.label}"
        revisions = [bad, taken_back(self._where.repo, bad, culprit, own)]
        place = dataclasses.replace(self._where, repo=own)
        source = open_source(self._rungs[rung], place)
        builder = open_builder(self._rungs[rung], place)
        more = {"rung": rung, "repo": str(own)}
        return self._event(len(course.stages), rung, source, builder, revisions, origin, more)

    def _opened(self, rung: int, inside: Mapping[str, Any] | None) -> tuple[Source, Builder]:
        recipe, place = self._rungs[rung], self._inside(inside)
        return open_source(recipe, place), open_builder(recipe, place)

    def _event(
        self,
        number: int,
        rung: int,
        source: Source,
        builder: Builder,
        revisions: Sequence[Revision],
        origin: Mapping[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> events.Event:
        name = self._rungs[rung].name
        return stage_event(
            number, name, source, builder, revisions, self._metric, self._wishes, origin=origin, more=more
        )

    def _around(self, step: Descend, builder: Builder) -> tuple[Path, Path]:
        """The folders of the builds around a culprit."""
        places = (step.outcome.first - 1, step.outcome.last)
        try:
            before, after = (builder.build(step.stage.revisions[place]).folder for place in places)
        except Unbuildable as error:
            raise NoWay(str(error)) from error
        return before, after

    def _pin(
        self, step: Descend, rung: int, inside: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], tuple[str, str]]:
        """What a culprit pins anew: where to go on, and between which commits there."""
        culprit = step.stage.revisions[step.outcome.first].id
        repo = Path(inside["repo"]) if inside else self._where.repo
        assert repo
        changes = pin_changes(self._rungs[rung].pins, repo, culprit)
        if not changes:
            raise NoWay("it pins nothing anew")
        change = next((one for one in changes if one.pin.name in self._pin_repos), None)
        if change is None:
            one = changes[0]
            raise NoWay(
                f"it pins {one.pin.name} anew ({one.old[:10]} .. {one.new[:10]}): to go on inside, clone "
                f"{one.pin.repository} and give --pin-repo {one.pin.name}=PATH with --resume",
                again=True,
            )
        said: dict[str, Any] = {
            "name": change.pin.name,
            "repo": self._pin_repos[change.pin.name],
            "outer": culprit,
            "folder": "",
            "fixed": [],
        }
        if inside:
            above = self._inside(inside).inside
            assert above
            fixed = [*inside["fixed"], [above.place, culprit, inside["repo"]]]
            said.update(outer=inside["outer"], folder=above.place, fixed=fixed)
        return said, (change.old, change.new)

    def _inside(self, said: Mapping[str, Any] | None) -> Where:
        if not said:
            return self._where
        pin = next(pin for recipe in self._rungs for pin in recipe.pins if pin.name == said["name"])
        fixed = tuple((str(path), str(commit), Path(repo)) for path, commit, repo in said["fixed"])
        inside = Inside(pin, Path(said["repo"]), said["outer"], said["folder"], fixed)
        return dataclasses.replace(self._where, inside=inside)


def unmeasured_cores() -> tuple[int, ...]:
    """The cores of this process on which nobody measures now: builds may use them."""
    found = []
    for core in available_cores():
        locks = Locks.try_take(core_names([core]))
        if locks is not None:
            locks.close()
            found.append(core)
    return tuple(found) or tuple(sorted(os.sched_getaffinity(0)))


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
