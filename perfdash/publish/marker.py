"""The hidden first line by which perfdash recognises its own comments and issues. Pure.

Values are percent-encoded, so that none can end the marker or look like another field.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

_VERSION = 1
_LONGEST = 150
# A value of `shards`. It is never digested as a whole, because its parts are compared.
_SHARDS = re.compile(r"[0-9a-f]{12}(\.[0-9a-f]{12})*")
_LINE = re.compile(r"<!-- perfdash:(\d+) ([a-z]+)((?: [a-z]+=[^\s>]*)+) -->")


def marker(kind: str, **fields: object) -> str:
    """The marker line; kind and field names are lower-case letters, values anything."""
    pairs = "".join(f" {name}={_encoded(str(value))}" for name, value in fields.items())
    return f"<!-- perfdash:{_VERSION} {kind}{pairs} -->"


def read(body: str | None, kind: str) -> dict[str, str] | None:
    """The fields of a body's marker; None without a marker of this kind.

    Only the first line counts: a quotation has it behind a `>`, or further down.
    """
    first = (body or "").split("\n", 1)[0].rstrip()
    match = _LINE.fullmatch(first)
    if not match or int(match[1]) != _VERSION or match[2] != kind:
        return None
    pairs = (word.partition("=") for word in match[3].split())
    return {name: unquote(value) for name, _, value in pairs}


def has(fields: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether a marker has these fields, or at least half of the shards: then it is of the same merged run.

    A merge with fewer may be of the next night, with a shard of this one. Half of the smaller run's shards
    are enough. Old markers without `started` or `shards` match any.
    """
    theirs, own = _shards_of(fields), _shards_of(wanted)
    if theirs and own and 2 * len(theirs & own) >= min(len(theirs), len(own)):
        return True
    return all(
        fields.get(name, value if name in ("started", "shards") else None) == value
        for name, value in wanted.items()
    )


def shards(names: Iterable[str]) -> str:
    """The field `shards` of a merged run: a short digest of the key, or else the name, of each shard."""
    return ".".join(sorted({_short_digest(name) for name in names}))


def _shards_of(fields: Mapping[str, str]) -> set[str]:
    if "shards" in fields:
        return set(fields["shards"].split("."))
    # Earlier versions wrote the name of one shard.
    return {_short_digest(fields["shard"])} if "shard" in fields else set()


def _short_digest(name: str) -> str:
    return hashlib.sha256(known_as(name).encode()).hexdigest()[:12]


def known_as(name: str) -> str:
    """A value as `read` returns it: invalid text replaced, a long one digested, except `shards`."""
    name = name.encode("utf-8", "replace").decode()
    if len(quote(name, safe="")) <= _LONGEST or _SHARDS.fullmatch(name):
        return name
    return "sha256:" + hashlib.sha256(name.encode()).hexdigest()


def without(body: str | None) -> str:
    """A body without its marker, with plain line ends, to compare texts."""
    text = (body or "").replace("\r\n", "\n")
    first, _, rest = text.partition("\n")
    return (rest if _LINE.fullmatch(first.rstrip()) else text).strip()


def same(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """Whether two markers belong to the same alert: same series, born on the same run.

    The run stays when a history is made anew from its run folders. Where the history no longer has it (it
    was pruned), the time at which the alert was opened decides.
    """
    if first.get("series") != second.get("series"):
        return False
    name = "born" if first.get("born") and second.get("born") else "opened"
    return bool(first.get(name)) and first.get(name) == second.get(name)


def _encoded(value: str) -> str:
    # An HTML comment must not hold two hyphens.
    return quote(known_as(value), safe="").replace("--", "-%2D")
