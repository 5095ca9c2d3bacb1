"""The gates of --fail-on: fail a command when results failed or something became worse.

Each gate returns the exit code, 0 or 1, and says through `warn` what failed and what could not be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.causes import gather_in_causes
from perfdash.detect.comparison import Comparison
from perfdash.detect.nightly_judging import judge_new
from perfdash.errors import PerfdashError, UsageError
from perfdash.history.alert_store import ACKNOWLEDGED, LIVE, SHOWN, STATES, Alert, load
from perfdash.history.queries import RunLine, read_run
from perfdash.history.results import Imported, from_run
from perfdash.history.run_selection import find_run
from perfdash.history.store import Store, check_writable, open_store
from perfdash.records import PASSING, Result, RunInfo, Status
from perfdash.report import junit
from perfdash.report.alert_text import by_urgency, model_of, what
from perfdash.report.night import Night, alerts_of_night, line_of, of_history
from perfdash.runner.plan import parse_shard
from perfdash.settings import RunSettings, judging_rules

Warn = Callable[[str], None]
_REGRESSION = "--fail-on regression"


def check_settings(settings: RunSettings) -> None:
    """Refuse what would fail only after measuring: gates, the JUnit file, the history's address."""
    part = bool(settings.shard) and parse_shard(str(settings.shard))[1] > 1
    if "regression" in settings.fail_on and (settings.no_history or part):
        why = "--no-history" if settings.no_history else "a shard goes in when it is merged"
        raise UsageError(f"{_REGRESSION} needs the history, and this run is kept out of it: {why}")
    if settings.junit and not settings.junit.absolute().parent.is_dir():
        raise UsageError(f"--junit {settings.junit}: there is no folder {settings.junit.parent}")
    if settings.no_history or part:
        return
    try:
        check_writable(settings.history)
    except PerfdashError as error:
        raise type(error)(
            f"{error}. Nothing was measured. Give another --db, or keep the run out with --no-history"
        ) from error


def run_gates(
    settings: RunSettings, info: RunInfo, results: Sequence[Result], source: str, warn: Warn
) -> int:
    """Apply the gates of a finished run and write its JUnit file.

    Raises PerfdashError, after the file is written, where the history cannot be read.
    """
    imported = from_run(info, results, source)
    code = result_gate(results, settings.fail_on, warn)
    alerts: Sequence[AlertEvidence] = []
    failure: PerfdashError | None = None
    if "regression" in settings.fail_on:
        try:
            alerts = alerts_of_run(settings.history, imported, warn)
        except PerfdashError as error:
            failure = error
    if settings.junit:
        junit.write(settings.junit, info.id, imported.rows, alerts)
    if failure:
        raise failure
    return max(code, alert_gate(alerts, warn))


def alerts_of_run(history: str, imported: Imported, warn: Warn) -> Sequence[AlertEvidence]:
    """The open alerts of a run's night, judged against earlier nights. Raises PerfdashError."""
    name = imported.run.name
    with open_store(history, create=False) as store:
        judge_new(store, rules=judging_rules(), warn=warn)
        with store.read() as connection:
            run = line_of(connection, imported)
            if run is None:
                raise UsageError(f"{_REGRESSION}: the history {store.shown} has no run {name!r}")
            of_night = _of_night(connection, run, imported, warn)
            alerts = [alert for alert in of_night if alert.state in SHOWN]
            return by_urgency(gather_in_causes(connection, alerts))


def alerts_in_run(store: Store, name: str, warn: Warn) -> list[Alert]:
    """The alerts, in any state, that were open on a run's night, or that it began or was the last to show.

    `name`: as in find_run, which raises UsageError.
    """
    with store.read() as connection:
        run = find_run(connection, name)
        alerts = load(connection, testbed_id=run.testbed_id, states=STATES)
        of_run = [alert for alert in alerts if run.id in (alert.bad_run_id, alert.seen_run_id)]
        of_night = _of_night(connection, run, read_run(connection, run), warn)
        return list({alert.id: alert for alert in (*of_run, *of_night)}.values())


def _of_night(connection: sa.Connection, run: RunLine, imported: Imported, warn: Warn) -> Sequence[Alert]:
    """The alerts that the report of a run's night has; says through `warn` what was not judged."""
    night = of_history(connection, imported)
    if unchecked := night.untold or night.caution:
        warn(f"{_REGRESSION}: not checked: {unchecked}")
    return [] if night.untold else alerts_of_night(connection, run, imported)


def result_gate(results: Sequence[Result], fail_on: Sequence[str], warn: Warn) -> int:
    """Fail on results that failed, were wrong, or were slower than eager."""
    failing = {
        "accuracy": [r for r in results if r.status is Status.FAIL_ACCURACY],
        "failure": [r for r in results if r.status not in PASSING | {Status.SKIPPED, Status.NOT_TONIGHT}],
        "slower": [r for r in results if r.status in PASSING and r.speedup and r.speedup.verdict == "slower"],
    }
    code = 0
    for gate in fail_on:
        if failing.get(gate):
            names = ", ".join(model_of(result.case) for result in failing[gate])
            warn(f"--fail-on {gate}: {len(failing[gate])} of {len(results)}: {names}")
            code = 1
    return code


def alert_gate(alerts: Sequence[AlertEvidence], warn: Warn) -> int:
    """Fail on open alerts that are worse and that nobody has acknowledged."""
    failing = [
        evidence
        for evidence in alerts
        if evidence.alert.direction > 0
        and evidence.alert.state in LIVE
        and evidence.alert.state != ACKNOWLEDGED
    ]
    return _failed([f"{model_of(evidence.case)}: {what(evidence.alert)}" for evidence in failing], warn)


def night_gate(night: Night, warn: Warn) -> int:
    """Fail on changes of a night that are worse and that nobody has acknowledged."""
    for reason in (night.untold, night.caution):
        if reason:
            warn(f"{_REGRESSION}: not checked: {reason}")
    if night.eager:
        warn(f"{_REGRESSION}: {night.eager}")
    failing = [change for change in night.changes if change.fails_check]
    return _failed([f"{model_of(change.case)}: {change.what}" for change in failing], warn)


def comparison_gate(comparison: Comparison, warn: Warn) -> int:
    """Fail on cases that became significantly worse, or vanished.

    Raises UsageError where nothing can be compared.
    """
    if nothing := comparison.nothing_to_compare:
        raise UsageError(f"{_REGRESSION}: nothing to compare: {nothing}")
    if comparison.methods:
        methods = ", ".join(comparison.methods)
        warn(f"{_REGRESSION}: not compared, as measured by different methods ({methods})")
    if comparison.untested:
        warn(f"{_REGRESSION}: not checked: {comparison.untested}")
    vanished = [f"{model_of(case)} (no longer measured)" for case in comparison.vanished]
    worse = [model_of(compared.case) for compared in comparison.both if compared.regressed] + vanished
    if worse:
        warn(f"{_REGRESSION}: {len(worse)} of {len(comparison.both) + len(vanished)}: {', '.join(worse)}")
    return 1 if worse else 0


def _failed(names: Sequence[str], warn: Warn) -> int:
    if names:
        warn(f"{_REGRESSION}: {len(names)}: {'; '.join(names)}")
    return 1 if names else 0
