"""Two sides, each one run or several, over the cases that both have: what changed, how sure. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
Pair = tuple[list[Row], list[Row]]  # of one case: the rows of both sides
LogPair = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Side:
    """Runs that are taken together: the mean of logs over them is the side's value."""

    title: str
    runs: tuple[Imported, ...]


@dataclass(frozen=True)
class Delta:
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
    pairs = [(sides[0][case], sides[1][case]) for case in both]
    metrics = {name: _logs_of(pairs, name) for name in (*COMPARED, "compression_ratio")}
    raw: list[dict[str, Delta]] = [{} for _ in both]
    for name in COMPARED:
        for place, delta in _deltas(name, both, pairs, metrics[name], (noise or {}).get(name, {})):
            raw[place][name] = delta
    tested = [
        (place, name) for place, deltas in enumerate(raw) for name in deltas if deltas[name].p is not None
    ]
    found = discoveries(np.array([raw[place][name].p for place, name in tested], dtype=float), _RATE)
    for (place, name), real in zip(tested, found.tolist(), strict=True):
        if real and _matters(name, raw[place][name]):
            raw[place][name] = replace(raw[place][name], significant=True)
    compared = [
        Compared(case, was[-1].status, now[-1].status, deltas)
        for case, (was, now), deltas in zip(both, pairs, raw, strict=True)
    ]
    return Comparison(
        old,
        new,
        sorted(compared, key=_order),
        [case for case in sides[0] if case not in sides[1]],
        [case for case in sides[1] if case not in sides[0]],
        [means for name, logs in metrics.items() if (means := _means(name, logs))],
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


def _logs_of(pairs: Sequence[Pair], metric: str) -> list[LogPair]:
    """(old, new) logs of a metric for every case; of the rows that passed: others are of something else."""

    def logs(rows: Sequence[Row]) -> list[float]:
        return [
            math.log(value)
            for row in rows
            if row.status in PASSING and (value := row.values.get(metric, 0.0)) > 0
        ]

    return [(logs(old), logs(new)) for old, new in pairs]


def _deltas(
    name: str,
    both: Sequence[Case],
    pairs: Sequence[Pair],
    logs: Sequence[LogPair],
    noise: Mapping[Case, tuple[float, float]],
) -> list[tuple[int, Delta]]:
    """(place of the case, its delta) where both sides have the metric."""
    own = _own_noise(logs)
    places = [place for place, (old, new) in enumerate(logs) if old and new]
    means = [(sum(logs[at][0]) / len(logs[at][0]), sum(logs[at][1]) / len(logs[at][1])) for at in places]
    errors, freedom = np.full(len(places), np.nan), np.ones(len(places))
    for index, place in enumerate(places):
        old, new = logs[place]
        known = noise.get(both[place]) or own.get(place)
        if known:
            errors[index] = known[0] * math.sqrt(1 / len(old) + 1 / len(new))
            freedom[index] = max(known[1], 1.0)
        elif name == "speedup" and len(old) == len(new) == 1:
            errors[index], freedom[index] = _of_intervals(*pairs[place]), _INTERVAL_DF
    changes = np.array([new - old for old, new in means])
    p = 2 * np.asarray(special.stdtr(freedom, -np.abs(changes) / errors))  # Student's t, two-sided
    return [
        (place, Delta(math.exp(old), math.exp(new), new - old, None if math.isnan(each) else each, False))
        for place, (old, new), each in zip(places, means, p.tolist(), strict=True)
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


def _own_noise(logs: Sequence[LogPair]) -> dict[int, tuple[float, float]]:
    """(sd of one run, df) by place, from the runs of each side about the side's mean, pooled."""
    widths = [max((len(pair[side]) for pair in logs), default=0) for side in (0, 1)]
    if sum(widths) < 4:
        return {}
    residuals = np.full((len(logs), sum(widths)), np.nan)
    for place, pair in enumerate(logs):
        for values, start in zip(pair, (0, widths[0]), strict=True):
            if len(values) > 1:
                # Each side gives up one degree of freedom for its mean.
                scale = math.sqrt(len(values) / (len(values) - 1))
                around = (np.array(values) - np.mean(values)) * scale
                residuals[place, start : start + len(values)] = around
    level = noise_level(residuals, floor=FLOOR)
    return {
        place: (float(level.sd[place]), float(level.df[place]))
        for place in np.flatnonzero(level.count >= 2).tolist()
    }


def _matters(name: str, delta: Delta) -> bool:
    least = METRICS[name].minimum if name in METRICS else METRICS["backend_ms"].minimum
    return abs(delta.change) >= math.log1p(least)


def _means(name: str, logs: Sequence[LogPair]) -> Means | None:
    known = [(old, new) for old, new in logs if old and new]
    if not known:
        return None
    before = np.array([sum(old) / len(old) for old, _ in known])
    after = np.array([sum(new) / len(new) for _, new in known])
    return Means(name, len(known), _mean(before), _mean(after), _mean(after - before))


def _mean(logs: Array) -> tuple[float, float, float]:
    """Geometric mean with its 95 % interval, Student's t over the logs; one value: no width known."""
    middle, reach = float(np.mean(logs)), 700.0
    if len(logs) > 1:
        error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
        reach = min(reach, float(special.stdtrit(len(logs) - 1, (1 + CONFIDENCE) / 2)) * error)
    return math.exp(middle), math.exp(middle - reach), math.exp(min(middle + reach, 700.0))
