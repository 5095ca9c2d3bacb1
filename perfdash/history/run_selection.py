"""Select runs by name, id, `last`, a date, a window, or the version or commit of torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from perfdash.errors import UsageError
from perfdash.history import schema
from perfdash.history.queries import RunLine, list_runs
from perfdash.history.results import Imported
from perfdash.history.shards import COLUMNS, Shards

_DATE = r"\d{4}(?:-\d\d(?:-\d\d(?:T[\d:-]*Z?)?)?)?"
_WORDS = (
    "a run's name or id:N (several by commas), last, a date (2026-11-20), a window (2026-11-01..2026-11-10), "
    "torch==2.14.0, or a commit of torch"
)
_LARGEST_ID = 2**31 - 1  # that a column of ids can hold


def check_time(text: str, where: str) -> str:
    """A time or the beginning of one, as given. Raises UsageError for what is none."""
    whole = text + "2000-01-01T00:00:00Z"[len(text) :]
    try:
        if not re.fullmatch(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\dZ?)?)?)?)?)?", text):
            raise ValueError
        datetime.fromisoformat(whole)
    except ValueError:
        raise UsageError(
            f"{where} {text!r} is no time; give e.g. 2026-11-21 or 2026-11-21T03:00:00Z"
        ) from None
    return text


def find_run(connection: sa.Connection, name: str) -> RunLine:
    """Find a run by its name, `id:N`, or `last`: the newest that is not excluded.

    Raises UsageError where it means none, or several.
    """
    if name == "last":
        runs = list_runs(connection, latest=1, with_excluded=False) or list_runs(connection, latest=1)
    else:
        runs = named(connection, name)
    if not runs:
        latest_names = ", ".join(run.name for run in list_runs(connection, latest=5)) or "none"
        raise UsageError(f"the history has no run {name!r}; the latest in it: {latest_names}")
    return only(name, runs)


def named(connection: sa.Connection, name: str) -> list[RunLine]:
    """The runs of a name, or the one of `id:N`; oldest first."""
    if number := re.fullmatch(r"id:([0-9]+)", name):
        return list_runs(connection, ids=[min(int(number[1]), _LARGEST_ID)])
    return list_runs(connection, name=name)


def only(word: str, runs: Sequence[RunLine]) -> RunLine:
    """The one run that a word means. Raises UsageError for several, which names the latest ones."""
    if len(runs) == 1:
        return runs[0]
    choices = "; ".join(
        f"id:{run.id} ({run.name}, started {run.started} on {run.host}, {run.results} results)"
        for run in runs[-5:]
    )
    raise UsageError(f"{word!r} means {len(runs)} runs; give the id of one of them: {choices}")


def why_excluded(connection: sa.Connection, run: Imported) -> str | None:
    """Why a person excluded this run, or the run that has its shards, from judging; None if nobody did."""
    runs, shards = schema.runs, Shards.of(run.key, run.run)
    query = sa.select(*runs.c[COLUMNS], runs.c.excluded).where(runs.c.excluded.is_not(None))
    for line in connection.execute(query):
        excluded = Shards.of(line.key, line)
        if line.key == run.key or (shards.common(excluded) and shards.are_of_one_run(excluded)):
            return str(line.excluded)
    return None


def one_run(connection: sa.Connection, word: str) -> RunLine:
    """The one run that a word means, as in `select`. Raises UsageError where it means none, or several."""
    return only(word, select(connection, word))


def select(connection: sa.Connection, word: str, *, host_class: str | None = None) -> list[RunLine]:
    """Select runs by a word, oldest first. Raises UsageError if no run matches.

    An excluded run is selected by its name or id only.
    """
    found = [run for run in _matching(connection, word) if host_class in (None, run.host_class)]
    words = {part.strip() for part in word.split(",")}
    runs = [run for run in found if run.excluded is None or not words.isdisjoint((run.name, f"id:{run.id}"))]
    if word == "last":
        runs = runs[-1:]
    if found and not runs:
        raise UsageError(
            f"{word!r} means only runs that were excluded ({', '.join(run.name for run in found[-5:])}); "
            "give one of them by its name, or bring it back with `perfdash history exclude RUN --undo`"
        )
    if not runs:
        latest = ", ".join(run.name for run in list_runs(connection, latest=5)) or "none"
        raise UsageError(f"{word!r} is no run in the history; give {_WORDS}; the latest runs: {latest}")
    return runs


def _matching(connection: sa.Connection, word: str) -> list[RunLine]:
    if runs := named(connection, word):
        return runs
    if "," in word:
        several = {run.id: run for part in word.split(",") for run in select(connection, part.strip())}
        return sorted(several.values(), key=lambda run: (run.started, run.id))
    if word == "last":
        return list_runs(connection)
    if window := re.fullmatch(rf"({_DATE})?\.\.({_DATE})?", word):
        return list_runs(connection, since=_time(window[1]), until=_time(window[2]))
    if re.fullmatch(_DATE, word):
        return list_runs(connection, since=_time(word), until=_time(word))
    version = word.removeprefix("torch==")
    runs = list_runs(connection)
    if re.fullmatch(r"[0-9a-f]{7,40}", version):
        return [run for run in runs if (run.torch_git_version or "").startswith(version)]
    return [run for run in runs if run.torch and version in (run.torch, run.torch.partition("+")[0])]


def _time(word: str | None) -> str | None:
    """The prefix of a stored time; names of run folders have dashes instead of colons."""
    if word is None:
        return None
    day, letter, hour = word.partition("T")
    return day + letter + hour.replace("-", ":")
