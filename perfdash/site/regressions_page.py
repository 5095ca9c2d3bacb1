"""The page of regressions: a testbed's open and ended alerts with their histories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from perfdash.detect.alert_evidence import AlertEvidence, gather
from perfdash.detect.curation import LATEST
from perfdash.detect.nights import latest_days, newest_nights
from perfdash.history import alert_store
from perfdash.history.alert_store import Alert, AlertEvent
from perfdash.history.queries import RunLine, cases_by_id
from perfdash.report.changes import (
    APPEARED,
    IMPROVEMENT,
    NEW_FAILURE,
    REGRESSION,
    REPAIRED,
    SUSPECTED,
    SUSPECTED_BETTER,
    VANISHED,
    RunChange,
    of_alert,
)
from perfdash.site.testbed_history import Testbed


@dataclass(frozen=True)
class TestbedAlerts:
    """A testbed's alerts, open ones first.

    `standing`: those that are open or were fixed on the last night. `left_out` counts the others, which are
    not shown, `unjudged` the nights that nobody judged.
    """

    bed: Testbed
    standing: StandingAlerts
    histories: list[AlertHistory]
    left_out: int
    unjudged: int


def alerts_of_testbed(
    connection: sa.Connection, bed: Testbed, runs: Sequence[RunLine], alerts: StandingAlerts
) -> TestbedAlerts:
    """Read the alerts of a testbed.

    `runs` are all its runs, oldest first; `alerts`: the standing ones.
    """
    histories, left_out = alert_histories(connection, bed, {run.id: run for run in runs}, alerts)
    return TestbedAlerts(bed, alerts, histories, left_out, unjudged(runs))


MOST = 100  # alerts on one page with all that is known of them; the largest come first
# The word of one change of a group.
WORDS = {
    REGRESSION: "regression", IMPROVEMENT: "improvement", NEW_FAILURE: "new failure", REPAIRED: "fixed",
    APPEARED: "appeared", VANISHED: "vanished", SUSPECTED: "suspected regression",
    SUSPECTED_BETTER: "suspected improvement",
}  # fmt: skip


@dataclass(frozen=True)
class StandingAlerts:
    """The alerts that are open on the last night or were fixed on it.

    `evidence`: the largest first. `heads`: the last night of each kind, as a testbed may be measured in
    several runs.
    """

    evidence: list[AlertEvidence]
    heads: list[RunLine]

    @property
    def is_open(self) -> list[AlertEvidence]:
        return [item for item in self.evidence if item.alert.state in alert_store.SHOWN]

    @property
    def listed(self) -> list[AlertEvidence]:
        """The open alerts that the page of regressions has."""
        return self.is_open[:MOST]


def standing_alerts(connection: sa.Connection, bed: Testbed, runs: Sequence[RunLine]) -> StandingAlerts:
    """Read the open alerts and those fixed on the last night.

    `runs` are all runs of the testbed, oldest first.
    """
    heads = newest_nights(connection, runs)
    last = {run.id for run in heads}
    alerts = [
        alert
        for alert in alert_store.load(
            connection, testbed_id=bed.id, states=(*alert_store.SHOWN, alert_store.FIXED)
        )
        if alert.state in alert_store.SHOWN or alert.details.get("fixed_run_id") in last
    ]
    return StandingAlerts(gather(connection, sorted(alerts, key=_rank)), heads)


def on_its_night(evidence: AlertEvidence, heads: Mapping[int, RunLine]) -> RunChange:
    """The change that an alert shows on the last night of its kind of run."""
    _, bad = evidence.between
    details = evidence.alert.details
    run_ids = [details.get("raised_run_id"), details.get("born_run_id"), bad.id if bad else None]
    if evidence.alert.state == alert_store.FIXED:
        run_ids = [details.get("fixed_run_id")]
    return of_alert(evidence, next((number for number in heads if number in run_ids), -1))


def _rank(alert: Alert) -> tuple[object, ...]:
    places = [alert.state not in states for states in (alert_store.SHOWN, alert_store.LIVE)]
    return *places, -alert.direction, -abs(alert.change or 9.0), alert.id


@dataclass(frozen=True)
class AlertHistory:
    """An alert with its events."""

    change: RunChange
    alert: Alert
    events: list[AlertEvent]


def alert_histories(
    connection: sa.Connection,
    bed: Testbed,
    runs: Mapping[int, RunLine],
    standing: StandingAlerts,
) -> tuple[list[AlertHistory], int]:
    """Read the open alerts, then the latest closed ones; and the number left out."""
    alerts = alert_store.load(connection, testbed_id=bed.id, states=alert_store.STATES)
    evidences = standing.listed
    ended = sorted(
        (alert for alert in alerts if alert.state not in alert_store.SHOWN),
        key=lambda alert: (alert.changed, alert.id),
        reverse=True,
    )[:MOST]
    cases = cases_by_id(connection, (alert.case_id for alert in ended if alert.case_id is not None))
    evidences += [
        AlertEvidence(
            alert,
            cases.get(alert.case_id or -1),
            runs.get(alert.good_run_id or -1),
            runs.get(alert.bad_run_id or -1),
            runs.get(alert.seen_run_id or -1),
        )
        for alert in ended
    ]
    histories = [
        AlertHistory(
            # A closed alert shows the change it reported, not how it ended.
            replace(of_alert(evidence, -1), state=evidence.alert.state),
            evidence.alert,
            alert_store.events(connection, evidence.alert.id or 0),
        )
        for evidence in evidences
    ]
    return histories, len(alerts) - len(histories)


def unjudged(runs: Sequence[RunLine]) -> int:
    """The number of runs that wait to be judged, among the latest days, which alone are judged.

    `runs` are all runs of a testbed without the excluded ones, oldest first.
    """
    return sum(run.judged is None and run.results > 0 for run in latest_days(runs, LATEST))
