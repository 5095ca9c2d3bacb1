"""Begin a bisection, or resume one from its journal.

Everything that can be checked is checked before the first build. A resumed bisection has the same harness and
the same kind of host, or the message names what differs.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perfdash import __version__
from perfdash.bisection import events
from perfdash.bisection.completion import with_options
from perfdash.bisection.engine import Engine, Notify
from perfdash.bisection.environments import KNOWN_NOT_TO_BUILD, Builder, open_builder
from perfdash.bisection.environments.commits_builder import TOOL_VARIABLES
from perfdash.bisection.journal import Journal, find
from perfdash.bisection.metrics import metric_named, refuse_unmeasured_part
from perfdash.bisection.replay import Bisection
from perfdash.bisection.request import (
    HIDDEN,
    NOTES,
    OF_HOST,
    BisectionRequest,
    absolute_wheels,
    in_shell_of_night,
    pairs,
    pin_clones,
    planned_case,
    recipe_settings,
    refuse_other_files,
    refuse_script_of_the_checkout,
    run_settings,
)
from perfdash.bisection.sources import Revision, open_source
from perfdash.bisection.sources.git_repository import without_credentials
from perfdash.bisection.stage import MARKS
from perfdash.bisection.workbench import LocalWorkbench, Setup, unmeasured_cores
from perfdash.detect.environment_changes import CPU_CAPABILITY, CPU_CAPABILITY_VARIABLE
from perfdash.errors import UsageError
from perfdash.files import now
from perfdash.records import to_json
from perfdash.redaction import MASK, mask_secrets, redact_all
from perfdash.runner import gpus, host
from perfdash.runner.alternating_builds import with_variables
from perfdash.runner.compatibility import as_lines, check_machine, differences, fingerprint, gpu_fingerprint
from perfdash.runner.cores import available_cores, gpus_of, slots_of
from perfdash.runner.run import BESIDE, kept_address
from perfdash.settings import RunSettings, resolve
from perfdash.suites.case_selection import Planned, planned_from_json
from perfdash.topology import format_cores

_RESUME_FLAGS = {
    "resume", "cores", "max_builds", "pin_repo", "repo", "wheels", "env", "json", "as_json", "db", "out",
    "no_history", "confirm", "settings", "until_sure", "wait",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class BisectionPlan:
    """What a bisection would do (--dry-run): its revisions, about how many builds, and their times."""

    recipe: str
    revisions: int
    built: int  # already
    known_not_to_build: int
    good: Revision
    bad: Revision
    metric: str
    metric_title: str
    subject: str  # a case, or a command without its secrets
    cores: str
    builds: int  # about
    build_s: float
    measurement_s: float
    jobs: int

    def text(self) -> str:
        """The plan in some lines."""
        good, bad = self.good, self.bad
        lines = [
            f"{self.revisions} revisions by recipe {self.recipe}, {self.built} built already, "
            f"{self.known_not_to_build} known not to build",
            f"good: {good.label} {good.date[:10]} {good.title}".rstrip(),
            f"bad:  {bad.label} {bad.date[:10]} {bad.title}".rstrip(),
            f"measured: {self.metric_title} of {self.subject} on core {self.cores}",
            f"about {self.builds} builds of {self.build_s:.0f} s, {self.jobs} at once; a measurement takes "
            f"about {self.measurement_s:.0f} s",
            "nothing was built or measured (--dry-run)",
        ]
        return "\n".join(lines)

    def to_plain(self) -> dict[str, Any]:
        """The plan as plain values for JSON."""
        ends = {
            side: {"id": end.id, "label": end.label, "title": end.title, "date": end.date}
            for side, end in (("good", self.good), ("bad", self.bad))
        }
        return {**vars(self), **ends}


@contextmanager
def started(
    command: Sequence[str] | None, flags: dict[str, Any], notify: Notify, words: Sequence[str] | None = None
) -> Iterator[Engine | BisectionPlan]:
    """A new bisection with its journal; with --dry-run its plan.

    words: the command line that repeats it; None for that of this process. Raises UsageError, MachineError.
    """
    metric = metric_named(flags["metric"] or ("exit-code" if command else "speedup"), bool(command))
    request = BisectionRequest.from_flags(flags, command)
    recipes = request.recipes()
    settings = run_settings(flags, metric.name)
    planned = None if command else planned_case(settings)
    named = {
        *(planned.env if planned else settings.env),
        *(name for recipe in recipes for name in recipe.env),
    }
    variables, notes = in_shell_of_night(named, flags, host.relevant_variables(dict(os.environ)))
    if planned:
        refuse_unmeasured_part(metric, planned.case.scenario, planned.optimizer)
        refuse_other_files(planned, flags)
        planned = with_variables(planned, variables)
    else:
        settings = settings.model_copy(update={"env": {**variables, **settings.env}})
    if command and (flags["suite"] or flags["model"]):
        raise UsageError("--suite and --model say what perfdash measures, and a command of yours is given")
    refuse_script_of_the_checkout(command or (), request.repo)
    cores = slots_of(settings)[0]
    if planned:
        check_machine(settings, [planned])
    context = request.context(settings.python, partial(unmeasured_cores, available_cores()))
    setup = Setup(request, recipes, metric, settings, planned, command, cores, context)
    source = open_source(recipes[0], context)
    notes += [*_of_other_host(flags), *flags.get(NOTES, ()), *source.notes]
    revisions = source.revisions(request.good, request.bad)
    notes += [note for note in source.notes if note not in notes]
    for note in notes:
        notify(note)
    builder = open_builder(recipes[0], context)
    if flags["dry_run"]:
        yield _plan(setup, revisions, builder)
        return
    with LocalWorkbench(setup, notify) as workbench:
        stage = workbench.first(source, builder, revisions)
        with Journal.create(settings.out) as journal:
            bisection = Bisection([])
            own = list(sys.argv[1:] if words is None else words)
            line = ["perfdash", *line_to_repeat(request, revisions, flags["alert"], own)]
            begun = _begun(setup, journal.folder.name, line, notes, flags["alert"])
            for event in (begun, stage):
                bisection.apply(journal.append(event))
            notify(f"{journal.folder}: {len(revisions)} revisions, {metric.bisect_title}")
            yield _engine(setup, bisection, journal, workbench, notify, flags["max_builds"])


@contextmanager
def resumed(
    name: str, command: Sequence[str] | None, flags: dict[str, Any], notify: Notify
) -> Iterator[Engine]:
    """A bisection that continues. Raises UsageError, MachineError."""
    odd = [key for key, value in flags.items() if value and key not in _RESUME_FLAGS]
    if odd:
        raise UsageError(
            f"--{odd[0].replace('_', '-')} cannot be changed with --resume; start a new bisection"
        )
    here, origins = resolve({"out": flags["out"], "db": flags["db"]})
    folder = find(name, here.out)
    with Journal(folder) as journal:
        bisection = Bisection(journal.events())
        begun = bisection.begun
        if not flags["confirm"]:
            begun["confirm"] = False
        request = resumed_request(begun, flags)
        recipes = request.recipes()
        refuse_other_host(begun, host.facts(), builds=any(recipe.build for recipe in recipes))
        settings = _resumed_settings(begun, flags, here, origins)
        planned = _resumed_case(begun, settings)
        context = request.context(settings.python, partial(unmeasured_cores, available_cores()))
        setup = Setup(
            request,
            recipes,
            bisection.metric,
            settings,
            planned,
            resumed_command(begun, command),
            slots_of(settings)[0],
            context,
        )
        refuse_other_gpu(begun, measured_gpu(settings))
        _same_harness(begun, setup.harness())
        if planned:
            check_machine(settings, [planned])
        if not bisection.stages:
            raise UsageError(f"{folder.name} ended before its revisions were listed: start a new bisection")
        until_sure = bool(flags["until_sure"])
        begun_request = BisectionRequest.from_json(begun["asked"])
        line = resumed_line(bisection.line, begun_request, request, until_sure) if bisection.line else []
        session = {"event": events.SESSION, "began": now(), "until_sure": until_sure, "line": line}
        bisection.apply(journal.append(session))
        measured = sum(len(stage.measurements) for stage in bisection.stages)
        notify(f"{folder}: {measured} measurements so far")
        with LocalWorkbench(setup, notify) as workbench:
            yield _engine(setup, bisection, journal, workbench, notify, flags["max_builds"])


def _of_other_host(flags: Mapping[str, Any]) -> list[str]:
    """A note if another kind of host than this one measured the alert that is bisected."""
    measured, here = flags.get(OF_HOST), host.host_class(host.facts())
    if measured in (None, here):
        return []
    return [f"alert {flags['alert']} is of {measured}, and this host is {here}: its change may not show here"]


def _engine(
    setup: Setup,
    bisection: Bisection,
    journal: Journal,
    workbench: LocalWorkbench,
    notify: Notify,
    most_builds: int | None,
) -> Engine:
    history = None if setup.settings.no_history else setup.settings.history
    return Engine(bisection, journal, workbench, notify, most_builds, setup.cores, history)


def marked(folder: Path, word: str, side: str) -> Revision:
    """Mark a revision of a bisection, and return it. Raises UsageError for a mark that cannot be."""
    if side not in MARKS:
        raise UsageError(f"{side!r}: a revision is marked {', '.join(MARKS[:-1])} or {MARKS[-1]}")
    with Journal(folder) as journal:
        recorded = journal.events()
        bisection = Bisection(recorded)
        matches = [
            (stage, place) for stage in bisection.stages if (place := stage.place_of(word)) is not None
        ]
        if not matches:
            raise UsageError(f"{word!r} is no revision of {folder.name}, or means several of them")
        inner = [(stage, place) for stage, place in matches if 0 < place < stage.question.last]
        if not inner:
            label = matches[-1][0].revisions[matches[-1][1]].label
            raise UsageError(f"{label} is an end of the range: start a new bisection with other ends")
        stage, place = inner[-1]
        revision = stage.revisions[place]
        event = events.at(events.MARKED, stage.number, place, revision, side=side)
        try:
            Bisection([*recorded, event])
        except UsageError as error:
            raise UsageError(
                f"{revision.label} cannot be marked {side}: {error.__cause__ or error}"
            ) from error
        journal.append(event)
    return revision


def _begun(
    setup: Setup, name: str, line: Sequence[str], notes: Sequence[str], alert: int | None
) -> events.Event:
    """The first event of a journal, without secrets."""
    request, facts = setup.request, host.facts()
    case = to_json(setup.planned) if setup.planned else None
    if case:
        case["env"] = _masked(case["env"])
    settings = setup.settings.model_dump(mode="json") | {"db": kept_address(setup.settings)}
    settings["env"] = _masked(settings["env"])
    return {
        "event": events.BEGUN,
        "schema": events.SCHEMA,
        "name": name,
        "perfdash": __version__,
        "line": list(line),
        "asked": request.without_secrets().to_json(),
        "settings": settings,
        "metric": setup.metric.name,
        "command": mask_secrets(list(setup.command)) if setup.command else None,
        "planned": case,
        "case": case["case"] if case else None,
        "harness": setup.harness(),
        "host": socket.gethostname().split(".")[0],
        "host_class": host.host_class(facts),
        "gpu": measured_gpu(setup.settings),
        "facts": facts,
        "rungs": len(setup.recipes),
        "pins": bool(setup.recipes[-1].pins),
        "confirm": request.confirm,
        "revert": request.revert,
        "until_sure": request.until_sure,
        "alert": alert,
        "notes": list(notes),
    }


def _masked(env: Mapping[str, str]) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in mask_secrets([f"{k}={v}" for k, v in env.items()]))


def line_to_repeat(
    request: BisectionRequest, revisions: Sequence[Revision], alert: int | None, words: Sequence[str]
) -> list[str]:
    """The command line without secrets; its ends by names that do not move.

    One of --all-alerts is repeated by itself.
    """
    at = words.index("--") if "--" in words else len(words)
    own = list(words[:at])
    if "--all-alerts" in own:
        chosen = {
            "--alert": str(alert),
            "--recipe": request.recipe,
            "--good": request.good,
            "--bad": request.bad,
        }
        given = {word.partition("=")[0] for word in own}
        place = own.index("--all-alerts")
        own[place : place + 1] = [word for pair in chosen.items() for word in pair if pair[0] not in given]
    ends = {"--good": revisions[0].label, "--bad": revisions[-1].label}
    return with_options([*own, *words[at:]], ends)


def resumed_line(
    line: Sequence[str], begun: BisectionRequest, request: BisectionRequest, until_sure: bool
) -> list[str]:
    """The command line that repeats a bisection, with what --resume was given beside it.

    begun: the request as the bisection began; request: as it is resumed.
    """
    own = line[: line.index("--")] if "--" in line else line
    given = {word.partition("=")[0] for word in own}
    pins = [f"{name}={path}" for name, path in request.pin_repos.items() if begun.pin_repos.get(name) != path]
    additions = [word for pin in pins if pin not in own for word in ("--pin-repo", pin)]
    places = (("--repo", begun.repo, request.repo), ("--wheels", begun.wheels, request.wheels))
    values = {
        option: place for option, before, place in places if place and without_credentials(place) != before
    }
    additions += [word for option in values if option not in given for word in (option, values[option])]
    additions += ["--until-sure"] if until_sure and "--until-sure" not in given else []
    return with_options(line, values, additions)


def _plan(setup: Setup, revisions: Sequence[Revision], builder: Builder) -> BisectionPlan:
    """The answer of --dry-run: revisions, builds, and how long each takes."""
    costs = builder.costs(revisions, [])
    buildable = [cost for cost in costs if cost < KNOWN_NOT_TO_BUILD]
    built = sum(cost == 0 for cost in buildable)
    count = math.ceil(1.3 * math.log2(len(revisions)) + 3)
    usual = sorted(buildable)[len(buildable) // 2] if buildable else 0.0
    subject = (
        setup.planned.case.name if setup.planned else shlex.join(mask_secrets(list(setup.command or ())))
    )
    return BisectionPlan(
        recipe=setup.request.recipe,
        revisions=len(revisions),
        built=built,
        known_not_to_build=len(costs) - len(buildable),
        good=revisions[0],
        bad=revisions[-1],
        metric=setup.metric.name,
        metric_title=setup.metric.bisect_title,
        subject=subject,
        cores=format_cores(setup.cores),
        builds=count,
        build_s=usual,
        measurement_s=setup.measure_cost_s,
        jobs=setup.request.jobs,
    )


def refuse_other_host(begun: events.Event, facts: dict[str, Any], builds: bool) -> None:
    """Raise UsageError where a bisection was begun on another host, or in another shell, than facts has.

    Compared is what `run --resume` compares, as far as the journal has it (older ones have few facts), but
    for the variables that the bisection sets itself: it measures with them. builds: it builds commits, with
    the variables of compilers that the shell has.
    """
    here = host.host_class(facts)
    if here != begun["host_class"]:
        raise UsageError(
            f"{begun['name']} was measured on {begun['host_class']}, and this is {here}: their "
            "numbers cannot be compared; start a new bisection here"
        )
    then = begun.get("facts", {})
    now = {name: facts.get(name) for name in then}
    own = {name for key in ("settings", "planned") for name in (begun.get(key) or {}).get("env", {})}
    own = {name for name in own if not (builds and TOOL_VARIABLES.fullmatch(name))}
    if changes := differences(*(fingerprint(_without(own, side)) for side in (then, now))):
        raise UsageError(
            f"{begun['name']} was measured with other settings of the host or the shell (then | now), and "
            f"numbers of the two cannot be compared:\n{as_lines(changes)}\nSet them as they were, or start a "
            "new bisection"
        )


def _without(own: Collection[str], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a host without variables that a bisection sets itself: any shell measures with them."""
    left = {name: value for name, value in facts.get("variables", {}).items() if name not in own}
    unknown = {CPU_CAPABILITY: None} if CPU_CAPABILITY_VARIABLE in own else {}
    return {**facts, "variables": left, **unknown}


def measured_gpu(settings: RunSettings) -> dict[str, Any]:
    """What numbers of the measured GPU depend on, as it must be on a resume; empty where it is unknown."""
    measured = gpus_of(settings)[:1]
    nvml = gpus.open_nvml() if measured else None
    return gpu_fingerprint({"gpu_facts": gpus.facts(measured[0], nvml)}) if nvml else {}


def refuse_other_gpu(begun: events.Event, here: Mapping[str, Any]) -> None:
    """Raise UsageError where a bisection was begun on another kind of GPU than this one, or driver."""
    if changes := differences(begun.get("gpu") or {}, here):
        raise UsageError(
            f"{begun['name']} was measured on another GPU (then | now), and numbers of the two cannot be "
            f"compared:\n{as_lines(changes)}\nSelect the GPU (CUDA_VISIBLE_DEVICES), or start a new bisection"
        )


def _same_harness(begun: events.Event, harness: str) -> None:
    if harness != begun["harness"]:
        raise UsageError(
            f"{begun['name']} was measured by another harness ({begun['harness']} | {harness}): perfdash's "
            "worker, the model's file, your script or the number of cores to compile on has changed since, "
            "so old and new measurements cannot be compared; start a new bisection (its builds come from the "
            "cache)"
        )


def resumed_request(begun: events.Event, flags: Mapping[str, Any]) -> BisectionRequest:
    """The request as it was begun, with the secrets and paths that are given again. Raises UsageError."""
    request = BisectionRequest.from_json(begun["asked"])
    wheels, repo = request.wheels, request.repo
    if flags["wheels"]:
        wheels = absolute_wheels(flags["wheels"])
    elif "****@" in (wheels or ""):
        raise UsageError("--resume: the password in --wheels was not kept; give --wheels again")
    secrets = recipe_settings(flags["settings"])
    for key in [*secrets, *request.settings]:
        hidden = request.settings.get(key) == HIDDEN
        is_same = (key, secrets.get(key)) in request.settings.items()
        if key in secrets and not hidden and not is_same:
            raise UsageError(f"--set {key} cannot be changed with --resume; start a new bisection")
        if hidden and key not in secrets:
            raise UsageError(f"--resume: the value of {key} was not kept; give --set {key}=... again")
    if flags["repo"]:
        repo = os.path.abspath(flags["repo"].expanduser())
    return dataclasses.replace(
        request,
        wheels=wheels,
        repo=repo,
        settings={**request.settings, **secrets},
        pin_repos={**request.pin_repos, **pin_clones(flags)},
    )


def history_of(
    begun: events.Event, here: RunSettings, origins: Mapping[str, str], no_history: bool
) -> str | None:
    """The history that is named here, else that which the bisection began with. Raises UsageError."""
    kept: str | None = begun["settings"].get("db")  # None: by an older perfdash
    if origins["db"] != "default" or no_history or kept in (None, BESIDE):
        return here.db
    if kept == MASK:
        raise UsageError(
            f"--resume: the history of {begun['name']} was given with a password, which is not kept. Set "
            "PERFDASH_DB again, or name a history by --db"
        )
    return kept


def _resumed_settings(
    begun: events.Event, flags: Mapping[str, Any], here: RunSettings, origins: Mapping[str, str]
) -> RunSettings:
    """The settings as they were begun."""
    settings = dict(begun["settings"])
    settings["env"] = {**settings["env"], **pairs(flags["env"], "--env")}
    if hidden := [key for key, value in settings["env"].items() if value == HIDDEN]:
        raise UsageError(f"--resume: the value of {hidden[0]} was not kept; give --env {hidden[0]}=... again")
    settings["no_history"] = flags["no_history"] or settings["no_history"]
    history = history_of(begun, here, origins, settings["no_history"])
    settings.update(cores=flags["cores"] or settings["cores"], out=here.out, db=history)
    settings["wait"] = flags["wait"]
    try:
        return RunSettings(**settings)
    except ValidationError as error:
        raise UsageError(
            f"{begun['name']} was started by another version of perfdash: start a new bisection"
        ) from error


def _resumed_case(begun: events.Event, settings: RunSettings) -> Planned | None:
    if not begun["planned"]:
        return None
    planned = planned_from_json(begun["planned"])
    if "inductor_config" not in begun["planned"]:  # of an older perfdash, where these were the run's
        planned = dataclasses.replace(
            planned, compile_mode=settings.compile_mode, inductor_config=settings.inductor_config
        )
    return dataclasses.replace(planned, env={**planned.env, **settings.env})


def resumed_command(begun: events.Event, given: Sequence[str] | None) -> list[str] | None:
    """The command as it was begun. It must be given again if it held a secret. Raises UsageError."""
    before: list[str] | None = begun["command"]
    if given and (before is None or redact_all(mask_secrets(list(given))) != redact_all(before)):
        raise UsageError(
            "--resume: the command after -- differs from that of the bisection; start a new bisection"
        )
    if before and not given and any(HIDDEN in word for word in before):
        raise UsageError("--resume: a value in the command was not kept; give it again, after --")
    return list(given) if given else before
