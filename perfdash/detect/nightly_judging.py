"""Judge new runs of the history in order, and update its alerts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import sqlalchemy as sa

from perfdash.detect import alert_states
from perfdash.detect.curation import LATEST, raised_again, undo_replaced, withdrawn_alerts
from perfdash.detect.findings import (
    NIGHTS,
    READ,
    WORSE,
    Finding,
    Key,
    Levels,
    NetLogs,
    drifts,
    judge,
    metric_logs,
    on_one_machine,
    with_parts,
)
from perfdash.detect.later_nights import WITHOUT_NOISE, with_levels_before, with_recent_levels
from perfdash.detect.nights import (
    JUDGED_NIGHTS,
    NEARBY_RUNS,
    begins_in_the_future,
    days_between,
    first_latest_day,
    is_a_night,
    is_first_of_its_week,
    is_of_the_week,
    later_judged_first,
    latest_start,
    runs_before,
    were_beside,
)
from perfdash.detect.one_sided_cases import configuration_of
from perfdash.detect.selected_series import AcceptedLevel, SeriesSelection
from perfdash.files import now
from perfdash.history import acts, alert_store, schema
from perfdash.history.alert_store import ACKNOWLEDGED, DISMISSED, FIXED, INVALID, LIVE, SHOWN, Alert
from perfdash.history.ingest import replaced_since_judged
from perfdash.history.queries import (
    Panel,
    RunLine,
    cases_by_id,
    in_chunks,
    list_runs,
    of_method,
    panel,
    settings_of_run,
)
from perfdash.history.store import ReadOnlyHistory, Store
from perfdash.metrics import JUDGED
from perfdash.records import Case
from perfdash.series_rules import SeriesRule
from perfdash.stats.nightly_test import sensitivity

_FEWEST = 3  # nights from which noise is estimated


@dataclass(frozen=True)
class Judged:
    """A judged night: its findings, and the panel that they index.

    `unlike`: it was not judged, because it has too few cases of the runs before it. `machines`: the levels of
    its machines, which the panel no longer has.
    """

    run: RunLine
    panel: Panel
    findings: list[Finding]
    unlike: bool = False
    selection: SeriesSelection = field(default_factory=SeriesSelection)
    machines: Levels = field(default_factory=dict)


@dataclass(frozen=True)
class JudgedRun:
    """The findings of a judged run without the panel, which is large. `unlike`: as in Judged.

    `later`: the name of a later run that was judged first, so that this one changes no alert; only those of
    failures where `was_beside`. `days_late`: from this run to the newest of these.
    """

    run: RunLine
    findings: list[Finding]
    unlike: bool = False
    later: str | None = None
    was_beside: bool = False
    days_late: int = 0


def judge_new(
    store: Store,
    latest: int = LATEST,
    rules: Sequence[SeriesRule] = (),
    warn: Callable[[str], None] = lambda text: None,
) -> list[JudgedRun]:
    """Judge the runs that were not judged yet, oldest first, each in a transaction.

    `latest`: the number of days with runs of each testbed that are considered. `rules`: `[[thresholds]]` of
    perfdash.toml. `warn` gets a line about the runs since the last judged one that are older than these days.
    """
    _end_acknowledgements(store)
    _undo_replaced_nights(store)
    with store.read() as connection:
        beds = connection.execute(sa.select(schema.testbeds.c.id)).scalars().all()
        waiting: list[RunLine] = []
        first_days = {}
        for bed in beds:
            since = first_days[bed] = first_latest_day(connection, bed, latest)
            for run in _waiting(connection, bed, since):
                if begins_in_the_future(run):
                    warn(
                        f"{run.name} begins in the future ({run.started[:10]}): a clock is wrong. It is "
                        "judged from a day before that date on. If the clock of the run was wrong, "
                        f"exclude it: `perfdash history exclude {shlex.quote(run.name)} "
                        '--because "wrong clock"`'
                    )
                else:
                    waiting.append(run)
            if skipped := _never_judged(connection, bed, since):
                first, last = skipped[0], skipped[-1]
                warn(
                    f"Not judged: {len(skipped)} run{'' if len(skipped) == 1 else 's'} on {first.host_class} "
                    f"from {first.started[:10]} to {last.started[:10]}, because only the latest {latest} "
                    "days with runs are judged. A change that began in them raises no alert."
                )
    done: list[JudgedRun] = []
    for run in sorted(waiting, key=lambda run: (run.started, run.id)):
        with store.write() as connection:
            if _is_settled(connection, run):
                continue
            # Someone took earlier nights back meanwhile: judged after this one they would be late.
            if _earlier_waits(connection, run, first_days[run.testbed_id]):
                break
            judged = judge_run(connection, run, rules)
            later = [] if judged.unlike else later_judged_first(connection, run)
            at = now()
            # A run that was stored after later nights were judged changes no alert, but those of failures
            # where only other machines measured these nights, side by side with it.
            beside = were_beside(run, later)
            if not judged.unlike and beside:
                _update_alerts(connection, judged, at, later)
            alert_store.set_judged(connection, [run.id], at)
        name = later[0].name if later else None
        days = days_between(run, later[-1]) if later else 0
        done.append(JudgedRun(run, judged.findings, judged.unlike, name, bool(later) and beside, days))
    else:
        return done
    return done + judge_new(store, latest, rules)  # the warnings are known


def judge_if_allowed(
    store: Store, rules: Sequence[SeriesRule] = (), warn: Callable[[str], None] = lambda text: None
) -> list[JudgedRun]:
    """As judge_new; but where this user may only read the history, `warn` gets a line about that."""
    try:
        return judge_new(store, rules=rules, warn=warn)
    except ReadOnlyHistory:
        warn(
            f"Some nights are not judged yet, and you may only read the history {store.shown}: their changes "
            "are missing until its owner runs `perfdash regressions`"
        )
        return []


def _waiting(connection: sa.Connection, testbed_id: int, since: str) -> list[RunLine]:
    """The runs of a testbed from the day `since` on that were not judged yet, or begin in the future."""
    runs = schema.runs
    not_judged = sa.and_(runs.c.judged.is_(None), runs.c.results > 0)
    query = sa.select(runs.c.id).where(
        runs.c.testbed_id == testbed_id,
        runs.c.started >= since,
        runs.c.excluded.is_(None),
        sa.or_(not_judged, runs.c.started > latest_start()),
    )
    ids = connection.execute(query).scalars().all()
    found = [run for chunk in in_chunks(ids) for run in list_runs(connection, ids=chunk)]
    return sorted(found, key=lambda run: (run.started, run.id))


def _earlier_waits(connection: sa.Connection, run: RunLine, since: str) -> bool:
    """Whether an earlier run of the testbed, from the day `since` on, is still to be judged."""
    runs = schema.runs
    earlier = sa.or_(runs.c.started < run.started, sa.and_(runs.c.started == run.started, runs.c.id < run.id))
    query = sa.select(runs.c.id).where(
        runs.c.testbed_id == run.testbed_id,
        runs.c.started >= since,
        earlier,
        runs.c.judged.is_(None),
        runs.c.excluded.is_(None),
        runs.c.results > 0,
    )
    return connection.execute(query.limit(1)).first() is not None


def _never_judged(connection: sa.Connection, testbed_id: int, since: str) -> list[RunLine]:
    """The runs after the last judged one of a testbed that began before the day `since`."""
    runs = schema.runs
    last = sa.select(sa.func.max(runs.c.started)).where(
        runs.c.testbed_id == testbed_id, runs.c.judged.is_not(None), runs.c.excluded.is_(None)
    )
    judged = connection.execute(last).scalar()
    if judged is None or judged >= since:
        return []
    after = list_runs(connection, testbed_id=testbed_id, since=judged, with_excluded=False)
    return [run for run in after if judged < run.started < since and run.judged is None and run.results]


def _is_settled(connection: sa.Connection, run: RunLine) -> bool:
    """Whether someone else judged, excluded or removed a run since it was read."""
    present = list_runs(connection, ids=[run.id])
    return not present or present[0].judged is not None or present[0].excluded is not None


def _end_acknowledgements(store: Store) -> None:
    """Reopen the alerts that were acknowledged until a day that is over."""
    at = now()
    with store.read() as connection:
        known = alert_store.load(connection, states=[ACKNOWLEDGED])
        if not any(alert_states.unacknowledged(alert, at[:10], at) for alert in known):
            return
    with store.write() as connection:
        for alert in alert_store.load(connection, states=[ACKNOWLEDGED]):
            reopened = alert_states.unacknowledged(alert, at[:10], at)
            if reopened is not None:
                until = alert.details["act"]["until"]
                alert_store.save(connection, reopened, f"{alert_store.ACKNOWLEDGED_UNTIL} {until}")


def _undo_replaced_nights(store: Store) -> None:
    """Undo what resumed or corrected nights changed, so that they are judged again."""
    with store.read() as connection:
        if not replaced_since_judged(connection):
            return
    with store.write() as connection:
        undo_replaced(connection)


def judge_run(connection: sa.Connection, run: RunLine, rules: Sequence[SeriesRule] = ()) -> Judged:
    """Judge one run against earlier nights of the same method; stores nothing."""
    night = read_night(connection, run)
    if not is_a_night(night):
        return Judged(run, night, [], unlike=len(night.runs) > 1)
    is_first = is_first_of_its_week(night)
    night, start, selection, alerts = _prepared(connection, run, night, rules)
    night, machines = on_one_machine(night, start, steps=alert_states.certain_steps(alerts))
    findings = with_parts(judge(night, start, selection.minimum_changes(), machines), alerts)
    findings = _of_measured_configurations(connection, night, findings)
    if is_first:
        findings += drifts(night, start, machines)
    invalid = alert_store.load(connection, testbed_id=run.testbed_id, states=[INVALID])
    later = _runs_after(connection, run) if findings and invalid else []
    findings = alert_states.without_invalid(night.runs, selection.kept(night, findings), invalid, later)
    return Judged(run, night, findings, selection=selection, machines=machines)


def _runs_after(connection: sa.Connection, run: RunLine) -> list[RunLine]:
    """The nights after a run that measured a setting of it, oldest first; none, unless it is judged again."""
    settings = settings_of_run(connection, run.id)
    runs = list_runs(
        connection, testbed_id=run.testbed_id, since=run.started, with_excluded=False, settings=settings
    )
    return [later for later in runs if later.origin == run.origin and _earlier(run, later)]


def _of_measured_configurations(
    connection: sa.Connection, night: Panel, findings: list[Finding]
) -> list[Finding]:
    """Drop the vanished cases of configurations that the night did not run at all: it was not asked to."""
    gone = [finding.case_id for finding in findings if finding.kind == "vanished"]
    if not gone:
        return findings
    tonight = [number for number, words in zip(night.case_ids, night.statuses[:, -1], strict=True) if words]
    cases = cases_by_id(connection, [*tonight, *(number for number in gone if number is not None)])
    measured = {configuration_of(cases[number]) for number in tonight}
    absent = {number for number in gone if number and configuration_of(cases[number]) not in measured}
    return [each for each in findings if each.kind != "vanished" or each.case_id not in absent]


def read_night(connection: sa.Connection, run: RunLine) -> Panel:
    """The numbers of a run, and of the earlier nights of its method that measured a setting of it.

    A night may consist of many runs, each with settings of its own. Without an earlier run of these settings:
    the runs before it, whatever they measured.
    """
    runs = runs_before(connection, run, latest=NIGHTS, settings=settings_of_run(connection, run.id))
    if not runs:
        runs = runs_before(connection, run, latest=NEARBY_RUNS)
    else:
        week = [earlier for earlier in runs if is_of_the_week(earlier, run)]
        if not is_first_of_its_week(panel(connection, [*week, run], ())):
            runs = runs[-JUDGED_NIGHTS:]
    # The runs that last saw a shift of the host: it may be that of another setting.
    read = {earlier.id for earlier in runs}
    live = alert_store.load(connection, testbed_id=run.testbed_id, states=LIVE)
    seen = {alert.seen_run_id for alert in live if alert.case_id is None and alert.seen_run_id is not None}
    if unread := sorted(seen - read - {run.id}):
        older = list_runs(connection, ids=unread, with_excluded=False)
        runs += [line for line in older if line.origin == run.origin and _earlier(line, run)]
    runs.sort(key=lambda line: (line.started, line.id))
    return of_method(panel(connection, [*runs, run], READ), run.method)


def _prepared(
    connection: sa.Connection, run: RunLine, night: Panel, rules: Sequence[SeriesRule]
) -> tuple[Panel, dict[Key, int], SeriesSelection, list[Alert]]:
    """The numbers that count, the first night of each series, the rules, and the alerts of this method."""
    stored = alert_store.load(connection, testbed_id=run.testbed_id, states=(*SHOWN, FIXED))
    alerts = [alert for alert in stored if not alert_states.other_method(alert, night)]
    night = alert_states.without_fixed(night, alerts)
    selection = _selection(connection, night, run, rules)
    night = selection.masked(night)
    return night, alert_states.first_nights(night, alerts), selection, alerts


AFTER = (1, 2, 5)  # nights after which SeriesThreshold says what is found


@dataclass(frozen=True)
class SeriesThreshold:
    """The noise of a series. `sd`: relative standard deviation of a night; `nights`: that estimate it.

    `minimum`: the least relative change that counts; `least`: the least that raises an alert after the nights
    of AFTER without re-measurement, None where no change does.
    """

    case: Case
    metric: str
    nights: int
    sd: float
    minimum: float
    least: tuple[float | None, ...]


def noisiest(
    connection: sa.Connection, run: RunLine, number: int, rules: Sequence[SeriesRule] = ()
) -> list[SeriesThreshold]:
    """The noisiest judged series of a run's testbed, by the nights up to the run."""
    night, start, selection, alerts = _prepared(connection, run, read_night(connection, run), rules)
    night, _ = on_one_machine(night, start, steps=alert_states.certain_steps(alerts))
    cases, minimum = cases_by_id(connection, night.case_ids), selection.minimum_changes()
    listed = []
    for name, metric in JUDGED.items():
        values = metric_logs(night, name)
        rows = np.flatnonzero(np.isfinite(values).sum(axis=1) >= _FEWEST)
        ids = [night.case_ids[row] for row in rows.tolist()]
        if not ids:
            continue
        least = np.array([minimum.get((case_id, name), metric.threshold) for case_id in ids])
        first = np.array([start.get((case_id, name), 0) for case_id in ids], dtype=np.int64)
        found = sensitivity(values[rows], AFTER, start=first, minimum_change=least)
        listed += [
            SeriesThreshold(
                cases[case_id],
                name,
                int(found.count[place]),
                float(found.sd[place]),
                float(least[place]),
                tuple(math.expm1(x) if math.isfinite(x) else None for x in found.least[place].tolist()),
            )
            for place, case_id in enumerate(ids)
            if found.count[place] >= _FEWEST
        ]
    return sorted(listed, key=lambda series: -series.sd)[:number]


def _selection(
    connection: sa.Connection, night: Panel, run: RunLine, rules: Sequence[SeriesRule]
) -> SeriesSelection:
    """The rules and accepted levels of a testbed, with the cases that they select from."""
    made = acts.load(connection, act=acts.BASELINE, testbed_id=run.testbed_id)
    levels = [AcceptedLevel.of(act.details) for act in made]
    cases = cases_by_id(connection, night.case_ids) if rules or levels else {}
    return SeriesSelection(rules, levels, cases)


def _update_alerts(connection: sa.Connection, judged: Judged, at: str, later: Sequence[RunLine]) -> None:
    """Store what a night changes of its testbed's alerts.

    `later`: runs of other machines, side by side with it, that were judged before. What they measured is not
    in the panel, so that of numbers it is not known whether they are at the level before or after.
    """
    alerts = alert_store.load(
        connection,
        testbed_id=judged.run.testbed_id,
        states=(*SHOWN, FIXED),
        or_seen_in=judged.run.id,
    )
    findings = judged.findings
    if later:
        alerts = [alert for alert in alerts if _is_failure(alert)]
        findings = [finding for finding in findings if _is_failure(finding)]
    for alert in [alert for alert in alerts if alert.state in SHOWN]:
        if not judged.selection.is_judged(alert.case_id, alert.metric):
            alerts.remove(alert)
            ended = replace(alert, state=DISMISSED, changed=at)
            alert_store.save(connection, ended, alert_store.NOT_JUDGED)
    withdrawn = withdrawn_alerts(connection, judged.run)
    night, machines = judged.panel, judged.machines
    if not machines:
        alerts = _with_machines(connection, alerts, night)
    net = NetLogs(night, [alert for alert in alerts if alert.state in SHOWN])
    later_ids = {line.id for line in later}
    seen_later = {alert.id: alert.seen_run_id for alert in alerts if alert.seen_run_id in later_ids}
    advanced = alert_states.advance(night, alerts, findings, at, net, machines, later)
    ended_shifts = [alert for alert, _ in advanced if alert.kind == "host" and alert.state == FIXED]

    def with_lasting_levels(alert: Alert) -> Alert:
        for shift in ended_shifts:
            alert = with_levels_before(alert, shift, night, net)
        return with_recent_levels(alert, night, net)

    for alert, note in advanced:
        if alert.id is None:
            alert = raised_again(alert, withdrawn, night)
        alert = alert_states.dated(alert, night, net, machines)
        alert_store.save(connection, with_lasting_levels(alert), note)
        if alert.id in seen_later:  # the event is of this night, but another run showed the change last
            alert_store.save(connection, replace(alert, seen_run_id=seen_later[alert.id]))
    # Of a case that the night did not measure, too, the levels become those of a later night in time.
    advanced_ids = {alert.id for alert, _ in advanced}
    for alert in alerts:
        lasting = with_lasting_levels(alert)
        if lasting is not alert and alert.id not in advanced_ids:
            alert_store.save(connection, lasting)


def _with_machines(connection: sa.Connection, alerts: Sequence[Alert], night: Panel) -> list[Alert]:
    """The open alerts that name no machine with the one of their nights; the others as they are.

    They are of an older perfdash, or of machines whose names changed every night. Of several machines an
    alert names all (`a+b`), but only if that of the panel `night` is none of them: otherwise its level may be
    theirs.
    """
    panel_hosts = {host for run in night.runs for host in run.hosts}
    hosts_of: dict[int, set[str]] = {}
    named = []
    for alert in alerts:
        born_run = alert.details.get("born_run_id")
        is_of_level = alert.state in SHOWN and alert.kind in ("metric", "drift")
        if is_of_level and born_run is not None and "machine" not in alert.details:
            if born_run not in hosts_of:
                hosts_of[born_run] = _hosts_until(connection, born_run)
            hosts = hosts_of[born_run]
            if len(hosts) == 1 or (hosts and not hosts & panel_hosts):
                alert = replace(alert, details={**alert.details, "machine": "+".join(sorted(hosts))})
        named.append(alert)
    return named


def _hosts_until(connection: sa.Connection, run_id: int) -> set[str]:
    """The machines of a run and the nights with which it was judged; none if it was pruned."""
    settings, nights = settings_of_run(connection, run_id), list_runs(connection, ids=[run_id])
    for run in nights[:]:
        nights += runs_before(connection, run, latest=JUDGED_NIGHTS, settings=settings)
    return {host for night in nights for host in night.hosts}


def _is_failure(change: Alert | Finding) -> bool:
    """Whether a change is one without noise, for the worse."""
    return change.kind in WITHOUT_NOISE and change.direction == WORSE


def _earlier(run: RunLine, later: RunLine) -> bool:
    return (run.started, run.id) < (later.started, later.id)
