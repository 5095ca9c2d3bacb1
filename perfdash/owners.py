"""Who owns which models: `[owners]` of perfdash.toml, pattern -> account or team. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from perfdash.errors import UsageError

_ACCOUNT = re.compile(r"@?([A-Za-z0-9][A-Za-z0-9-]*(?:/[A-Za-z0-9._-]+)?)")


@dataclass(frozen=True)
class Owners:
    """Patterns of suites or models, each with the accounts (`name`) and teams (`org/team`) that own them."""

    patterns: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def of(self, suite: str, model: str) -> tuple[str, ...]:
        """The owners of a model, by the last pattern that matches it; empty without one.

        A pattern selects a suite, a model, or both as `suite/model`; it ignores upper and lower case.
        """
        names = [name.lower() for name in (suite, model, f"{suite}/{model}")]
        for pattern, owners in reversed(self.patterns):
            if any(fnmatchcase(name, pattern.lower()) for name in names):
                return owners
        return ()


def read_owners(table: Any, where: str) -> Owners:
    """Read `[owners]`. Raises UsageError, which names the file and the pattern."""
    if not isinstance(table, Mapping):
        raise UsageError(
            f'{where}: write [owners] with lines such as "timm" = "alice" or "timm/vit*" = ["a/b"]'
        )
    return Owners(tuple((pattern, _accounts(given, pattern, where)) for pattern, given in table.items()))


def _accounts(given: Any, pattern: str, where: str) -> tuple[str, ...]:
    names: Sequence[Any] = given if isinstance(given, list) else [given]
    matches = [_ACCOUNT.fullmatch(name) if isinstance(name, str) else None for name in names]
    if not all(matches):
        raise UsageError(
            f"{where}: [owners] {pattern!r}: {given!r} is no account (alice) or team (org/team) of GitHub, "
            "or a list of these"
        )
    return tuple(match[1] for match in matches if match)
