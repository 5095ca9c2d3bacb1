"""Means over the same models on every night, so that a mean does not move because a model fails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfdash.site.testbed_history import Period, TestbedHistory
from perfdash.stats.intervals import Array


def means_over_same_models(
    history: TestbedHistory,
    case_ids: Sequence[int],
    name: str,
    periods: Sequence[Period],
    run_ids: Sequence[int],
    *,
    geometric: bool,
) -> Array:
    """The mean of a metric over the cases in each period and then on each night; NaN where none was measured.

    On a night on which a case has no value, its last one before counts, else its first one after; only values
    by the same method stand in for each other.
    """
    rows = [history.row[number] for number in case_ids]
    columns, methods, nothing = [], [], np.full(len(rows), np.nan)
    codes = history.method_codes[name]
    older = len(history.runs) - len(history.recent)
    week_of = {period: place for place, period in enumerate(history.weeks.periods)}
    for period in periods:
        week = week_of.get(period, -1)
        last = int(history.weeks.last[rows, week].max()) if week >= 0 and rows else -1
        columns.append(history.weeks.values[name][rows, week, 0] if last >= 0 else nothing)
        methods.append(codes[last] if last >= 0 else -1)
    night_of = {run.id: place for place, run in enumerate(history.recent)}
    for run_id in run_ids:
        night = night_of.get(run_id, -1)
        passed = history.passed[rows, night] if night >= 0 else False
        columns.append(np.where(passed, history.values[name][rows, night], nothing))
        methods.append(codes[older + night] if night >= 0 else -1)
    if not columns or not rows:
        return np.full(len(columns), np.nan)
    values = np.column_stack(columns).astype(float)
    values[~(values > 0)] = np.nan
    filled = _filled(values, np.array(methods))
    known = np.isfinite(filled)
    logs = np.log(np.where(known, filled, 1.0)) if geometric else np.where(known, filled, 0.0)
    with np.errstate(invalid="ignore"):
        means: Array = logs.sum(axis=0) / known.sum(axis=0)
    means[~np.isfinite(values).any(axis=0)] = np.nan
    return np.exp(means) if geometric else means


def _filled(values: Array, methods: NDArray[np.int32]) -> Array:
    """Gaps of each row filled from the nights of the same method: from the one before, else the one after."""
    filled = values.copy()
    for method in np.unique(methods).tolist():
        places = np.flatnonzero(methods == method)
        part = filled[:, places]
        for order in (range(1, len(places)), range(len(places) - 2, -1, -1)):
            step = -1 if order.step > 0 else 1
            for place in order:
                gap = np.isnan(part[:, place])
                part[gap, place] = part[gap, place + step]
        filled[:, places] = part
    return filled
