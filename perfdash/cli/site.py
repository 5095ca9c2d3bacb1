"""`perfdash site`: the whole history as static pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdash.cli.shared_options import AsJson, Db, Out
from perfdash.files import dumps


def site(
    to: Annotated[Path, typer.Option(help="Folder of the site: a new or empty one, or an earlier site.")],
    db: Db = None,
    out: Out = None,
    nights: Annotated[
        int,
        typer.Option(
            min=2, help="Nights per testbed with a page of their own. Older nights are shown by week."
        ),
    ] = 400,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes that write pages.  [default: all cores]")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder of the cache for the next build.  [default: in --to]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the history as static pages, or update them.

    Only pages that changed are written. They need no server, no network and no JavaScript. A folder
    with other files is refused.
    """
    from datetime import UTC, datetime

    from perfdash.cli.shared_options import opened
    from perfdash.detect.nightly_problems import nightly_problems
    from perfdash.site.build_record import is_as_left, read_record, sources
    from perfdash.site.site_folder import refuse_foreign, state_of

    refuse_foreign(to)
    with opened(db, out) as store:
        if last := read_record(state_of(to, state)):
            with store.read() as connection:
                made_of = sources(connection, nightly_problems(connection, datetime.now(UTC)), nights)
            if is_as_left(last, made_of, to):
                counts = {"folder": str(to), "pages": last.pages, "written": 0, "removed": 0}
                typer.echo(dumps(counts) if as_json else f"{last.pages} pages in {to}: nothing to update")
                return
        from perfdash.site.build import build  # slow to import

        done = build(store, to, nights=nights, jobs=jobs, state=state, say=_say)
    if as_json:
        counts = {"folder": str(to), "pages": done.pages, "written": done.written, "removed": done.removed}
        typer.echo(dumps(counts))
        return
    removed = f", {done.removed} removed" if done.removed else ""
    typer.echo(f"{done.pages} pages in {to}: {done.written} files written{removed}")
    typer.echo(f"Open {to / 'index.html'}")


def _say(text: str) -> None:
    """Print progress, without the control characters that a testbed's name may hold."""
    typer.echo("".join(character if character.isprintable() else "?" for character in text), err=True)
