"""A version of a package as an environment: installed into a folder of its own, before the base's packages.

Not a virtual environment: all other packages are the base's own files, the interpreter is the base's, and
making one takes no longer than unpacking the wheel.
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
from perfdash.bisection.environments.cached_builder import CachedBuilder
from perfdash.bisection.environments.interpreter import Interpreter, look_at
from perfdash.bisection.recipes import Recipe
from perfdash.bisection.sources import BuildContext, Revision
from perfdash.errors import MachineError


@dataclass(frozen=True)
class UnmetRequirement:
    """A requirement, who has it, and what is there instead (None: nothing)."""

    by: str
    requirement: str
    name: str
    have: str | None

    def __str__(self) -> str:
        return f"{self.by} needs {self.requirement}, and there is {self.have or 'none'}"


def unmet(
    of: Mapping[str, Iterable[str]], packages: Mapping[str, str], markers: Mapping[str, str]
) -> list[UnmetRequirement]:
    """Requirements (`of`: by the package that has them) that `packages` (name: version) do not meet.

    Extras are not asked for. A requirement that cannot be read is left to pip and to the import.
    """
    found = []
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
                found.append(UnmetRequirement(by, f"{wanted.name}{wanted.specifier}", name, have))
    return found


def broken_by(
    overlaid: Mapping[str, str], requires: Mapping[str, Iterable[str]], markers: Mapping[str, str]
) -> list[UnmetRequirement]:
    """Requirements of the base's packages that are no longer met with `overlaid` before them."""
    others = {by: needs for by, needs in requires.items() if by not in overlaid}
    return [one for one in unmet(others, overlaid, markers) if one.have is not None]


def _suits(wanted: Requirement, have: str) -> bool:
    try:
        return wanted.specifier.contains(have, prereleases=True)
    except InvalidVersion:
        return True


_SITE = "site"
_ROUNDS = 8  # of adding what the added needs
_NEEDED_BYTES = 256 << 20
_USUAL_S = 20.0


class VersionsBuilder(CachedBuilder):
    """Installs one version beside, not into, the base."""

    def __init__(self, recipe: Recipe, where: BuildContext, base: Interpreter) -> None:
        assert recipe.versions
        self._said = recipe.versions
        self._links = pip.WheelSource.read(where.links, self._said.package) if where.links else None
        super().__init__(recipe, where, base, thing=str(self._links or pip.configured_places()))

    @property
    def time_limit_s(self) -> float | None:
        """The recipe's."""
        return self._said.time_limit_s

    @property
    def needed_bytes(self) -> float:
        """A guess."""
        return _NEEDED_BYTES

    @property
    def usual_s(self) -> float:
        """A guess."""
        return _USUAL_S

    def content(self, revision: Revision) -> str:
        """The version, and which files in a folder of wheels it would be taken from."""
        return json.dumps([revision.id, self._files(revision.id)])

    def make(
        self, revision: Revision, place: Path, commands: Commands, fresh: bool, until_kept: ExitStack
    ) -> dict[str, Any]:
        """pip install --target, then what is missing beside it, if the recipe wants that."""
        site = place / _SITE
        # ===, since == takes 2.13.0+cpu for 2.13.0.
        self._install([f"{self._said.package}==={revision.id}"], site, commands, self._links)
        packages, requires = installed_in(site)
        if canonicalize_name(self._said.package) not in packages:
            raise MachineError(
                f"pip has installed no {self._said.package} where it was told to: does its configuration say "
                "something else (`pip config list`, PIP_DRY_RUN, PIP_ROOT)?"
            )
        if self._said.dependencies != "ignore":
            packages, requires = self._complete(site, packages, requires, commands)
        broken = broken_by(packages, self.base.requires, self.base.markers)
        notes = [f"with {revision.label}: {one}" for one in broken]
        return {"pythonpath": [_SITE], "folder": _SITE, "packages": packages, "notes": notes}

    def _complete(
        self, site: Path, packages: dict[str, str], requires: dict[str, list[str]], commands: Commands
    ) -> tuple[dict[str, str], dict[str, list[str]]]:
        """Adds what is missing or does not suit, or says so."""
        asked: set[str] = set()
        for _ in range(_ROUNDS):
            missing = unmet(requires, {**self.base.packages, **packages}, self.base.markers)
            if not missing:
                return packages, requires
            wanted = {one.requirement for one in missing}
            if clash := [one for one in missing if one.name in packages]:
                raise Unbuildable(
                    f"{clash[0]}, which was installed beside it for another: they do not go together"
                )
            if self._said.dependencies == "base" or wanted <= asked:
                more = f" ({len(missing) - 1} more)" if len(missing) > 1 else ""
                hint = "; --set versions.dependencies=add installs it beside" if wanted - asked else ""
                raise Unbuildable(f"{missing[0]} in the base{more}{hint}")
            asked |= wanted
            self._install(sorted(wanted), site, commands, self._links, also_configured=True)
            packages, requires = installed_in(site)
        raise Unbuildable(
            f"what {self._said.package} needs does not come to an end: {', '.join(sorted(asked))}"
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
        command += ["--only-binary", ":all:"] if self._said.only_binary else []
        env = pip.environment(self.base, links, also_configured)
        if commands.run(*command, cwd=site.parent, env=env):
            raise Unbuildable(f"pip: {pip.complaint(commands.text())}")

    def _files(self, version: str) -> list[tuple[str, int, int]]:
        """(name, bytes, nanoseconds) of the wheels of a version, where they are in a folder."""
        if self._links is None or "://" in self._links.address:
            return []
        found = []
        for file in sorted(Path(self._links.address).glob("*.whl")):
            if pip.wheel_version(file, self._said.package) == Version(version):
                info = file.stat()
                found.append((file.name, info.st_size, info.st_mtime_ns))
        return found


def installed_in(site: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Packages in a folder, {name: version}, and what each requires."""
    packages: dict[str, str] = {}
    requires: dict[str, list[str]] = {}
    for file in site.glob("*.dist-info/METADATA"):
        said = HeaderParser().parsestr(file.read_text(encoding="utf-8", errors="replace"))
        name = canonicalize_name(said["Name"])
        packages[name] = said["Version"]
        requires[name] = said.get_all("Requires-Dist") or []
    return packages, requires


def open_builder(recipe: Recipe, where: BuildContext) -> VersionsBuilder:
    """Raises UsageError for a base interpreter or a folder that is not there."""
    return VersionsBuilder(recipe, where, look_at(where.python))
