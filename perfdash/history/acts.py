"""The acts of people on the history and its alerts: who did what, when and why."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass, field, fields
from typing import Any

import sqlalchemy as sa

from perfdash.errors import UsageError
from perfdash.files import now
from perfdash.history import schema
from perfdash.history.queries import RunLine, list_runs
from perfdash.history.run_selection import named, only
from perfdash.redaction import redact

REMOVE, EXCLUDE, RESTORE, RENAME = "remove", "exclude", "undo exclude", "rename"
BASELINE, INVALID, ACKNOWLEDGE = "baseline", "invalid", "acknowledge"
_LONGEST = 2000  # characters of a reason


@dataclass(frozen=True)
class Act:
    """One act of a person. `subject`: the run's name at that time, or `alert N`.

    details: `name` (of a rename: the new one), `until` (of an acknowledgement), `started`, `suite`, `model`,
    `metric`, `case_id` (of a baseline: from when on, and for which series).
    """

    act: str
    subject: str
    why: str | None = None
    testbed_id: int | None = None
    run_id: int | None = None
    alert_id: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    at: str = ""
    who: str = ""
    host: str = ""
    id: int | None = None

    @property
    def person(self) -> str:
        return f"{self.who}@{self.host}"

    def to_plain(self) -> dict[str, Any]:
        """The act as plain values for JSON."""
        return {name: getattr(self, name) for name in _PLAIN}


_PLAIN = ("id", "at", "who", "host", "act", "subject", "why", "details")
_NAMES = tuple(column.name for column in fields(Act))


def record(connection: sa.Connection, act: Act) -> Act:
    """Store an act of this user, on this host, now; return it as stored."""
    values = {name: getattr(act, name) for name in _NAMES if name != "id"}
    values |= {"at": now(), "who": _user(), "host": socket.gethostname(), "why": reason(act.why)}
    statement = sa.insert(schema.acts).values(values).returning(schema.acts.c.id)
    return Act(**values, id=int(connection.execute(statement).scalar_one()))


def reason(why: str | None) -> str | None:
    """The reason as it is stored: on one line, without secrets."""
    return redact(" ".join(why.split()))[:_LONGEST] if why is not None else None


def check_reason(why: str | None, option: str) -> str:
    """Require a reason. Raises UsageError, which names the option that needs it."""
    if why is None or not why.split():
        raise UsageError(f'{option} needs a reason that others can read later: add --because "..."')
    return str(reason(why))


def load(
    connection: sa.Connection,
    *,
    act: str | None = None,
    run_id: int | None = None,
    testbed_id: int | None = None,
) -> list[Act]:
    """Acts, oldest first: all, or those of a kind, run or testbed."""
    table = schema.acts
    query = sa.select(*table.c[_NAMES]).order_by(table.c.at, table.c.id)  # a merge copies them run by run
    wanted = {"act": act, "run_id": run_id, "testbed_id": testbed_id}
    for name, value in wanted.items():
        if value is not None:
            query = query.where(table.c[name] == value)
    return [Act(**row._mapping) for row in connection.execute(query)]


def the_run(connection: sa.Connection, name: str) -> RunLine:
    """The one run of a name, `last`, or `id:N`. Raises UsageError where it means none, or several.

    A run whose shards were merged again is found by its first name, too.
    """
    if name == "last":
        runs = list_runs(connection, latest=1)
    else:
        runs = named(connection, name)
        if not runs:
            again = [number for number, _, first in _merged_again(connection) if first == name]
            runs = list_runs(connection, ids=again)
    if runs:
        return only(name, runs)
    removed = [act for act in load(connection, act=REMOVE) if act.subject == name]
    renamed = [act for act in load(connection, act=RENAME) if act.subject == name]
    ended = ""
    if removed:
        ended = f"; {removed[-1].person} removed it on {removed[-1].at}"
    elif renamed:
        last = renamed[-1]
        ended = f"; {last.person} renamed it to {last.details.get('name')!r} on {last.at}"
    latest = ", ".join(run.name for run in list_runs(connection, latest=5)) or "none"
    raise UsageError(
        f"the history has no run {name!r}{ended}; `perfdash history runs` lists all, the latest are: {latest}"
    )


def given_name(connection: sa.Connection, run_id: int) -> str | None:
    """The name that a person gave to a run; None if it still has its own."""
    renames = load(connection, act=RENAME, run_id=run_id)
    return str(renames[-1].details["name"]) if renames else None


def first_names(connection: sa.Connection) -> dict[str, str]:
    """The names that renamed runs had at first, by their present names.

    A run is renamed by a person, and where its shards are merged again (history.ingest).
    """
    first: dict[int, str] = {}
    present: dict[int, str] = {}
    for act in load(connection, act=RENAME):
        if act.run_id is not None:
            first.setdefault(act.run_id, act.subject)
            present[act.run_id] = str(act.details["name"])
    merged_again = {name: first_name for _, name, first_name in _merged_again(connection)}
    return {name: first[run_id] for run_id, name in present.items()} | merged_again


def present_names(connection: sa.Connection) -> dict[str, str]:
    """The present names of renamed runs, by the names that they had; none that another run has now."""
    runs = schema.runs
    of_runs = {row.id: row.name for row in connection.execute(sa.select(runs.c.id, runs.c.name))}
    names = {first: name for _, name, first in _merged_again(connection)}
    for act in load(connection, act=RENAME):
        if act.run_id in of_runs:
            names[act.subject] = of_runs[act.run_id]
    return {old: name for old, name in names.items() if old not in of_runs.values()}


def _merged_again(connection: sa.Connection) -> list[tuple[int, str, str]]:
    """Id, present name and first name of each run whose shards were merged again."""
    runs = schema.runs
    query = sa.select(runs.c.id, runs.c.name, runs.c.imported).where(runs.c.origin == "perfdash")
    return [
        (run.id, run.name, str(run.imported["first_name"]))
        for run in connection.execute(query)
        if "first_name" in run.imported
    ]


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without an entry in passwd
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"
