"""`perfdash merge-shards`: combine the shards of a plan into one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdash.cli.shared_options import AsJson, Db, Wide, screen_width, warn


def merge_shards(
    runs: Annotated[list[str], typer.Argument(help="The runs of the shards: their folders or names.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the runs; the new run gets a folder in it.  [default: runs]"),
    ] = None,
    db: Db = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Keep the run out of the history.")
    ] = False,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Combine the shards of a run (--shard i/n) into one run."""
    from perfdash.files import dumps
    from perfdash.records import to_json
    from perfdash.report.run_summary import summary
    from perfdash.runner.merge_shards import merge as merge_runs
    from perfdash.runner.merge_shards import other_times, read_shard
    from perfdash.runner.run import kept_address
    from perfdash.runner.run_journal import find_run, resume_command
    from perfdash.runner.run_recording import record
    from perfdash.settings import resolve

    settings = resolve({"out": out, "db": db, "no_history": no_history})[0]
    below = settings.out
    shards = [read_shard(find_run(run, below)) for run in runs]
    folder, info, results, missing = merge_runs(
        shards, below, no_history=settings.no_history, db=kept_address(settings)
    )
    for line in other_times(shards):
        warn(line)
    if as_json:
        plain = {"run": to_json(info), "folder": str(folder), "missing": list(missing)}
        typer.echo(dumps(plain, indent=1))
    elif results:
        typer.echo(summary(results, info, screen_width(wide), folder))
    typer.echo(f"Saved in {folder}", err=as_json)
    unkept = record(settings, info, results, folder, warn) if results and not missing else 0
    if missing:
        names = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
        typer.echo(
            f"{len(missing)} of {info.cases} cases are missing: {names}\n"
            f"To measure them here: {resume_command(folder)}, which takes the whole into the history",
            err=True,
        )
    if unkept:
        raise typer.Exit(unkept)
