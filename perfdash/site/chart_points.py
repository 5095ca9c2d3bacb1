"""The points of the charts of a testbed's cases: weeks, then nights; computed for all cases at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfdash.detect.findings import NOTHING_CAPTURED
from perfdash.metrics import CHARTS, METRICS
from perfdash.records import DISTURBED, PASSING, Status
from perfdash.site.suite_page import TrendLine
from perfdash.site.testbed_history import BOUNDED, Flags, Singles, TestbedHistory, epoch, failed
from perfdash.site.timeline import build_words

_PASSING = [str(status) for status in PASSING]
_STEADY = 0.01  # from the median, at most


@dataclass(frozen=True)
class CasePoints:
    """The points of one case, and its lines.

    `times`, `names` and `builds` are one a point; `weeks` and `nights` are places in the history, `failed`
    places of points. `steady`: the names of the lines that stay within 1 % of their median.
    """

    weeks: list[int]
    nights: list[int]
    times: list[float]
    names: list[str]
    builds: list[str]
    failed: list[int]
    lines: list[TrendLine]
    steady: set[str]


class _Labels(NamedTuple):
    times: list[float]
    names: list[str]
    builds: list[str]


class _Metric(NamedTuple):
    """A metric of all cases. values (cases, points, 3): value, low and high, NaN where not measured.

    known and steady (cases,): whether a case has any value, and whether all stay within 1 % of their median.
    """

    values: Singles
    known: Flags
    steady: Flags


class ChartPoints:
    """The points and lines of all cases of a testbed's history."""

    def __init__(self, history: TestbedHistory) -> None:
        self.history = history
        weeks, statuses = history.weeks, history.statuses[:, history.daily :]
        passed = history.passed[:, history.daily :]
        self._measured = np.hstack(
            [weeks.tried > 0, (statuses != "") & (statuses != str(Status.NOT_TONIGHT))]
        )
        self._failed = np.hstack([(weeks.failed > 0) & (weeks.passed == 0), failed(statuses)])
        self._disturbed = history.disturbed[:, history.daily :]
        uncaptured = np.isin(statuses, _PASSING) & ~passed
        lost = np.isin(statuses, [str(Status.SKIPPED), str(Status.INFRA_ERROR)])
        self._remarked = uncaptured | self._disturbed | lost
        nights = history.recent[history.daily :]
        self._labels = _Labels(
            [period.middle for period in weeks.periods] + [epoch(run.started) for run in nights],
            [period.words for period in weeks.periods] + [run.name for run in nights],
            [""] * len(weeks.periods) + [build_words(run) for run in nights],
        )
        self._labels_of: dict[bytes, _Labels] = {}
        self._metrics = {name: metric for name in CHARTS if (metric := _metric(history, name)) is not None}

    def of(self, row: int) -> CasePoints:
        """The points of the case in a row of the history."""
        history, places = self.history, np.flatnonzero(self._measured[row])
        periods = len(history.weeks.periods)
        weeks = places[places < periods].tolist()
        nights = (places[len(weeks) :] - periods + history.daily).tolist()
        labels = self._some_labels(places)
        names = labels.names
        if self._remarked[row].any():
            words = [""] * len(weeks) + [self._remark(row, night) for night in nights]
            names = [name + word for name, word in zip(names, words, strict=True)]
        lines, steady = [], set()
        for name, metric in self._metrics.items():
            if metric.known[row]:
                lines.append(self._line(name, metric.values[row, places], row, weeks, nights))
                if metric.steady[row]:
                    steady.add(name)
        crosses = np.flatnonzero(self._failed[row, places]).tolist()
        return CasePoints(weeks, nights, labels.times, names, labels.builds, crosses, lines, steady)

    def _some_labels(self, places: NDArray[np.intp]) -> _Labels:
        """The labels of some points; most cases have the same."""
        key = places.tobytes()
        if key not in self._labels_of:
            every = places.tolist()
            self._labels_of[key] = _Labels(*([column[place] for place in every] for column in self._labels))
        return self._labels_of[key]

    def _remark(self, row: int, night: int) -> str:
        """The remark on a night that has no value, or no latency, and did not fail."""
        place = night - self.history.daily
        if not self._remarked[row, place]:
            return ""
        if self._disturbed[row, place]:
            return f": {DISTURBED}"
        status = str(self.history.statuses[row, night])
        return f": {NOTHING_CAPTURED if status in PASSING else status}"

    def _line(
        self, name: str, values: Singles, row: int, weeks: Sequence[int], nights: Sequence[int]
    ) -> TrendLine:
        metric, chart = METRICS[name], CHARTS[name]
        numbers, lows, highs = values.T.tolist()
        breaks = self.history.breaks(name, row, weeks, nights)
        is_ratio = metric.kind == "ratio"
        return TrendLine(name, chart.title, chart.hint, numbers, lows, highs, metric.unit, is_ratio, breaks)


def _metric(history: TestbedHistory, name: str) -> _Metric | None:
    """A charted metric of all cases; None where no case has a value."""
    passed = history.passed[:, history.daily :]
    nights = np.full((*passed.shape, 3), np.nan, dtype=np.float32)
    columns = [name, f"{name}_low", f"{name}_high"] if name in BOUNDED else [name]
    for place, column in enumerate(columns):
        nights[:, :, place] = np.where(passed, history.values[column][:, history.daily :], np.nan)
    values = np.concatenate([history.weeks.values[name], nights], axis=1) * np.float32(METRICS[name].scale)
    known = np.asarray(np.isfinite(values[:, :, 0]).any(axis=1))
    return _Metric(values, known, _is_steady(values.reshape(len(values), -1))) if known.any() else None


def _is_steady(values: Singles) -> Flags:
    """Whether all numbers of each row are above zero and within 1 % of their median; of one: no."""
    ordered = np.sort(np.where(np.isfinite(values), values, np.nan), axis=1).astype(float)  # NaN comes last
    count = np.isfinite(ordered).sum(axis=1)
    rows, last = np.arange(len(ordered)), np.maximum(count - 1, 0)
    low, high = ordered[:, 0], ordered[rows, last]
    middle = (ordered[rows, last // 2] + ordered[rows, (last + 1) // 2]) / 2
    near = (low > 0) & (high <= middle * (1 + _STEADY)) & (low >= middle * (1 - _STEADY))
    steady: Flags = near & (count > 1)
    return steady
