"""A bisection's report as comments of a GitHub issue, edited when it is posted again."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

import typer

from perfdash.bisection.journal import find, read
from perfdash.bisection.replay import Course
from perfdash.bisection.result import account
from perfdash.errors import MachineError
from perfdash.publish import comments
from perfdash.publish.github import GitHubClient
from perfdash.report.bisection_report import markdown
from perfdash.report.markdown import plain
from perfdash.settings import resolve

KIND = "bisection"


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
