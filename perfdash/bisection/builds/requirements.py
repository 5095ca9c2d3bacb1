"""Which requirements of packages that are laid over a base are not met there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion


@dataclass(frozen=True)
class Unmet:
    """A requirement, who has it, and what is there instead (None: nothing)."""

    by: str
    requirement: str
    name: str
    have: str | None

    def __str__(self) -> str:
        return f"{self.by} needs {self.requirement}, and there is {self.have or 'none'}"


def unmet(
    of: Mapping[str, Iterable[str]], packages: Mapping[str, str], markers: Mapping[str, str]
) -> list[Unmet]:
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
                found.append(Unmet(by, f"{wanted.name}{wanted.specifier}", name, have))
    return found


def broken_by(
    overlaid: Mapping[str, str], requires: Mapping[str, Iterable[str]], markers: Mapping[str, str]
) -> list[Unmet]:
    """Requirements of the base's packages that are no longer met with `overlaid` before them."""
    others = {by: needs for by, needs in requires.items() if by not in overlaid}
    return [one for one in unmet(others, overlaid, markers) if one.have is not None]


def _suits(wanted: Requirement, have: str) -> bool:
    try:
        return wanted.specifier.contains(have, prereleases=True)
    except InvalidVersion:
        return True
