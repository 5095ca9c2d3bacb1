"""Choose the recipe from the two ends as the user typed them. Pure: it asks no repository and no index.

docs/bisect.md has these rules as a table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import Literal

from packaging.version import InvalidVersion, Version

from perfdash.errors import UsageError

DATE, NIGHTLY, VERSION, NAME = "date", "nightly", "version", "name"
Kind = Literal["date", "nightly", "version", "name"]
TORCH = "torch"
_DATE = re.compile(r"(20\d\d)-(\d\d)-(\d\d)")
_NIGHTLY = re.compile(r"dev20\d{6}")
# A bare number is rather the beginning of a commit's name; a version has a point.
_VERSION = re.compile(r"v?\d+(\.\d+)+\S*")


@dataclass(frozen=True)
class End:
    """An end of the range as typed. is_commit: the repository has a commit, tag or branch of that name."""

    text: str
    is_commit: bool = False

    @property
    def kind(self) -> Kind:
        """What it looks like: a date, a nightly version, a release version, or any other name."""
        if day := _DATE.fullmatch(self.text):
            try:
                date(*map(int, day.groups()))
            except ValueError:
                return "name"
            return "date"
        if not _VERSION.fullmatch(self.text):
            return "name"
        try:
            Version(self.text)
        except InvalidVersion:
            return "name"
        return "nightly" if _NIGHTLY.search(self.text) else "version"


def choose_recipe(
    good: End,
    bad: End,
    *,
    command: bool = False,
    repository: bool = False,
    wheels: bool = False,
    package: str = TORCH,
) -> str:
    """The recipe of two ends, where the user names none. Raises UsageError if it cannot be told.

    command: a command is measured. repository: one is meant. wheels: it is known where wheels are. package:
    the package that versions are of.
    """
    ends = (good, bad)
    kinds = {end.kind for end in ends}
    commits = "command" if command else "git"
    if repository and all(end.is_commit or end.kind == DATE for end in ends):
        return commits
    if kinds <= {DATE, NIGHTLY}:
        return "nightly"
    if kinds == {VERSION}:
        if wheels:
            return f"wheels:{package}"
        if not any(end.is_commit for end in ends):
            return f"pypi:{package}"
        return commits  # one of both is a tag: git tells which tags are near the other
    if NAME not in kinds and wheels:
        return f"wheels:{package}"
    if repository:
        return commits
    if NAME in kinds:
        name = next(end.text for end in ends if end.kind == NAME)
        raise UsageError(
            f"{name!r} is no version and no date, so it is a commit, and there is no repository here: "
            "change to its folder, or give --repo PATH"
        )
    raise UsageError(
        f"--good {good.text} is a {_WORDS[good.kind]} and --bad {bad.text} a {_WORDS[bad.kind]}: say by "
        f"--recipe how both become builds, e.g. --recipe wheels:{package} --wheels FOLDER"
    )


_WORDS = {DATE: "date", NIGHTLY: "nightly version", VERSION: "version", NAME: "name"}
