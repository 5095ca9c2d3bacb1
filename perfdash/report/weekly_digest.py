"""The last days in a few lines for a mail or chat: what came, was fixed, is open, and the noisiest series."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

import sqlalchemy as sa

from perfdash.detect.alert_evidence import gather
from perfdash.detect.findings import WORSE
from perfdash.detect.nightly_judging import SeriesThreshold, noisiest
from perfdash.history import alert_store, schema
from perfdash.history.queries import list_runs
from perfdash.metrics import title_of
from perfdash.owners import Owners
from perfdash.report.alert_text import model_of
from perfdash.report.cause_text import ReportedCause, of_changes, reported, sort_causes
from perfdash.report.changes import RunChange, of_alert
from perfdash.report.digest import Digest, cause_line, page_links
from perfdash.report.markdown import plain
from perfdash.report.night import machines_of_testbeds
from perfdash.series_rules import SeriesRule

_SHOWN = 15  # causes of a kind
_NOISIEST = 5  # series
_LINE = 300


def weekly_digest(
    connection: sa.Connection,
    today: date,
    days: int = 7,
    *,
    owners: Owners | None = None,
    rules: Sequence[SeriesRule] = (),
    site_url: str | None = None,
) -> Digest:
    """Write the digest of the `days` days before `today`, over all testbeds of the history.

    `owners`: who owns which models; `rules`: of judging, for the noisiest series; `site_url`: the site's
    address.
    """
    owners = owners or Owners()
    first = str(today - timedelta(days=days))
    is_open = alert_store.load(connection, states=alert_store.SHOWN)
    causes = reported(gather(connection, is_open), -1, machines=machines_of_testbeds(connection))
    causes = [cause for cause in causes if not cause.acknowledged]
    came = [cause for cause in causes if cause.bad is None or cause.bad.started[:10] >= first]
    older = [cause for cause in causes if cause not in came]
    older.sort(key=lambda cause: cause.bad.started if cause.bad else "")
    fixed = _fixed(connection, first)
    lines = _section("Came", [_with_owners(cause, owners) for cause in came])
    lines += _section("Fixed", [cause.headline for cause in fixed])
    lines += _section("Open for longer", [_aged(cause, today, owners) for cause in older])
    lines += _section("Noisiest series, with the noise of a night", _noise(connection, rules))
    cases = sum(len(cause.members) for cause in fixed)
    title = f"{days} days to {today}: {len(came)} came, {cases} fixed, {len(causes)} open"
    return Digest(
        f"perfdash: {title}",
        tuple(plain(line, _LINE) for line in lines[1:]) or ("Nothing came, nothing is open.",),
        page_links(site_url, None),
    )


def _fixed(connection: sa.Connection, first: str) -> list[ReportedCause]:
    """The regressions and failures that runs since a day showed to be over, as causes: those of each day."""
    alerts = [
        alert
        for alert in alert_store.load(connection, states=[alert_store.FIXED])
        if alert.direction == WORSE
    ]
    by_run = {alert.id: int(alert.details.get("fixed_run_id") or -1) for alert in alerts}
    runs = {run.id: run for run in list_runs(connection, ids=sorted(set(by_run.values())))} if alerts else {}
    recent = [
        alert
        for alert in alerts
        if (run := runs.get(by_run[alert.id])) is not None and run.started[:10] >= first
    ]
    by_day: dict[str, list[RunChange]] = {}
    for item in gather(connection, recent):
        run = runs[by_run[item.alert.id]]
        by_day.setdefault(run.started[:10], []).append(of_alert(item, run.id))
    return sort_causes(cause for changes in by_day.values() for cause in of_changes(changes))


def _section(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    more = [f"- and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return ["", f"{title}:", *(f"- {line}" for line in lines[:_SHOWN]), *more]


def _with_owners(cause: ReportedCause, owners: Owners) -> str:
    names = dict.fromkeys(
        owner
        for member in cause.members
        if member.case
        for owner in owners.of(member.case.suite, member.case.model)
    )
    return cause_line(cause) + (f" [{', '.join(names)}]" if names else "")


def _aged(cause: ReportedCause, today: date, owners: Owners) -> str:
    age = (today - date.fromisoformat(cause.bad.started[:10])).days if cause.bad else 0
    return f"{age} days: {_with_owners(cause, owners)}"


def _noise(connection: sa.Connection, rules: Sequence[SeriesRule]) -> list[str]:
    """The noisiest series of all testbeds, by the last night of each."""
    series: list[SeriesThreshold] = []
    for bed in connection.execute(sa.select(schema.testbeds.c.id)).scalars().all():
        runs = list_runs(connection, testbed_id=bed, latest=1, with_excluded=False)
        if runs:
            series += noisiest(connection, runs[-1], _NOISIEST, rules)
    series.sort(key=lambda item: -item.sd)
    return [f"{model_of(item.case)}: {title_of(item.metric)}, {item.sd:.1%}" for item in series[:_NOISIEST]]
