"""Run a bisection from the command line; print and post its report."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from perfdash.bisection.completion import Typist
from perfdash.bisection.engine import DONE, INTERRUPTED, STOPPED, Engine
from perfdash.bisection.journal import find, is_being_worked_on, read
from perfdash.bisection.replay import Bisection
from perfdash.bisection.result import result_of
from perfdash.cli.post import planned_to_plain, posted_to_plain
from perfdash.cli.shared_options import print_result
from perfdash.errors import MachineError
from perfdash.publish import comments
from perfdash.publish.github import GitHubClient
from perfdash.report import reproduce
from perfdash.report.alert_text import model_of, what
from perfdash.report.bisection_files import how_to_resume, report_text, work
from perfdash.report.bisection_report import markdown
from perfdash.report.markdown import plain
from perfdash.settings import resolve

KIND = "bisection"


def show_status(name: str, flags: Mapping[str, Any]) -> None:
    """Print the state of a bisection, whether or not a process works on it."""
    folder = find(name, resolve({"out": flags["out"]})[0].out)
    result = result_of(Bisection(read(folder)))
    typer.echo(report_text(result, flags["as_json"]), nl=False)
    if is_being_worked_on(folder):
        typer.echo(f"{folder}: it is being worked on", err=True)
    elif result.state != "done":
        typer.echo(how_to_resume(folder), err=True)


def run(engine: Engine, as_json: bool) -> int:
    """Run a bisection, write its reports and print the result: the exit code."""
    state, result = work(engine, notify)
    typer.echo(report_text(result, as_json), nl=False)
    folder = engine.journal.folder.absolute()
    notify(f"Saved in {folder}")
    if state != DONE:
        why = f"--max-builds {engine.most_builds} reached" if state == STOPPED else "Interrupted"
        notify(f"{why}. {how_to_resume(folder)}")
    return 130 if state == INTERRUPTED else 0


def notify(line: str) -> None:
    """Show a line of progress on standard error."""
    try:
        typer.echo(plain(line, 1000), err=True)
    except (OSError, ValueError):  # nobody reads it any more: no reason to stop
        pass


def typist() -> Typist:
    """How `perfdash bisect` speaks with the user; it asks only on a terminal."""
    return Typist(
        words=sys.argv[1:],
        options=reproduce,
        describe=lambda evidence: f"{what(evidence.alert)} of {model_of(evidence.case)}",
        notify=notify,
        ask=_choice if _is_terminal() else None,
    )


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _choice(title: str, lines: Sequence[str]) -> int:
    """Let the user choose one of some lines: its place. Raises typer.Abort on Ctrl-C and end of input."""
    notify(f"{title}:")
    for number, text in enumerate(lines, start=1):
        notify(f"  {number}  {text}")
    while True:
        number = int(typer.prompt("Which is bisected", type=int, default=1, err=True))
        if 1 <= number <= len(lines):
            return number - 1
        notify(f"Give a number from 1 to {len(lines)}.")


def post_report(
    name: str, repo: str, issue: int, address: str, dry_run: bool, out: Path | None, as_json: bool
) -> None:
    """Post a report to an issue, or print it. Raises UsageError, MachineError with the place of the text."""
    folder = find(name, resolve({"out": out})[0].out)
    result = result_of(Bisection(read(folder)))
    texts = comments.bodies(markdown(result), KIND, name=result.name)
    if dry_run:
        print_result(planned_to_plain(texts, [], 0), "\n".join(texts), as_json)
        return
    done = comments.PostedComments()
    try:
        token = os.environ.get("GITHUB_TOKEN")
        client = GitHubClient(token, address, log=lambda line: typer.echo(line, err=True))
        place = comments.find_issue(client, repo, issue)
        since = comments.earliest(result.began, time.time())
        comments.upsert(client, place, texts, KIND, since, posted=done, name=result.name)
    except MachineError as error:
        if as_json and done != comments.PostedComments():
            print_result(posted_to_plain(done, place.url, None), "", as_json)
        words = ["perfdash", "post", "--bisection", str(folder.absolute())]
        words += ["--repo", repo, "--issue", str(issue), "--base-url", address]
        raise MachineError(
            f"{error}\nThe text is in {folder / 'report.md'}.\nPost it later with:\n  {shlex.join(words)}"
        ) from error
    text = f"Posted: {plain(done.urls[0] if done.urls else place.url)}"
    print_result(posted_to_plain(done, place.url, None), text, as_json)
