"""Options that several commands share, and the history and runs that --db and --out select."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfdash.cli.completion import runs
from perfdash.files import dumps

if TYPE_CHECKING:
    from perfdash.history.store import Store
    from perfdash.report.run_lookup import RunLookup

Db = Annotated[
    str | None,
    typer.Option("--db", help="The history: a file or postgresql://...  [default: history.db in --out]"),
]
Out = Annotated[Path | None, typer.Option(help="Folder of the runs.  [default: runs]")]
LAST = "`last` is the newest run with a result that is not excluded from judging"
RunName = Annotated[
    str,
    typer.Argument(
        help=f"A run: its folder, its name, or the name or id:N of a run in the history. {LAST}.",
        autocompletion=runs,
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(help="Compare with this run, date or window instead of with the nights before."),
]
SiteUrl = Annotated[str | None, typer.Option(help="Address of the site, for links to its pages.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show all columns, however wide the terminal is.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be sent, and send nothing.")]


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


def print_result(plain: Any, text: str, as_json: bool) -> None:
    """Print what a command did: its plain values as JSON, or a text."""
    typer.echo(dumps(plain, indent=1) if as_json else text)


def check_address(option: str, address: str | None) -> None:
    """Raise UsageError for an address that is not that of a page."""
    from perfdash.errors import UsageError

    if address is not None and not address.startswith(("https://", "http://")):
        raise UsageError(f"{option} {address!r}: give the whole address, with https://")


def warn(line: str) -> None:
    """Print a warning to the user."""
    typer.echo(line, err=True)
