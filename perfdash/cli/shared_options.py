"""Options that several commands share, and the history and runs that --db and --out select."""

from __future__ import annotations

import shutil
import sys
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
RunName = Annotated[str, typer.Argument(help="A run folder, its name, `last`, or a run of the history.")]
Baseline = Annotated[
    str | None,
    typer.Option(help="What changed since this run, date or window, instead of by the nights before."),
]
SiteUrl = Annotated[str | None, typer.Option(help="Where the site lies: links to its pages are put in.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show all columns, however wide the terminal is.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print it; send nothing.")]


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


def screen_width(wide: bool = False) -> int | None:
    """The columns that a table may take: those of the terminal; None for any number, as in a pipe or file."""
    if wide or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def check_address(option: str, address: str | None) -> None:
    """Raise UsageError for an address that is not that of a page."""
    from perfdash.errors import UsageError

    if address is not None and not address.startswith(("https://", "http://")):
        raise UsageError(f"{option} {address!r}: give the whole address, with https://")


def warn(line: str) -> None:
    """Print a warning to the user."""
    typer.echo(line, err=True)
