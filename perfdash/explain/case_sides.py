"""Find the two sides of an explanation: a case of a run, and the runs around an alert's change."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.causes import Cause, gather_in_causes
from perfdash.errors import UsageError
from perfdash.explain.explanation_sentence import sentence
from perfdash.explain.structure_comparison import ExplainedSide, Explanation, compare, side_of
from perfdash.history import alert_store, schema
from perfdash.history.queries import RunLine, rows_of, runs_around
from perfdash.history.results import Imported, Row, RunRow, case_digest, from_result
from perfdash.records import Case, result_from_json

_TRIED = 3  # members of a cause whose structure is looked for


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
    """The result of a case; of other settings or another batch size where the case was not measured.

    Raises UsageError where there is none, with the cases of the model that the run measured.
    """
    settings, batch_size = {"settings": case.settings}, {"batch_size": case.batch_size}
    for ignored in ({}, settings, batch_size, {**settings, **batch_size}):
        alike = [row for row in run.rows if replace(row.case, **ignored) == case]
        if len(alike) == 1:
            return alike[0]
    names = [
        row.case.name for row in run.rows if (row.case.suite, row.case.model) == (case.suite, case.model)
    ]
    measured = (
        f"; of this model it measured {', '.join(names[:5])}. explain compares cases that differ only in "
        "settings and batch size: "
        if names
        else "; "
    )
    raise UsageError(f"{run.run.name} did not measure {case.name}{measured}give another run with --against")


def of_alert(connection: sa.Connection, number: int) -> tuple[Explanation, str | None]:
    """The explanation of an alert from the runs around its change, and its metric.

    Raises UsageError for an alert of the host, and where one of these runs is not stored.
    """
    (evidence,) = gather_in_causes(connection, [alert_store.find(connection, number)])
    if evidence.case is None:
        raise UsageError(f"alert {number} is about a host, not a case: give a RUN and a MODEL instead")
    good, bad = _runs_around(connection, evidence)
    if good is None or bad is None:
        raise UsageError(
            f"alert {number}: the history does not have a run of its case on both sides of the change: "
            "give RUN MODEL --against RUN"
        )
    before, after = (stored_side(connection, run, evidence.case) for run in (good, bad))
    return compare(before, after), evidence.alert.metric


def _runs_around(connection: sa.Connection, evidence: AlertEvidence) -> tuple[RunLine | None, RunLine | None]:
    """The runs of an alert's case around the change of its cause; by its own nights if that is not known."""
    good, bad = evidence.between
    if good is None or bad is None or evidence.alert.case_id is None:
        return evidence.good, evidence.bad
    return runs_around(connection, good, bad, evidence.alert.case_id)


def explain_cause(connection: sa.Connection, cause: Cause) -> Explanation | None:
    """The explanation of a cause by the member that changed most; None where nothing of it is stored."""
    for member in sorted(cause.main, key=lambda member: -abs(member.alert.change or 0.0))[:_TRIED]:
        good, bad = _runs_around(connection, member)
        if member.case is None or good is None or bad is None:
            continue
        try:
            sides = [stored_side(connection, run, member.case) for run in (good, bad)]
        except UsageError:
            continue
        if all(side.structure.get("fingerprint") for side in sides):
            return compare(*sides)
    return None


def sentence_of_cause(cause: Cause, explanation: Explanation) -> str:
    """The sentence of a cause; with several models it names the one that it is about."""
    text = sentence(explanation, cause.main[0].alert.metric)
    models = {member.case.model for member in cause.main if member.case}
    return f"{explanation.after.case.model}: {text}" if len(models) > 1 else text


def why_of_cause(connection: sa.Connection, cause: Cause) -> str:
    """Why a cause changed its models, in a sentence; empty where nothing of it is stored."""
    explanation = explain_cause(connection, cause)
    return sentence_of_cause(cause, explanation) if explanation else ""


def side_of_record(record: Mapping[str, Any], name: str) -> ExplainedSide:
    """A case of a build from its record; `name`: of the build. Raises ValueError for a broken record."""
    result = result_from_json(dict(record))
    run = RunRow(name, result.started, "perfdash", "", "", "")
    return side_of(run, from_result(result))


def stored_side(connection: sa.Connection, run: RunLine, case: Case) -> ExplainedSide:
    """A case of a stored run. Raises UsageError where the run did not measure it."""
    cases = schema.cases
    number = connection.execute(sa.select(cases.c.id).where(cases.c.digest == case_digest(case))).scalar()
    rows = rows_of(connection, run.id, details=True, code=True, case_id=number if number is not None else -1)
    return side_of(run, row_of_case(Imported(run, tuple(rows)), case))
