"""Metrics of other programs that perfdash has no column for, night by night."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from perfdash.history import schema
from perfdash.site.history import History
from perfdash.site.trends import Line

MOST = 8  # metrics of a case that are drawn; the newest values of all stand in a table
_CHUNK = 100  # runs in one query

Others = Mapping[int, Mapping[str, Mapping[int, float]]]  # by case, name and place among the recent nights


def read_others(connection: sa.Connection, history: History) -> Others:
    """Of the nights that are drawn one by one; nothing, and at once, where no program had any."""
    table, results = schema.other_metrics, schema.results
    if connection.execute(sa.select(table.c.result_id).limit(1)).first() is None:
        return {}
    place = {history.recent[night].id: night for night in range(history.daily, len(history.recent))}
    columns = results.c.case_id, results.c.run_id, table.c.name, table.c.value
    found: dict[int, dict[str, dict[int, float]]] = {}
    for start in range(0, len(place), _CHUNK):
        some = list(place)[start : start + _CHUNK]
        query = sa.select(*columns).join_from(table, results, table.c.result_id == results.c.id)
        for case_id, run_id, name, value in connection.execute(query.where(results.c.run_id.in_(some))):
            found.setdefault(case_id, {}).setdefault(name, {})[place[run_id]] = value
    return found


def other_lines(values: Mapping[str, Mapping[int, float]], weekly: int, nights: Sequence[int]) -> list[Line]:
    """A line each of the first MOST metrics, by name: `weekly` empty points, then one a night."""
    lines: list[Line] = []
    for name in sorted(values)[:MOST]:
        known = [values[name].get(night, math.nan) for night in nights]
        empty = [math.nan] * (weekly + len(nights))
        line: list[float | None] = [*empty[:weekly], *known]
        hint = "as the other program has it"
        lines.append(Line(f"other-{len(lines) + 1}", name, hint, line, list(empty), list(empty)))
    return lines
