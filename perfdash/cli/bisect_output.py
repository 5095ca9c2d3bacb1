"""The reports of a bisection: written into its folder, printed, and where one stands."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import typer

from perfdash import files
from perfdash.bisection.engine import DONE, INTERRUPTED, STOPPED, Session, work
from perfdash.bisection.journal import find, is_being_worked_on, read
from perfdash.bisection.replay import Course
from perfdash.bisection.result import Account, account, save_to_history
from perfdash.errors import MachineError, UsageError
from perfdash.files import dumps
from perfdash.publish import comments
from perfdash.publish.github import GitHubClient
from perfdash.report.bisection_report import headline, markdown, page
from perfdash.report.markdown import plain
from perfdash.settings import resolve

REPORT = "report"
KIND = "bisection"


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


def show(session: Session, as_json: bool) -> int:
    """Works on a bisection, writes its reports and prints the result: the exit code."""
    state, failed = work(session, tell)
    folder, said = session.journal.folder.absolute(), account(session.course)
    write_reports(folder, said)
    if not session.settings.no_history:
        try:
            save_to_history(session.settings, session.course, said, headline(said))
        except Exception as error:  # the journal has it all
            typer.echo(f"The bisection is saved, but not in the history: {error}", err=True)
    if failed:
        tell(f"To go on: perfdash bisect --resume {quote(str(folder))}")
        raise failed
    if said.word == "end not measured":
        raise UsageError(_of_ends(said, session.journal.logs))
    typer.echo(told(said, as_json), nl=False)
    tell(f"Saved in {folder}")
    if state != DONE:
        why = f"--max-builds {session.most_builds} reached" if state == STOPPED else "Interrupted"
        tell(f"{why}. To go on: perfdash bisect --resume {quote(str(folder))}")
    return 130 if state == INTERRUPTED else 0


def _of_ends(said: Account, logs: Path) -> str:
    """Which end is at fault, and why."""
    top = said.ranges[0]
    lines = []
    for name, end in (("good", top.good), ("bad", top.bad)):
        for skipped in top.skipped:
            if skipped.id == end.id:
                log = f"; its log is {skipped.log}" if skipped.log else ""
                lines.append(f"--{name} {end.label}: {skipped.why}{log}")
    other = "exit-code" if said.command else "status"
    hint = "" if said.kind == "status" else f" (--metric {other} looks for the change of that)"
    lines.append(f"What it said meanwhile is in {logs}")
    return "an end of the range cannot be measured, so nothing can be told" + hint + ":\n" + "\n".join(lines)


def tell(line: str) -> None:
    """A line for whoever looks on."""
    try:
        typer.echo(plain(line, 1000), err=True)
    except (OSError, ValueError):  # whoever looked on is gone: no reason to stop
        pass


def posted(name: str, repo: str, issue: int, address: str, dry_run: bool, out: Path | None) -> None:
    """Sends it, or prints it. Raises UsageError, and MachineError with where the text is."""
    folder = find(name, resolve({"out": out})[0].out)
    said = account(Course(read(folder)))
    texts = comments.bodies(markdown(said), KIND, name=said.name)
    if dry_run:
        for text in texts:
            typer.echo(text)
        return
    try:
        token = os.environ.get("GITHUB_TOKEN")
        client = GitHubClient(token, address, log=lambda line: typer.echo(line, err=True))
        place = comments.find_issue(client, repo, issue)
        since = comments.earliest(said.began, time.time())
        done = comments.upsert(client, place, texts, KIND, since, name=said.name)
    except MachineError as error:
        words = ["perfdash", "post", "--bisection", str(folder.absolute())]
        words += ["--repo", repo, "--issue", str(issue), "--base-url", address]
        raise MachineError(
            f"{error}\nThe text is in {folder / 'report.md'}.\nPost it later with:\n  {shlex.join(words)}"
        ) from error
    typer.echo(f"Posted: {plain(done.urls[0] if done.urls else place.url)}")
