"""The regressions of a testbed as the issues that should exist: history in, WantedIssue out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from perfdash.detect.alert_evidence import AlertEvidence, gather
from perfdash.detect.causes import Cause, causes
from perfdash.detect.nightly_judging import judge_new
from perfdash.errors import UsageError
from perfdash.explain.case_sides import why_of_cause
from perfdash.history import acts, alert_store, schema
from perfdash.history.alert_store import Alert
from perfdash.history.failures import failure
from perfdash.history.queries import cases_by_id, list_runs
from perfdash.history.results import case_digest, digest
from perfdash.history.store import open_store
from perfdash.owners import Owners
from perfdash.publish.issues import WantedIssue
from perfdash.report import issue_text
from perfdash.report.cause_text import of_cause
from perfdash.report.changes import of_alert
from perfdash.report.full_tables import failed_row, reason_of_failure
from perfdash.report.night import Night, machines_of_testbeds
from perfdash.report.site_links import cause_page, model_page
from perfdash.series_rules import SeriesRule

_SERIES = "series "  # in `former_testbed`, before the series that the issue names
_WITHOUT_SIZE = 9.0  # rank of a change that has no size (a status, a vanished case): first


@dataclass(frozen=True)
class TrackedRegressions:
    """The wanted issues of a testbed, and the names of its judged runs."""

    issues: list[WantedIssue]
    judged: frozenset[str]


def tracked_regressions(
    night: Night,
    history: str,
    site_url: str | None,
    rules: Sequence[SeriesRule] = (),
    owners: Owners | None = None,
) -> TrackedRegressions:
    """The issues of the causes of regressions that the night's testbed sees, the largest first.

    Judges new nights first, by the rules. An issue of a mere suspicion is left as it is, and one of alerts of
    other testbeds only. Raises UsageError where the history has no run of this testbed, MachineError where it
    cannot be read.
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
                    f"{night.run.name}; `perfdash history import` imports it"
                )
            writer = _IssueWriter(connection, testbed, site_url, owners or Owners())
            issues = writer.issues()
            # Other tools' runs are named after files: such a name says little about which run it was.
            names = sa.select(runs.c.name).where(
                runs.c.testbed_id == testbed, runs.c.origin == "perfdash", runs.c.judged.is_not(None)
            )
            judged = {writer.first_names.get(name, name) for name in connection.execute(names).scalars()}
            removed = {act.subject for act in acts.load(connection, act=acts.REMOVE, testbed_id=testbed)}
            return TrackedRegressions(issues, frozenset(judged | removed))


_LEFT_ALONE = (alert_store.SUSPECTED, alert_store.NEW, alert_store.ACKNOWLEDGED, alert_store.SUPERSEDED)


class _IssueWriter:
    """Writes the wanted issues of a history, as one testbed sees them."""

    def __init__(self, connection: sa.Connection, testbed: int, site_url: str | None, owners: Owners) -> None:
        self.connection, self.testbed, self.owners = connection, testbed, owners
        self.site = site_url.rstrip("/") + "/" if site_url else None
        self.first_names = acts.first_names(connection)
        table = schema.testbeds
        self._digests = {
            row.id: row.digest for row in connection.execute(sa.select(table.c.id, table.c.digest))
        }
        of = schema.alerts.c
        moved = sa.select(of.id, of.former_testbed).where(of.former_testbed.is_not(None))
        self._former = {row.id: row.former_testbed for row in connection.execute(moved)}
        self._machines = machines_of_testbeds(connection)
        self._first_runs = alert_store.first_runs(connection)

    def issues(self) -> list[WantedIssue]:
        """Of each cause of open alerts, then of each past alert of the testbed."""
        live = [
            alert for alert in alert_store.load(self.connection, states=alert_store.SHOWN) if _is_worse(alert)
        ]
        issues = []
        for cause in causes(gather(self.connection, live)):
            ready = [member for member in cause.members if member.alert.state not in _LEFT_ALONE]
            is_ours = self.testbed in cause.testbeds
            if ready:
                issues.append(self._of_cause(cause.on(self.testbed), ready, is_ours))
            apart = [member for member in cause.members if member.alert.state in _LEFT_ALONE]
            issues += [self._of_alert(member, is_open=None) for member in apart]
        states = [state for state in alert_store.STATES if state not in alert_store.SHOWN]
        past = alert_store.load(self.connection, testbed_id=self.testbed, states=states)
        past = sorted(filter(_is_worse, past), key=lambda alert: -abs(alert.change or _WITHOUT_SIZE))
        for evidence in _past(self.connection, past):
            left_alone = evidence.alert.state in _LEFT_ALONE
            issues.append(self._of_alert(evidence, is_open=None if left_alone else False))
        return issues

    def _of_cause(self, cause: Cause, ready: Sequence[AlertEvidence], is_ours: bool) -> WantedIssue:
        """The issue of a cause with the alerts that are ready for one."""
        first, *others = sorted(ready, key=lambda member: member.alert.id or 0)
        why = why_of_cause(self.connection, cause) if is_ours else ""
        if is_ours and others:  # the issue of one failure has its whole message
            why = why or reason_of_failure(self.connection, cause)
        whole = of_cause(
            replace(cause, members=tuple(ready)), lambda member: of_alert(member, -1), self._machines, why
        )
        owners = tuple(
            dict.fromkeys(
                owner
                for member in ready
                if member.case
                for owner in self.owners.of(member.case.suite, member.case.model)
            )
        )
        issue = replace(
            self._of_alert(first, is_open=True if is_ours else None),
            others=tuple(self._key(member) for member in others),
            owners=owners,
            blame="\n".join(dict.fromkeys(filter(None, map(issue_text.blame, ready)))),
        )
        if not is_ours:
            return issue
        page = self.site + cause_page(cause.id) if self.site else None
        if others:
            runs = cause.good, cause.bad
            text = issue_text.cause_body(whole, ready, runs, page=page, owners=owners)
            return replace(issue, title=issue_text.cause_title(whole), body=text)
        return replace(issue, body=self._body(first, owners, why))

    def _of_alert(self, evidence: AlertEvidence, *, is_open: bool | None) -> WantedIssue:
        series, born, opened = self._key(evidence)
        return WantedIssue(
            series=series,
            born=born,
            opened=opened,
            state=evidence.alert.state,
            changed=evidence.alert.changed,
            open=is_open,
            title=issue_text.title(evidence),
            body="",
            note=issue_text.note(evidence),
        )

    def _key(self, evidence: AlertEvidence) -> tuple[str, str, str]:
        """Series, the run on which it was born, and when it was opened: they identify an alert."""
        alert, case = evidence.alert, evidence.case
        born = self._first_runs.get(alert.id or 0, "")
        former = self._former.get(alert.id or 0, "")
        if former.startswith(_SERIES):
            series = former.removeprefix(_SERIES)
        else:
            bed = former or self._digests[alert.testbed_id]
            series = digest([bed, case_digest(case) if case else None, alert.kind, alert.metric])
        # A run that was renamed is known to its issue by the name that it had first.
        return series[:20], self.first_names.get(born, born), alert.opened

    def _body(self, evidence: AlertEvidence, owners: Sequence[str], why: str) -> str:
        """The body of an issue of one alert."""
        case, bed = evidence.case, self._digests[evidence.alert.testbed_id]
        page = self.site + model_page(bed, case) if self.site and case else None
        row = failed_row(self.connection, evidence)
        error = str(failure(row).get("message") or "") if row else None
        return issue_text.body(evidence, page=page, error=error, owners=owners, why=why)


def _is_worse(alert: Alert) -> bool:
    return alert.direction > 0


def _past(connection: sa.Connection, past: Sequence[Alert]) -> list[AlertEvidence]:
    """Of past alerts only what the closing note says."""
    cases = cases_by_id(connection, (alert.case_id for alert in past if alert.case_id is not None))
    seen = sorted({alert.seen_run_id for alert in past if alert.seen_run_id is not None})
    runs = {run.id: run for run in list_runs(connection, ids=seen)} if seen else {}
    return [
        AlertEvidence(alert, cases.get(alert.case_id or -1), None, None, runs.get(alert.seen_run_id or -1))
        for alert in past
    ]
