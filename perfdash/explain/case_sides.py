"""Find the two sides of an explanation: a case of a run, and the runs around an alert's change."""

from __future__ import annotations

import fnmatch
from dataclasses import replace

import sqlalchemy as sa

from perfdash.detect.causes import gather_in_causes
from perfdash.errors import UsageError
from perfdash.explain.structure_comparison import Explanation, compare, side_of
from perfdash.history import alert_store
from perfdash.history.maintenance import read_stored_run
from perfdash.history.results import Imported, Row
from perfdash.records import Case


def row_of(run: Imported, pattern: str) -> Row:
    """The one result whose model, or name of the case, matches. Raises UsageError for none and several."""
    rows = [
        row
        for row in run.rows
        if fnmatch.fnmatchcase(row.case.model.lower(), pattern.lower())
        or fnmatch.fnmatchcase(row.case.name.lower(), pattern.lower())
    ]
    if len(rows) == 1:
        return rows[0]
    if rows:
        names = ", ".join(row.case.name for row in rows[:5])
        raise UsageError(f"{pattern!r} matches {len(rows)} cases of {run.run.name}; give one of: {names}")
    models = ", ".join(sorted({row.case.model for row in run.rows})[:20]) or "none"
    raise UsageError(f"{pattern!r} matches no model of {run.run.name}; there are: {models}")


def row_of_case(run: Imported, case: Case) -> Row:
    """The result of a case; of another batch size where the case itself was not measured."""
    for row in run.rows:
        if row.case == case:
            return row
    alike = [row for row in run.rows if replace(row.case, batch_size=case.batch_size) == case]
    if len(alike) == 1:
        return alike[0]
    raise UsageError(f"{run.run.name} did not measure {case.name}; give another run with --against")


def of_alert(connection: sa.Connection, number: int) -> tuple[Explanation, str | None]:
    """The explanation of an alert from its last good and first bad run, and its metric.

    Raises UsageError for an alert of the host, and where one of these runs is no longer stored.
    """
    (evidence,) = gather_in_causes(connection, [alert_store.find(connection, number)])
    if evidence.case is None:
        raise UsageError(f"alert {number} is about a host, not a case: give a RUN and a MODEL instead")
    good, bad = evidence.good, evidence.bad
    if good is None or bad is None:
        raise UsageError(
            f"the runs around the change of alert {number} are no longer stored: give RUN MODEL --against RUN"
        )
    sides = [
        side_of(run, row_of_case(run, evidence.case))
        for run in (read_stored_run(connection, good), read_stored_run(connection, bad))
    ]
    return compare(*sides), evidence.alert.metric
