"""List the versions of a package, on an index or in a folder of wheels."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from packaging.version import InvalidVersion, Version

from perfdash.bisection.environments import pip
from perfdash.bisection.environments.interpreter import probe
from perfdash.bisection.recipes import Recipe
from perfdash.bisection.sources import BuildContext, Revision
from perfdash.bisection.sources.finer_range import commit_in_wheel
from perfdash.errors import UsageError

_NIGHTLY = re.compile(r"\.dev(20\d{6})")
_DATE = re.compile(r"(20\d\d)-?(\d\d)-?(\d\d)")


class PackageVersions:
    """The versions of one package that pip can install, in order."""

    def __init__(
        self, recipe: Recipe, versions: Sequence[str], commits: Mapping[Version, str] | None = None
    ) -> None:
        """versions: texts in any order. Invalid ones are skipped, and undated ones if ordered by date.

        commits: the commits that versions were built from, as far as wheels say.
        """
        assert recipe.versions
        self._recipe = recipe.versions
        self._commits = commits or {}
        self.notes: list[str] = []
        self._versions = ordered(versions, by_date=self._recipe.order == "date")

    def revisions(self, good: str, bad: str) -> list[Revision]:
        """From good to bad, both included. Raises UsageError."""
        first, last = self._named(good, "--good"), self._named(bad, "--bad")
        if first == last:
            raise UsageError(f"--good {good} and --bad {bad} are the same version, {first}")
        start, end = self._versions.index(first), self._versions.index(last)
        if start > end:
            raise UsageError(
                f"--good {good} comes after --bad {bad}: they are swapped. Good is the older one, "
                "whichever of them is faster"
            )
        between = self._versions[start : end + 1]
        if first.local == last.local:  # +cpu and +cu128 of one night are not neighbours
            between = [version for version in between if version.local == first.local]
        return [self._revision(version) for version in between]

    def inside(self, merge: Revision, parent: int, known: Sequence[str]) -> list[list[Revision]]:
        """Empty: a version is not a merge."""
        return []

    def touched(self, revisions: Sequence[Revision]) -> list[tuple[str, ...]]:
        """Empty: the files that a version changes are unknown."""
        return [() for _ in revisions]

    def _named(self, name: str, what: str) -> Version:
        """The version of a name, which may lack the local part, or be a date."""
        day = _DATE.fullmatch(name)
        if day and self._recipe.order == "date":
            return self._of_day("".join(day.groups()), name, what)
        try:
            wanted = Version(name)
        except InvalidVersion as error:
            raise UsageError(f"{what} {name!r} is no version{self._near(name)}") from error
        if wanted in self._versions:
            return wanted
        alike = [version for version in self._versions if version.public == str(wanted)]
        if len(alike) == 1:
            return alike[0]
        package = self._recipe.package
        if alike:
            raise UsageError(f"{what} {name} of {package} may be {' or '.join(map(str, alike))}: say which")
        pre = wanted.is_prerelease and not self._recipe.pre
        hint = "; pre-releases are left out (--set versions.pre=true)" if pre else self._near(name)
        raise UsageError(
            f"{what} {name}: no such version of {package} for this interpreter, or it was withdrawn{hint}"
        )

    def _of_day(self, day: str, name: str, what: str) -> Version:
        builds = [version for version in self._versions if _day(version) == day]
        if len(builds) == 1:
            return builds[0]
        if builds:
            raise UsageError(f"{what} {name} may be {' or '.join(map(str, builds))}: give the version")
        days = sorted({_day(version) for version in self._versions})
        earlier = [other for other in days if other < day][-1:]
        later = [other for other in days if other > day][:1]
        near = " and ".join(_iso(other) for other in (*earlier, *later))
        raise UsageError(f"{what} {name}: no build of that day{f'; the nearest: {near}' if near else ''}")

    def _near(self, name: str) -> str:
        close = difflib.get_close_matches(name, [str(version) for version in self._versions], n=4, cutoff=0.5)
        return f" (did you mean {', '.join(close)}?)" if close else ""

    def _revision(self, version: Version) -> Revision:
        package, link = self._recipe.package, self._recipe.link
        day, commit = _day(version), self._commits.get(version)
        return Revision(
            id=str(version),
            label=str(version),
            title=f"{package} {version}" + (f" of commit {commit[:10]}" if commit else ""),
            date=_iso(day) if day else "",
            link=link.format(package=package, version=version) if link else None,
        )


def ordered(texts: Sequence[str], by_date: bool = False) -> list[Version]:
    """Sort versions, oldest first, by PEP 440. by_date: by `dev20261101`, without undated ones."""
    versions = set()
    for text in texts:
        try:
            versions.add(Version(text))
        except InvalidVersion:
            pass  # from before PEP 440
    if by_date:
        return sorted((v for v in versions if _day(v)), key=lambda v: (_day(v), v))
    return sorted(versions)


def open_source(recipe: Recipe, context: BuildContext) -> PackageVersions:
    """List the versions by pip. Raises UsageError, and MachineError if the index cannot be reached."""
    wanted = recipe.versions
    assert wanted
    if context.links is None and wanted.only_binary:
        raise UsageError(
            f"--recipe {recipe.name}: say where the wheels are: --wheels FOLDER, or the address of an index"
        )
    links = pip.WheelSource.read(context.links, wanted.package) if context.links else None
    versions = pip.versions(
        probe(context.python), wanted.package, pre=wanted.pre, only_binary=wanted.only_binary, links=links
    )
    source = PackageVersions(recipe, versions, _commits(recipe, links))
    if wanted.order == "date" and not ordered(versions, by_date=True):
        raise UsageError(
            f"no version of {wanted.package} has a date in it, as 2.15.0.dev20261101; "
            f"use wheels:{wanted.package}"
        )
    return source


def _commits(recipe: Recipe, links: pip.WheelSource | None) -> dict[Version, str]:
    """The commit that each wheel of a folder was built from, read without installing it."""
    assert recipe.versions
    if links is None or "://" in links.address or not recipe.versions.commit_file:
        return {}
    commits = {}
    for wheel in sorted(Path(links.address).glob("*.whl")):
        version = pip.wheel_version(wheel, recipe.versions.package)
        commit = commit_in_wheel(recipe, wheel) if version else None
        if version and commit:
            commits[version] = commit
    return commits


def day_of(text: str) -> str:
    """The day of a date or of a nightly version as 20261101; empty if it has none."""
    day = _DATE.fullmatch(text)
    nightly = _NIGHTLY.search(text)
    return "".join(day.groups()) if day else nightly[1] if nightly else ""


def _day(version: Version) -> str:
    match = _NIGHTLY.search(str(version))
    return match[1] if match else ""


def _iso(day: str) -> str:
    try:
        return date(int(day[:4]), int(day[4:6]), int(day[6:])).isoformat()
    except ValueError:
        return day
