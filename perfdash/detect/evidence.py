"""An alert with what the history knows of it: the case, the builds between which it came, the speedup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from scipy import special

from perfdash.detect.dating import Dated, date
from perfdash.detect.findings import METRICS
from perfdash.history import schema
from perfdash.history.alerts import Alert
from perfdash.history.queries import RunLine, cases_by_id, list_runs, panel
from perfdash.records import Case
from perfdash.stats.intervals import CONFIDENCE

# Nights in which a change is dated.
DATED_IN = 400
_BASELINE = 10  # nights behind a level before a change, at least
_TAIL_DF = 4.0  # of Student's t for one night, as in comparing


@dataclass(frozen=True)
class Evidence:
    """`good` is the run before the change, `bad` the first with it, `seen` the last; None: pruned.

    `dated` is the change as the history over many nights shows it; `speedup` that before and after.
    """

    alert: Alert
    case: Case | None
    good: RunLine | None
    bad: RunLine | None
    seen: RunLine | None
    dated: Dated | None = None
    speedup: tuple[float, float] | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the alert's change (log of after / before); None where none is known.

        Of the re-measurement where there was one. Else Student's t over the nights that it was born of,
        whose noise has heavy tails, against a baseline of many. What was tested as a whole (host, drift)
        has the width that its p says.
        """
        alert = self.alert
        again = alert.details.get("remeasured")
        if again and again["low"] and again["high"]:
            return math.log(again["low"]), math.log(again["high"])
        sd, nights = alert.details.get("sd"), int(alert.details.get("nights") or 1)
        if alert.change is None:
            return None
        if not sd:
            if not alert.p or alert.kind not in ("host", "drift"):
                return None
            half = 1.96 * abs(alert.change) / max(-float(special.ndtri(alert.p / 2)), 1e-3)
            return (alert.change - half, alert.change + half) if math.isfinite(half) else None
        error = float(sd) * math.sqrt(1 / nights + 1 / _BASELINE)
        reach = float(special.stdtrit(_TAIL_DF * nights, (1 + CONFIDENCE) / 2)) * error
        return alert.change - reach, alert.change + reach

    @property
    def between(self) -> tuple[RunLine | None, RunLine | None]:
        """The runs between which it changed: as the history dates it, else as the alarm did."""
        return (self.dated.good, self.dated.bad) if self.dated else (self.good, self.bad)


def gather(connection: sa.Connection, alerts: Sequence[Alert]) -> list[Evidence]:
    """The evidence of some alerts, in their order."""
    cases = cases_by_id(connection, (alert.case_id for alert in alerts if alert.case_id is not None))
    wanted = {
        number
        for alert in alerts
        for number in (alert.good_run_id, alert.bad_run_id, alert.seen_run_id)
        if number is not None
    }
    # The runs of many alerts are mostly the same: each is read once.
    measured = {alert.id: _measured_in(connection, alert) for alert in alerts if _is_dated(alert)}
    wanted.update(number for numbers in measured.values() for number in numbers)
    runs = _by_number(connection, wanted)
    found = []
    for alert in alerts:
        good, bad, seen = (
            runs.get(number or -1) for number in (alert.good_run_id, alert.bad_run_id, alert.seen_run_id)
        )
        found.append(
            Evidence(
                alert,
                cases.get(alert.case_id or -1),
                good,
                bad,
                seen,
                _dated(connection, alert, bad, [runs[number] for number in measured.get(alert.id, ())]),
                _speedups(connection, alert, good, seen),
            )
        )
    return found


def _is_dated(alert: Alert) -> bool:
    return alert.kind == "metric" and alert.metric in METRICS and alert.case_id is not None


def _dated(
    connection: sa.Connection, alert: Alert, bad: RunLine | None, runs: Sequence[RunLine]
) -> Dated | None:
    if not _is_dated(alert) or bad is None or alert.case_id is None or alert.metric is None:
        return None
    whole = panel(connection, runs, [alert.metric], case_ids=[alert.case_id])
    return date(whole, alert.case_id, alert.metric, bad.id, alert.direction)


def _by_number(connection: sa.Connection, numbers: Iterable[int]) -> dict[int, RunLine]:
    wanted = sorted(set(numbers))
    return {
        run.id: run
        for start in range(0, len(wanted), 500)
        for run in list_runs(connection, ids=wanted[start : start + 500])
    }


def _measured_in(connection: sa.Connection, alert: Alert) -> list[int]:
    """The numbers of the latest runs that have the alert's case, oldest first."""
    results, runs = schema.results, schema.runs
    query = (
        sa.select(results.c.run_id)
        .join_from(results, runs, results.c.run_id == runs.c.id)
        .where(results.c.case_id == alert.case_id, runs.c.testbed_id == alert.testbed_id)
        .order_by(runs.c.started.desc(), runs.c.id.desc())
        .limit(DATED_IN)
    )
    return list(connection.execute(query).scalars())[::-1]


def _speedups(
    connection: sa.Connection, alert: Alert, good: RunLine | None, seen: RunLine | None
) -> tuple[float, float] | None:
    if alert.metric not in ("eager_ms", "backend_ms") or not (good and seen and alert.case_id):
        return None
    results = schema.results
    query = sa.select(results.c.run_id, results.c.speedup).where(
        results.c.case_id == alert.case_id, results.c.run_id.in_([good.id, seen.id])
    )
    found = {row.run_id: row.speedup for row in connection.execute(query)}
    before, after = found.get(good.id), found.get(seen.id)
    return (before, after) if before and after else None
