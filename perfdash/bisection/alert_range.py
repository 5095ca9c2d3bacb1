"""The revisions between the nights of an alert, and the recipe for what changed there."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from perfdash.bisection.recipe_choice import NIGHTLY, TORCH, End
from perfdash.bisection.recipes import Recipe, load_recipes
from perfdash.bisection.sources.finer_range import main_commit
from perfdash.bisection.sources.git_repository import commit_of, find, merge_base
from perfdash.bisection.sources.versions_source import ordered
from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.environment_changes import NOT_OF_A_BUILD, build_changes
from perfdash.errors import UsageError
from perfdash.history.queries import RunLine

# Packages whose wheels come with a nightly of torch, under versions of their own.
_OF_TORCH = {"pytorch-triton", "triton"}
_NOTED = 10  # changes beside the searched one that a note names


@dataclass(frozen=True)
class AlertRange:
    """The older and the newer revision that the nights of an alert measured, as a recipe names them.

    went_back: the later night measured the older one, so the alert is the loss of a change between them.
    beside: what changed between the nights, too, and is not searched: lines `name: old | new`.
    """

    good: str
    bad: str
    went_back: bool = False
    beside: tuple[str, ...] = ()

    def notes(self, number: int) -> list[str]:
        """What the user of a bisection of this alert must know about it."""
        notes = []
        if self.went_back:
            notes.append(
                f"alert {number}: its nights went from {_short(self.bad)} back to {_short(self.good)}. What "
                "it shows is the loss of a change between the two: the change at its culprit has the other "
                "sign"
            )
        if self.beside:
            more = len(self.beside) - _NOTED
            shown = "; ".join(self.beside[:_NOTED]) + (f"; and {more} more" if more > 0 else "")
            notes.append(
                f"alert {number}: between its nights this changed, too, and is not searched: {shown}"
            )
        return notes


def alert_range(evidence: AlertEvidence, recipe: str, repo: Path | None) -> AlertRange:
    """The revisions of an alert, as a recipe names them. Raises UsageError if they are unknown."""
    number = evidence.alert.id or 0
    good, bad = evidence.between
    if good is None or bad is None:
        raise UsageError(f"--alert {number}: the runs around it were pruned; give --good and --bad")
    rung = load_recipes(recipe)[0]
    package = rung.versions.package if rung.versions else None
    commits = _commits(good, bad, repo, number) if package is None and repo else {}
    ends = next(iter(commits.values()), None)
    first, last = ends or (_version(run, package, number) for run in (good, bad))
    if package is None and repo:
        first, last = main_commit(repo, first), main_commit(repo, last)
    if first == last:
        raise UsageError(
            f"--alert {number}: both nights measured {package or 'commit'} {first}: it was "
            "something else that changed; `perfdash regressions` shows what"
            + ("" if package or repo else "; where it is a package, give its --repo PATH")
        )
    beside = _beside(good, bad, {package} if package else {*commits} or {TORCH}, of_wheel=package == TORCH)
    if _is_newer(first, last, rung, repo):
        return AlertRange(last, first, went_back=True, beside=beside)
    return AlertRange(first, last, beside=beside)


def _beside(good: RunLine, bad: RunLine, searched: Collection[str], of_wheel: bool) -> tuple[str, ...]:
    """What changed between two nights beside the searched packages, `name: old | new`.

    of_wheel: wheels of torch are searched. Triton, and the nightlies of other packages, change with them.
    """
    if not (good.packages and bad.packages):
        return ()  # imported runs may not have recorded them
    names = {*searched}
    if of_wheel:
        both = good.packages.keys() & bad.packages.keys()
        names |= {name for name in both if {End(run.packages[name]).kind for run in (good, bad)} == {NIGHTLY}}
        names |= _OF_TORCH
    left_out = {canonicalize_name(name) for name in names}
    changes = ((line.partition(":")[0], line) for line in build_changes(good, bad))
    return tuple(line for name, line in changes if canonicalize_name(name) not in left_out)


def _is_newer(first: str, last: str, recipe: Recipe, repo: Path | None) -> bool:
    """Whether the first of two revisions comes after the last, in the order of a recipe's revisions."""
    if recipe.versions is None:
        return repo is not None and merge_base(find(repo), first, last) == last
    versions = ordered((first, last), by_date=recipe.versions.order == "date")
    return len(versions) == 2 and versions[0] == Version(last)


def _short(revision: str) -> str:
    return revision[:10] if re.fullmatch(r"[0-9a-f]{40,64}", revision) else revision


def recipe_of_alert(evidence: AlertEvidence, repo: Path | None, wheels: bool) -> str:
    """The recipe for what changed at an alert, where the user names none. Raises UsageError.

    repo: the repository that is meant, if any; wheels: --wheels was given.
    """
    number = evidence.alert.id or 0
    good, bad = evidence.between
    if good is None or bad is None:
        raise UsageError(f"--alert {number}: the runs around it were pruned; give --recipe, --good and --bad")
    if repo is not None:
        try:
            return "git" if _commits(good, bad, repo, number) else "pytorch-source"
        except UsageError:
            if any(_has_both(find(repo), ends) for ends in _moved(good, bad).values()):
                raise
            # It is the repository of something else.
    before, after = ({**run.packages, **({TORCH: run.torch} if run.torch else {})} for run in (good, bad))
    both = (before.keys() & after.keys()) - NOT_OF_A_BUILD
    changed = sorted(name for name in both if before[name] != after[name])
    kinds = {name: {End(run[name]).kind for run in (before, after)} for name in changed}
    nightlies = [name for name in changed if kinds[name] == {NIGHTLY}]
    recipes = ["nightly"] if TORCH in nightlies else []
    # PyPI has no nightlies.
    recipes += [f"{'wheels' if wheels or NIGHTLY in kinds[name] else 'pypi'}:{name}" for name in changed]
    no_reason = NOT_OF_A_BUILD.union(changed)
    moved = {name: ends for name, ends in _moved(good, bad).items() if name not in no_reason}
    is_of_one = len(changed) == 1 or (TORCH in nightlies and {*changed} <= {*nightlies, *_OF_TORCH})
    if is_of_one and not moved:
        return recipes[0]
    packages = ", ".join(
        [f"{name} {before[name]} -> {after[name]}" for name in changed]
        + [f"{name} {' -> '.join(map(_short, ends))}" for name, ends in moved.items()]
    )
    fetched = f" (git fetch, if {repo} is one)" if repo else ""
    clone = f"a clone of the package to search, --repo PATH{fetched}"
    if moved and not changed:
        raise UsageError(f"--alert {number}: between its nights {packages} changed: give {clone}")
    raise UsageError(
        f"--alert {number}: say how a version becomes a build, by --recipe: "
        + (f"between its nights {packages} changed" if changed else "no package changed between its nights")
        + (f", e.g. --recipe {recipes[0]}" if changed else "; --recipe git takes commits of --repo")
        + (f", or give {clone}" if moved else "")
    )


def _moved(good: RunLine, bad: RunLine) -> dict[str, tuple[str, str]]:
    """The old and the new commit of each package that came to another one; torch is the last."""
    before, after = ({**run.commits, TORCH: run.torch_git_version or ""} | run.commits for run in (good, bad))
    return {
        name: (before[name], commit)
        for name, commit in after.items()
        if commit and before.get(name) and before[name] != commit
    }


def _commits(good: RunLine, bad: RunLine, repo: Path, number: int) -> dict[str, tuple[str, str]]:
    """The ends of the changed packages whose commits the repository has, which are the same; {}: torch's.

    Raises UsageError if there are several ranges, or none.
    """
    folder, moved = find(repo), _moved(good, bad)
    mine = {name: ends for name, ends in moved.items() if name in bad.commits and _has_both(folder, ends)}
    if len(set(mine.values())) > 1:
        raise UsageError(
            f"--alert {number}: {', '.join(mine)} are all of --repo {repo}, and changed to other commits: "
            "give --good and --bad"
        )
    if mine or (TORCH in moved and _has_both(folder, moved[TORCH])):
        return mine
    raise UsageError(
        f"--alert {number}: between the two nights no package came to another commit of --repo {repo}; "
        + (f"other commits: {', '.join(moved)} (git fetch?)" if moved else "no commit changed at all")
        + "; `perfdash regressions` shows what did, or give --good and --bad"
    )


def _has_both(repo: Path, ends: tuple[str, str]) -> bool:
    try:
        return all(commit_of(repo, commit) == commit for commit in ends)
    except UsageError:
        return False


def _version(run: RunLine, package: str | None, number: int) -> str:
    """The version of the package that a run measured, or torch's commit."""
    if package is None:
        measured = run.torch_git_version
    else:
        packages = {canonicalize_name(name): version for name, version in run.packages.items()}
        measured = packages.get(canonicalize_name(package))
        measured = run.torch if measured is None and package == TORCH else measured
    if not measured:
        raise UsageError(
            f"--alert {number}: {run.name} does not say which {package or 'commit of torch'} it measured; "
            "give --good and --bad"
        )
    return measured
