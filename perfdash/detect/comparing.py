"""Two sides, each one run or several, over the cases that both have: what changed, how sure. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from perfdash.detect.findings import BETTER, METRICS, OTHER, WORSE
from perfdash.errors import UsageError
from perfdash.history.rows import Imported, Row
from perfdash.records import PASSING, Case
from perfdash.stats.alarm import FLOOR, discoveries
from perfdash.stats.intervals import CONFIDENCE, Array
from perfdash.stats.noise_level import noise_level

COMPARED = ("speedup", *METRICS)
# An interval holds what another run would report: it reaches so many deviations of one run (stats.speedup).
_REACH = math.sqrt(2) * 1.96
_INTERVAL_DF = 8  # what such an interval usually rests on: four cases in three processes
_RATE = 0.05  # of false discoveries, over all cases and metrics


Noise = Mapping[str, Mapping[Case, tuple[float, float]]]  # by metric and case: (sd of one run's log, df)


@dataclass(frozen=True)
class Side:
    """Runs that are taken together: the mean of logs over them is the side's value."""

    title: str
    runs: tuple[Imported, ...]


class Delta(NamedTuple):
    """A metric of a case on both sides: geometric means over the side's runs, log of new / old.

    p is None where nothing is known of the noise. significant: real at the rate of false discoveries,
    and large enough to matter.
    """

    old: float
    new: float
    change: float
    p: float | None
    significant: bool


@dataclass(frozen=True)
class Compared:
    """One case on both sides; statuses are those of each side's last run that has it."""

    case: Case
    old_status: str
    new_status: str
    deltas: Mapping[str, Delta]

    @property
    def status_direction(self) -> int:
        was, is_now = self.old_status in PASSING, self.new_status in PASSING
        return OTHER if was == is_now else (WORSE if was else BETTER)

    @property
    def regressed(self) -> bool:
        """Whether anything got worse for real."""
        return self.status_direction == WORSE or any(
            delta.significant and (delta.change < 0 if name == "speedup" else delta.change > 0)
            for name, delta in self.deltas.items()
        )

    @property
    def changed(self) -> bool:
        return self.old_status != self.new_status or any(d.significant for d in self.deltas.values())


@dataclass(frozen=True)
class Means:
    """Geometric means of a metric over the cases that pass on both sides, each with its 95 % interval.

    Student's t over models, in logs; for the ratio over the models' log ratios, so that what differs
    between models cancels.
    """

    metric: str
    cases: int
    old: tuple[float, float, float]
    new: tuple[float, float, float]
    ratio: tuple[float, float, float]


@dataclass(frozen=True)
class Comparison:
    """`both` has the significant changes first, then the largest."""

    old: Side
    new: Side
    both: list[Compared]
    only_old: list[Case]
    only_new: list[Case]
    means: list[Means]


def refuse_unlike(old: Side, new: Side) -> None:
    """Raises UsageError where the sides say nothing of each other: other hosts, or measured otherwise."""
    beds = {
        (run.run.host_class, tuple(sorted(run.run.setting.items(), key=str)))
        for side in (old, new)
        for run in side.runs
    }
    if len(beds) > 1:
        shown = "\n".join(
            f"  {host_class}" + "".join(f", {name} {value}" for name, value in setting)
            for host_class, setting in sorted(beds, key=str)
        )
        raise UsageError(
            f"these were measured on unlike hosts, or otherwise, and are never compared:\n{shown}"
        )


def compare(old: Side, new: Side, noise: Noise | None = None) -> Comparison:
    """`noise`: what the history knows of the noise, {metric: {case: (sd of one run's log, df)}}.

    Several runs on a side tell more of it; without either only speedups are tested, by their own
    intervals.
    """
    sides = [_by_case(side) for side in (old, new)]
    both = [case for case in sides[0] if case in sides[1]]
    rows = [[side[case] for case in both] for side in sides]
    logs = {name: (_logs(rows[0], name), _logs(rows[1], name)) for name in (*COMPARED, "compression_ratio")}
    raw: list[dict[str, Delta]] = [{} for _ in both]
    for name in COMPARED:
        for place, delta in _deltas(name, both, rows, logs[name], (noise or {}).get(name, {})):
            raw[place][name] = delta
    tested = [
        (place, name, delta.p)
        for place, deltas in enumerate(raw)
        for name, delta in deltas.items()
        if delta.p is not None
    ]
    found = discoveries(np.array([p for _, _, p in tested], dtype=float), _RATE)
    for (place, name, _), real in zip(tested, found.tolist(), strict=True):
        if real and _matters(name, raw[place][name]):
            raw[place][name] = raw[place][name]._replace(significant=True)
    compared = [
        Compared(case, was[-1].status, now[-1].status, deltas)
        for case, was, now, deltas in zip(both, *rows, raw, strict=True)
    ]
    return Comparison(
        old,
        new,
        sorted(compared, key=_order),
        [case for case in sides[0] if case not in sides[1]],
        [case for case in sides[1] if case not in sides[0]],
        [means for name, pair in logs.items() if (means := _means(name, pair))],
    )


def _order(one: Compared) -> tuple[Any, ...]:
    largest = max((abs(delta.change) for delta in one.deltas.values() if delta.significant), default=0.0)
    speedup = one.deltas.get("speedup")
    case = one.case
    return (
        not one.changed,
        one.status_direction == OTHER,
        -(largest or (abs(speedup.change) if speedup else 0.0)),
        (case.suite, case.model, case.dtype, case.backend, case.batch_size, case.threads),
    )


def _by_case(side: Side) -> dict[Case, list[Row]]:
    found: dict[Case, list[Row]] = {}
    for run in side.runs:
        for row in run.rows:
            found.setdefault(row.case, []).append(row)
    return found


def _logs(rows: Sequence[Sequence[Row]], metric: str) -> Array:
    """(cases, runs) logs of a metric; NaN where it is missing, or the row did not pass: it is of
    something else then."""
    width = max(map(len, rows), default=0)
    flat = [
        row.values.get(metric, 0.0) if row.status in PASSING else 0.0 for of_case in rows for row in of_case
    ]
    values = np.zeros((len(rows), width))
    values[np.arange(width) < np.array([len(of_case) for of_case in rows], dtype=int)[:, None]] = flat
    return np.log(np.where(values > 0, values, np.nan))


def _deltas(
    name: str,
    both: Sequence[Case],
    rows: Sequence[Sequence[Sequence[Row]]],
    logs: tuple[Array, Array],
    noise: Mapping[Case, tuple[float, float]],
) -> list[tuple[int, Delta]]:
    """(place of the case, its delta) where both sides have the metric."""
    counts = [np.isfinite(side).sum(axis=1) for side in logs]
    places = np.flatnonzero((counts[0] > 0) & (counts[1] > 0))
    old, new = (np.nanmean(side[places], axis=1) for side in logs)
    sd, freedom = _own_noise(logs)
    if noise:
        for place in places.tolist():
            sd[place], freedom[place] = noise.get(both[place], (sd[place], freedom[place]))
    runs = 1 / counts[0][places] + 1 / counts[1][places]
    errors, freedom = sd[places] * np.sqrt(runs), freedom[places]
    if name == "speedup":
        for index in np.flatnonzero(np.isnan(errors) & (runs == 2)).tolist():
            errors[index] = _of_intervals(*(side[places[index]] for side in rows))
            freedom[index] = _INTERVAL_DF
    p = 2 * np.asarray(special.stdtr(freedom, -np.abs(new - old) / errors))  # Student's t, two-sided
    columns = (places, np.exp(old), np.exp(new), new - old, p)
    return [
        (place, Delta(before, after, change, None if math.isnan(each) else each, False))
        for place, before, after, change, each in zip(*(c.tolist() for c in columns), strict=True)
    ]


def _of_intervals(old: Sequence[Row], new: Sequence[Row]) -> float:
    """Standard error of a change of speedup between single runs, from their intervals; NaN: unknown."""
    variance = 0.0
    for row in (*old, *new):
        low, high = row.values.get("speedup_low"), row.values.get("speedup_high")
        if not low or not high:
            return math.nan
        variance += (math.log(high / low) / 2 / _REACH) ** 2
    return math.sqrt(max(variance, FLOOR**2))


def _own_noise(logs: tuple[Array, Array]) -> tuple[Array, Array]:
    """(sd of one run, df) of each case, from the runs of each side about the side's mean; NaN: unknown."""
    size = len(logs[0])
    unknown = np.full(size, np.nan), np.ones(size)
    if logs[0].shape[1] + logs[1].shape[1] < 4:
        return unknown
    residuals = []
    for side in logs:
        count = np.isfinite(side).sum(axis=1, keepdims=True)
        mean = np.where(count > 0, np.nansum(side, axis=1, keepdims=True) / np.maximum(count, 1), np.nan)
        # Each side gives up one degree of freedom for its mean; a single run tells nothing.
        scale = np.where(count > 1, np.sqrt(count / np.maximum(count - 1, 1)), np.nan)
        residuals.append((side - mean) * scale)
    level = noise_level(np.concatenate(residuals, axis=1), floor=FLOOR)
    known = level.count >= 2
    return np.where(known, level.sd, np.nan), np.where(known, level.df, 1.0)


def _matters(name: str, delta: Delta) -> bool:
    least = METRICS[name].minimum if name in METRICS else METRICS["backend_ms"].minimum
    return abs(delta.change) >= math.log1p(least)


def _means(name: str, logs: tuple[Array, Array]) -> Means | None:
    known = np.isfinite(logs[0]).any(axis=1) & np.isfinite(logs[1]).any(axis=1)
    if not known.any():
        return None
    before, after = (np.nanmean(side[known], axis=1) for side in logs)
    return Means(name, int(known.sum()), _mean(before), _mean(after), _mean(after - before))


def _mean(logs: Array) -> tuple[float, float, float]:
    """Geometric mean with its 95 % interval, Student's t over the logs; one value: no width known."""
    middle, reach = float(np.mean(logs)), 700.0
    if len(logs) > 1:
        error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
        reach = min(reach, float(special.stdtrit(len(logs) - 1, (1 + CONFIDENCE) / 2)) * error)
    return math.exp(middle), math.exp(middle - reach), math.exp(min(middle + reach, 700.0))
