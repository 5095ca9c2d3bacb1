"""`perfdash merge`: combine the shards of a plan into one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdash.cli.shared_options import Db, Wide, screen_width, warn


def merge(
    runs: Annotated[list[str], typer.Argument(help="The runs of the shards: folders or names.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder that the new run is made in.  [default: runs]")
    ] = None,
    db: Db = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Keep the run out of the history.")
    ] = False,
    wide: Wide = False,
) -> None:
    """Make one run of the shards (`run --shard i/n`) of a plan."""
    from perfdash.report.run_summary import summary
    from perfdash.runner.merge_shards import merge as merge_runs
    from perfdash.runner.merge_shards import read_shard
    from perfdash.runner.run_journal import find_run
    from perfdash.runner.run_recording import record
    from perfdash.settings import resolve

    settings = resolve({"out": out, "db": db, "no_history": no_history})[0]
    below = settings.out
    shards = [read_shard(find_run(run, below)) for run in runs]
    folder, info, results, missing = merge_runs(shards, below)
    if results:
        typer.echo(summary(results, info, screen_width(wide)))
    typer.echo(f"Saved in {folder}")
    unkept = record(settings, info, results, folder, warn) if results and not missing else 0
    if missing:
        names = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
        typer.echo(
            f"{len(missing)} of {info.cases} cases are missing: {names}\n"
            f"To measure them here: perfdash run --resume {folder}, which takes the whole into the history",
            err=True,
        )
    if unkept:
        raise typer.Exit(unkept)
