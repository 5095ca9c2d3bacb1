"""The open alerts of the history as bisections see them: by cause, each with the member to bisect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from packaging.version import InvalidVersion, Version

from perfdash.bisection.alert_range import alert_range
from perfdash.bisection.recipes import load_recipes
from perfdash.bisection.sources.git_repository import (
    GitFailed,
    end_commit,
    find,
    git,
    known_commit,
)
from perfdash.bisection.sources.versions_source import day_of
from perfdash.detect.alert_evidence import AlertEvidence, gather
from perfdash.detect.causes import Cause, can_be_bisected, causes, strongest
from perfdash.errors import UsageError
from perfdash.history import alert_store
from perfdash.history.alert_store import LIVE, SHOWN


@dataclass(frozen=True)
class AlertGroup:
    """The open alerts of one cause. chosen: the member that is bisected for all."""

    cause: Cause
    members: tuple[AlertEvidence, ...]
    chosen: AlertEvidence

    @property
    def number(self) -> int:
        """The number of the alert that is bisected."""
        return self.chosen.alert.id or 0


def alert_groups(connection: sa.Connection, here: str) -> list[AlertGroup]:
    """The open alerts by cause, the worst cause first.

    Suspected alerts help to date a cause, and are not bisected. A cause of which no member can be bisected
    has the whole host's alert, or the first, as `chosen`. Of a cause on several kinds of hosts, an alert of
    this one, `here`, is chosen: the changes of others may not show here.
    """
    groups = []
    for cause in causes(gather(connection, alert_store.load(connection, states=SHOWN))):
        members = tuple(member for member in cause.members if member.alert.state in LIVE)
        if members:
            of_here = [member for member in members if member.bad and member.bad.host_class == here]
            chosen = strongest(of_here or members)
            groups.append(
                AlertGroup(cause, members, chosen if can_be_bisected(chosen) else strongest(members))
            )
    return groups


def lying_between(
    groups: Sequence[AlertGroup], good: str, bad: str, recipe: str, repo: Path | None
) -> list[AlertGroup]:
    """The groups that can be bisected and whose range overlaps that of two revisions of a recipe."""
    overlap = _CommitRange(good, bad, repo) if load_recipes(recipe)[0].kind == "commits" else None
    chosen = []
    for group in groups:
        try:
            measured = alert_range(group.chosen, recipe, repo)
        except UsageError:
            continue  # it is of another package, or its runs were pruned
        ends = measured.good, measured.bad
        inside = overlap(*ends) if overlap else _overlap_of_versions(good, bad, *ends)
        if inside and can_be_bisected(group.chosen):
            chosen.append(group)
    return chosen


class _CommitRange:
    """Whether ranges of commits overlap one range."""

    def __init__(self, good: str, bad: str, repo: Path | None) -> None:
        self._repo = find(repo)
        self._bad = end_commit(self._repo, bad, "HEAD", "--bad")
        self._good = end_commit(self._repo, good, self._bad, "--good")

    def __call__(self, first: str, last: str) -> bool:
        ends = [known_commit(self._repo, name) for name in (first, last)]
        if None in ends:
            return False
        starts_before_bad = not self._has(ends[0] or "", self._bad)
        ends_after_good = not self._has(self._good, ends[1] or "")
        return starts_before_bad and ends_after_good

    def _has(self, commit: str, ancestor: str) -> bool:
        """Whether `ancestor` is `commit` or one of its ancestors."""
        try:
            git("merge-base", "--is-ancestor", ancestor, commit, cwd=self._repo)
        except GitFailed:
            return False
        return True


def _overlap_of_versions(good: str, bad: str, first: str, last: str) -> bool:
    keys = [_version_key(text) for text in (good, bad, first, last)]
    if None in keys:
        return False
    if all(isinstance(key, str) for key in keys):
        good_key, bad_key, first_key, last_key = (str(key) for key in keys)
        return first_key < bad_key and last_key > good_key
    versions = [key for key in keys if isinstance(key, Version)]
    return len(versions) == 4 and _is_later(versions[1], versions[2]) and _is_later(versions[3], versions[0])


def _is_later(version: Version, than: Version) -> bool:
    """Whether a version is later than another one. 2.15.0 may be any build of it, such as 2.15.0+cpu."""
    if version.local is None or than.local is None:
        return Version(version.public) > Version(than.public)
    return version > than


def _version_key(text: str) -> Version | str | None:
    """The day of a date or nightly version (20261101), else the version."""
    if day := day_of(text):
        return day
    try:
        return Version(text)
    except InvalidVersion:
        return None
