"""List the commits of a git repository, first parents by default."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from perfdash.bisection.recipe_choice import DATE, End
from perfdash.bisection.recipes import Recipe
from perfdash.bisection.sources import BuildContext, Revision
from perfdash.bisection.sources.git_repository import (
    GitFailed,
    changed_files,
    end_commit,
    find,
    git,
    if_shallow,
    is_shallow,
    known_commit,
    line,
    merge_base,
    web_page,
)
from perfdash.errors import UsageError

_LABEL = 10  # characters of a commit's name
_FIELDS = "--format=%H%x00%P%x00%an%x00%ae%x00%cI%x00%s"


class GitCommits:
    """The commits of a repository, or of a pinned dependency's clone."""

    def __init__(self, repo: Path, first_parent: bool = True) -> None:
        """Raises UsageError if `repo` is not a repository."""
        self.repo = find(repo)
        if line("rev-parse", "--show-object-format", cwd=self.repo) != "sha1":
            raise UsageError(f"{self.repo}: commits named by SHA-256 cannot be bisected here")
        self._first_parent = first_parent
        self._page = web_page(self.repo)
        self.notes: list[str] = []

    def note_uncommitted_changes(self) -> None:
        """Add a note about changed files, which are not measured."""
        changed = changed_files(self.repo)
        if changed is None:
            self.notes.append(f"{self.repo}: it cannot be told whether all changes are committed")
        elif changed:
            shown = ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else "")
            files = "1 file has" if len(changed) == 1 else f"{len(changed)} files have"
            self.notes.append(f"{files} changes that are not committed: they are not measured ({shown})")

    def revisions(self, good: str, bad: str) -> list[Revision]:
        """From good to bad, both included. Raises UsageError."""
        last = self._end(bad, "--bad", "HEAD")
        first = self._end(good, "--good", last)
        if first == last:
            raise UsageError(f"--good {good} and --bad {bad} are the same commit, {first[:_LABEL]}")
        self._check_order(first, last, good, bad)
        commits = self._between(first, last)
        oldest = commits[-1]
        if first not in oldest.parents[:1]:
            self.notes.append(
                f"{good} is not on the line of first parents of {bad}: between it and "
                f"{oldest.label} more than that commit's own change lies"
            )
        return [self._commit(first), *reversed(commits)]

    def inside(self, merge: Revision, parent: int, known: Sequence[str]) -> list[list[Revision]]:
        """The commits that a merge brings by a parent, in parts: see Source.

        Raises UsageError where a shallow clone lacks the first of them.
        """
        if len(merge.parents) < parent:
            return []
        side = self._listed("--first-parent", merge.parents[parent - 1], "--not", *known)
        if not side:
            return []
        if not side[-1].parents:
            if is_shallow(self.repo):
                raise UsageError(
                    "the merged branch is cut off, since this is a shallow clone: git fetch --unshallow, "
                    "then --resume"
                )
            return []
        parts = [[self._commit(side[-1].parents[0])]]
        for commit in reversed(side):
            if self._has_merged(commit, known):
                parts.append([commit])
            else:
                parts[-1].append(commit)
        return parts[::-1]

    def _has_merged(self, commit: Revision, known: Sequence[str]) -> bool:
        """Whether a commit of a branch is a merge that brings some of the known history into it."""
        if len(commit.parents) < 2:
            return False
        brought = ("rev-list", "--count", commit.id, "--not", commit.parents[0])
        return line(*brought, cwd=self.repo) != line(*brought, *known, cwd=self.repo)

    def touched(self, revisions: Sequence[Revision]) -> list[tuple[str, ...]]:
        """The files that each revision changes against the one before it; none for the first."""
        pairs = [(later.id, earlier.id) for earlier, later in itertools.pairwise(revisions)]
        lines = "".join(f"{later} {earlier}\n" for later, earlier in pairs).encode()
        output = git(
            "diff-tree", "--stdin", "-r", "--name-only", "-z", "--no-renames", cwd=self.repo, given=lines
        )
        files: dict[str, list[str]] = {later: [] for later, _ in pairs}
        current: list[str] = []
        for word in output.decode(errors="surrogateescape").split("\0"):
            name = word.removeprefix("\n")
            if name in files and re.fullmatch(r"[0-9a-f]{40,64}", name):
                current = files[name]
            elif name:
                current.append(name)
        return [(), *(tuple(files[later]) for later, _ in pairs)] if revisions else []

    def _end(self, name: str, what: str, tip: str) -> str:
        """The commit of an end: its name, a tag or a branch, else the last commit of a day before `tip`."""
        commit = end_commit(self.repo, name, tip, what)
        if End(name).kind == DATE and known_commit(self.repo, name) is None:
            self.notes.append(f"{what} {name}: the last commit up to that day is {commit[:_LABEL]}")
        return commit

    def _between(self, first: str, last: str) -> list[Revision]:
        """The commits after `first` up to `last`, newest first.

        Only of one line: in a list of parallel lines, a change on one of them would not be a single step.
        """
        if not self._first_parent:
            commits = self._listed("--topo-order", "--ancestry-path", f"{first}..{last}")
            older = [*(commit.id for commit in commits[1:]), first]
            if all(name in commit.parents for commit, name in zip(commits, older, strict=True)):
                return commits
            self.notes.append(
                "the commits from good to bad are on several lines: their first parents are searched, and "
                "then the merge at fault, as without --all-commits"
            )
        return self._listed("--first-parent", f"{first}..{last}")

    def _check_order(self, first: str, last: str, good: str, bad: str) -> None:
        base = merge_base(self.repo, first, last)
        if base == first:
            return
        if base == last:
            raise UsageError(
                f"--good {good} comes after --bad {bad}: they are swapped. Good is the older one, "
                "whichever of them is faster"
            )
        if base is None:
            raise UsageError(f"--good {good} and --bad {bad} have no commit in common{if_shallow(self.repo)}")
        raise UsageError(
            f"--good {good} is not an ancestor of --bad {bad}: they part at {base[:_LABEL]}. "
            f"Give --good {base[:_LABEL]}, if it was good there"
        )

    def _commit(self, name: str) -> Revision:
        return self._listed("--max-count=1", name)[0]

    def _listed(self, *arguments: str) -> list[Revision]:
        """The commits that `git rev-list` names, in its order."""
        text = git("rev-list", "--encoding=UTF-8", _FIELDS, *arguments, cwd=self.repo)
        # Each is two lines, of which the first is "commit NAME".
        return [self._revision(each) for each in text.decode(errors="replace").split("\n")[1::2]]

    def _revision(self, fields: str) -> Revision:
        name, parents, author, address, date, title = fields.split("\0", 5)
        return Revision(
            id=name,
            label=name[:_LABEL],
            title=title,
            author=author or address,
            date=datetime.fromisoformat(date).isoformat(),
            parents=tuple(parents.split()),
            link=f"{self._page}/commit/{name}" if self._page else None,
        )


def open_source(recipe: Recipe, context: BuildContext) -> GitCommits:
    """The commits of --repo, or those of a pin. Raises UsageError."""
    if context.inside:
        return GitCommits(context.inside.repo, context.first_parent)
    source = GitCommits(find(context.repo), context.first_parent)
    source.note_uncommitted_changes()
    return source


def subject(repo: Path, commit: str) -> str | None:
    """The first line of a commit's message; None if the repository lacks the commit."""
    try:
        return line("show", "--no-patch", "--format=%s", "--end-of-options", f"{commit}^{{commit}}", cwd=repo)
    except GitFailed:
        return None
