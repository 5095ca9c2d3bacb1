"""Save a bisection with its alert: the culprits that explain the alert, and apart from them the others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from perfdash.bisection.metrics import WRONG
from perfdash.bisection.replay import Bisection
from perfdash.bisection.result import NOT_FINISHED, BisectionResult, Culprit, MetricChange
from perfdash.detect.alert_evidence import remeasured_change
from perfdash.files import now
from perfdash.history import alert_store
from perfdash.history.alert_store import Alert, BisectionRow, save_bisection
from perfdash.history.queries import list_runs
from perfdash.history.store import open_store
from perfdash.records import Status

_EXPLAINED = 0.5  # of an alert's change, from which the change at a culprit is the alert's own
_NOTED = 10  # revisions of a set that the alert names


def explaining(alert: Alert, result: BisectionResult) -> list[Culprit]:
    """The culprits whose change is the alert's: its status, or its metric, direction and half of its size.

    A smaller one of its direction is, too, if it brings the sum of the larger ones nearer to the alert's
    change. Where none alone is half of it, those of its direction explain it if together they are.
    perfdash cannot compare the output of a user's command with an alert: its culprits are taken as they are.
    """
    if result.command:
        return list(result.culprits)
    if alert.kind == "status":
        return [culprit for culprit in result.culprits if _has_status(alert, result, culprit)]
    wanted = _change(alert)
    if result.column != alert.metric or not wanted:
        return []
    parts = [_step(result, culprit) / wanted for culprit in result.culprits]
    if sum(part for part in parts if part > 0) < _EXPLAINED:
        return []
    least = _EXPLAINED if any(part >= _EXPLAINED for part in parts) else 0.0
    found, own = 0.0, set[int]()
    for number in sorted(range(len(parts)), key=lambda number: -parts[number]):
        part = parts[number]
        if part > 0 and (part >= least or abs(1 - found - part) < abs(1 - found)):
            own.add(number)
            found += part
    return [culprit for number, culprit in enumerate(result.culprits) if number in own]


def _has_status(alert: Alert, result: BisectionResult, culprit: Culprit) -> bool:
    """Whether a culprit ends with the alert's status; where the nights went back, begins with it."""
    after = alert.details.get("after")
    if result.metric == "accuracy" and after == Status.FAIL_ACCURACY:
        after = WRONG
    if result.went_back:
        tested = result.ranges[culprit.stage].tested
        return any(after in build.said for build in tested if build.side == "good")
    return after in culprit.said


def _change(alert: Alert) -> float:
    """The change of an alert: of a count the difference, otherwise the log ratio; 0 where it is not known."""
    if alert.kind == "count":
        return (alert.after or 0.0) - (alert.before or 0.0)
    again = remeasured_change(alert)
    return again.ratio if again else alert.change or 0.0


def _step(result: BisectionResult, culprit: Culprit) -> float:
    """The change at a culprit, in the form of _change."""
    change = shown_change(result, culprit).ratio or 0.0
    return math.log(change) if result.kind == "ratio" and change > 0 else change


def shown_change(result: BisectionResult, culprit: Culprit) -> MetricChange:
    """The change that a culprit brought to the later night of an alert; where it went back, by its loss."""
    change = culprit.change
    if not result.went_back:
        return change
    lost = (
        None if value is None else 1 / value if result.kind == "ratio" else -value
        for value in (change.ratio, change.high, change.low)
    )
    return MetricChange(change.after, change.before, *lost)


def save_to_history(
    history: str, bisection: Bisection, result: BisectionResult, headline: str
) -> list[Culprit]:
    """Save a bisection in a history, and its culprits in its alert: those that do not explain the alert.

    The alert stays as it is if its change returned after the bisection began, which had other ends.
    """
    request = bisection.begun["asked"]
    culprits = [revision.id for culprit in result.culprits for revision in culprit.revisions]
    details = result.to_json()
    for stage in details["ranges"]:
        stage["tested"] = [{**tested, "values": []} for tested in stage["tested"]]  # the journal has them
    row = BisectionRow(
        name=result.name,
        alert_id=result.alert,
        started=result.began,
        ended=result.ended or None,
        state=result.word if result.state == "done" else result.state,
        good=request["good"],
        bad=request["bad"],
        culprit=culprits[0] if len(culprits) == 1 else ",".join(culprits[:_NOTED]) or None,
        details=details,
    )
    others: list[Culprit] = []
    with open_store(history) as store, store.write() as connection:
        if result.alert is not None:
            alert = alert_store.find(connection, result.alert)
            own = explaining(alert, result)
            others = [culprit for culprit in result.culprits if culprit not in own]
            if not _began_before(connection, alert, result):
                _note(connection, alert, result, own, others, headline)
        save_bisection(connection, row)
    return others


def _began_before(connection: sa.Connection, alert: Alert, result: BisectionResult) -> bool:
    """Whether a bisection began before the change of its alert returned.

    The night that showed the return counts: later nights may give an alert another first run.
    """
    run_id = alert.details.get("born_run_id", alert.bad_run_id) if alert.details.get("returns") else None
    runs = list_runs(connection, ids=[run_id]) if run_id is not None else []
    return any(result.began < run.started for run in runs)


def _is_of_another_host(connection: sa.Connection, alert: Alert, result: BisectionResult) -> bool:
    """Whether a bisection was measured on another kind of host than the alert, which may not show there."""
    runs = list_runs(connection, ids=[alert.bad_run_id]) if alert.bad_run_id is not None else []
    return any(run.host_class != result.host_class for run in runs)


def progress(result: BisectionResult) -> str:
    """How far a bisection that is not finished came, in plain text."""
    now = next((stage for stage in result.ranges if stage.verdict == NOT_FINISHED), None)
    if now is None or not now.standing.first:
        return NOT_FINISHED
    left = now.standing.last - now.standing.first + 1
    return f"{NOT_FINISHED}, {left} of {now.last} revisions left"


def _note(
    connection: sa.Connection,
    alert: Alert,
    result: BisectionResult,
    own: Sequence[Culprit],
    others: Sequence[Culprit],
    headline: str,
) -> None:
    """Write the culprits into an alert, or how far the search came, unless it has surer ones.

    own: those that explain the alert; others: those that do not. Only the bisection that found a culprit
    takes it back, after it was resumed. What another kind of host does not find is not finished: the alert's
    own nightly looks for it, too.
    """
    before = alert.details.get("bisected") or {}
    is_back = bool(before.get("name") == result.name and before.get("culprits"))
    finished = result.state == "done" and (
        bool(own) or is_back or not _is_of_another_host(connection, alert, result)
    )
    noted = [_noted(alert, result, culprit) for culprit in own]
    if before and before.get("finished", True) and not finished:
        return
    if before.get("name") != result.name and _certainty(before.get("culprits", [])) > _certainty(noted):
        return
    bisected = {
        "name": result.name,
        "word": progress(result) if result.word == NOT_FINISHED else result.word,
        "culprits": noted,
        "others": [_noted(alert, result, culprit) for culprit in others],
        "finished": finished,
    }
    if before == bisected:
        return
    only_others = "found another change, which does not explain this alert: " if others and not own else ""
    changed = dataclasses.replace(alert, changed=now(), details={**alert.details, "bisected": bisected})
    alert_store.save(connection, changed, note=f"{alert_store.BISECTED} {only_others}{headline}"[:400])


def _certainty(culprits: Sequence[Mapping[str, Any]]) -> int:
    """The rank of the surest culprit: confirmed 3, refuted 1, otherwise 2; without any 0."""
    ranks = {"confirmed": 3, "not confirmed": 1}
    return max((ranks.get(culprit.get("confirmed", ""), 2) for culprit in culprits), default=0)


def _noted(alert: Alert, result: BisectionResult, culprit: Culprit) -> dict[str, Any]:
    """A culprit as its alert keeps it: its change, or that of its loss, if `lost`.

    of_metric: what was measured, if it is not the alert's metric.
    """
    change = shown_change(result, culprit)
    return {
        "commits": [dataclasses.asdict(revision) for revision in culprit.revisions[:_NOTED]],
        "of": len(culprit.revisions),
        "probability": culprit.probability,
        "kind": result.kind,
        "of_metric": None if result.column == alert.metric else result.title,
        "change": change.ratio,
        "low": change.low,
        "high": change.high,
        **({"lost": True} if result.went_back else {}),
        "confirmed": culprit.confirmed,
    }
