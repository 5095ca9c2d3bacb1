"""`perfdash confirm`: measures what a night suspects again, the new build against the last good one."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfdash.cli.store import Db, Out, opened

if TYPE_CHECKING:
    from perfdash.detect.confirming import Side
    from perfdash.detect.findings import Finding
    from perfdash.detect.nightly import Judged
    from perfdash.history.store import Store
    from perfdash.records import Case, Result
    from perfdash.runner.paired import Pair
    from perfdash.settings import RunSettings
    from perfdash.suites.cases import Planned


def confirm(
    run: Annotated[str, typer.Argument(help="A run folder, its name, or `last`.")],
    good_python: Annotated[
        str, typer.Option(help="The interpreter of the last good build, kept from that night.")
    ],
    python: Annotated[
        str | None, typer.Option(help="The interpreter of the run.  [default: as it was measured]")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Cases at most, the most suspicious first.")] = 20,
    pairs: Annotated[
        int | None, typer.Option(min=5, max=20, help="Pairs a case at most.  [default: 8]")
    ] = None,
    certain: Annotated[
        bool, typer.Option("--alarms", help="Only what the night was certain enough of to raise an alert.")
    ] = False,
    cores: Annotated[str | None, typer.Option(help="Which cores.  [default: the last ones]")] = None,
    jobs: Annotated[str | None, typer.Option(help="Cases side by side; as in the run.  [default: 1]")] = None,
    db: Db = None,
    out: Out = None,
    fail_on: Annotated[
        list[str] | None, typer.Option(help="`regression`: exit 1 where something worse stands.")
    ] = None,
) -> None:
    """Measure the suspects of a night again, both builds in turn; only what stands is an alert."""
    from perfdash.detect.confirming import of_this_method, suspects
    from perfdash.detect.nightly import judge_run
    from perfdash.errors import UsageError
    from perfdash.history.queries import cases_by_id, find_run
    from perfdash.methods import CURRENT, changes
    from perfdash.runner.cores import slots_of
    from perfdash.runner.journal import find_run as find_folder
    from perfdash.runner.journal import read_info, read_plan
    from perfdash.runner.preflight import check_machine
    from perfdash.settings import resolve
    from perfdash.suites.cases import planned_from_json

    if fail_on and set(fail_on) != {"regression"}:
        raise UsageError(f"--fail-on {', '.join(fail_on)}: here there is only regression")
    folder = find_folder(run, resolve({"out": out})[0].out)
    info = read_info(folder)
    settings = _settings(info.configuration, python=python, cores=cores, jobs=jobs)
    with opened(db, out or folder.parent) as store:
        with store.read() as connection:
            judged = judge_run(connection, find_run(connection, info.id))
            found = of_this_method(judged.findings, judged.run)
            wanted = suspects([each for each in found if each.alarm or not certain])
            cases = cases_by_id(connection, wanted)
        if left_out := len(judged.findings) - len(found):
            typer.echo(
                f"{left_out} findings are left out: perfdash now measures them by another method "
                f"({', '.join(changes(judged.run.method, CURRENT))})"
            )
        by_case = {cases[number]: findings for number, findings in list(wanted.items())[:limit]}
        plan = {each.case: each for each in map(planned_from_json, read_plan(folder)["cases"])}
        planned = with_secrets([plan[case] for case in by_case if case in plan])
        if not planned:
            typer.echo("Nothing to measure again")
            return
        typer.echo(f"{len(wanted)} cases are suspect; {len(planned)} are measured again")
        check_machine(settings, planned)
        worse = _measure(
            store,
            folder,
            settings,
            good_python,
            slots_of(settings),
            planned,
            by_case,
            judged,
            pairs,
        )
    if fail_on and worse:
        raise typer.Exit(1)


def with_secrets(planned: Sequence[Planned]) -> list[Planned]:
    """The cases with the values that the run did not keep, from this command's environment.

    Raises UsageError where one is not there: the model would be measured with the mask in its place.
    """
    from perfdash.errors import UsageError
    from perfdash.redaction import MASK

    found = []
    for each in planned:
        hidden = [name for name, value in each.env.items() if value == MASK]
        for name in hidden:
            if name not in os.environ:
                raise UsageError(
                    f"{each.case.model}: the value of {name} was not kept; export {name} for this command"
                )
        found.append(replace(each, env={**each.env, **{name: os.environ[name] for name in hidden}}))
    return found


def _settings(configuration: dict[str, Any], **said: str | None) -> RunSettings:
    from perfdash.settings import RunSettings

    given = {name: value for name, value in said.items() if value is not None}
    known = {name: value for name, value in configuration.items() if name in RunSettings.model_fields}
    return RunSettings(**{**known, "jobs": 1, "cores": None, "fail_on": (), **given})


def _measure(
    store: Store,
    folder: Path,
    settings: RunSettings,
    good_python: str,
    cores: Sequence[tuple[int, ...]],
    planned: Sequence[Planned],
    by_case: dict[Case, list[Finding]],
    judged: Judged,
    most: int | None,
) -> int:
    """Measures, and keeps the alerts case by case; how many worse ones stand."""
    from perfdash.detect import confirming
    from perfdash.errors import UsageError
    from perfdash.files import now
    from perfdash.history import alerts as kept
    from perfdash.runner.cores import away_from
    from perfdash.runner.messages import options_of
    from perfdash.runner.paired import PairedSlots, beside

    new = options_of(settings)
    limit = most or confirming.PAIRS
    worse = 0

    def enough(each: Planned, done: Sequence[Pair]) -> bool:
        sides = [(_side(pair.old), _side(pair.new)) for pair in done]
        decisions = [confirming.told(finding, sides, limit)[0] for finding in by_case[each.case]]
        return confirming.MORE not in decisions

    def seen(each: Planned, done: Sequence[Pair]) -> None:
        nonlocal worse
        sides = [(_side(pair.old), _side(pair.new)) for pair in done]
        with store.write() as connection:
            alerts = kept.load(connection, testbed_id=judged.run.testbed_id)
            for finding in by_case[each.case]:
                decision, numbers = confirming.told(finding, sides, limit)
                made = confirming.after(finding, decision, numbers, alerts, judged.panel, now())
                if made:
                    kept.save(connection, *made)
                stands = decision == confirming.STANDS
                worse += stands and finding.direction > 0
                typer.echo(f"{each.case.model}: {_told(finding, decision, numbers)} ({len(done)} pairs)")

    with away_from(cores), PairedSlots(cores, beside(new, good_python), new, folder) as bench:
        builds = bench.introduce(planned)
        workers = {name: said["worker"] for name, said in builds.items()}
        if other := confirming.other_commits(judged.run, workers["new"]):
            raise UsageError(
                f"{settings.python} has other commits than the run measured (run | interpreter): "
                f"{'; '.join(other)}: give the interpreter of that build by --python"
            )
        for case, findings in list(by_case.items()):
            by_case[case] = [
                each for each in findings if confirming.measured_before(each, judged.panel, workers["old"])
            ]
        left = [each for each in planned if by_case[each.case]]
        if not left:
            raise UsageError(
                f"--good-python {good_python} has torch of commit {workers['old'].get('torch_git_version')}"
                f"{_and_packages(workers['old'])}, which no night before the changes measured"
            )
        if len(left) < len(planned):
            typer.echo(f"{len(planned) - len(left)} cases changed before that build: they are left out")
        planned = left
        bench.measure(planned, enough, seen)
    return worse


def _and_packages(worker: Mapping[str, Any]) -> str:
    return "".join(f", {name} of {commit[:10]}" for name, commit in (worker.get("commits") or {}).items())


def _side(result: Result) -> Side:
    from perfdash.detect.confirming import Side
    from perfdash.history.rows import from_result

    row = from_result(result)
    return Side(row.status, dict(row.values), _undisturbed(result))


def _undisturbed(result: Result) -> bool:
    """Whether its latencies are without what other programs took (docs/method.md)."""
    conditions = result.conditions
    if "clock" in conditions:
        by_cpu = conditions["clock"] == "cpu"
        return (by_cpu or conditions["pairs"] == "clean") and not conditions.get("widened_by")
    clean = conditions.get("clean_fraction")  # of an older record
    return clean is None or clean >= 0.5


def _told(finding: Finding, decision: str, numbers: Any) -> str:
    from perfdash.metrics import title_of

    name = title_of(str(finding.metric))
    suspected = "" if finding.change is None else f", suspected {math.expm1(finding.change):+.1%}"
    measured = ""
    if numbers and "ratio" in numbers:
        low, high = numbers["low"] - 1, numbers["high"] - 1
        measured = f", measured {numbers['ratio'] - 1:+.1%} ({low:+.1%} to {high:+.1%})"
    elif numbers:
        measured = f", measured {numbers['old']} -> {numbers['new']}"
    word = {"more": "cannot tell", "nothing": "cannot tell: runs fail, or others are at work here"}.get(
        decision, decision
    )
    return f"{name}: {word}{suspected}{measured}"
