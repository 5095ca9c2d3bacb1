"""`perfdash show`: show the tables of a run, or one model in full."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdash.cli.shared_options import Wide, screen_width


def show(
    run: Annotated[str, typer.Argument(help="A run folder, its name, or `last`.")] = "last",
    model: Annotated[str | None, typer.Option(help="Only models that match, each in full.")] = None,
    phases: Annotated[bool, typer.Option("--phases", help="Where the time of each case went.")] = False,
    wide: Wide = False,
    out: Annotated[Path | None, typer.Option(help="Folder with the runs.  [default: runs]")] = None,
) -> None:
    """Show the results of a run again: the card or table, the time per phase, or a model in full."""
    import fnmatch

    from perfdash.errors import UsageError
    from perfdash.report.run_summary import summary
    from perfdash.report.terminal_tables import details, phase_table
    from perfdash.runner.run_journal import find_run, is_being_measured, read_saved
    from perfdash.settings import resolve

    below = resolve({"out": out})[0].out
    folder = find_run(run, below)
    newest = find_run(run, below, without_results=True)
    if newest != folder:
        typer.echo(f"perfdash: {newest.name} has no result; this is the last run with results", err=True)
    info, results, warnings = read_saved(folder)
    for warning in warnings:
        typer.echo(f"perfdash: {warning}", err=True)
    if info.state == "running" and not is_being_measured(folder):
        info.state = "was killed; `perfdash run --resume` goes on with it"
    if model is not None:
        chosen = [r for r in results if fnmatch.fnmatchcase(r.case.model.lower(), model.lower())]
        if not chosen:
            names = ", ".join(sorted({r.case.model for r in results})) or "none"
            raise UsageError(f"--model {model!r} matches no model of {folder.name}; there are: {names}")
        typer.echo(phase_table(chosen) if phases else "\n\n".join(details(r) for r in chosen))
        return
    if not results:
        typer.echo(f"{folder.name} ({info.state}): no case has finished")
        return
    typer.echo(phase_table(results) if phases else summary(results, info, screen_width(wide)))
