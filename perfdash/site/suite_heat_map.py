"""The heat map of a suite: each case's nights against its own median on the night's machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfdash.report.site_links import model_page
from perfdash.site.testbed_history import TestbedHistory, as_logs, failed
from perfdash.stats.intervals import Array
from perfdash.stats.noise_level import noise_level

COLUMNS = 90  # nights of the heat map
_LEAST_SPREAD = 0.005  # from night to night: what a quiet machine shows of a model that does not change
_UP = "../../../"  # from the page to the top of the site


@dataclass(frozen=True)
class HeatLine:
    """A case over nights: its speed relative to its median on that machine, above 1 if faster, or None.

    `spread`: standard deviation of their logs; `open`: whether an alert is, as `OpenChange.word`.
    """

    label: str
    href: str
    ratios: list[float | None]
    failed: list[int]
    spread: float
    open: str


def heat_nights(history: TestbedHistory, numbers: Sequence[int]) -> list[int]:
    """The last nights on which any of these cases was measured."""
    rows = [history.row[number] for number in numbers]
    if not rows:
        return []
    measured = (history.statuses[rows] != "").any(axis=0)
    return [int(night) for night in np.flatnonzero(measured)[-COLUMNS:]]


def heat_lines(
    history: TestbedHistory,
    numbers: Sequence[int],
    nights: Sequence[int],
    several: bool,
    open_words: Mapping[int, str],
) -> tuple[list[HeatLine], str]:
    """The rows of the heat map, and what their numbers are: median compiled latency / latency of each case.

    The median is over nights of one method and machine. Where no latency is known, it is speedup / median.
    """
    rows = [history.row[number] for number in numbers]
    at = np.ix_(rows, nights)
    passed = history.passed[at]
    logs = -as_logs(history.values["backend_ms"][at], passed)
    measure, column = "speed: the row's median compiled latency / latency", "backend_ms"
    if not np.isfinite(logs).any():
        logs = as_logs(history.values["speedup"][at], passed)
        measure, column = "speedup / the row's median", "speedup"
    crosses = failed(history.statuses[at])
    alike = _alike(history, column, rows, nights)
    spreads = _spreads(logs, alike)
    lines = []
    for place, number in enumerate(numbers):
        case, values = history.cases[number], logs[place]
        middles = _medians(values, alike[place])
        label = f"{case.model} ({case.batch_size})" if several else case.model
        ratios = [
            float(f"{math.exp(value - middle):.4g}") if math.isfinite(value) else None
            for value, middle in zip(values.tolist(), middles.tolist(), strict=True)
        ]
        failed_nights = np.flatnonzero(crosses[place]).tolist()
        href = _UP + model_page(history.bed.digest, case)
        spread = float(spreads[place])
        lines.append(HeatLine(label, href, ratios, failed_nights, spread, open_words.get(number, "")))
    return lines, measure


def _alike(
    history: TestbedHistory, column: str, rows: Sequence[int], nights: Sequence[int]
) -> NDArray[np.intp]:
    """A number for each night of each row; nights of a row with one number may be compared.

    They have one method and machine.
    """
    machines = np.array([history.machines_of(row, nights) for row in rows], dtype=np.intp)
    machines = machines.reshape(len(rows), len(nights))
    alike: NDArray[np.intp] = history.codes_of(column, nights) * (machines.max(initial=0) + 1) + machines
    return alike


def _spreads(logs: Array, alike: NDArray[np.intp]) -> Array:
    """The standard deviation of each row's nights, moderated over the rows.

    From the differences of neighbours among the nights that may be compared, so that a change that lasts does
    not hide itself.
    """
    if min(logs.shape) == 0:  # of a suite that is long gone there is no night left
        return np.full(len(logs), _LEAST_SPREAD)
    steps = np.full(logs.shape, np.nan)
    for place, values in enumerate(logs):
        for number in np.unique(alike[place]).tolist():
            known = np.flatnonzero(np.isfinite(values) & (alike[place] == number))
            steps[place, known[1:]] = np.diff(values[known]) / math.sqrt(2)
    return np.nan_to_num(noise_level(steps, floor=_LEAST_SPREAD).sd, nan=_LEAST_SPREAD)


def _medians(values: Array, alike: NDArray[np.intp]) -> Array:
    """For each night the median over the nights that may be compared with it; 0 without any."""
    middles = np.zeros(len(values))
    for number in np.unique(alike).tolist():
        measured = values[(alike == number) & np.isfinite(values)]
        middles[alike == number] = float(np.median(measured)) if len(measured) else 0.0
    return middles
