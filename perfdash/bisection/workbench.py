"""Build revisions on this machine, measure them, and open the next stage behind a culprit."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import perfdash
from perfdash.bisection import events
from perfdash.bisection.engine import DeadEnd
from perfdash.bisection.environments import Builder, BuiltEnvironment, Unbuildable, open_builder
from perfdash.bisection.environments.build_holds import BuildHolds
from perfdash.bisection.events import Question
from perfdash.bisection.measurers import CaseMeasurer, CommandMeasurer, Measurer
from perfdash.bisection.metrics import Reading
from perfdash.bisection.recipes import Recipe
from perfdash.bisection.replay import MERGE, PIN, REVERT, RUNG, Bisection, Descend
from perfdash.bisection.request import BisectionRequest
from perfdash.bisection.sources import BuildContext, InsidePin, Revision, Source, open_source
from perfdash.bisection.sources.finer_range import PinChange, between, pin_changes
from perfdash.bisection.sources.git_repository import find, merge_base, reverted
from perfdash.bisection.stage import Stage
from perfdash.errors import UsageError
from perfdash.files import dumps
from perfdash.metrics import Metric
from perfdash.records import to_json
from perfdash.redaction import mask_secrets
from perfdash.runner.alternating_builds import AlternatingBuilds
from perfdash.runner.cores import compile_cores, core_names, gpus_of, is_held_by_another, when_free
from perfdash.runner.messages import options_of
from perfdash.runner.plan import digest_of_files
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned

_USUAL_S = 30.0  # of a measurement, until one of the case was timed
_USUAL_COMMAND_S = 5.0
_LARGEST_SCRIPT = 1 << 20  # bytes; a larger file in a command is data


@dataclass(frozen=True)
class Setup:
    """What a bisection builds and measures on this machine: the same when it is resumed.

    recipes: the rungs of its ladder, coarse first. Either `planned` (a case) or `command` is measured, on
    `cores`. context: where revisions come from.
    """

    request: BisectionRequest
    recipes: tuple[Recipe, ...]
    metric: Metric
    settings: RunSettings
    planned: Planned | None
    command: Sequence[str] | None
    cores: Sequence[int]
    context: BuildContext

    @property
    def measure_cost_s(self) -> float:
        """About how many seconds a measurement takes."""
        usual = (self.planned.cost_s or _USUAL_S) if self.planned else _USUAL_COMMAND_S
        return usual * (self.settings.processes or 1)

    @property
    def cores_to_compile(self) -> tuple[int, ...]:
        """The cores that a case is compiled on; empty: the measured ones."""
        return compile_cores([tuple(self.cores)], self.settings)[0] if self.planned else ()

    def measurer(self) -> Measurer:
        """Make the measurer; it does not hold the cores yet."""
        settings = self.settings
        if self.planned is None:
            in_build = len(self.recipes) == 1 and self.recipes[0].kind == "commits"
            folder = None if in_build else Path.cwd()
            return CommandMeasurer(
                self.command or (), self.metric, self.cores, folder, settings.env, settings.timeout
            )
        gpus = gpus_of(settings)
        gpu = gpus[0] if gpus else None
        processes, options = settings.processes or 1, options_of(settings, of_build=True)
        builds = AlternatingBuilds(self.cores, options, processes, gpu, self.cores_to_compile)
        return CaseMeasurer(builds, self.planned, self.metric)

    def harness(self) -> str:
        """A digest of all that decides what a measurement says, beside the build.

        Measurements with different digests must not be mixed.
        """
        package = Path(perfdash.__file__).parent
        command, planned, settings = self.command, self.planned, self.settings
        sources = [] if command else [package / name for name in ("records.py", "methods.py")]
        sources += [] if command else sorted((package / "worker").rglob("*.py"))
        sources += [path for word in command or () if (path := Path(word)).is_absolute() and _is_script(path)]
        case = to_json(planned) if planned else {}
        case["env"] = mask_secrets([f"{key}={value}" for key, value in case.get("env", {}).items()])
        parts = {
            "metric": self.metric.name if command else "",  # any metric is in the record of a case
            "case": case,
            "files": digest_of_files(planned) if planned else None,
            "command": mask_secrets(list(command or ())),
            "processes": settings.processes,
            "allocator": settings.allocator,
            "weights": settings.weights,
            "threads": settings.threads,
            "compile_cores": len(self.cores_to_compile),
            "timeout": settings.timeout,
        }
        digest = hashlib.sha256(dumps(parts, sort_keys=True).encode())
        for path in sources:
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]


class LocalWorkbench:
    """See engine.Workbench. Use as a context manager: it holds the measured cores."""

    def __init__(self, setup: Setup, notify: Callable[[str], None] = lambda text: None) -> None:
        self._setup = setup
        self._notify = notify
        self._recipes = setup.recipes
        self._context = setup.context
        self._measurer = setup.measurer()
        self._holds = BuildHolds()
        self.folder = Path()  # of the bisection, once it is known
        self._stack = ExitStack()

    def __enter__(self) -> LocalWorkbench:
        when_free(lambda: self._stack.enter_context(self._measurer), self._setup.settings.wait, self._notify)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def first(self, source: Source, builder: Builder, revisions: Sequence[Revision]) -> events.Event:
        """The event of the first stage."""
        return self._event(0, 0, source, builder, revisions)

    def open(self, stage: Stage) -> Builder:
        """The builder of a stage."""
        context = self._inside(stage.more.get("inside"))
        if own := stage.more.get("repo"):
            context = dataclasses.replace(context, repo=Path(own))
        return open_builder(self._recipes[_rung(stage)], context, self._holds)

    def measure(self, built: BuiltEnvironment, log: Path, fresh: bool) -> tuple[Reading, dict[str, Any]]:
        """One measurement."""
        return self._measurer.measure(built, log)

    def screen(self, built: BuiltEnvironment, log: Path) -> Mapping[str, Any] | None:
        """The generated code and loaded files."""
        return self._measurer.screen(built, log)

    def stop(self) -> None:
        """End the measurement that is running."""
        self._measurer.stop()

    def descend(self, bisection: Bisection, step: Descend, builder: Builder) -> events.Event:
        """The event of a finer stage. Raises DeadEnd."""
        stage, outcome = step.stage, step.outcome
        number = len(bisection.stages)
        origin = {"stage": stage.number, "place": outcome.first, "way": step.way}
        rung, inside = _rung(stage), stage.more.get("inside")
        parts: dict[str, Any] = {}
        try:
            if step.way == REVERT:
                return self._reverted(bisection, step, origin)
            if step.way == RUNG:
                rung += 1
                if self._context.repo is None:
                    raise DeadEnd(
                        "to continue with commits, give the repository: --repo, with --resume", again=True
                    )
                ends = between(self._recipes[rung - 1], self._context.repo, *self._around(step, builder))
                source, builder = self._opened(rung, None)
                revisions = source.revisions(*ends)
            elif step.way.startswith(MERGE):
                source = open_source(self._recipes[rung], self._inside(inside))
                revisions, parts = _inside_merge(source, bisection, step)
            else:
                inside, ends, parts = self._pin(step, rung, inside)
                source, builder = self._opened(rung, inside)
                revisions = source.revisions(*ends)
        except UsageError as error:
            raise DeadEnd(str(error), again=True) from error
        more = {"rung": rung, **({"inside": inside} if inside else {}), **parts}
        return self._event(number, rung, source, builder, revisions, origin, more)

    def _reverted(self, bisection: Bisection, step: Descend, origin: Mapping[str, Any]) -> events.Event:
        """The stage of the bad end without and with the culprit reverted. Raises DeadEnd, UsageError."""
        stage, rung, repo = step.stage, _rung(step.stage), self._context.repo
        recipe = self._recipes[rung]
        if recipe.kind != "commits" or stage.more.get("inside") or repo is None:
            raise DeadEnd("only a commit of --repo can be taken back")
        top = next(stage for stage in bisection.stages if _rung(stage) == rung)
        bad, culprit = top.revisions[-1], stage.revisions[step.outcome.first]
        own = self.folder / f"without-{culprit.label}"
        revisions = [bad, reverted(repo, bad, culprit, own)]
        context = dataclasses.replace(self._context, repo=own)
        source, builder = open_source(recipe, context), open_builder(recipe, context)
        more = {"rung": rung, "repo": str(own)}
        return self._event(len(bisection.stages), rung, source, builder, revisions, origin, more)

    def _opened(self, rung: int, inside: Mapping[str, Any] | None) -> tuple[Source, Builder]:
        recipe, context = self._recipes[rung], self._inside(inside)
        return open_source(recipe, context), open_builder(recipe, context)

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
        setup = self._setup
        question = question_of(source, builder, revisions, setup.metric, setup.request, setup.measure_cost_s)
        return events.stage(number, self._recipes[rung].name, revisions, question, origin, more)

    def _around(self, step: Descend, builder: Builder) -> tuple[Path, Path]:
        """The folders of the builds around a culprit."""
        places = (step.outcome.first - 1, step.outcome.last)
        try:
            before, after = (builder.build(step.stage.revisions[place]).folder for place in places)
        except Unbuildable as error:
            raise DeadEnd(str(error)) from error
        return before, after

    def _pin(
        self, step: Descend, rung: int, inside: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], tuple[str, str], dict[str, list[str]]]:
        """The dependency that a culprit pins anew, its two commits, and the other pins that it changes.

        That of the step, or the first that can be searched. Raises DeadEnd.
        """
        culprit = step.stage.revisions[step.outcome.first].id
        repo = Path(inside["repo"]) if inside else self._context.repo
        assert repo
        all_changes = pin_changes(self._recipes[rung].pins, repo, culprit)
        wanted = step.way.removeprefix(PIN).strip()
        changes = [change for change in all_changes if wanted in ("", change.pin.name)]
        if not changes:
            raise DeadEnd("it changes no pin")
        clones = self._setup.request.pin_repos
        reasons = []
        for change in (change for change in changes if change.pin.name in clones):
            why = _why_not_searched(change, find(Path(clones[change.pin.name])))
            if why is None:
                break
            reasons.append(why)
        else:
            other = next((change for change in changes if change.pin.name not in clones), None)
            if other is not None:
                name, old, new = other.pin.name, other.old[:10], other.new[:10]
                reasons.append(
                    f"it changes the pin of {name} ({old} .. {new}): to continue inside, clone "
                    f"{other.pin.repository} and give --pin-repo {name}=PATH with --resume"
                )
            raise DeadEnd("; ".join(reasons), again=other is not None)
        finer: dict[str, Any] = {
            "name": change.pin.name,
            "repo": clones[change.pin.name],
            "outer": culprit,
            "folder": "",
            "fixed": [],
        }
        if inside:
            above = self._inside(inside).inside
            assert above
            fixed = [*inside["fixed"], [above.place, culprit, inside["repo"]]]
            finer.update(outer=inside["outer"], folder=above.place, fixed=fixed)
        others = [] if wanted else [each.pin.name for each in all_changes if each is not change]
        return finer, (change.old, change.new), {"other_pins": others} if others else {}

    def _inside(self, recorded: Mapping[str, Any] | None) -> BuildContext:
        """The context of a stage inside a pin, as the journal has it."""
        if not recorded:
            return self._context
        pin = next(pin for recipe in self._recipes for pin in recipe.pins if pin.name == recorded["name"])
        fixed = tuple((str(path), str(commit), Path(repo)) for path, commit, repo in recorded["fixed"])
        inside = InsidePin(pin, Path(recorded["repo"]), recorded["outer"], recorded["folder"], fixed)
        return dataclasses.replace(self._context, inside=inside)


def _inside_merge(
    source: Source, bisection: Bisection, step: Descend
) -> tuple[list[Revision], dict[str, int]]:
    """One part of a merged branch; for the journal, the number of parts, and of merges into the branch.

    Raises DeadEnd.
    """
    top, place = step.stage, step.outcome.first
    while top.origin and str(top.origin["way"]).startswith(MERGE):
        top = bisection.stages[int(top.origin["stage"])]
    known = (step.stage.revisions[place - 1].id, top.revisions[0].id)
    number, *part = (int(word) for word in step.way.split() if word.isdigit())
    all_parts = source.inside(step.stage.revisions[place], number, known)
    parts = [revisions for revisions in all_parts if len(revisions) > 1]
    if not parts:
        raise DeadEnd("the merge has no commits of its own")
    return parts[part[0] - 1 if part else 0], {"parts": len(parts), "merges": len(all_parts) - 1}


def _why_not_searched(change: PinChange, clone: Path) -> str | None:
    """Why there is no range to search: a pin's new commit does not follow its old one; None where it does."""
    name, old, new = change.pin.name, change.old[:10], change.new[:10]
    base = merge_base(clone, change.old, change.new)
    if base is None or base.startswith(change.old):  # a missing commit is reported with the range
        return None
    if base.startswith(change.new):
        return f"it takes {name} back from {old} to {new}, so the commits between are not searched"
    return (
        f"the commits of {name} before and after it, {old} and {new}, are on different branches, which part "
        f"at {base[:10]}, so they are not searched"
    )


def unmeasured_cores(cores: Sequence[int]) -> tuple[int, ...]:
    """The cores, of some, on which no other process measures now: builds may use them.

    All of them if others measure on each.
    """
    free = [core for core in cores if not any(map(is_held_by_another, core_names([core])))]
    return tuple(free or cores)


def question_of(
    source: Source,
    builder: Builder,
    revisions: Sequence[Revision],
    metric: Metric,
    request: BisectionRequest,
    measure_cost_s: float,
) -> Question:
    """The question of a stage over some revisions, the good one first."""
    touched = source.touched(revisions)
    return Question(
        last=len(revisions) - 1,
        answers=metric.is_answer,
        build_cost=tuple(builder.costs(revisions, touched)),
        measure_cost=measure_cost_s,
        prior=weights(touched, request.priors),
        only_code=only_code(touched),
        jobs=request.jobs,
        confidence=request.confidence,
        minimum_change=math.log1p(request.minimum_change),
    )


def weights(touched: Sequence[Sequence[str]], priors: Mapping[str, float]) -> tuple[float, ...]:
    """The weight of each revision but the first, by its files. Empty without priors.

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


def only_code(touched: Sequence[Sequence[str]]) -> tuple[bool, ...]:
    """Whether each revision but the first changes Python code and documents only, by its files.

    What else it may change, such as a table that the package reads, is in no digest of loaded files. False
    where its files are unknown.
    """
    return tuple(bool(paths) and all(_is_code(path) for path in paths) for paths in touched[1:])


def _is_code(path: str) -> bool:
    return path.endswith((".py", ".md", ".rst")) or path.startswith(".github/")


def _matches(path: str, pattern: str) -> bool:
    """Match like a shell, but `*` also crosses folders. A folder matches all its files."""
    return fnmatch.fnmatchcase(path, pattern) or path.startswith(pattern.rstrip("/") + "/")


def _rung(stage: Stage) -> int:
    """The index of a stage's recipe."""
    return int(stage.more.get("rung", 0))


def _is_script(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _LARGEST_SCRIPT
