"""Bisections as the store keeps them: entered, brought up to date, read. No judgement."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import sqlalchemy as sa

from perfdash.history import schema


@dataclass(frozen=True)
class Bisection:
    """The columns of `bisections`; `culprit` is the revision that brought the change, by its full name."""

    name: str
    started: str
    state: str
    good: str
    bad: str
    alert_id: int | None = None
    ended: str | None = None
    culprit: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


def save(connection: sa.Connection, bisection: Bisection) -> None:
    """Enters it, or replaces the one of this name."""
    table = schema.bisections
    values = {name: getattr(bisection, name) for name in _NAMES}
    known = connection.execute(sa.select(table.c.id).where(table.c.name == bisection.name)).scalar()
    if known is None:
        connection.execute(sa.insert(table).values(values))
    else:
        connection.execute(sa.update(table).where(table.c.id == known).values(values))


def load(connection: sa.Connection, *, alert_id: int | None = None) -> list[Bisection]:
    """All, or those of an alert, oldest first."""
    table = schema.bisections
    query = sa.select(*table.c[_NAMES]).order_by(table.c.started, table.c.id)
    if alert_id is not None:
        query = query.where(table.c.alert_id == alert_id)
    return [Bisection(**row._mapping) for row in connection.execute(query)]


_NAMES = tuple(each.name for each in fields(Bisection))
