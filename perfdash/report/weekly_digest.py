"""The last days in a few lines for a mail or chat.

How many runs there were, broken nightlies, what came, was fixed, is open, and the noisiest series.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta

import sqlalchemy as sa

from perfdash.detect.alert_evidence import gather
from perfdash.detect.findings import WORSE
from perfdash.detect.heartbeat import Beat
from perfdash.detect.nightly_judging import SeriesThreshold, noisiest
from perfdash.detect.nightly_problems import nightly_problems_since
from perfdash.history import alert_store, schema
from perfdash.history.queries import RunLine, in_chunks, list_runs
from perfdash.metrics import title_of
from perfdash.owners import Owners
from perfdash.report.alert_text import model_of
from perfdash.report.cause_text import ReportedCause, of_changes, reported, sort_causes
from perfdash.report.changes import RunChange, of_alert
from perfdash.report.digest import Digest, cause_line, page_links
from perfdash.report.markdown import plain
from perfdash.report.night import machines_of_testbeds
from perfdash.report.number_format import counted
from perfdash.series_rules import SeriesRule

_SHOWN = 15  # causes of a kind
_NOISIEST = 5  # series
_LINE = 300
_NIGHTLIES = 5  # of a job, that went wrong


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
    # By the second: a night that ends after the digest of its day is in the next one, and in no other.
    earlier, since, until = (f"{now - timedelta(days=age):%Y-%m-%dT%H:%M:%SZ}" for age in (2 * days, days, 0))
    times, today = (earlier, since, until), now.date()
    is_open = alert_store.load(connection, states=alert_store.SHOWN)
    causes = reported(gather(connection, is_open), -1, machines=machines_of_testbeds(connection))
    acknowledged = sum(cause.acknowledged for cause in causes)
    causes = [cause for cause in causes if not cause.acknowledged]
    born = {alert.id or 0: int(alert.details.get("born_run_id") or -1) for alert in is_open}
    reported_at = _shown_at(connection, born, times)
    opened = {alert.id or 0: alert.opened for alert in is_open}
    came = [cause for cause in causes if _came_since(cause, since, reported_at, opened)]
    older = [cause for cause in causes if cause not in came]
    older.sort(key=lambda cause: _began(cause, opened))
    fixed = _fixed(connection, times)
    runs = _count_runs(connection, since, until)
    lines = [f"{counted(runs, 'run') if runs else 'No run'} ended in this time."]
    lines += _nightlies(nightly_problems_since(connection, now - timedelta(days=days), now))
    count = len(lines)
    lines += _section("Came", [_with_owners(cause, owners) for cause in came])
    lines += _section("Fixed", [cause.headline for cause in fixed])
    lines += _section("Open for longer", [_aged(cause, today, owners, opened) for cause in older])
    lines += _section("Noisiest series, with the noise of a night", _noise(connection, rules, since, until))
    cases = len({member.case for cause in fixed for member in cause.members})
    title = f"{counted(days, 'day')} to {today}: {len(came)} came, {cases} fixed, {len(causes)} open"
    title += f", {acknowledged} acknowledged" if acknowledged else ""
    if len(lines) == count:
        lines.append(f"Nothing came, nothing is open{' but what is acknowledged' * bool(acknowledged)}.")
    return Digest(
        f"perfdash: {title}",
        tuple(plain(line, _LINE) for line in lines),
        page_links(site_url, None),
    )


def _count_runs(connection: sa.Connection, since: str, until: str) -> int:
    """The number of runs that ended in a time: no change is known without any."""
    query = sa.select(sa.func.count()).select_from(schema.runs).where(_ended(since, until))
    return int(connection.execute(query).scalar_one())


def _ended(since: str, until: str) -> sa.ColumnElement[bool]:
    """The condition that a run ended in a time, and that nobody excluded it."""
    runs = schema.runs
    end = sa.func.coalesce(runs.c.ended, runs.c.started)
    return sa.and_(end.between(since, until), runs.c.excluded.is_(None))


def _nightlies(beats: Sequence[Beat]) -> list[str]:
    """A line for each nightly that went wrong, of each job the latest ones if there are many."""
    lines = []
    for job in dict.fromkeys(beat.job for beat in beats):
        of_job = [beat for beat in beats if beat.job == job]
        shown = of_job[-_NIGHTLIES:]
        if more := len(of_job) - len(shown):
            lines.append(f"Nightly {job}: {more} more went wrong before these.")
        lines += [f"Nightly {_broken_nightly(beat)}." for beat in shown]
    return lines


def _broken_nightly(beat: Beat) -> str:
    """What is wrong with a nightly, in words. After a colon of the reason come words of a log: left out."""
    what, _, why = beat.what.partition(": ")
    reason = f" ({why.partition(': ')[0]})" if why else ""
    return f"{beat.job} {beat.level}: {what}{reason}"


def _shown_at(
    connection: sa.Connection, run_of: Mapping[int, int], times: tuple[str, str, str]
) -> dict[int, str]:
    """When the history knew what a run of each alert shows, by the alert's number.

    `run_of`: the number of the run; `times`: of the digest before the last one, of the last one, and of this.
    That is the end of the run, or later where it was merged, imported or judged after the last digest. One
    that is older than two digests, from an archive, counts by its end.
    """
    runs = _runs(connection, run_of.values())
    events = schema.alert_events
    told: dict[int, list[str]] = {}
    for chunk in in_chunks(list(run_of)):
        query = sa.select(events.c.alert_id, events.c.run_id, events.c.at).where(events.c.alert_id.in_(chunk))
        for number, run, at in connection.execute(query):
            if run == run_of[number]:
                told.setdefault(number, []).append(at)
    earlier, _, until = times
    shown = {number: runs[run].ended or runs[run].started for number, run in run_of.items() if run in runs}
    for number, end in shown.items():
        known = max(end, min(told.get(number, [end])))
        if earlier <= end and known <= until:
            shown[number] = known
    return shown


def _came_since(
    cause: ReportedCause, since: str, reported_at: Mapping[int, str], opened: Mapping[int, str]
) -> bool:
    """Whether no run before `since` showed a cause; by the date of its change where that run was pruned."""
    times = [reported_at[number] for member in cause.members if (number := member.alert or 0) in reported_at]
    return min(times or [_began(cause, opened)]) >= since


def _began(cause: ReportedCause, opened: Mapping[int, str]) -> str:
    """When a cause began; where its first run was pruned, when its first alert was opened."""
    return cause.bad.started if cause.bad else min(opened[member.alert or 0] for member in cause.members)


def _fixed(connection: sa.Connection, times: tuple[str, str, str]) -> list[ReportedCause]:
    """The regressions and failures that the last days showed to be over, as causes: those of each day."""
    alerts = [
        alert
        for alert in alert_store.load(connection, states=[alert_store.FIXED])
        if alert.direction == WORSE
    ]
    run_of = {alert.id or 0: int(alert.details.get("fixed_run_id") or -1) for alert in alerts}
    shown_at = _shown_at(connection, run_of, times)
    recent = [alert for alert in alerts if shown_at.get(alert.id or 0, "") >= times[1]]
    runs = _runs(connection, (run_of[alert.id or 0] for alert in recent))
    by_day: dict[str, list[RunChange]] = {}
    for item in gather(connection, recent):
        run = runs[run_of[item.alert.id or 0]]
        by_day.setdefault(run.started[:10], []).append(of_alert(item, run.id))
    return sort_causes(cause for changes in by_day.values() for cause in of_changes(changes))


def _runs(connection: sa.Connection, ids: Iterable[int]) -> dict[int, RunLine]:
    """The runs of these numbers that were not pruned, by number."""
    wanted = sorted(set(ids))
    return {run.id: run for run in list_runs(connection, ids=wanted)} if wanted else {}


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


def _aged(cause: ReportedCause, today: date, owners: Owners, opened: Mapping[int, str]) -> str:
    age = (today - date.fromisoformat(_began(cause, opened)[:10])).days
    return f"{counted(age, 'day')}: {_with_owners(cause, owners)}"


def _noise(connection: sa.Connection, rules: Sequence[SeriesRule], since: str, until: str) -> list[str]:
    """The noisiest series of the testbeds of which a run ended in a time, by the last night of each."""
    series: list[SeriesThreshold] = []
    beds = sa.select(schema.runs.c.testbed_id).where(_ended(since, until)).distinct()
    for bed in sorted(connection.execute(beds).scalars()):
        (run,) = list_runs(connection, testbed_id=bed, latest=1, with_excluded=False)
        series += noisiest(connection, run, _NOISIEST, rules)
    series.sort(key=lambda item: -item.sd)
    return [f"{model_of(item.case)}: {title_of(item.metric)}, {item.sd:.1%}" for item in series[:_NOISIEST]]
