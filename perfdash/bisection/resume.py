"""Resume a bisection: with the same journal, harness and kind of host, or name what differs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError

from perfdash.bisection import events, request
from perfdash.bisection.engine import Session, Tell
from perfdash.bisection.journal import Journal, find
from perfdash.bisection.replay import MARKS, Course
from perfdash.bisection.request import HIDDEN, BisectionRequest
from perfdash.bisection.setup import measurer_of, metric_again, wishes_of
from perfdash.bisection.workbench import LocalWorkbench, unmeasured_cores
from perfdash.errors import UsageError
from perfdash.files import now
from perfdash.redaction import mask_secrets, redact_all
from perfdash.runner import host
from perfdash.runner.cores import slots_of
from perfdash.runner.preflight import check_machine
from perfdash.settings import RunSettings, resolve
from perfdash.suites.cases import Planned, planned_from_json

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
