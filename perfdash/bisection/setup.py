"""Begin a bisection: check everything that can be checked, then write its first event.

Nothing long starts before the checks have passed.
"""

from __future__ import annotations

import math
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from perfdash import __version__
from perfdash.bisection import events, request
from perfdash.bisection.engine import Session, Tell
from perfdash.bisection.environments import KNOWN_NOT_TO_BUILD, Builder, open_builder
from perfdash.bisection.journal import Journal
from perfdash.bisection.metrics import METRICS, metric_named
from perfdash.bisection.recipes import Recipe
from perfdash.bisection.replay import Course
from perfdash.bisection.request import BisectionRequest
from perfdash.bisection.sources import Revision, open_source
from perfdash.bisection.sources.git_repository import without_credentials
from perfdash.bisection.user_command import CommandMeasurer
from perfdash.bisection.workbench import CaseMeasurer, LocalWorkbench, Measurer, Wishes, unmeasured_cores
from perfdash.errors import UsageError
from perfdash.metrics import Metric
from perfdash.records import to_json
from perfdash.redaction import mask_secrets
from perfdash.runner import host
from perfdash.runner.cores import gpus_of, slots_of
from perfdash.runner.messages import options_of
from perfdash.runner.paired_measurement import AlternatingBuilds
from perfdash.runner.preflight import check_machine
from perfdash.settings import RunSettings
from perfdash.suites.cases import Planned

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
