"""The options --db and --out, and the history and runs that they select."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfdash.history.store import Store
    from perfdash.report.run_lookup import RunLookup

Db = Annotated[
    str | None,
    typer.Option("--db", help="The history: a file or postgresql://...  [default: history.db in --out]"),
]
Out = Annotated[Path | None, typer.Option(help="Folder with the runs.  [default: runs]")]


def opened(db: str | None, out: Path | None = None, *, create: bool = False) -> Store:
    """The history in force. Raises UsageError where there is none."""
    from perfdash.history.store import open_store
    from perfdash.settings import resolve

    settings = resolve({"db": db, "out": out})[0]
    return open_store(settings.history, create=create)


def lookup(db: str | None, out: Path | None) -> RunLookup:
    """Looks up runs in the folder and the history that the options select."""
    from perfdash.report.run_lookup import RunLookup
    from perfdash.settings import resolve

    settings = resolve({"db": db, "out": out})[0]
    return RunLookup(settings.out, settings.history, warn)


def warn(line: str) -> None:
    """Print a warning to the user."""
    typer.echo(line, err=True)
