"""The reports of a bisection: written into its folder, printed, and where one stands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import typer

from perfdash import files
from perfdash.bisection.journal import find, is_being_worked_on, read
from perfdash.bisection.replay import Course
from perfdash.bisection.result import Account, account
from perfdash.files import dumps
from perfdash.report.bisection_report import markdown, page
from perfdash.settings import resolve

REPORT = "report"


def write_reports(folder: Path, said: Account) -> None:
    """report.md, report.html and report.json; a disk that is full is said, and loses nothing."""
    try:
        for ending, text in (
            ("md", markdown(said)),
            ("html", page(said)),
            ("json", dumps(said.to_json(), indent=1) + "\n"),
        ):
            files.write(folder / f"{REPORT}.{ending}", text)
    except OSError as error:
        typer.echo(f"The report cannot be written to {folder}: {error.strerror}", err=True)


def told(said: Account, as_json: bool) -> str:
    """What is printed."""
    return dumps(said.to_json(), indent=1) + "\n" if as_json else markdown(said)


def tell_status(name: str, flags: Mapping[str, Any]) -> None:
    """Prints where a bisection stands, whether or not somebody works on it."""
    folder = find(name, resolve({"out": flags["out"]})[0].out)
    said = account(Course(read(folder)))
    typer.echo(told(said, flags["as_json"]), nl=False)
    if is_being_worked_on(folder):
        typer.echo(f"{folder}: it is being worked on", err=True)
    elif said.state != "done":
        typer.echo(f"To go on: perfdash bisect --resume {quote(str(folder))}", err=True)
