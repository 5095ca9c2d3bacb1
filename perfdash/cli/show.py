"""`perfdash show`: show the tables of a run, or one model in full."""

from __future__ import annotations

from typing import Annotated

import typer

from perfdash.cli.completion import runs
from perfdash.cli.shared_options import LAST, AsJson, Out, Wide, screen_width, warn


def show(
    run: Annotated[
        str, typer.Argument(help=f"A run: its folder or name. {LAST}.", autocompletion=runs)
    ] = "last",
    model: Annotated[
        str | None, typer.Option(help="Show the models that match this pattern, each in full.")
    ] = None,
    phases: Annotated[
        bool, typer.Option("--phases", help="Show the seconds of each phase of each case.")
    ] = False,
    wide: Wide = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Show the results of a run again."""
    import fnmatch

    from perfdash.errors import UsageError
    from perfdash.files import dumps
    from perfdash.records import to_json
    from perfdash.report.run_summary import summary
    from perfdash.report.terminal_tables import details, phase_table
    from perfdash.runner.last_run import run_folder
    from perfdash.runner.run_journal import (
        find_run,
        has_results,
        is_being_measured,
        read_saved,
        resume_command,
    )
    from perfdash.settings import resolve
    from perfdash.suggestions import did_you_mean

    settings = resolve({"out": out})[0]
    folder = run_folder(run, settings.out, settings.history, warn)
    newest = find_run(run, settings.out, without_results=True)
    if newest != folder and not has_results(newest):
        typer.echo(
            f"perfdash: {newest.name} has no result yet; the newest run with results is shown", err=True
        )
    info, results, warnings = read_saved(folder)
    for warning in warnings:
        typer.echo(f"perfdash: {warning}", err=True)
    if info.state == "running" and not is_being_measured(folder):
        info.state = f"was killed; `{resume_command(folder)}` continues it"
    if as_json and model is None:
        typer.echo(
            dumps({"run": to_json(info), "results": [to_json(result) for result in results]}, indent=1)
        )
        return
    if model is not None:
        chosen = [r for r in results if fnmatch.fnmatchcase(r.case.model.lower(), model.lower())]
        if not chosen:
            names = ", ".join(sorted({r.case.model for r in results})) or "none"
            near = did_you_mean(model, [r.case.model for r in results])
            raise UsageError(f"--model {model!r} matches no model of {folder.name}{near}; there are: {names}")
        if as_json:
            typer.echo(dumps({"run": to_json(info), "results": [to_json(r) for r in chosen]}, indent=1))
            return
        typer.echo(phase_table(chosen) if phases else "\n\n".join(details(r) for r in chosen))
        return
    if not results:
        typer.echo(f"{folder.name} ({info.state}): no case has finished")
        return
    typer.echo(phase_table(results) if phases else summary(results, info, screen_width(wide), folder))
