"""Date changes: change points of many series, and the nights around each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from perfdash.detect.findings import NetLogs, metric_logs, on_one_machine
from perfdash.history.queries import Panel, RunLine, of_method
from perfdash.methods import numbers
from perfdash.metrics import JUDGED
from perfdash.stats.changepoints import ChangePoint, change_points, pooled_rho
from perfdash.stats.intervals import Array
from perfdash.stats.nightly_test import HOST

# The largest distance in nights between a dated change and the night that raised its alert.
_NEAR = 10


@dataclass(frozen=True)
class Dated:
    """A dated change: after run `good`, with run `bad` at the latest, probably with `first`."""

    case_id: int | None  # None: most cases of the host at once
    metric: str
    change: ChangePoint
    good: RunLine
    first: RunLine
    bad: RunLine


def lasting_changes(panel: Panel) -> Iterator[Dated]:
    """Every lasting change of level, for all cases and judged metrics without parts.

    If most cases of the host change in the same direction on the same night, that is one change. Nights of
    different methods are analysed separately, nights of several machines at the level of one. The
    autocorrelation is pooled over the host's series.
    """
    for metric in JUDGED.values():
        if metric.part_of:  # its changes repeat those of the whole
            continue
        for method in _methods(panel, metric.column):
            level, _ = on_one_machine(of_method(panel, method), metrics=[metric.column])
            values = np.exp(metric_logs(level, metric.column))
            rho = pooled_rho(values)
            dated = [
                _dated(panel, case_id, metric.column, change)
                for row, case_id in enumerate(panel.case_ids)
                for change in change_points(values[row], min_change=metric.threshold, rho=rho)
            ]
            yield from _together(panel, values, dated)


def _methods(panel: Panel, metric: str) -> list[Mapping[str, int]]:
    """The methods by which a metric was measured; each has its own levels."""
    return list({str(numbers(run.method, metric)): run.method for run in panel.runs}.values())


def _together(panel: Panel, values: Array, dated: list[Dated]) -> Iterator[Dated]:
    """Replace the changes of many cases on one night by one change without a case."""
    place = {run.id: index for index, run in enumerate(panel.runs)}
    common: list[tuple[int, int]] = []  # (night, direction)
    for night in range(len(panel.runs)):
        measured = int(np.isfinite(values[:, night]).sum())
        for direction in (1, -1):
            group = [change for change in dated if _is_of(change, place, night, direction)]
            if measured >= HOST and len(group) > measured / 2 and not _is_near(common, night, direction):
                common.append((night, direction))
                middle = sorted(group, key=lambda change: change.change.change)[len(group) // 2]
                yield replace(middle, case_id=None)
    for change in dated:
        if not _is_near(common, place[change.first.id], 1 if change.change.change > 0 else -1):
            yield change


def _is_of(change: Dated, place: dict[int, int], night: int, direction: int) -> bool:
    """Whether a change has this direction and may have happened on this night."""
    good, bad = place[change.good.id], place[change.bad.id]
    return (change.change.change > 0) == (direction > 0) and good < night <= max(bad, good + 1)


def _is_near(common: list[tuple[int, int]], night: int, direction: int) -> bool:
    return any(abs(night - shift_night) <= 2 and direction == way for shift_night, way in common)


def date_change(
    panel: Panel, net: NetLogs, case_id: int, metric: str, bad_run_id: int | None, direction: int
) -> Dated | None:
    """The dated change of an alert; None if the history does not show it yet.

    A change of the host is none of the series: its levels are those without the host's state (`net`).
    """
    if metric not in JUDGED or case_id not in panel.case_ids:
        return None
    near = next((place for place, run in enumerate(panel.runs) if run.id == bad_run_id), None)
    if near is None:
        return None
    row = panel.case_ids.index(case_id)
    values = np.exp(metric_logs(panel, metric, [row])[0] - net.state(metric)[row])
    near_changes = [
        change
        for change in change_points(values, min_change=JUDGED[metric].threshold / 2)
        if abs(change.index - near) <= _NEAR and (change.change > 0) == (direction > 0)
    ]
    if not near_changes:
        return None
    return _dated(panel, case_id, metric, min(near_changes, key=lambda change: abs(change.index - near)))


def _dated(panel: Panel, case_id: int, metric: str, change: ChangePoint) -> Dated:
    runs = panel.runs
    return Dated(case_id, metric, change, runs[max(0, change.low - 1)], runs[change.index], runs[change.high])
