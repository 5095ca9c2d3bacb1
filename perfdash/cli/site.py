"""`perfdash site`: the whole history as static pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdash.cli.shared_options import Db


def site(
    out: Annotated[Path, typer.Option(help="Folder of the site: new, empty, or one made before.")],
    db: Db = None,
    runs: Annotated[
        Path | None, typer.Option(help="Folder with the runs and their history.  [default: runs]")
    ] = None,
    nights: Annotated[
        int, typer.Option(min=2, help="Nights of each testbed that are kept one by one; older ones by weeks.")
    ] = 400,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes that make pages.  [default: all cores]")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder of what the next build need not read again.  [default: in --out]"),
    ] = None,
) -> None:
    """Write the pages that show the history, or bring them up to date: only what changed is written.

    They need no server, no network and no JavaScript. A folder that holds anything else is refused.
    """
    from datetime import UTC, datetime

    from perfdash.cli.shared_options import opened
    from perfdash.detect.nightly_problems import nightly_problems
    from perfdash.site.build_record import is_as_left, read_record, sources
    from perfdash.site.site_folder import refuse_foreign, state_of

    refuse_foreign(out)
    with opened(db, runs) as store:
        if last := read_record(state_of(out, state)):
            with store.read() as connection:
                made_of = sources(connection, nightly_problems(connection, datetime.now(UTC)), nights)
            if is_as_left(last, made_of, out):
                typer.echo(f"{last.pages} pages in {out}: nothing is new")
                return
        from perfdash.site.build import build  # slow to import

        done = build(store, out, nights=nights, jobs=jobs, state=state, say=_say)
    removed = f", {done.removed} removed" if done.removed else ""
    typer.echo(f"{done.pages} pages in {out}: {done.written} files written{removed}")
    typer.echo(f"Open {out / 'index.html'}")


def _say(text: str) -> None:
    """Print progress, without the control characters that a testbed's name may hold."""
    typer.echo("".join(character if character.isprintable() else "?" for character in text), err=True)
