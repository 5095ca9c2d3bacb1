"""Means over the same models on every night, so that a mean does not move because a model fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    count = len(periods) + len(run_ids)
    if not count or not rows:
        return np.full(count, np.nan)
    week_of = {period: place for place, period in enumerate(history.weeks.periods)}
    weeks = np.array([week_of.get(period, -1) for period in periods], dtype=np.intp)
    night_of = {run.id: place for place, run in enumerate(history.recent)}
    nights = np.array([night_of.get(run_id, -1) for run_id in run_ids], dtype=np.intp)
    of_week = history.weeks.values[name][rows, :, 0]
    of_night = np.where(history.passed[rows], history.values[name][rows], np.nan)
    values = np.hstack([_columns(of_week, weeks), _columns(of_night, nights)])
    values[~(values > 0)] = np.nan
    # The run that decides by which method a column was measured; -1: none.
    last = _columns(history.weeks.last[rows], weeks).max(axis=0)
    older = len(history.runs) - len(history.recent)
    run = np.concatenate([np.nan_to_num(last, nan=-1), np.where(nights >= 0, older + nights, -1)]).astype(int)
    methods = np.where(run >= 0, history.method_codes[name][run], -1)
    values[:, run < 0] = np.nan
    filled = _filled(values, methods)
    known = np.isfinite(filled)
    logs = np.log(np.where(known, filled, 1.0)) if geometric else np.where(known, filled, 0.0)
    with np.errstate(invalid="ignore"):
        means: Array = logs.sum(axis=0) / known.sum(axis=0)
    means[~np.isfinite(values).any(axis=0)] = np.nan
    return np.exp(means) if geometric else means


def _columns(values: NDArray[Any], places: NDArray[np.intp]) -> Array:
    """Some columns of an array; NaN for place -1."""
    columns = np.full((len(values), len(places)), np.nan)
    columns[:, places >= 0] = values[:, places[places >= 0]]
    return columns


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
