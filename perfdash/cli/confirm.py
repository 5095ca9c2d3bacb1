"""`perfdash confirm`: re-measure the suspected changes of a run beside the last good build."""

from __future__ import annotations

import functools
import math
import os
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfdash.cli.shared_options import LAST, AsJson, Db, Out, opened, print_result, warn
from perfdash.files import dumps

if TYPE_CHECKING:
    from perfdash.runner.remeasurement import Decision


def confirm(
    run: Annotated[str, typer.Argument(help=f"A run: its folder or name. {LAST}.")],
    good_python: Annotated[
        str, typer.Option(help="The interpreter of the last good build, kept since that night.")
    ],
    python: Annotated[
        str | None, typer.Option(help="The interpreter of the build under test.  [default: that of the run]")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="The largest number of cases; the most certain changes come first.")
    ] = 20,
    pairs: Annotated[
        int | None, typer.Option(min=5, max=60, help="The largest number of pairs per case.  [default: 8]")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Start no new pair of runs after this many minutes.")
    ] = None,
    certain: Annotated[
        bool,
        typer.Option("--alarms", help="Only suspected changes that are significant enough for an alert."),
    ] = False,
    cores: Annotated[
        str | None, typer.Option(help="Measure on these cores.  [default: the last ones]")
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(help="If another run uses the cores, wait up to this long, e.g. 90s, 30m, 2h."),
    ] = None,
    jobs: Annotated[
        str | None, typer.Option(help="Cases at the same time; use the number of the run.  [default: 1]")
    ] = None,
    db: Db = None,
    out: Out = None,
    fail_on: Annotated[
        list[str] | None, typer.Option(help="`regression`: exit with code 1 if a regression is confirmed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Re-measure suspected changes beside the last good build.

    A dismissed change raises no alert. An undecided change stays as it is.
    """
    from perfdash.detect.confirmation import candidates, of_this_method
    from perfdash.detect.nightly_judging import judge_new, judge_run
    from perfdash.errors import UsageError
    from perfdash.history.queries import cases_by_id
    from perfdash.history.results import from_run
    from perfdash.history.run_selection import find_run
    from perfdash.methods import CURRENT, changes
    from perfdash.report.night import line_of
    from perfdash.runner.alternating_builds import Budget
    from perfdash.runner.compatibility import check_machine
    from perfdash.runner.cores import by_slots
    from perfdash.runner.host import relevant_variables
    from perfdash.runner.last_run import run_folder
    from perfdash.runner.remeasurement import (
        NotTheGoodBuild,
        planned_of_run,
        remeasure,
        settings_of_run,
        with_secrets,
        with_variables_of,
    )
    from perfdash.runner.run_journal import read_info
    from perfdash.settings import judging_rules, resolve

    if fail_on and set(fail_on) != {"regression"}:
        raise UsageError(f"--fail-on {', '.join(fail_on)}: here there is only regression")
    say = functools.partial(typer.echo, err=as_json)
    found = resolve({"db": db, "out": out})[0]
    folder = run_folder(run, found.out, found.history, warn)
    info = read_info(folder)
    settings = settings_of_run(info.configuration, python=python, cores=cores, jobs=jobs, wait=wait)
    rules = judging_rules()
    with opened(db, out or folder.parent) as store:
        # A dismissed change must have its alert already: else the next judging would raise it.
        judge_new(store, rules=rules, warn=lambda text: typer.echo(text, err=True))
        with store.read() as connection:
            line = line_of(connection, from_run(info, [], str(folder))) or find_run(connection, info.id)
            if line.excluded is not None:
                raise UsageError(
                    f"{line.name} is excluded from judging ({line.excluded}), so nothing of it is confirmed; "
                    f"`perfdash history exclude {shlex.quote(line.name)} --undo` brings it back"
                )
            judged = judge_run(connection, line, rules)
            findings = of_this_method(judged.findings, judged.run)
            to_measure = candidates([finding for finding in findings if finding.alarm or not certain])
            cases = cases_by_id(connection, to_measure)
        if left_out := len(judged.findings) - len(findings):
            say(
                f"{left_out} findings are left out: perfdash now measures them by another method "
                f"({', '.join(changes(judged.run.method, CURRENT))})"
            )
        by_case = {cases[number]: findings for number, findings in list(to_measure.items())[:limit]}
        plan = planned_of_run(folder, settings)
        planned = with_secrets([plan[case] for case in by_case if case in plan])
        decisions: list[Decision] = []
        plain: dict[str, Any] = {
            "run": line.name,
            "suspected_cases": len(to_measure),
            "selected_cases": len(planned),
            "findings_of_other_methods": left_out,
        }
        if not planned:
            print_result({**plain, "decisions": []}, "Nothing to measure again", as_json)
            return
        say(f"{len(to_measure)} cases may have changed; {len(planned)} are measured again")
        shell = relevant_variables(dict(os.environ))
        in_shell = [with_variables_of(line.name, info.environment, case, shell) for case in planned]
        planned = [case for case, _ in in_shell]
        for note in dict.fromkeys(note for _, notes in in_shell for note in notes):
            say(note)
        check_machine(settings, planned)
        confirmed = 0

        def decided(decision: Decision) -> None:
            decisions.append(decision)
            if not as_json:
                _show(decision)

        refused: list[tuple[int, NotTheGoodBuild]] = []
        kinds = by_slots(settings, planned)
        waiting = len(planned)
        for settings_of_slots, places in kinds:
            some = [planned[place] for place in places]
            budget = Budget(minutes * len(some) / waiting) if minutes is not None else None
            waiting -= len(some)
            try:
                confirmed += remeasure(
                    store,
                    judged,
                    folder,
                    settings_of_slots,
                    good_python,
                    some,
                    {case.case: by_case[case.case] for case in some},
                    pairs,
                    budget,
                    decided,
                    say,
                )
                if budget and minutes is not None:
                    minutes = max(0.0, minutes - budget.used)
            except NotTheGoodBuild as error:  # those of other slots may have changed after that build
                refused.append((len(some), error))
        if len(refused) == len(kinds):
            raise refused[0][1]
        for count, refusal in refused:
            say(f"{count} case{' is' if count == 1 else 's are'} left out: {refusal}")
    if as_json:
        typer.echo(dumps({**plain, "decisions": [decision.to_plain() for decision in decisions]}, indent=1))
    if fail_on and confirmed:
        raise typer.Exit(1)


def _show(decision: Decision) -> None:
    typer.echo(f"{decision.case.model}: {_result_text(decision)} ({decision.pairs} pairs)")


def _result_text(decision: Decision) -> str:
    from perfdash.metrics import title_of

    finding, numbers = decision.finding, decision.numbers
    name = title_of(str(finding.metric))
    suspected = "" if finding.change is None else f", suspected {math.expm1(finding.change):+.1%}"
    measured = ""
    if numbers and "ratio" in numbers:
        low, high = numbers["low"] - 1, numbers["high"] - 1
        measured = f", measured {numbers['ratio'] - 1:+.1%} ({low:+.1%} to {high:+.1%})"
    elif numbers:
        measured = f", measured {numbers['old']} -> {numbers['new']}"
    word = {
        "stands": "confirmed",
        "more": "cannot tell yet",
        "nothing": "cannot tell: runs fail, or other programs use the cores",
    }.get(decision.word, decision.word)
    if numbers and numbers.get("wanted"):
        word = f"cannot tell: about {numbers['wanted']} pairs would decide (--pairs)"
    return f"{name}: {word}{suspected}{measured}"
