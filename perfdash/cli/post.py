"""`perfdash post`: a night as comments of a GitHub issue, and its regressions as issues of their own."""

from __future__ import annotations

import os
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdash.cli.store import Db, Out

if TYPE_CHECKING:
    from perfdash.cli.regression_issues import Regressions
    from perfdash.publish.tracking import Tracked
    from perfdash.report.night import Night


def post(
    repo: Annotated[str, typer.Option(metavar="OWNER/NAME", help="The repository on GitHub.")],
    issue: Annotated[int, typer.Option(min=1, help="The issue (or pull request) that is commented on.")],
    run: Annotated[
        str, typer.Argument(help="A run folder, its name, `last`, or a run of the history.")
    ] = "last",
    baseline: Annotated[
        str | None,
        typer.Option(help="What changed since this run, date or window, instead of by the nights before."),
    ] = None,
    site_url: Annotated[
        str | None, typer.Option(help="Where the site lies: links to its pages are put in.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="The API of GitHub Enterprise, e.g. https://HOST/api/v3.")
    ] = None,
    new_issue_on: Annotated[
        str | None,
        typer.Option(help="`regression`: an issue for each confirmed one, closed when it is fixed."),
    ] = None,
    most_issues: Annotated[int, typer.Option(min=1, help="New issues at most, the largest first.")] = 5,
    bisection: Annotated[
        str | None, typer.Option(metavar="NAME", help="A bisection's report instead: its name, or `last`.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print it; send nothing.")] = False,
    db: Db = None,
    out: Out = None,
) -> None:
    """Post a night to GitHub, token in GITHUB_TOKEN. Posted twice, it edits what is there."""
    from perfdash.cli.nights import folder_of, night_of
    from perfdash.errors import MachineError, UsageError
    from perfdash.publish.comments import KIND, bodies
    from perfdash.publish.talk import API, checked_address
    from perfdash.report.comment import comment
    from perfdash.settings import resolve

    if not re.fullmatch(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+", repo) or {".", ".."} & set(repo.split("/")):
        raise UsageError(f"--repo {repo!r} is not OWNER/NAME, e.g. pytorch/pytorch")
    if new_issue_on not in (None, "regression"):
        raise UsageError(f"--new-issue-on {new_issue_on!r}: here there is only regression")
    if site_url is not None and not site_url.startswith(("https://", "http://")):
        raise UsageError(f"--site-url {site_url!r}: give the whole address, with https://")
    address = checked_address(base_url or API)
    if bisection is not None:
        from perfdash.cli.bisect.posting import posted

        posted(bisection, repo, issue, address, dry_run, out)
        return
    settings = resolve({"db": db, "out": out})[0]
    folder = folder_of(run, settings)
    night = night_of(run, settings, baseline=baseline)
    told, lost = None, None
    if new_issue_on:
        from perfdash.cli.regression_issues import tracked

        try:
            told = tracked(night, settings, site_url)
        except MachineError as error:  # the comments go out without it
            lost = MachineError(f"nothing was done about the issues of regressions: {error}")
    texts = bodies(comment(night, site_url=site_url), KIND, **_named(night))
    if dry_run:
        _show(texts, [each for each in told.alerts if each.open] if told else [], most_issues)
        if lost:
            raise lost
        return
    try:
        _send(address, repo, issue, night, texts, told, most_issues)
        if lost:
            raise lost
    except MachineError as error:
        given = {"baseline": baseline, "site-url": site_url, "base-url": base_url, "db": db}
        words = ["perfdash", "post", str(folder.absolute() if folder else night.run.name)]
        words += ["--repo", repo, "--issue", str(issue), "--out", str(settings.out.absolute())]
        words += [word for name, value in given.items() if value for word in (f"--{name}", value)]
        if new_issue_on:
            words += ["--new-issue-on", new_issue_on, "--most-issues", str(most_issues)]
        kept = _keep(folder, settings.out, night, texts)
        raise MachineError(f"{error}\n{kept}\nPost it later with:\n  {shlex.join(words)}") from error


def _send(
    address: str,
    repo: str,
    issue: int,
    night: Night,
    texts: list[str],
    regressions: Regressions | None,
    most_issues: int,
) -> None:
    from perfdash.publish.comments import KIND, find, since, upsert
    from perfdash.publish.issues import tend
    from perfdash.publish.talk import Talk
    from perfdash.report.markdown import plain

    talk = Talk(os.environ.get("GITHUB_TOKEN"), address, tell=lambda line: typer.echo(line, err=True))
    place = find(talk, repo, issue)
    done = upsert(talk, place, texts, KIND, since(night.run.started, time.time()), **_named(night))
    counts = (("new", done.created), ("edited", done.edited), ("removed", done.removed))
    told = ", ".join(f"{count} {word}" for word, count in counts if count) or "nothing to change"
    typer.echo(f"Posted: {plain(done.urls[0] if done.urls else place.url)} ({told})")
    if regressions is None:
        return
    tended = tend(talk, place.repo, regressions.alerts, most_issues, regressions.judged)
    for word, urls in (("Opened", tended.opened), ("Closed", tended.closed), ("Reopened", tended.reopened)):
        for url in urls:
            typer.echo(f"{word}: {plain(url)}")
    if tended.waiting:
        typer.echo(
            f"{tended.waiting} more regressions have no issue yet: --most-issues is {most_issues}; "
            "`perfdash regressions --worse` lists them"
        )


def _named(night: Night) -> dict[str, str]:
    """By what a comment knows its run. Only perfdash's own runs have names that no other run has."""
    run = night.run
    return {"run": run.name} if run.origin == "perfdash" else {"run": run.name, "started": run.started}


def _show(texts: list[str], regressions: list[Tracked], most: int) -> None:
    for number, text in enumerate(texts, start=1):
        if len(texts) > 1:
            typer.echo(f"--- comment {number} of {len(texts)} ---")
        typer.echo(text)
    for each in regressions[:most]:
        typer.echo(f"--- issue, unless it is there: {each.title} ---")
        typer.echo(each.body)
    if len(regressions) > most:
        typer.echo(f"--- {len(regressions) - most} more regressions: --most-issues is {most} ---")


def _keep(folder: Path | None, out: Path, night: Night, texts: list[str]) -> str:
    """Keeps the text in the run folder, or beside the history of a run that has none; where, in words."""
    from perfdash import files

    below = (folder or out).absolute()
    name = "comment" if folder else "comment-" + re.sub(r"[^A-Za-z0-9.-]+", "-", night.run.name)[:100]
    numbers = [""] if len(texts) == 1 else [f"-{n}of{len(texts)}" for n in range(1, len(texts) + 1)]
    try:
        below.mkdir(parents=True, exist_ok=True)
        for old in below.glob(f"{name}-*of*.md"):
            old.unlink()
        paths = [below / f"{name}{number}.md" for number in numbers]
        for path, text in zip(paths, texts, strict=True):
            files.write(path, text)
    except OSError as error:
        return f"The text could not be kept in {below}: {error.strerror or error}"
    return f"The text is kept in {', '.join(map(str, paths))}."
