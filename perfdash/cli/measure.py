"""What `perfdash run` does: a new run, or an earlier one gone on with."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from perfdash.cli import gates
from perfdash.redaction import mask_secrets
from perfdash.runner.cores import slots_of
from perfdash.runner.executors import open_executor
from perfdash.runner.messages import weights_of
from perfdash.runner.plan import make_plan
from perfdash.runner.preflight import check_machine
from perfdash.suites.cases import backend_names

if TYPE_CHECKING:
    from perfdash.records import Result, RunInfo, Status
    from perfdash.runner.journal import Journal
    from perfdash.runner.plan import Plan
    from perfdash.settings import RunSettings

# What may be said anew when a run goes on: where and how long, not what is measured and how.
_MAY_CHANGE = {
    "cores", "env", "executor", "fail_on", "memory_limit", "out", "output_limit", "phase_timeout",
    "python", "retries", "retry_pause", "scheduler", "timeout", "torchbench", "db", "no_history", "junit",
    "suite", "model",  # the plan tells whether they are the same
}  # fmt: skip


def new(flags: Mapping[str, Any]) -> int:
    """Plans, measures, prints; the exit code."""
    from perfdash.errors import PerfdashError
    from perfdash.runner.journal import Journal
    from perfdash.settings import resolve

    settings, _ = resolve(flags)
    gates.check(settings)
    plan, dynamo_names = make_plan(settings)
    slots = slots_of(settings)
    check_machine(settings, plan.cases)
    journal = Journal.create(settings.out)
    try:
        info = _info(journal.folder.name, settings, plan, dynamo_names)
        journal.write_plan(plan.to_json())
    except PerfdashError:
        journal.discard()
        raise
    return _measure(settings, plan, plan.mine, dynamo_names, slots, journal, info, [])


def resumed(name: str, retry: Sequence[str], flags: Mapping[str, Any]) -> int:
    """What is left of an earlier run, and what of it is to be measured again; the exit code."""
    from perfdash.errors import UsageError
    from perfdash.runner import compatibility
    from perfdash.runner.journal import Journal, find_run, read_info, read_plan, read_results
    from perfdash.runner.plan import differences, plan_from_json
    from perfdash.settings import resolve

    statuses = _statuses(retry)
    here = resolve({"out": flags["out"], "db": flags["db"]})[0]
    folder = find_run(name, here.out, without_results=True)
    info, old = read_info(folder), read_plan(folder)
    # The history is where it is now: run.json does not say, since an address may hold a password.
    settings = _settings_of(info, flags).model_copy(
        update={"db": here.db or str(folder.absolute().parent / "history.db")}
    )
    gates.check(settings)
    fresh, dynamo_names = make_plan(settings, uncut=True)
    if found := differences(old, fresh.to_json()):
        raise UsageError(
            f"{folder.name} was planned otherwise, so it cannot go on so (then | now):\n"
            f"{compatibility.shown(found)}"
        )
    then = plan_from_json(old)
    by_case = {each.case: each for each in fresh.cases}
    plan = replace(then, cases=tuple(by_case[each.case] for each in then.cases))
    slots = slots_of(settings)
    check_machine(settings, plan.cases)
    journal = Journal.reopen(folder)
    for line in journal.damaged:
        typer.echo(f"{line}: moved to {journal.set_aside.name}; its case is measured again", err=True)
    results = read_results(folder)
    done = {result.case: result.status for result in results}
    left = [
        index
        for index in plan.mine
        if plan.cases[index].case not in done or done[plan.cases[index].case] in statuses
    ]
    if left:
        try:
            compatibility.refuse_other_method(results, folder.name)
        except UsageError:
            journal.close()
            raise
    lost = sum(status == "infra_error" for status in done.values())
    if lost and "infra_error" not in statuses:
        typer.echo(f"{lost} cases ended in infra_error; --retry infra_error measures them again", err=True)
    typer.echo(f"{folder.name}: {len(left)} of {len(plan.mine)} cases to measure")
    return _measure(settings, plan, left, dynamo_names, slots, journal, info, results)


def _statuses(words: Sequence[str]) -> set[Status]:
    """The statuses that --retry names. Raises UsageError for a word that is none."""
    from perfdash.errors import UsageError
    from perfdash.records import Status
    from perfdash.suites.definition import near

    known = [str(status) for status in Status]
    found = set()
    for word in (part.strip() for item in words for part in item.split(",")):
        if word not in known:
            hint = near(word, known)
            raise UsageError(f"--retry {word!r} is no status{hint}; there are: {', '.join(known)}")
        found.add(Status(word))
    return found


def _measure(
    settings: RunSettings,
    plan: Plan,
    left: Sequence[int],
    dynamo_names: dict[str, str],
    slots: Sequence[tuple[int, ...]],
    journal: Journal,
    info: RunInfo,
    done: Sequence[Result],
) -> int:
    from perfdash.cli.progress import open_progress
    from perfdash.errors import PerfdashError
    from perfdash.files import now
    from perfdash.report.terminal_tables import summary
    from perfdash.runner import orphans, scratch
    from perfdash.runner.cores import away_from
    from perfdash.runner.session import Policy, Session

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _interrupt)
    info.sessions.append(
        {
            "started": now(),
            "command": ["perfdash", *mask_secrets(sys.argv[1:])],
            "executor": settings.executor,
            "slots": [],
        }
    )
    policy = Policy(settings.allocator, settings.processes, settings.retries, settings.retry_pause)
    planned = [plan.cases[index] for index in left]
    costs = [plan.costs[index] for index in left]
    interrupted = False
    session = None
    orphans.end_strays()
    scratch.sweep()
    with open_progress() as progress:
        try:
            with (
                away_from(slots),
                open_executor(settings, slots if left else (), journal.logs) as executor,
            ):
                session = Session(
                    planned, costs, policy, executor, journal, info, progress, dynamo_names, done
                )
                session.run()
        except KeyboardInterrupt:
            interrupted = True
        except PerfdashError:
            if len(info.sessions) == 1 and not (session and session.begun):
                journal.discard()
            else:
                saved = len(session.results if session else done)
                typer.echo(
                    f"{saved} of {info.cases} cases are saved. "
                    f"To go on: perfdash run --resume {journal.folder}",
                    err=True,
                )
            raise
        finally:
            journal.close()
    results = session.results if session else list(done)
    if results:
        typer.echo(summary(results, info))
    typer.echo(f"Saved in {journal.folder}")
    unkept = gates.take_in(settings, info, results, journal.folder) if results else 0
    if interrupted:
        typer.echo(
            f"Interrupted after {len(results)} of {info.cases} cases. "
            f"To go on: perfdash run --resume {journal.folder}",
            err=True,
        )
        return 130
    return gates.pass_through(settings, info, results, journal.folder) or unkept


def _settings_of(info: RunInfo, flags: Mapping[str, Any]) -> RunSettings:
    """The settings that a run was begun with, and what may be said anew.

    Raises UsageError for a flag that would measure something else, showing both.
    """
    from pydantic import ValidationError

    from perfdash.errors import UsageError
    from perfdash.settings import RunSettings, resolve

    now, origins = resolve(flags, environ={}, folder=Path("/nonexistent"))
    whole = {**now.model_dump(mode="json"), **_whole_paths(now)}
    said = {key: value for key, value in whole.items() if origins[key] != "default"}
    then = dict(info.configuration)
    may_change = _MAY_CHANGE
    if "executor" in said:  # these belong to the other one
        may_change = may_change | {"jobs"}
        for key in ("scheduler", "jobs", "cores"):
            then.pop(key, None)
    env = {**then.get("env", {}), **said.pop("env", {})}
    hidden = [key for key, value in env.items() if value == "***"]
    if hidden:
        raise UsageError(f"--resume: the value of {hidden[0]} was not kept; give --env {hidden[0]}=... again")
    found = [
        f"  --{key.replace('_', '-')}: {then.get(key)} | {value}"
        for key, value in said.items()
        if key not in may_change and value != then.get(key)
    ]
    if found:
        raise UsageError(
            f"--resume: {info.id} was begun otherwise, so it cannot go on so (then | now):\n"
            + "\n".join(found)
        )
    try:
        return RunSettings(**{**then, **said, "env": env})
    except ValidationError as error:
        raise UsageError(f"{info.id} cannot be resumed: its run.json is of an older perfdash") from error


def _whole_paths(settings: RunSettings) -> dict[str, Any]:
    """Settings that may name files, by whole paths."""
    data = settings.data and os.path.abspath(settings.data.expanduser())
    backends = list(backend_names(settings))
    return {"backend": backends, "weights": weights_of(settings), "data": data}


def _info(run_id: str, settings: RunSettings, plan: Plan, dynamo_names: dict[str, str]) -> RunInfo:
    import socket
    import uuid

    from perfdash import __version__
    from perfdash.files import now
    from perfdash.records import RunInfo

    configuration: dict[str, Any] = settings.model_dump(mode="json", exclude={"db"})  # may hold a password
    configuration["env"] = dict(
        pair.split("=", 1) for pair in mask_secrets([f"{k}={v}" for k, v in settings.env.items()])
    )
    # So that it can be gone on with from another folder.
    configuration["suite"] = [os.path.abspath(s) if s.endswith(".toml") else s for s in settings.suite]
    if len({Path(target).name for target in settings.model}) == len(settings.model):  # names stay
        configuration["model"] = [os.path.abspath(target) for target in settings.model]
    if settings.torchbench:
        configuration["torchbench"] = os.path.abspath(settings.torchbench.expanduser())
    configuration.update(_whole_paths(settings))
    if os.sep in settings.python:
        configuration["python"] = os.path.abspath(settings.python)
    return RunInfo(
        id=run_id,
        started=now(),
        host=socket.gethostname().split(".")[0],
        command=["perfdash", *mask_secrets(sys.argv[1:])],
        configuration=configuration,
        environment={},
        cases=len(plan.mine),
        perfdash=__version__,
        plan={
            "fingerprint": plan.fingerprint,
            "total": len(plan.cases),
            "shard": f"{plan.shard[0]}/{plan.shard[1]}" if plan.shard else None,
            "dynamo_names": dynamo_names,
            "uid": uuid.uuid4().hex,
        },
    )


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
