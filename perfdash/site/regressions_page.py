"""The page of regressions: a testbed's open and ended alerts with their histories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from perfdash.detect.alert_evidence import AlertEvidence, gather
from perfdash.detect.nights import newest_nights
from perfdash.history import alert_store
from perfdash.history.alert_store import Alert, AlertEvent
from perfdash.history.queries import RunLine, cases_by_id
from perfdash.report.changes import (
    APPEARED,
    BAD,
    IMPROVEMENT,
    NEW_FAILURE,
    REGRESSION,
    REPAIRED,
    SUSPECTED,
    SUSPECTED_BETTER,
    VANISHED,
    RunChange,
    of_alert,
    ordered,
)
from perfdash.site.testbed_history import Testbed


@dataclass(frozen=True)
class TestbedAlerts:
    """A testbed's alerts, open ones first.

    `left_out` counts the older ones that are not shown, `unjudged` the nights that nobody judged.
    """

    bed: Testbed
    histories: list[AlertHistory]
    left_out: int
    unjudged: int


def alerts_of_testbed(
    connection: sa.Connection, bed: Testbed, runs: Sequence[RunLine], alerts: StandingAlerts | None = None
) -> TestbedAlerts:
    """Read the alerts of a testbed.

    `runs` are all its runs, oldest first; `alerts`: the standing ones if they were read already.
    """
    alerts = alerts or standing_alerts(connection, bed, runs)
    histories, left_out = alert_histories(connection, bed, {run.id: run for run in runs}, alerts)
    return TestbedAlerts(bed, histories, left_out, unjudged(runs))


MOST = 100  # alerts on one page with all that is known of them; the largest come first
# The word of one change of a group.
WORDS = {
    REGRESSION: "regression", IMPROVEMENT: "improvement", NEW_FAILURE: "new failure", REPAIRED: "fixed",
    APPEARED: "appeared", VANISHED: "vanished", SUSPECTED: "suspected regression",
    SUSPECTED_BETTER: "suspected improvement",
}  # fmt: skip


@dataclass(frozen=True)
class AlertsOnPage:
    """A testbed's alerts on a page: `changes` are shown, all of `every` are counted."""

    changes: list[RunChange]
    every: list[RunChange]

    @property
    def left_out(self) -> int:
        return len(self.every) - len(self.changes)

    @property
    def worse(self) -> int:
        return len(self._bad)

    @property
    def suspected(self) -> int:
        """The number of suspected regressions."""
        return sum(change.group == SUSPECTED for change in self.every)

    @property
    def fresh(self) -> int:
        """The number of regressions first seen on the last night."""
        return sum(change.fresh for change in self._bad)

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged regressions."""
        return sum(change.acknowledged for change in self._bad)

    @property
    def counts(self) -> list[str]:
        """The regressions counted by kind, in words."""
        groups = [change.group for change in self._bad]
        return [_counted(groups.count(group), WORDS[group]) for group in BAD if group in groups]

    @property
    def _bad(self) -> list[RunChange]:
        return [change for change in self.every if change.group in BAD]


@dataclass(frozen=True)
class StandingAlerts:
    """The alerts that are open on the last night or were fixed on it.

    The largest have their `evidence`; `smaller` are the others. `heads`: the last night of each kind, as a
    testbed may be measured in several runs.
    """

    evidence: list[AlertEvidence]
    smaller: list[Alert]
    heads: list[RunLine]


def standing_alerts(
    connection: sa.Connection, bed: Testbed, runs: Sequence[RunLine], limit: int = MOST
) -> StandingAlerts:
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
    ranked = sorted(alerts, key=_rank)
    return StandingAlerts(gather(connection, ranked[:limit]), ranked[limit:], heads)


def alerts_on_page(standing: StandingAlerts, limit: int) -> AlertsOnPage:
    """The `limit` most important alerts, worded as in the last comment."""
    heads = {run.id: run for run in standing.heads}
    changes = ordered(_on_its_night(evidence, heads) for evidence in standing.evidence)
    smaller = [
        _on_its_night(AlertEvidence(alert, None, None, heads.get(alert.bad_run_id or -1), None), heads)
        for alert in standing.smaller
    ]
    return AlertsOnPage(changes[:limit], changes + smaller)


def _on_its_night(evidence: AlertEvidence, heads: Mapping[int, RunLine]) -> RunChange:
    """The change that an alert shows on the last night of its kind of run."""
    _, bad = evidence.between
    details = evidence.alert.details
    run_ids = [details.get("raised_run_id"), details.get("born_run_id"), bad.id if bad else None]
    if evidence.alert.state == alert_store.FIXED:
        run_ids = [details.get("fixed_run_id")]
    return of_alert(evidence, next((number for number in heads if number in run_ids), -1))


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' if count > 1 and word != WORDS[VANISHED] else ''}"


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
    limit: int = MOST,
) -> tuple[list[AlertHistory], int]:
    """Read the open alerts, then the latest closed ones; and the number left out."""
    alerts = alert_store.load(connection, testbed_id=bed.id, states=alert_store.STATES)
    evidences = [evidence for evidence in standing.evidence if evidence.alert.state in alert_store.SHOWN]
    ended = sorted(
        (alert for alert in alerts if alert.state not in alert_store.SHOWN),
        key=lambda alert: (alert.changed, alert.id),
        reverse=True,
    )[:limit]
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
    """The number of recent runs that have not been judged."""
    return sum(run.judged is None and run.results > 0 for run in runs[-30:])
