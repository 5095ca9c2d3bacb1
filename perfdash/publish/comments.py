"""A run's comments below a GitHub issue: create, edit and remove until they match."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from perfdash import files
from perfdash.history.results import RunRow
from perfdash.publish import marker
from perfdash.publish.github import GitHubClient, OutOfDate, apply_until_done, required, sendable
from perfdash.publish.http_failures import Refused
from perfdash.report.comment_splitting import LIMIT, size, split_text

KIND = "comment"


@dataclass(frozen=True)
class TargetIssue:
    """An issue (or pull request) that gets comments, and the account that writes them.

    account: its number; the login of an app; None for an app that cannot learn its login.
    """

    repo: str
    number: int
    url: str
    account: int | str | None


@dataclass
class PostedComments:
    """The addresses of the comments in order, and how many of them were changed."""

    urls: list[str] = field(default_factory=list)
    created: int = 0
    edited: int = 0
    removed: int = 0


@dataclass(frozen=True)
class Comment:
    """An existing comment by this account."""

    id: int
    body: str
    url: str = ""


@dataclass(frozen=True)
class Edit:
    id: int
    body: str


@dataclass(frozen=True)
class Create:
    body: str


@dataclass(frozen=True)
class Remove:
    id: int


Action = Edit | Create | Remove


def bodies(text: str, kind: str, **fields: object) -> list[str]:
    """Split a text into comments of at most LIMIT bytes, each below its marker."""
    longest = size(marker.marker(kind, **fields, part=999)) + 1
    return [
        f"{marker.marker(kind, **fields, part=number)}\n{part}"
        for number, part in enumerate(split_text(sendable(text), LIMIT - longest), start=1)
    ]


def run_fields(run: RunRow, first_names: Mapping[str, str] | None = None) -> dict[str, str]:
    """The marker fields that identify a run. Only perfdash's own runs have unique names.

    `first_names`: of renamed runs of the history, by their present names; the folder of a run keeps its first
    name. A run gets another name when its shards are merged again, so each of its shards identifies it, as in
    the history.
    """
    name = (first_names or {}).get(run.name, run.name)
    if run.origin != "perfdash":
        return {"run": name, "started": run.started}
    if run.merged_from:
        return {"run": name, "shards": marker.shards(run.merged_keys or run.merged_from)}
    return {"run": name}


def find_issue(client: GitHubClient, repo: str, number: int) -> TargetIssue:
    """Find an issue, also after it was moved or its repository renamed. Raises Refused."""
    answer = client.get(f"/repos/{repo}", f"repository {repo}")
    repo = str(required(answer, "full_name", client))
    issue = client.get(f"/repos/{repo}/issues/{number}", f"issue {number} of {repo}")
    number = int(required(issue, "number", client))
    current_repo = str(issue.get("repository_url") or "").rpartition("/repos/")[2] or repo
    return TargetIssue(current_repo, number, str(issue.get("html_url") or ""), account_of(client))


def account_of(client: GitHubClient) -> int | str | None:
    """The number of the token's account; for an app its login, or None."""
    task = "the token's account"
    try:
        return int(required(client.get("/user", task), "id", client))
    except Refused as error:
        if error.status not in (403, 404):
            raise
    try:
        answer = client.post("/graphql", task, {"query": "query { viewer { login } }"}, harmless=True)
    except Refused:
        return None  # an Enterprise server has it at another path
    data = answer.get("data") if isinstance(answer, dict) else None
    viewer = data.get("viewer") if isinstance(data, dict) else None
    login = viewer.get("login") if isinstance(viewer, dict) else None
    return login if isinstance(login, str) and login else None


def upsert(
    client: GitHubClient,
    issue: TargetIssue,
    wanted: Sequence[str],
    kind: str,
    since: str | None = None,
    *,
    posted: PostedComments | None = None,
    **fields: object,
) -> PostedComments:
    """Leave exactly the bodies `wanted` among our comments of this kind and these fields.

    `since` (ISO 8601): such comments are probably not older. `posted`: gets what was done, also where this
    fails; then its addresses are those of the comments that were written. All comments are listed before the
    first one is created. The list is read again after each doubt and after each round: a lost reply, a person
    who removes parts and another perfdash that posts at the same time all end with one set of comments.
    Raises MachineError.
    """
    result = PostedComments() if posted is None else posted
    update = _Upsert(client, issue, wanted, kind, since, fields, result)
    apply_until_done(
        client,
        update.planned,
        update.apply,
        f"the comments of issue {issue.number} in {issue.repo} change while they are written: is another "
        "perfdash posting there? Post again later",
    )
    return result


class _Upsert:
    """One upsert: the comments that it saw, created and removed."""

    def __init__(
        self,
        client: GitHubClient,
        issue: TargetIssue,
        wanted: Sequence[str],
        kind: str,
        since: str | None,
        fields: Mapping[str, object],
        result: PostedComments,
    ) -> None:
        self.client, self.issue, self.wanted, self.kind, self.since = client, issue, wanted, kind, since
        self.fields = {name: marker.known_as(str(value)) for name, value in fields.items()}
        self.result = result
        self._written: dict[int, Comment] = {}  # GitHub's list may lag behind what was just written
        self._gone: set[int] = set()
        self._first: set[int] | None = None
        self._path = f"/repos/{issue.repo}/issues/{issue.number}/comments"

    def planned(self) -> Sequence[Action]:
        """List our comments and plan what is left to do."""
        listed, foreign = self._ours(self.since)
        if self._first is None and self.since and len(listed) < len(self.wanted):
            all_ours, foreign = self._ours(None)
            if len(all_ours) > len(listed):  # posted when the run's clock was far ahead
                listed, self.since = all_ours, None
        existing = {
            comment.id: comment
            for comment in (*listed, *self._written.values())
            if comment.id not in self._gone
        }
        if self._first is None:
            self._first = set(existing)
            if foreign:
                self.client.log(f"{foreign} such comments are by another account: they are left as they are")
        actions = planned_actions(list(existing.values()), self.wanted)
        # Also those whose reply was lost.
        self.result.created = len(existing.keys() - self._first)
        if not actions:
            self.result.urls = [existing[number].url for number in sorted(existing)]
        return actions

    def apply(self, action: Action) -> None:
        """Carry out one action. Raises OutOfDate when a comment cannot be changed any more."""
        try:
            self._send(action)
        except Refused as error:
            if isinstance(action, Create) or not (
                (isinstance(action, Edit) and error.status in (404, 410))  # someone removed it just now
                or (self.issue.account is None and error.status == 403)  # another app's comment
            ):
                raise
            self._gone.add(action.id)
            self._written.pop(action.id, None)
            raise OutOfDate from error

    def _send(self, action: Action) -> None:
        what = f"a comment of issue {self.issue.number} in {self.issue.repo}"
        comments = f"/repos/{self.issue.repo}/issues/comments"
        if isinstance(action, Remove):
            self.client.delete(f"{comments}/{action.id}", f"removing {what}")
            self._gone.add(action.id)
            self.result.removed += 1
            return
        if isinstance(action, Edit):
            answer = self.client.patch(f"{comments}/{action.id}", f"editing {what}", {"body": action.body})
            self.result.edited += 1
        else:
            answer = self.client.post(self._path, f"writing {what}", {"body": action.body})
            self.result.created += 1
        number = int(required(answer, "id", self.client))
        self._written[number] = Comment(number, action.body, str(answer.get("html_url") or ""))
        self.result.urls = [comment.url for _, comment in sorted(self._written.items())]

    def _ours(self, since: str | None) -> tuple[list[Comment], int]:
        """Our comments with the marker, and how many copies other accounts made, which stay."""
        what = f"the comments of issue {self.issue.number} in {self.issue.repo}"
        ours, foreign = [], 0
        for item in self.client.pages(self._path, what, {"since": since} if since else None):
            fields = marker.read(item.get("body"), self.kind)
            if fields is None or not marker.has(fields, self.fields):
                continue
            if _wrote(self.issue.account, item.get("user") or {}):
                ours.append(Comment(int(item["id"]), str(item["body"]), str(item.get("html_url") or "")))
            else:
                foreign += 1
        return ours, foreign


def planned_actions(existing: Sequence[Comment], wanted: Sequence[str]) -> list[Action]:
    """The actions that turn the existing comments into exactly `wanted`, in its order.

    The oldest comment becomes part 1, and so on, whatever part it was. So parts stay in order after a
    person removed one, and two perfdash that post at once keep and remove the same comments.
    """
    oldest_first = sorted(existing, key=lambda comment: comment.id)
    edits = [
        Edit(comment.id, body)
        for comment, body in zip(oldest_first, wanted, strict=False)
        if _marker_line(comment.body) != _marker_line(body)
        or marker.without(comment.body) != marker.without(body)
    ]
    creations = [Create(body) for body in wanted[len(oldest_first) :]]
    removals = [Remove(comment.id) for comment in oldest_first[len(wanted) :]]
    return [*edits, *creations, *removals]


def earliest(started: str, now: float) -> str | None:
    """A day before a run began (clocks differ): its comments are hardly older. None: not known.

    A run that claims to begin after `now` (seconds since 1970) was measured under a wrong clock.
    """
    try:
        began = datetime.fromisoformat(started)
        began = began if began.tzinfo else began.replace(tzinfo=UTC)
        day = min(began.timestamp(), now) - timedelta(days=1).total_seconds()
        return datetime.fromtimestamp(day, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None


def save_texts(folder: Path | None, out: Path, run: RunRow, texts: Sequence[str]) -> list[Path]:
    """Save comments that could not be posted in the run folder, else in `out`.

    Files of an earlier try are removed. Raises OSError.
    """
    below = (folder or out).absolute()
    name = "comment" if folder else "comment-" + re.sub(r"[^A-Za-z0-9.-]+", "-", run.name)[:100]
    numbers = [""] if len(texts) == 1 else [f"-{n}of{len(texts)}" for n in range(1, len(texts) + 1)]
    below.mkdir(parents=True, exist_ok=True)
    for old in below.glob(f"{name}-*of*.md"):
        old.unlink()
    paths = [below / f"{name}{number}.md" for number in numbers]
    for path, text in zip(paths, texts, strict=True):
        files.write(path, text)
    return paths


def _marker_line(body: str) -> str:
    return body.partition("\n")[0].rstrip()


def _wrote(account: int | str | None, user: Mapping[str, Any]) -> bool:
    """Whether this account wrote a comment of `user`."""
    if account is None:
        return user.get("type") == "Bot"
    return bool(user.get("id" if isinstance(account, int) else "login") == account)
