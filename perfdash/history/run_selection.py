"""Select runs by a name, `last`, a date, a window, or torch's version or commit."""

from __future__ import annotations

import re

import sqlalchemy as sa

from perfdash.errors import UsageError
from perfdash.history.queries import RunLine, list_runs

_DATE = r"\d{4}(?:-\d\d(?:-\d\d(?:T[\d:-]*Z?)?)?)?"
_WORDS = (
    "a run's name (several by commas), last, a date (2026-11-20), a window (2026-11-01..2026-11-10), "
    "torch==2.14.0, or a commit of torch"
)


def select(connection: sa.Connection, word: str, *, host_class: str | None = None) -> list[RunLine]:
    """The runs that a word selects, oldest first. Raises UsageError if there are none."""
    runs = [run for run in _matching(connection, word) if host_class in (None, run.host_class)]
    if word == "last":
        runs = runs[-1:]
    if not runs:
        latest = ", ".join(run.name for run in list_runs(connection, latest=5)) or "none"
        raise UsageError(f"{word!r} is no run in the history; give {_WORDS}; the latest runs: {latest}")
    return runs


def _matching(connection: sa.Connection, word: str) -> list[RunLine]:
    if named := list_runs(connection, name=word):
        return named
    if "," in word:
        several = {run.name: run for part in word.split(",") for run in select(connection, part.strip())}
        return sorted(several.values(), key=lambda run: run.started)
    if word == "last":
        return list_runs(connection)
    if window := re.fullmatch(rf"({_DATE})?\.\.({_DATE})?", word):
        return list_runs(connection, since=_time(window[1]), until=_time(window[2]))
    if re.fullmatch(_DATE, word):
        return list_runs(connection, since=_time(word), until=_time(word))
    version = word.removeprefix("torch==")
    every = list_runs(connection)
    if re.fullmatch(r"[0-9a-f]{7,40}", version):
        return [run for run in every if (run.torch_git_version or "").startswith(version)]
    return [run for run in every if run.torch and version in (run.torch, run.torch.partition("+")[0])]


def _time(word: str | None) -> str | None:
    """The start of a stored time; names of run folders have dashes for colons."""
    if word is None:
        return None
    day, letter, hour = word.partition("T")
    return day + letter + hour.replace("-", ":")
