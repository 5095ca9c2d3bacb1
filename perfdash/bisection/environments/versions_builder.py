"""Build a version of a package in its own folder, before the base's packages.

It is not a virtual environment: the interpreter and all other packages are the base's, and installing takes
no longer than unpacking the wheel.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from perfdash.bisection.environments import Unbuildable, pip
from perfdash.bisection.environments.build_command import Commands
from perfdash.bisection.environments.build_holds import BuildHolds
from perfdash.bisection.environments.cached_builder import CachedBuilder
from perfdash.bisection.environments.interpreter import Interpreter, probe
from perfdash.bisection.recipes import Recipe
from perfdash.bisection.sources import BuildContext, Revision
from perfdash.errors import MachineError


@dataclass(frozen=True)
class UnmetRequirement:
    """A requirement of package `by`. have: the unsuitable version of `name`, or None."""

    by: str
    requirement: str
    name: str
    have: str | None

    def __str__(self) -> str:
        return f"{self.by} needs {self.requirement}, and there is {self.have or 'none'}"


def unmet(
    of: Mapping[str, Iterable[str]], packages: Mapping[str, str], markers: Mapping[str, str]
) -> list[UnmetRequirement]:
    """The requirements (`of`: by package) that `packages` (name: version) do not meet.

    Extras and unreadable requirements are skipped.
    """
    missing = []
    for by, requirements in of.items():
        for text in requirements:
            try:
                wanted = Requirement(text)
            except InvalidRequirement:
                continue
            if wanted.marker and not wanted.marker.evaluate({**markers, "extra": ""}):
                continue
            name = canonicalize_name(wanted.name)
            have = packages.get(name)
            if have is None or not _suits(wanted, have):
                missing.append(UnmetRequirement(by, f"{wanted.name}{wanted.specifier}", name, have))
    return missing


def broken_by(
    overlaid: Mapping[str, str], requires: Mapping[str, Iterable[str]], markers: Mapping[str, str]
) -> list[UnmetRequirement]:
    """The requirements of the base's packages that are not met once `overlaid` comes before them."""
    others = {by: needs for by, needs in requires.items() if by not in overlaid}
    return [broken for broken in unmet(others, overlaid, markers) if broken.have is not None]


def _suits(wanted: Requirement, have: str) -> bool:
    try:
        return wanted.specifier.contains(have, prereleases=True)
    except InvalidVersion:
        return True


_SITE = "site"
_ROUNDS = 8  # of installing the requirements of what was installed
_NEEDED_BYTES = 256 << 20
_USUAL_S = 20.0


class VersionsBuilder(CachedBuilder):
    """Installs a version beside the base, not into it."""

    def __init__(
        self, recipe: Recipe, context: BuildContext, base: Interpreter, holds: BuildHolds | None
    ) -> None:
        assert recipe.versions
        self._recipe = recipe.versions
        self._links = pip.WheelSource.read(context.links, self._recipe.package) if context.links else None
        super().__init__(recipe, context, base, holds, thing=str(self._links or pip.configured_places()))

    @property
    def time_limit_s(self) -> float | None:
        """The recipe's."""
        return self._recipe.time_limit_s

    @property
    def needed_bytes(self) -> float:
        """A guess."""
        return _NEEDED_BYTES

    @property
    def usual_s(self) -> float:
        """A guess."""
        return _USUAL_S

    def content(self, revision: Revision) -> str:
        """The version, and its files in a folder of wheels."""
        return json.dumps([revision.id, self._files(revision.id)])

    def make(
        self, revision: Revision, place: Path, commands: Commands, fresh: bool, until_kept: ExitStack
    ) -> dict[str, Any]:
        """Run pip install --target, then install missing dependencies if the recipe says so."""
        site = place / _SITE
        # ===, since == also accepts 2.13.0+cpu for 2.13.0.
        self._install([f"{self._recipe.package}==={revision.id}"], site, commands, self._links)
        packages, requires = installed_in(site)
        if canonicalize_name(self._recipe.package) not in packages:
            raise MachineError(
                f"pip has installed no {self._recipe.package} in the given folder: does its configuration "
                "name another one (`pip config list`, PIP_DRY_RUN, PIP_ROOT)?"
            )
        if self._recipe.dependencies != "ignore":
            packages, requires = self._complete(site, packages, requires, commands)
        broken = broken_by(packages, self.base.requires, self.base.markers)
        notes = [f"with {revision.label}: {requirement}" for requirement in broken]
        return {"pythonpath": [_SITE], "folder": _SITE, "packages": packages, "notes": notes}

    def _complete(
        self, site: Path, packages: dict[str, str], requires: dict[str, list[str]], commands: Commands
    ) -> tuple[dict[str, str], dict[str, list[str]]]:
        """Install missing dependencies, or raise Unbuildable that names them."""
        installed: set[str] = set()
        for _ in range(_ROUNDS):
            missing = unmet(requires, {**self.base.packages, **packages}, self.base.markers)
            if not missing:
                return packages, requires
            wanted = {dependency.requirement for dependency in missing}
            if clash := [dependency for dependency in missing if dependency.name in packages]:
                raise Unbuildable(
                    f"{clash[0]}, which was installed beside it for another: they do not go together"
                )
            if self._recipe.dependencies == "base" or wanted <= installed:
                more = f" ({len(missing) - 1} more)" if len(missing) > 1 else ""
                hint = "; --set versions.dependencies=add installs it beside" if wanted - installed else ""
                raise Unbuildable(f"{missing[0]} in the base{more}{hint}")
            installed |= wanted
            self._install(sorted(wanted), site, commands, self._links, also_configured=True)
            packages, requires = installed_in(site)
        raise Unbuildable(
            f"what {self._recipe.package} needs does not come to an end: {', '.join(sorted(installed))}"
        )

    def _install(
        self,
        wanted: list[str],
        site: Path,
        commands: Commands,
        links: pip.WheelSource | None,
        also_configured: bool = False,
    ) -> None:
        command = [*self.base.pip(), "install", "--target", str(site), "--no-deps", "--upgrade", *wanted]
        command += ["--only-binary", ":all:"] if self._recipe.only_binary else []
        env = pip.environment(self.base, links, also_configured)
        if commands.run(*command, cwd=site.parent, env=env):
            raise Unbuildable(f"pip: {pip.complaint(commands.text())}")

    def _files(self, version: str) -> list[tuple[str, int, int]]:
        """(name, bytes, nanoseconds) of each wheel of a version in a folder."""
        if self._links is None or "://" in self._links.address:
            return []
        files = []
        for file in sorted(Path(self._links.address).glob("*.whl")):
            if pip.wheel_version(file, self._recipe.package) == Version(version):
                info = file.stat()
                files.append((file.name, info.st_size, info.st_mtime_ns))
        return files


def installed_in(site: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The packages in a folder, {name: version}, and the requirements of each."""
    packages: dict[str, str] = {}
    requires: dict[str, list[str]] = {}
    for file in site.glob("*.dist-info/METADATA"):
        metadata = HeaderParser().parsestr(file.read_text(encoding="utf-8", errors="replace"))
        name = canonicalize_name(metadata["Name"])
        packages[name] = metadata["Version"]
        requires[name] = metadata.get_all("Requires-Dist") or []
    return packages, requires


def open_builder(recipe: Recipe, context: BuildContext, holds: BuildHolds | None) -> VersionsBuilder:
    """Raises UsageError for a missing base interpreter or folder."""
    return VersionsBuilder(recipe, context, probe(context.python), holds)
