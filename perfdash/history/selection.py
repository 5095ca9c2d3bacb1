"""Which runs a word means: names, `last`, a date, a window of dates, a version or commit of torch."""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa

from perfdash.errors import UsageError
from perfdash.history.queries import RunLine, list_runs, rows_of
from perfdash.history.rows import Imported, RunRow

_DATE = r"\d{4}(?:-\d\d(?:-\d\d(?:T[\d:-]*Z?)?)?)?"
_WORDS = (
    "a run's name (several by commas), last, a date (2026-11-20), a window (2026-11-01..2026-11-10), "
    "torch==2.14.0, or a commit of torch"
)


def select(connection: sa.Connection, word: str, *, host_class: str | None = None) -> list[RunLine]:
    """The runs that a word means, oldest first. Raises UsageError where it means none."""
    found = [run for run in _matching(connection, word) if host_class in (None, run.host_class)]
    if word == "last":
        found = found[-1:]
    if not found:
        latest = ", ".join(run.name for run in list_runs(connection, latest=5)) or "none"
        raise UsageError(f"{word!r} is no run in the history; give {_WORDS}; the latest runs: {latest}")
    return found


def _matching(connection: sa.Connection, word: str) -> list[RunLine]:
    if named := list_runs(connection, name=word):
        return named
    if "," in word:
        several = {run.name: run for each in word.split(",") for run in select(connection, each.strip())}
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
    """A beginning of a time as it is stored; the names of run folders have dashes for colons."""
    if word is None:
        return None
    day, letter, hour = word.partition("T")
    return day + letter + hour.replace("-", ":")


def read(connection: sa.Connection, line: RunLine) -> Imported:
    """A run with the numbers and details of its results, without samples."""
    worker: dict[str, Any] = {
        "torch": line.torch,
        "torch_git_version": line.torch_git_version,
        "packages": line.packages,
    }
    if line.commits:
        worker["commits"] = line.commits
    run = RunRow(
        name=line.name,
        started=line.started,
        origin=line.origin,
        source=line.source,
        host=line.host,
        host_class=line.host_class,
        setting=line.setting,
        environment={**line.facts, "worker": worker},
        state=line.state,
        noise=line.noise,
        expected=line.expected,
        method=line.method,
    )
    return Imported(run, tuple(rows_of(connection, line.id, details=True)))
