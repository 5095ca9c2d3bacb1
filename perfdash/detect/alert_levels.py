"""The levels before and after an alert's change, on the machines of a panel. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfdash.detect.findings import Levels
from perfdash.history.alert_store import Alert
from perfdash.history.queries import Panel
from perfdash.metrics import JUDGED
from perfdash.stats.machine_levels import MachineLevels


@dataclass(frozen=True)
class AlertLevels:
    """The log levels of an alert on the machines of a panel; NaN if they are not known there.

    sd: standard deviation of a night's log. variance: of what is known of the machines' levels, squared logs.
    """

    before: float
    after: float
    sd: float
    variance: float

    @property
    def are_known(self) -> bool:
        return math.isfinite(self.before)

    def spread(self, nights: int) -> float:
        """The error of the mean of so many nights, times the root of their number."""
        return math.hypot(self.sd, math.sqrt(nights * self.variance))


def alert_levels(alert: Alert, panel: Panel, machines: Levels) -> AlertLevels:
    """The levels of an alert, from its machine's level to that of the panel."""
    offset, variance = _machine_offset(alert, panel, machines.get(str(alert.metric)))
    metric = JUDGED.get(str(alert.metric))
    sd = float(alert.details.get("sd") or (metric.threshold if metric else 0.0))
    before, after = (math.log(level) if level and level > 0 else 0.0 for level in (alert.before, alert.after))
    return AlertLevels(before - offset, after - offset, sd, variance)


def _machine_offset(alert: Alert, panel: Panel, levels: MachineLevels | None) -> tuple[float, float]:
    """The log level of an alert's machine over the panel's, and its variance; NaN if it is not known.

    Without `machine` in its details the alert is of the nights of one machine, or of an older perfdash.
    """
    machine = alert.details.get("machine")
    if levels is None:  # all nights are of one machine, or no metric
        hosts = {run.host for run in panel.runs}
        return (0.0, 0.0) if machine is None or machine in hosts else (math.nan, math.nan)
    if not levels.machines:
        return 0.0, 0.0
    if alert.case_id not in panel.case_ids:
        return math.nan, math.nan
    born = next(
        (place for place, run in enumerate(panel.runs) if run.id == alert.details.get("born_run_id")), -1
    )
    hosts = {run.host for run in panel.runs[: born + 1]}
    if machine is None and len(hosts) == 1:
        (machine,) = hosts
    row = panel.case_ids.index(alert.case_id)
    offset, variance = levels.level_of(row, machine)
    return offset, variance + float(levels.variance[row])
