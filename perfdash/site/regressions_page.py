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
    VANISHED,
    RunChange,
    of_alert,
    ordered,
)
from perfdash.site.testbed_history import Testbed


@dataclass(frozen=True)
class TestbedAlerts:
    """A testbed's alerts, those that live first; `left_out` older ones, `unjudged` nights not looked at."""

    bed: Testbed
    lives: list[AlertLife]
    left_out: int
    unjudged: int


def alerts_of_testbed(
    connection: sa.Connection, bed: Testbed, runs: Sequence[RunLine], alerts: StandingAlerts | None = None
) -> TestbedAlerts:
    """The alerts of a testbed; `runs` all of them, oldest first; `alerts` where they are read already."""
    alerts = alerts or standing_alerts(connection, bed, runs)
    lives, left_out = alert_lives(connection, bed, {run.id: run for run in runs}, alerts)
    return TestbedAlerts(bed, lives, left_out, unjudged(runs))


MOST = 100  # alerts on one page with all that is known of them; the largest come first
# The word of one change of a group.
WORDS = {
    REGRESSION: "regression", IMPROVEMENT: "improvement", NEW_FAILURE: "new failure", REPAIRED: "fixed",
    APPEARED: "appeared", VANISHED: "vanished",
}  # fmt: skip


@dataclass(frozen=True)
class AlertsOnPage:
    """A testbed's alerts on some page: `changes` are shown, all of `every` are counted."""

    changes: list[RunChange]
    every: list[RunChange]

    @property
    def left_out(self) -> int:
        return len(self.every) - len(self.changes)

    @property
    def worse(self) -> int:
        return len(self._bad)

    @property
    def fresh(self) -> int:
        """How many of what is worse were seen on the last night for the first time."""
        return sum(change.fresh for change in self._bad)

    @property
    def acknowledged(self) -> int:
        """How many of what is worse somebody knows of."""
        return sum(change.acknowledged for change in self._bad)

    @property
    def counts(self) -> list[str]:
        """What is worse, in words, by kind."""
        groups = [change.group for change in self._bad]
        return [_counted(groups.count(group), WORDS[group]) for group in BAD if group in groups]

    @property
    def _bad(self) -> list[RunChange]:
        return [change for change in self.every if change.group in BAD]


@dataclass(frozen=True)
class StandingAlerts:
    """The alerts that stand on the last night or ended with it: all that is known of the largest, and
    the `smaller`. `heads`: the last night of each kind, as the testbed may be measured in several runs."""

    evidence: list[AlertEvidence]
    smaller: list[Alert]
    heads: list[RunLine]


def standing_alerts(
    connection: sa.Connection, bed: Testbed, runs: Sequence[RunLine], limit: int = MOST
) -> StandingAlerts:
    """The alerts that live, and those that ended on the last night; `runs` all of them, oldest first."""
    heads = newest_nights(connection, runs)
    last = {run.id for run in heads}
    alerts = [
        alert
        for alert in alert_store.load(
            connection, testbed_id=bed.id, states=(*alert_store.LIVE, alert_store.FIXED)
        )
        if alert.state in alert_store.LIVE or alert.details.get("fixed_run_id") in last
    ]
    ranked = sorted(alerts, key=_rank)
    return StandingAlerts(gather(connection, ranked[:limit]), ranked[limit:], heads)


def alerts_on_page(standing: StandingAlerts, limit: int) -> AlertsOnPage:
    """They as the comment on the last night tells them, the most important so many."""
    heads = {run.id: run for run in standing.heads}
    changes = ordered(_on_its_night(evidence, heads) for evidence in standing.evidence)
    smaller = [
        _on_its_night(AlertEvidence(alert, None, None, heads.get(alert.bad_run_id or -1), None), heads)
        for alert in standing.smaller
    ]
    return AlertsOnPage(changes[:limit], changes + smaller)


def _on_its_night(evidence: AlertEvidence, heads: Mapping[int, RunLine]) -> RunChange:
    """An alert as it stands on the last night of its kind: the one where it was fixed or first seen."""
    _, bad = evidence.between
    details = evidence.alert.details
    run_ids = [details.get("born_run_id"), bad.id if bad else None]
    if evidence.alert.state == alert_store.FIXED:
        run_ids = [details.get("fixed_run_id")]
    return of_alert(evidence, next((number for number in heads if number in run_ids), -1))


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' if count > 1 and word != WORDS[VANISHED] else ''}"


def _rank(alert: Alert) -> tuple[object, ...]:
    return alert.state not in alert_store.LIVE, -alert.direction, -abs(alert.change or 9.0), alert.id


@dataclass(frozen=True)
class AlertLife:
    """One alert with all that it went through."""

    change: RunChange
    alert: Alert
    events: list[AlertEvent]


def alert_lives(
    connection: sa.Connection,
    bed: Testbed,
    runs: Mapping[int, RunLine],
    standing: StandingAlerts,
    limit: int = MOST,
) -> tuple[list[AlertLife], int]:
    """The alerts of a testbed: those live ones, then the latest that ended; how many more."""
    alerts = alert_store.load(connection, testbed_id=bed.id, states=alert_store.STATES)
    evidences = [each for each in standing.evidence if each.alert.state in alert_store.LIVE]
    ended = sorted(
        (alert for alert in alerts if alert.state not in alert_store.LIVE),
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
    lives = [
        AlertLife(
            # Of an ended one it is told what it was, not what it is now.
            replace(of_alert(each, -1), state=each.alert.state),
            each.alert,
            alert_store.events(connection, each.alert.id or 0),
        )
        for each in evidences
    ]
    return lives, len(alerts) - len(lives)


def unjudged(runs: Sequence[RunLine]) -> int:
    """How many of the latest runs nobody has looked for changes in yet."""
    return sum(run.judged is None and run.results > 0 for run in runs[-30:])
