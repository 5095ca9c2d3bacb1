"""`perfdash post`: post a run as comments, and its regressions as issues."""

from __future__ import annotations

import os
import re
import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfdash.cli.shared_options import (
    AsJson,
    Baseline,
    Db,
    DryRun,
    Out,
    RunName,
    SiteUrl,
    check_address,
    lookup,
)
from perfdash.files import dumps

if TYPE_CHECKING:
    from perfdash.publish.comments import PostedComments
    from perfdash.publish.issues import IssueChanges, WantedIssue
    from perfdash.publish.tracked_regressions import TrackedRegressions
    from perfdash.report.night import Night


def post(
    repo: Annotated[str, typer.Option(metavar="OWNER/NAME", help="The repository on GitHub.")],
    issue: Annotated[int, typer.Option(min=1, help="The number of the issue or pull request to comment on.")],
    run: RunName = "last",
    baseline: Baseline = None,
    site_url: SiteUrl = None,
    base_url: Annotated[
        str | None,
        typer.Option(help="The address of the API of GitHub Enterprise, e.g. https://HOST/api/v3."),
    ] = None,
    new_issue_on: Annotated[
        str | None,
        typer.Option(
            help="`regression`: open an issue for each confirmed cause, and close it when it is fixed."
        ),
    ] = None,
    tables: Annotated[
        bool,
        typer.Option(
            "--tables", help="Also post all tables in further comments, for readers without a site."
        ),
    ] = False,
    most_issues: Annotated[
        int, typer.Option(min=1, help="The largest number of new issues; the largest changes come first.")
    ] = 5,
    bisection: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Post the report of this bisection instead: its name, or `last` (the newest).",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    db: Db = None,
    out: Out = None,
) -> None:
    """Post the report of a run as a comment on GitHub.

    The token is read from GITHUB_TOKEN. Posting a run again edits its comment."""
    from perfdash.errors import MachineError, UsageError
    from perfdash.publish.comments import KIND, bodies, run_fields
    from perfdash.publish.github import API, checked_address
    from perfdash.report.comment import comment, whole_report

    if not re.fullmatch(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+", repo) or {".", ".."} & set(repo.split("/")):
        raise UsageError(f"--repo {repo!r} is not OWNER/NAME, e.g. pytorch/pytorch")
    if new_issue_on not in (None, "regression"):
        raise UsageError(f"--new-issue-on {new_issue_on!r}: here there is only regression")
    check_address("--site-url", site_url)
    address = checked_address(base_url or API)
    if bisection is not None:
        from perfdash.cli.bisect_output import post_report

        post_report(bisection, repo, issue, address, dry_run, out, as_json)
        return
    runs = lookup(db, out)
    folder, night = runs.folder(run), runs.night(run, baseline)
    runs.refuse_to_replace_comment(night.imported)
    regressions, failure = None, None
    if new_issue_on:
        from perfdash.publish.tracked_regressions import tracked_regressions
        from perfdash.settings import judging_rules, model_owners

        rules, owners = judging_rules(), model_owners()
        try:
            regressions = tracked_regressions(night, runs.history, site_url, rules, owners)
        except MachineError as error:  # the comments are posted without the issues
            failure = MachineError(f"nothing was done about the issues of regressions: {error}")
    report = whole_report if tables else comment
    run_of_comments = run_fields(night.run, {} if folder else runs.first_names())
    texts = bodies(report(night, site_url=site_url), KIND, **run_of_comments)
    if dry_run:
        open_issues = [issue for issue in regressions.issues if issue.open] if regressions else []
        if as_json:
            typer.echo(dumps(planned_to_plain(texts, open_issues, most_issues), indent=1))
        else:
            _show(texts, open_issues, most_issues)
        if failure:
            raise failure
        return
    try:
        _send(address, repo, issue, night, run_of_comments, texts, regressions, most_issues, as_json)
        if failure:
            raise failure
    except MachineError as error:
        given = {"baseline": baseline, "site-url": site_url, "base-url": base_url, "db": db}
        words = ["perfdash", "post", str(folder.absolute() if folder else night.run.name)]
        words += ["--repo", repo, "--issue", str(issue), "--out", str(runs.out.absolute())]
        words += [word for name, value in given.items() if value for word in (f"--{name}", value)]
        words += ["--tables"] if tables else []
        if new_issue_on:
            words += ["--new-issue-on", new_issue_on, "--most-issues", str(most_issues)]
        saved = _save(folder, runs.out, night, texts)
        raise MachineError(f"{error}\n{saved}\nPost it later with:\n  {shlex.join(words)}") from error


def _send(
    address: str,
    repo: str,
    issue: int,
    night: Night,
    run_of_comments: dict[str, str],
    texts: list[str],
    regressions: TrackedRegressions | None,
    most_issues: int,
    as_json: bool,
) -> None:
    """Post the comments, then update the issues; print what was done, also if that fails halfway.

    Raises MachineError; where GitHub refuses the comments, after the issues are updated.
    """
    from perfdash.errors import MachineError
    from perfdash.publish.comments import KIND, PostedComments, earliest, find_issue, upsert
    from perfdash.publish.github import GitHubClient
    from perfdash.publish.http_failures import Refused
    from perfdash.publish.issues import IssueChanges, sync_issues

    token = os.environ.get("GITHUB_TOKEN")
    client = GitHubClient(token, address, log=lambda line: typer.echo(line, err=True))
    posted, changes = PostedComments(), None
    current_repo, url = repo, ""
    failures: list[MachineError] = []
    try:
        try:
            target = find_issue(client, repo, issue)
            current_repo, url = target.repo, target.url
            since = earliest(night.run.started, time.time())
            upsert(client, target, texts, KIND, since, posted=posted, **run_of_comments)
            if not as_json:
                _show_comments(posted, url)
        except Refused as error:  # the issue is locked, full or deleted
            failures.append(error)
        if regressions is not None:
            changes = IssueChanges()
            try:
                sync_issues(
                    client, current_repo, regressions.issues, most_issues, regressions.judged, changes
                )
            except MachineError as error:
                failures.append(error)
        if failures:
            raise MachineError("\n".join(dict.fromkeys(map(str, failures)))) from failures[-1]
    finally:
        if as_json and (posted != PostedComments() or changes not in (None, IssueChanges())):
            typer.echo(dumps(posted_to_plain(posted, url, changes), indent=1))
        elif changes is not None and not as_json:
            _show_changes(changes, most_issues)


def posted_to_plain(posted: PostedComments, issue: str, changes: IssueChanges | None) -> dict[str, Any]:
    """What was posted, as plain values for JSON; `issue` is the address of the issue."""
    return {
        "dry_run": False,
        "issue": issue,
        "comments": asdict(posted),
        "issues": None if changes is None else asdict(changes),
    }


def planned_to_plain(texts: list[str], issues: list[WantedIssue], most: int) -> dict[str, Any]:
    """What --dry-run would post, as plain values for JSON."""
    return {
        "dry_run": True,
        "texts": texts,
        "wanted_issues": [{"title": issue.title, "body": issue.body} for issue in issues[:most]],
        "waiting": max(0, len(issues) - most),
    }


def _show_comments(posted: PostedComments, issue: str) -> None:
    from perfdash.report.markdown import plain

    counts = (("new", posted.created), ("edited", posted.edited), ("removed", posted.removed))
    summary = ", ".join(f"{count} {word}" for word, count in counts if count) or "nothing to change"
    typer.echo(f"Posted: {plain(posted.urls[0] if posted.urls else issue)} ({summary})")


def _show_changes(changes: IssueChanges, most_issues: int) -> None:
    from perfdash.report.markdown import plain

    for word, urls in (
        ("Opened", changes.opened),
        ("Closed", changes.closed),
        ("Reopened", changes.reopened),
    ):
        for url in urls:
            typer.echo(f"{word}: {plain(url)}")
    if changes.waiting:
        typer.echo(
            f"{changes.waiting} more regressions have no issue yet: --most-issues is {most_issues}; "
            "`perfdash regressions --worse` lists them"
        )


def _show(texts: list[str], issues: list[WantedIssue], most: int) -> None:
    for number, text in enumerate(texts, start=1):
        if len(texts) > 1:
            typer.echo(f"--- comment {number} of {len(texts)} ---")
        typer.echo(text)
    for issue in issues[:most]:
        typer.echo(f"--- issue, unless it is there: {issue.title} ---")
        typer.echo(issue.body)
    if len(issues) > most:
        typer.echo(f"--- {len(issues) - most} more regressions: --most-issues is {most} ---")


def _save(folder: Path | None, out: Path, night: Night, texts: list[str]) -> str:
    """Save the texts; where they are, in words."""
    from perfdash.publish.comments import save_texts

    try:
        paths = save_texts(folder, out, night.run, texts)
    except OSError as error:
        return f"The text could not be kept in {(folder or out).absolute()}: {error.strerror or error}"
    return f"The text is kept in {', '.join(map(str, paths))}."
