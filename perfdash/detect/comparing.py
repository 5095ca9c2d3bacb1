"""Two sides, each one run or several, over the cases that both have: what changed, how sure. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from perfdash.detect.findings import BETTER, METRICS, OTHER, WORSE
from perfdash.errors import UsageError
from perfdash.history.rows import Imported, Row
from perfdash.records import PASSING, Case
from perfdash.stats.alarm import FLOOR, discoveries
from perfdash.stats.intervals import CONFIDENCE, geometric_mean_interval
from perfdash.stats.noise_level import noise_level

COMPARED = ("speedup", *METRICS)
# An interval holds what another run would report: it reaches so many deviations of one run (stats.speedup).
_REACH = math.sqrt(2) * 1.96
_INTERVAL_DF = 8  # what such an interval usually rests on: four cases in three processes
_RATE = 0.05  # of false discoveries, over all cases and metrics


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

    The intervals of old and new are bootstraps over models; that of the ratio is Student's t over the
    models' log ratios: what differs between models cancels.
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


def compare(
    old: Side, new: Side, noise: Mapping[tuple[Case, str], tuple[float, float]] | None = None
) -> Comparison:
    """`noise`: {(case, metric): (standard deviation of one run's log, its degrees of freedom)}.

    What the history knows of the noise. Several runs on a side tell more of it; without either only
    speedups are tested, by their own intervals.
    """
    rows = [_by_case(side) for side in (old, new)]
    both = [case for case in rows[0] if case in rows[1]]
    known = {**_own_noise(rows, both), **(noise or {})}
    raw = {case: _deltas(case, rows[0][case], rows[1][case], known) for case in both}
    tested = [(case, name) for case in both for name, delta in raw[case].items() if delta.p is not None]
    found = discoveries(np.array([raw[case][name].p for case, name in tested], dtype=float), _RATE)
    real = {key for key, yes in zip(tested, found.tolist(), strict=True) if yes}
    compared = [
        Compared(
            case,
            rows[0][case][-1].status,
            rows[1][case][-1].status,
            {
                name: Delta(
                    delta.old,
                    delta.new,
                    delta.change,
                    delta.p,
                    (case, name) in real and _matters(name, delta),
                )
                for name, delta in raw[case].items()
            },
        )
        for case in both
    ]
    return Comparison(
        old,
        new,
        sorted(compared, key=_order),
        [case for case in rows[0] if case not in rows[1]],
        [case for case in rows[1] if case not in rows[0]],
        [means for name in ("speedup", *METRICS, "compression_ratio") if (means := _means(name, rows, both))],
    )


def _order(one: Compared) -> tuple[bool, bool, float, str]:
    largest = max((abs(delta.change) for delta in one.deltas.values() if delta.significant), default=0.0)
    speedup = one.deltas.get("speedup")
    return (
        not one.changed,
        one.status_direction == OTHER,
        -(largest or (abs(speedup.change) if speedup else 0.0)),
        one.case.name,
    )


def _by_case(side: Side) -> dict[Case, list[Row]]:
    found: dict[Case, list[Row]] = {}
    for run in side.runs:
        for row in run.rows:
            found.setdefault(row.case, []).append(row)
    return found


def _logs(rows: Sequence[Row], metric: str) -> list[float]:
    """Of the rows that passed: the numbers of a failed case are of something else."""
    return [
        math.log(value)
        for row in rows
        if row.status in PASSING and (value := row.values.get(metric, 0.0)) > 0
    ]


def _deltas(
    case: Case,
    old: Sequence[Row],
    new: Sequence[Row],
    noise: Mapping[tuple[Case, str], tuple[float, float]],
) -> dict[str, Delta]:
    found = {}
    for name in COMPARED:
        before, after = _logs(old, name), _logs(new, name)
        if not (before and after):
            continue
        change = float(np.mean(after) - np.mean(before))
        p = None
        if (case, name) in noise:
            sd, df = noise[case, name]
            error = sd * math.sqrt(1 / len(before) + 1 / len(after))
            p = float(2 * stats.t.sf(abs(change) / error, max(df, 1.0)))
        elif name == "speedup" and len(before) == len(after) == 1:
            p = _by_intervals(old, new, change)
        found[name] = Delta(math.exp(np.mean(before)), math.exp(np.mean(after)), change, p, False)
    return found


def _by_intervals(old: Sequence[Row], new: Sequence[Row], change: float) -> float | None:
    """p of a change of speedup between two single runs, from the interval of each."""
    variance = 0.0
    for row in (*old, *new):
        low, high = row.values.get("speedup_low"), row.values.get("speedup_high")
        if not low or not high:
            return None
        variance += (math.log(high / low) / 2 / _REACH) ** 2
    return float(2 * stats.t.sf(abs(change) / math.sqrt(max(variance, FLOOR**2)), _INTERVAL_DF))


def _own_noise(
    rows: Sequence[Mapping[Case, list[Row]]], both: Sequence[Case]
) -> dict[tuple[Case, str], tuple[float, float]]:
    """Standard deviation of one run, from the runs of each side about the side's mean, pooled."""
    found: dict[tuple[Case, str], tuple[float, float]] = {}
    widths = [max((len(side[case]) for case in both), default=0) for side in rows]
    if sum(widths) < 4:
        return {}
    for name in COMPARED:
        residuals = np.full((len(both), sum(widths)), np.nan)
        for place, case in enumerate(both):
            start = 0
            for side, width in zip(rows, widths, strict=True):
                values = np.array(_logs(side[case], name))
                if len(values) > 1:
                    # Each side gives up one degree of freedom for its mean.
                    scale = math.sqrt(len(values) / (len(values) - 1))
                    residuals[place, start : start + len(values)] = (values - values.mean()) * scale
                start += width
        level = noise_level(residuals, floor=FLOOR)
        for place, case in enumerate(both):
            if level.count[place] >= 2:
                found[case, name] = float(level.sd[place]), float(level.df[place])
    return found


def _matters(name: str, delta: Delta) -> bool:
    least = METRICS[name].minimum if name in METRICS else METRICS["backend_ms"].minimum
    return abs(delta.change) >= math.log1p(least)


def _means(name: str, rows: Sequence[Mapping[Case, list[Row]]], both: Sequence[Case]) -> Means | None:
    pairs = [
        (float(np.mean(old)), float(np.mean(new)))
        for case in both
        if (old := _logs(rows[0][case], name)) and (new := _logs(rows[1][case], name))
    ]
    if not pairs:
        return None
    before, after = (np.array(side) for side in zip(*pairs, strict=True))
    ratios = after - before
    middle = float(np.mean(ratios))
    reach = math.inf
    if len(ratios) > 1:
        error = float(np.std(ratios, ddof=1)) / math.sqrt(len(ratios))
        reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(ratios) - 1)) * error
    sides = [
        (math.exp(np.mean(side)), *geometric_mean_interval(np.exp(side).tolist())) for side in (before, after)
    ]
    low, high = (math.exp(max(-700.0, middle - reach)), math.exp(min(700.0, middle + reach)))
    return Means(name, len(pairs), sides[0], sides[1], (math.exp(middle), low, high))
