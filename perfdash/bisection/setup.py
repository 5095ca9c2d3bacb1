"""Begin a bisection: check everything that can be checked, then write its first event.

Nothing long starts before the checks have passed.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError

from perfdash import __version__
from perfdash.bisection import events, request
from perfdash.bisection.engine import Session, Tell
from perfdash.bisection.environments import KNOWN_NOT_TO_BUILD, Builder, open_builder
from perfdash.bisection.journal import Journal, find
from perfdash.bisection.metrics import METRICS, metric_named
from perfdash.bisection.recipes import Recipe
from perfdash.bisection.replay import MARKS, Course
from perfdash.bisection.request import HIDDEN, BisectionRequest
from perfdash.bisection.sources import Revision, open_source
from perfdash.bisection.sources.git_repository import without_credentials
from perfdash.bisection.user_command import CommandMeasurer
from perfdash.bisection.workbench import CaseMeasurer, LocalWorkbench, Measurer, Wishes, unmeasured_cores
from perfdash.errors import UsageError
from perfdash.files import now
from perfdash.metrics import Metric
from perfdash.records import to_json
from perfdash.redaction import mask_secrets, redact_all
from perfdash.runner import host
from perfdash.runner.compatibility import check_machine
from perfdash.runner.cores import gpus_of, slots_of
from perfdash.runner.messages import options_of
from perfdash.runner.paired_measurement import AlternatingBuilds
from perfdash.settings import RunSettings, resolve
from perfdash.suites.cases import Planned, planned_from_json

USUAL_S = 30.0  # that a measurement takes, while nothing is known of the case
USUAL_COMMAND_S = 5.0


@contextmanager
def started(command: Sequence[str] | None, flags: dict[str, Any], tell: Tell) -> Iterator[Session | str]:
    """A new bisection, its journal begun; with --dry-run what would be done, as text.

    Raises UsageError, MachineError.
    """
    metric = metric_named(flags["metric"] or ("exit-code" if command else "speedup"), bool(command))
    asked = request.read_asked(flags, command)
    rungs = request.rungs(asked)
    settings = request.run_settings(flags, metric.name)
    planned = None if command else request.planned_case(settings)
    if command and (flags["suite"] or flags["model"]):
        raise UsageError("--suite and --model say what perfdash measures, and a command of yours is given")
    request.refuse_script_of_the_checkout(command or (), asked.repo)
    cores = slots_of(settings)[0]
    if planned:
        check_machine(settings, [planned])
    where = request.where(asked, settings.python, unmeasured_cores())
    source = open_source(rungs[0], where)
    notes = list(source.notes)
    revisions = source.revisions(asked.good, asked.bad)
    notes += [note for note in source.notes if note not in notes]
    for note in notes:
        tell(note)
    builder = open_builder(rungs[0], where)
    measurer = measurer_of(metric, planned, command, settings, cores, rungs)
    wishes = wishes_of(asked, planned, settings)
    if flags["dry_run"]:
        yield _plan(asked, metric, planned, command, cores, revisions, builder, wishes)
        return
    with LocalWorkbench(rungs, where, measurer, metric, wishes, asked.pin_repos) as machine:
        stage = machine.first(source, builder, revisions)
        with Journal.create(settings.out) as journal:
            course = Course([])
            course.take(
                journal.append(
                    _event(
                        journal.folder.name,
                        asked,
                        metric,
                        planned,
                        command,
                        settings,
                        rungs,
                        revisions,
                        notes,
                        flags["alert"],
                    )
                )
            )
            course.take(journal.append(stage))
            tell(f"{journal.folder}: {len(revisions)} revisions, {metric.bisect_title}")
            yield Session(journal, course, machine, settings, flags["max_builds"], cores)


def measurer_of(
    metric: Metric,
    planned: Planned | None,
    command: Sequence[str] | None,
    settings: RunSettings,
    cores: Sequence[int],
    rungs: Sequence[Recipe],
) -> Measurer:
    """Who measures, not yet holding the cores."""
    if planned is None:
        in_build = rungs[-1].kind == "commits" and len(rungs) == 1
        return CommandMeasurer(command or (), metric, cores, in_build, settings.env, settings.timeout)
    gpus = gpus_of(settings)
    turns = AlternatingBuilds(cores, options_of(settings), settings.processes or 1, gpus[0] if gpus else None)
    return CaseMeasurer(turns, planned, metric)


def wishes_of(asked: BisectionRequest, planned: Planned | None, settings: RunSettings) -> Wishes:
    """How it is searched."""
    usual = (planned.cost_s or USUAL_S) if planned else USUAL_COMMAND_S
    return Wishes(
        confidence=asked.confidence,
        jobs=asked.jobs,
        measure_cost_s=usual * (settings.processes or 1),
        minimum_change=math.log1p(asked.minimum_change),
        priors=asked.priors,
    )


def _event(
    name: str,
    asked: BisectionRequest,
    metric: Metric,
    planned: Planned | None,
    command: Sequence[str] | None,
    settings: RunSettings,
    rungs: Sequence[Recipe],
    revisions: Sequence[Revision],
    notes: Sequence[str],
    alert: int | None,
) -> events.Event:
    """The first line of the journal: nothing secret is in it."""
    facts = host.facts()
    case = to_json(planned) if planned else None
    if case:
        case["env"] = _masked(case["env"])
    said = settings.model_dump(mode="json", exclude={"db"})
    said["env"] = _masked(said["env"])
    return {
        "event": events.BEGUN,
        "schema": events.SCHEMA,
        "name": name,
        "perfdash": __version__,
        "line": ["perfdash", *_line(asked, revisions)],
        "asked": request.without_secrets(asked).to_json(),
        "settings": said,
        "metric": metric.name,
        "command": mask_secrets(list(command)) if command else None,
        "planned": case,
        "case": case["case"] if case else None,
        "harness": request.harness(metric, planned, command, settings),
        "host": socket.gethostname().split(".")[0],
        "host_class": host.host_class(facts),
        "facts": {key: facts[key] for key in ("cpu", "kernel", "governor", "turbo", "virtual", "load")},
        "rungs": len(rungs),
        "pins": bool(rungs[-1].pins),
        "first_parent": asked.first_parent,
        "confirm": asked.confirm,
        "revert": asked.revert,
        "alert": alert,
        "notes": list(notes),
    }


def _masked(env: Mapping[str, str]) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in mask_secrets([f"{k}={v}" for k, v in env.items()]))


def _line(asked: BisectionRequest, revisions: Sequence[Revision]) -> list[str]:
    """The command line as it may be shown; the ends by names that stay what they are."""
    ends = {asked.good: revisions[0], asked.bad: revisions[-1]}
    words = sys.argv[1:]
    for at, word in enumerate(words[1:], start=1):
        if words[at - 1] in ("--good", "--bad") and word in ends:
            words[at] = ends[word].label
    return [without_credentials(word) for word in mask_secrets(words)]


def _plan(
    asked: BisectionRequest,
    metric: Metric,
    planned: Planned | None,
    command: Sequence[str] | None,
    cores: Sequence[int],
    revisions: Sequence[Revision],
    builder: Builder,
    wishes: Wishes,
) -> str:
    """What would be done."""
    from perfdash.runner.cores import format_cores

    costs = builder.costs(revisions, [])
    known = [cost for cost in costs if cost < KNOWN_NOT_TO_BUILD]
    there = sum(cost == 0 for cost in known)
    about = math.ceil(1.3 * math.log2(len(revisions)) + 3)
    usual = sorted(known)[len(known) // 2] if known else 0.0
    what = planned.case.name if planned else shlex.join(mask_secrets(list(command or ())))
    first, last = revisions[0], revisions[-1]
    lines = [
        f"{len(revisions)} revisions by recipe {asked.recipe}, {there} built already, "
        f"{len(costs) - len(known)} known not to build",
        f"good: {first.label} {first.date[:10]} {first.title}".rstrip(),
        f"bad:  {last.label} {last.date[:10]} {last.title}".rstrip(),
        f"measured: {metric.bisect_title} of {what} on core {format_cores(cores)}",
        f"about {about} builds of {usual:.0f} s, {asked.jobs} at once; a measurement takes about "
        f"{wishes.measure_cost_s:.0f} s",
        "nothing was built or measured (--dry-run)",
    ]
    return "\n".join(lines)


def metric_again(begun: events.Event) -> Metric:
    """The metric of a bisection that is gone on with."""
    name = str(begun["metric"])
    return METRICS[name] if not begun["command"] else metric_named(name, True)


# What may be said anew: where, and how far.
_MAY_SAY = {
    "resume", "cores", "max_builds", "pin_repo", "repo", "wheels", "env", "json", "as_json", "db", "out",
    "no_history", "confirm", "settings",
}  # fmt: skip


@contextmanager
def resumed(name: str, command: Sequence[str] | None, flags: dict[str, Any], tell: Tell) -> Iterator[Session]:
    """A bisection that goes on. Raises UsageError, MachineError."""
    odd = [key for key, value in flags.items() if value and key not in _MAY_SAY]
    if odd:
        raise UsageError(
            f"--{odd[0].replace('_', '-')} belongs to a new bisection; --resume goes on as it was begun"
        )
    here = resolve({"out": flags["out"], "db": flags["db"]})[0]
    folder = find(name, here.out)
    with Journal(folder) as journal:
        course = Course(journal.events())
        begun = course.begun
        if not flags["confirm"]:
            begun["confirm"] = False
        _same_host(begun)
        metric = metric_again(begun)
        asked = _asked(begun, flags)
        rungs = request.rungs(asked)
        settings = _settings(begun, flags, here)
        planned = _planned(begun, settings)
        command = _command(begun, command)
        _same_harness(begun, request.harness(metric, planned, command, settings))
        cores = slots_of(settings)[0]
        if planned:
            check_machine(settings, [planned])
        where = request.where(asked, settings.python, unmeasured_cores())
        measurer = measurer_of(metric, planned, command, settings, cores, rungs)
        wishes = wishes_of(asked, planned, settings)
        if not course.stages:
            raise UsageError(f"{folder.name} was ended before it knew its revisions: begin anew")
        course.take(journal.append({"event": events.SESSION, "began": now()}))
        taken = sum(len(stage.taken) for stage in course.stages)
        tell(f"{folder}: {taken} measurements so far")
        with LocalWorkbench(rungs, where, measurer, metric, wishes, asked.pin_repos) as machine:
            yield Session(journal, course, machine, settings, flags["max_builds"], cores)


def marked(folder: Path, word: str, side: str) -> str:
    """Marks it, and says what now. Raises UsageError for a mark that cannot be."""
    if side not in MARKS:
        raise UsageError(f"{side!r}: a revision is marked {', '.join(MARKS[:-1])} or {MARKS[-1]}")
    with Journal(folder) as journal:
        recorded = journal.events()
        course = Course(recorded)
        found = [(stage, place) for stage in course.stages if (place := stage.place_of(word)) is not None]
        if not found:
            raise UsageError(f"{word!r} is no revision of {folder.name}, or means several of them")
        inner = [(stage, place) for stage, place in found if 0 < place < stage.question.last]
        if not inner:
            label = found[-1][0].revisions[found[-1][1]].label
            raise UsageError(f"{label} is an end of the range: begin anew with other ends instead")
        stage, place = inner[-1]
        revision = stage.revisions[place]
        event = events.at(events.MARKED, stage.number, place, revision, side=side)
        try:
            Course([*recorded, event])
        except UsageError as error:
            raise UsageError(
                f"{revision.label} cannot be marked {side}: {error.__cause__ or error}"
            ) from error
        journal.append(event)
    on = f"perfdash bisect --resume {quote(str(folder))}"
    return f"{revision.label} {revision.title} is marked {side}. To go on: {on}"


def _same_host(begun: events.Event) -> None:
    here = host.host_class(host.facts())
    if here != begun["host_class"]:
        raise UsageError(
            f"{begun['name']} was measured on {begun['host_class']}, and this is {here}: numbers of the "
            "two do not go together; begin anew here"
        )


def _same_harness(begun: events.Event, now_: str) -> None:
    if now_ != begun["harness"]:
        raise UsageError(
            f"{begun['name']} was measured by another harness ({begun['harness']} | {now_}): perfdash's "
            "worker, the model's file or your script has changed since. What was measured then does not go "
            "together with what would be measured now; begin anew (builds are taken from the cache)"
        )


def _asked(begun: events.Event, flags: Mapping[str, Any]) -> BisectionRequest:
    asked = request.asked_from_json(begun["asked"])
    if flags["wheels"]:
        asked = dataclasses.replace(asked, wheels=request.absolute_wheels(flags["wheels"]))
    elif "****@" in (asked.wheels or ""):
        raise UsageError("--resume: the password in --wheels was not kept; give --wheels again")
    secrets = request.recipe_settings(flags["settings"])
    for key in [*secrets, *asked.settings]:
        hidden = asked.settings.get(key) == HIDDEN
        if key in secrets and not hidden:
            raise UsageError(f"--set {key} belongs to a new bisection; --resume goes on as it was begun")
        if hidden and key not in secrets:
            raise UsageError(f"--resume: the value of {key} was not kept; give --set {key}=... again")
    asked = dataclasses.replace(asked, settings={**asked.settings, **secrets})
    if flags["repo"]:
        asked = dataclasses.replace(asked, repo=str(flags["repo"].expanduser().absolute()))
    clones = request.pairs(flags["pin_repo"], "--pin-repo")
    repos = {name: os.path.abspath(path) for name, path in clones.items()}
    return dataclasses.replace(asked, pin_repos={**asked.pin_repos, **repos})


def _settings(begun: events.Event, flags: Mapping[str, Any], here: RunSettings) -> RunSettings:
    """As it was begun; the history is where it is now."""
    said = dict(begun["settings"])
    said["env"] = {**said["env"], **request.pairs(flags["env"], "--env")}
    if hidden := [key for key, value in said["env"].items() if value == HIDDEN]:
        raise UsageError(f"--resume: the value of {hidden[0]} was not kept; give --env {hidden[0]}=... again")
    said.update(cores=flags["cores"] or said["cores"], out=here.out, db=here.db)
    try:
        return RunSettings(**said)
    except ValidationError as error:
        raise UsageError(f"{begun['name']} was begun by another perfdash: begin anew") from error


def _planned(begun: events.Event, settings: RunSettings) -> Planned | None:
    if not begun["planned"]:
        return None
    planned = planned_from_json(begun["planned"])
    return dataclasses.replace(planned, env={**planned.env, **settings.env})


def _command(begun: events.Event, given: Sequence[str] | None) -> list[str] | None:
    """The command as it was; again from the command line where a secret in it was not kept."""
    then: list[str] | None = begun["command"]
    if given and (then is None or redact_all(mask_secrets(list(given))) != redact_all(then)):
        raise UsageError("--resume: after -- stands another command than it was begun with; begin anew")
    if then and not given and any(HIDDEN in word for word in then):
        raise UsageError("--resume: a value in the command was not kept; give it again, after --")
    return list(given) if given else then
