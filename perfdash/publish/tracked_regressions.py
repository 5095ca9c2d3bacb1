"""The regressions of a testbed as the issues that should exist: history in, WantedIssue out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from perfdash.detect.alert_evidence import AlertEvidence, gather
from perfdash.detect.nightly_judging import judge_new
from perfdash.errors import UsageError
from perfdash.history import acts, alert_store, schema
from perfdash.history.alert_store import Alert
from perfdash.history.queries import cases_by_id, list_runs
from perfdash.history.results import case_digest, digest
from perfdash.history.store import open_store
from perfdash.publish.issues import WantedIssue
from perfdash.report import issue_text
from perfdash.report.night import Night
from perfdash.report.site_links import model_page
from perfdash.series_rules import SeriesRule

_WITHOUT_SIZE = 9.0  # rank of a change that has no size (a status, a vanished case): first


@dataclass(frozen=True)
class TrackedRegressions:
    """The wanted issues of a testbed, and the names of its judged runs."""

    issues: list[WantedIssue]
    judged: frozenset[str]


def tracked_regressions(
    night: Night, history: str, site_url: str | None, rules: Sequence[SeriesRule] = ()
) -> TrackedRegressions:
    """Every regression of the night's testbed, the largest first. Judges new nights first, by the rules.

    An issue of a mere suspicion is left as it is. Raises UsageError where the history has no run of this
    testbed, MachineError where it cannot be read.
    """
    with open_store(history, create=False) as store:
        judge_new(store, rules=rules)
        with store.read() as connection:
            testbeds, runs = schema.testbeds, schema.runs
            testbed = connection.execute(
                sa.select(testbeds.c.id).where(testbeds.c.digest == night.testbed)
            ).scalar()
            if testbed is None:
                raise UsageError(
                    f"--new-issue-on regression: the history {store.shown} has no run of the kind of "
                    f"{night.run.name}; `perfdash history import` takes it in"
                )
            alerts = alert_store.load(connection, testbed_id=testbed, states=alert_store.STATES)
            regressions = [alert for alert in alerts if alert.direction > 0]
            regressions.sort(key=lambda alert: -abs(alert.change or _WITHOUT_SIZE))
            first_names = acts.first_names(connection)
            issues = [
                _wanted(connection, evidence, night, site_url, first_names)
                for evidence in _evidence(connection, regressions)
            ]
            # Other tools' runs are named after files: such a name says little about which run it was.
            names = sa.select(runs.c.name).where(
                runs.c.testbed_id == testbed, runs.c.origin == "perfdash", runs.c.judged.is_not(None)
            )
            judged = {first_names.get(name, name) for name in connection.execute(names).scalars()}
            removed = {act.subject for act in acts.load(connection, act=acts.REMOVE, testbed_id=testbed)}
            return TrackedRegressions(issues, frozenset(judged | removed))


def _evidence(connection: sa.Connection, alerts: list[Alert]) -> Iterable[AlertEvidence]:
    """Full evidence for alerts with an issue; for past ones, the closing note's."""
    with_issue = [state for state in alert_store.LIVE if state != alert_store.NEW]
    yield from gather(connection, [alert for alert in alerts if alert.state in with_issue])
    past = [alert for alert in alerts if alert.state not in with_issue]
    cases = cases_by_id(connection, (alert.case_id for alert in past if alert.case_id is not None))
    seen = sorted({alert.seen_run_id for alert in past if alert.seen_run_id is not None})
    runs = {run.id: run for run in list_runs(connection, ids=seen)} if seen else {}
    for alert in past:
        yield AlertEvidence(
            alert, cases.get(alert.case_id or -1), None, None, runs.get(alert.seen_run_id or -1)
        )


def _wanted(
    connection: sa.Connection,
    evidence: AlertEvidence,
    night: Night,
    site_url: str | None,
    first_names: Mapping[str, str],
) -> WantedIssue:
    alert, case = evidence.alert, evidence.case
    events = alert_store.events(connection, alert.id or 0)
    born = (events[0].run if events else None) or ""
    page = f"{site_url.rstrip('/')}/{model_page(night.testbed, case)}" if site_url and case else None
    live = alert.state in alert_store.LIVE
    left_alone = alert.state in (
        alert_store.SUSPECTED,
        alert_store.NEW,
        alert_store.ACKNOWLEDGED,
        alert_store.SUPERSEDED,
    )
    with_text = live and not left_alone
    failure = next((row.details.get("error") for row in night.rows if row.case == case), None) or {}
    error = str(failure.get("message") or "") if alert.kind == "status" else None
    series = digest([night.testbed, case_digest(case) if case else None, alert.kind, alert.metric])
    body = issue_text.body(evidence, page=page, ran=night.run.command, error=error) if with_text else ""
    return WantedIssue(
        series=series[:20],
        # A run that was renamed is known to its issue by the name that it had first.
        born=first_names.get(born, born),
        opened=alert.opened,
        state=alert.state,
        changed=alert.changed,
        open=None if left_alone else live,
        title=issue_text.title(evidence),
        body=body,
        note=issue_text.note(evidence),
        blame=issue_text.blame(evidence) if with_text else "",
    )
