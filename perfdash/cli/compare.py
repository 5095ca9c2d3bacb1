"""`perfdash compare`: two runs of like hosts side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    old: Annotated[str, typer.Argument(help="The earlier run: folder, name or `last`.")],
    new: Annotated[str, typer.Argument(help="The later run.")],
    out: Annotated[Path | None, typer.Option(help="Folder with the runs.  [default: runs]")] = None,
) -> None:
    """Compare two runs, over the cases that both have. Runs of unlike hosts are refused."""
    from perfdash.report.comparison import comparison
    from perfdash.runner import likeness
    from perfdash.runner.journal import find_run, read_info, read_results
    from perfdash.settings import resolve

    below = resolve({"out": out})[0].out
    folders = [find_run(run, below) for run in (old, new)]
    infos = [read_info(folder) for folder in folders]
    likeness.refuse_unlike_hosts(infos[0], infos[1])
    results = [read_results(folder) for folder in folders]
    typer.echo(comparison(results[0], results[1], infos[0], infos[1]))
