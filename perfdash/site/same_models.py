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
    """The mean of a metric over the cases in each period and then on each night; NaN where none has a value.

    On a night on which a case has no value, its last one before counts, else its first one after; only values
    by the same method stand in for each other.
    """
    rows = [history.row[number] for number in case_ids]
    columns, methods = [], []
    codes = history.method_codes[name]
    older = len(history.runs) - len(history.recent)
    week_of = {period: place for place, period in enumerate(history.weeks.periods)}
    for period in periods:
        week = week_of[period]
        columns.append(history.weeks.values[name][rows, week, 0])
        methods.append(codes[history.weeks.last[rows, week].max()])
    night_of = {run.id: place for place, run in enumerate(history.recent)}
    for run_id in run_ids:
        night = night_of[run_id]
        columns.append(np.where(history.passed[rows, night], history.values[name][rows, night], np.nan))
        methods.append(codes[older + night])
    if not columns or not rows:
        return np.full(len(columns), np.nan)
    values = np.column_stack(columns).astype(float)
    values[~(values > 0)] = np.nan
    filled = _filled(values, np.array(methods))
    known = np.isfinite(filled)
    logs = np.log(np.where(known, filled, 1.0)) if geometric else np.where(known, filled, 0.0)
    with np.errstate(invalid="ignore"):
        means: Array = logs.sum(axis=0) / known.sum(axis=0)
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
