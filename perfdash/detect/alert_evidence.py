"""Gather the evidence of an alert: its case, the builds before and after, the speedup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa
from scipy import special

from perfdash.detect.change_dates import Dated, date_change
from perfdash.history.alert_store import Alert
from perfdash.history.queries import Panel, RunLine, cases_by_id, list_runs, of_method, panel
from perfdash.methods import alike
from perfdash.metrics import JUDGED
from perfdash.records import Case
from perfdash.stats.intervals import CONFIDENCE

# Nights in which a change is dated.
DATED_IN = 400
_BASELINE = 20  # nights that tell the level before a change, at most
_TAIL_DF = 4.0  # of Student's t for one night, as in comparing


class Remeasured(NamedTuple):
    """Logs of new / old: the ratio, and its 95 % interval."""

    ratio: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class AlertEvidence:
    """An alert with its case and runs.

    `good` is the run before the change, `bad` the first with it, `seen` the last; None where pruned.

    `dated` is the change as the history over many nights shows it; `speedup` that before and after.
    """

    alert: Alert
    case: Case | None
    good: RunLine | None
    bad: RunLine | None
    seen: RunLine | None
    dated: Dated | None = None
    speedup: tuple[float, float] | None = None
    before: int = _BASELINE  # runs of the case before the change

    @property
    def remeasured(self) -> Remeasured | None:
        """The ratio new / old of the re-measurement in pairs; None without one."""
        again = self.alert.details.get("remeasured") or {}
        ratios = [float(again.get(name) or 0) for name in ("ratio", "low", "high")]
        if not all(0 < value < math.inf for value in ratios):
            return None
        ratio, low, high = map(math.log, ratios)
        return Remeasured(ratio, low, high, int(again.get("pairs") or 0))

    @property
    def seen_again(self) -> tuple[str, str] | None:
        """The status or count that a re-measurement found on the old and the new build."""
        again = self.alert.details.get("remeasured") or {}
        return (str(again["old"]), str(again["new"])) if {"old", "new"} <= again.keys() else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the alert's change, log(after / before); None if unknown.

        Of the re-measurement where there was one. Else Student's t over the nights that it was born of
        and those before, whose noise has heavy tails. What was tested as a whole (host, drift) has the
        width that its p says.
        """
        alert = self.alert
        if self.remeasured:
            return self.remeasured.low, self.remeasured.high
        sd, nights = alert.details.get("sd"), int(alert.details.get("nights") or 1)
        if alert.change is None:
            return None
        if not sd:
            if not alert.p or alert.kind not in ("host", "drift"):
                return None
            half = 1.96 * abs(alert.change) / max(-float(special.ndtri(alert.p / 2)), 1e-3)
            return (alert.change - half, alert.change + half) if math.isfinite(half) else None
        before = max(2, min(self.before, _BASELINE))
        error = float(sd) * math.sqrt(1 / nights + 1 / before)
        freedom = min(_TAIL_DF * nights, before - 1)
        reach = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
        return alert.change - reach, alert.change + reach

    @property
    def between(self) -> tuple[RunLine | None, RunLine | None]:
        """The runs between which it changed: as the history dates it, else as the alarm did."""
        return (self.dated.good, self.dated.bad) if self.dated else (self.good, self.bad)


def gather(connection: sa.Connection, alerts: Sequence[Alert]) -> list[AlertEvidence]:
    """The evidence of some alerts, in their order."""
    cases = cases_by_id(connection, (alert.case_id for alert in alerts if alert.case_id is not None))
    wanted = {
        number
        for alert in alerts
        for number in (alert.good_run_id, alert.bad_run_id, alert.seen_run_id)
        if number is not None
    }
    runs = _by_number(connection, wanted)
    pasts = {
        bed: _past(connection, bed, {alert.case_id for alert in alerts if alert.testbed_id == bed})
        for bed in {alert.testbed_id for alert in alerts if _is_dated(alert)}
    }
    return [_of(alert, cases, runs, pasts.get(alert.testbed_id)) for alert in alerts]


def _of(
    alert: Alert, cases: Mapping[int, Case], runs: Mapping[int, RunLine], past: Panel | None
) -> AlertEvidence:
    good, bad, seen = (
        runs.get(number or -1) for number in (alert.good_run_id, alert.bad_run_id, alert.seen_run_id)
    )
    case = cases.get(alert.case_id or -1)
    mine = _measured(past, alert.case_id) if past is not None and _is_dated(alert) else None
    if mine is None or bad is None or alert.case_id is None or alert.metric is None:
        return AlertEvidence(alert, case, good, bad, seen)
    mine = of_method(mine, bad.method)
    before = sum(
        (run.started, run.id) < (bad.started, bad.id) and alike(run.method, bad.method, alert.metric)
        for run in mine.runs
    )
    dated = date_change(mine, alert.case_id, alert.metric, bad.id, alert.direction)
    return AlertEvidence(alert, case, good, bad, seen, dated, _speedups(mine, alert, good, seen), before)


def _is_dated(alert: Alert) -> bool:
    return alert.kind == "metric" and alert.metric in JUDGED and alert.case_id is not None


def _past(connection: sa.Connection, testbed_id: int, case_ids: Iterable[int | None]) -> Panel:
    """The metrics of some cases over a testbed's nights, read at once: most alerts share them."""
    runs = list_runs(connection, testbed_id=testbed_id, latest=2 * DATED_IN)
    numbers = [number for number in case_ids if number is not None]
    return panel(connection, runs, [*JUDGED, "speedup"], case_ids=numbers)


def _measured(past: Panel, case_id: int | None) -> Panel | None:
    """Of a panel one case, and the latest nights that have it."""
    if case_id not in past.case_ids:
        return None
    row = past.case_ids.index(case_id)
    nights = np.flatnonzero(past.statuses[row] != "")[-DATED_IN:]
    return Panel(
        [past.runs[night] for night in nights],
        [past.case_ids[row]],
        {name: values[[row]][:, nights] for name, values in past.values.items()},
        past.statuses[[row]][:, nights],
    )


def _by_number(connection: sa.Connection, numbers: Iterable[int]) -> dict[int, RunLine]:
    wanted = sorted(set(numbers))
    return {
        run.id: run
        for start in range(0, len(wanted), 500)
        for run in list_runs(connection, ids=wanted[start : start + 500])
    }


def _speedups(
    mine: Panel, alert: Alert, good: RunLine | None, seen: RunLine | None
) -> tuple[float, float] | None:
    if alert.metric not in ("eager_ms", "backend_ms") or not (good and seen):
        return None
    by_run = {run.id: value for run, value in zip(mine.runs, mine.values["speedup"][0].tolist(), strict=True)}
    before, after = (by_run.get(run.id, math.nan) for run in (good, seen))
    return (before, after) if before > 0 and after > 0 else None
