"""The last days in a few lines for a mail or chat: what came, was fixed, is open, and the noisiest series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta

import sqlalchemy as sa

from perfdash.detect.alert_evidence import gather
from perfdash.detect.findings import WORSE
from perfdash.detect.nightly_judging import SeriesThreshold, noisiest
from perfdash.history import alert_store, schema
from perfdash.history.alert_store import Alert
from perfdash.history.queries import RunLine, list_runs
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
    now: datetime,
    days: int = 7,
    *,
    owners: Owners | None = None,
    rules: Sequence[SeriesRule] = (),
    site_url: str | None = None,
) -> Digest:
    """Write the digest of the `days` days up to `now`, over all testbeds of the history.

    `owners`: who owns which models; `rules`: of judging, for the noisiest series; `site_url`: the site's
    address.
    """
    owners = owners or Owners()
    # By the hour: a night that ends after the digest of its day is in the next one, and in no other.
    since, today = f"{now - timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}", now.date()
    is_open = alert_store.load(connection, states=alert_store.SHOWN)
    causes = reported(gather(connection, is_open), -1, machines=machines_of_testbeds(connection))
    causes = [cause for cause in causes if not cause.acknowledged]
    reported_at = _first_reports(connection, is_open)
    came = [cause for cause in causes if _came_since(cause, since, reported_at)]
    older = [cause for cause in causes if cause not in came]
    older.sort(key=lambda cause: cause.bad.started if cause.bad else "")
    fixed = _fixed(connection, since)
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


def _first_reports(connection: sa.Connection, alerts: Sequence[Alert]) -> dict[int, str]:
    """When the run ended that first showed each alert, by its number; often days after the change."""
    born = {alert.id: int(alert.details.get("born_run_id") or -1) for alert in alerts}
    runs = _runs(connection, born.values())
    return {number: _end(runs[run]) for number, run in born.items() if number and run in runs}


def _came_since(cause: ReportedCause, since: str, reported_at: Mapping[int, str]) -> bool:
    """Whether no run before `since` showed a cause; by the date of its change where that run was pruned."""
    times = [reported_at[number] for member in cause.members if (number := member.alert or 0) in reported_at]
    times = times or ([cause.bad.started] if cause.bad else [])
    return not times or min(times) >= since


def _fixed(connection: sa.Connection, since: str) -> list[ReportedCause]:
    """The regressions and failures that runs since then showed to be over, as causes: those of each day."""
    alerts = [
        alert
        for alert in alert_store.load(connection, states=[alert_store.FIXED])
        if alert.direction == WORSE
    ]
    by_run = {alert.id: int(alert.details.get("fixed_run_id") or -1) for alert in alerts}
    runs = _runs(connection, by_run.values())
    recent = [
        alert for alert in alerts if (run := runs.get(by_run[alert.id])) is not None and _end(run) >= since
    ]
    by_day: dict[str, list[RunChange]] = {}
    for item in gather(connection, recent):
        run = runs[by_run[item.alert.id]]
        by_day.setdefault(run.started[:10], []).append(of_alert(item, run.id))
    return sort_causes(cause for changes in by_day.values() for cause in of_changes(changes))


def _runs(connection: sa.Connection, ids: Iterable[int]) -> dict[int, RunLine]:
    """The runs of these numbers that were not pruned, by number."""
    wanted = sorted(set(ids))
    return {run.id: run for run in list_runs(connection, ids=wanted)} if wanted else {}


def _end(run: RunLine) -> str:
    return run.ended or run.started


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
