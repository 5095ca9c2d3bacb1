"""Compare two sets of runs over their common cases, with the certainty of each change. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from perfdash.detect.compared_means import Means, means_of
from perfdash.detect.confirmation import PairedStatus
from perfdash.detect.findings import (
    BETTER,
    NO_STATUS,
    NOTHING_CAPTURED,
    OTHER,
    WORSE,
    is_pass,
    stops_running,
)
from perfdash.detect.nights import other_machines
from perfdash.detect.one_sided_cases import differing_settings, first_few, missing_in_words, why_missing
from perfdash.errors import UsageError
from perfdash.history.pass_rates_and_means import (
    gave_up,
    is_compiled,
    is_disturbed,
    nothing_captured,
)
from perfdash.history.queries import OF_ITS_NIGHT
from perfdash.history.result_hosts import of_row
from perfdash.history.results import Imported, Row
from perfdash.methods import alike, changes, has_own_threads
from perfdash.metrics import JUDGED, is_sampled
from perfdash.records import PASSING, Case, Status
from perfdash.stats.intervals import CONFIDENCE, Array
from perfdash.stats.nightly_test import FLOOR, discoveries
from perfdash.stats.noise_level import SEVERAL, levels_and_noise

COMPARED = ("speedup", *(name for name, metric in JUDGED.items() if not metric.part_of))
# From this version of the method on, an interval of a speedup covers the true value: half its width is 1.96
# deviations of one run (stats.speedup). Before, it covered what another run would report: sqrt(2) times that.
_COVERS_TRUTH = 3
FEWEST_NIGHTS = 5  # with a case, before its past noise is used
_TAIL_DF = 4.0  # of Student's t for one night: noise has heavy tails
_ENOUGH = 8.0  # degrees of freedom of the sides' own noise, from which the past is not asked
_RATE = 0.05  # of false discoveries, over all cases and metrics
# How far a speedup may move because eager did: one standard deviation, as a share of the change of eager's
# latency. In a slower state of a machine eager of small models took 12 to 56 % longer, and speedups of the
# same build moved by a fifth to 0.7 of that, most by less than 0.45 (results/quiet-machine.md). From 0.36 on
# a speedup that moved just as far as eager has not changed significantly (Student's t, _TAIL_DF).
_OF_EAGER = 0.4
_EAGER_MOVED = math.log(1.05)  # median change of eager's latency from which a comparison says so


@dataclass(frozen=True)
class PastNoise:
    """The noise of a series before these runs.

    sd, df: standard deviation of one run's log and its degrees of freedom. inflation: variance of the mean of
    1, 2, ... nights over that of independent nights. of_machines: any of several machines measured a night,
    as on a cluster, so that their differences are part of the noise.
    """

    sd: float
    df: float
    inflation: Array
    of_machines: bool = False


NoiseByCase = Mapping[str, Mapping[Case, PastNoise]]  # by metric and case


@dataclass(frozen=True)
class ComparedRuns:
    """The runs of one side. The side's value is their mean level in logs."""

    title: str
    runs: tuple[Imported, ...]


class Delta(NamedTuple):
    """A metric of a case on both sides.

    old, new: the level of each side. change: log of new / old. p: None if the noise is unknown. significant:
    a discovery at the rate _RATE, and at least the metric's threshold. reach: half the width of the 95 %
    interval of `change`. pairs: of runs, where two builds were measured in turn and a sequential test decides
    instead of p (0 if all were disturbed); undecided: it cannot tell yet.
    """

    old: float
    new: float
    change: float
    p: float | None
    significant: bool
    reach: float | None = None
    pairs: int | None = None
    undecided: bool = False

    @property
    def tested(self) -> bool:
        return self.p is not None or bool(self.pairs)


@dataclass(frozen=True)
class ComparedCase:
    """One case on both sides, with the status of the last run of each side that has one, or of its pairs.

    deltas: empty where it fails on a side. checked_alike: whether the statuses can be compared, because both
    sides checked accuracy by the same method, or because the case passed and now fails to run. disturbed:
    whether no latency could be compared, because other programs disturbed a side. unsteady: as in
    PairedStatus. elsewhere: whether no machine measured it on both sides, although some measured both
    (shards), so that no number could be tested.
    """

    case: Case
    old_status: str
    new_status: str
    deltas: Mapping[str, Delta]
    checked_alike: bool = True
    disturbed: bool = False
    unsteady: str = ""
    elsewhere: bool = False

    @property
    def status_direction(self) -> int:
        if not self.checked_alike or self.sides_without_result:
            return OTHER
        was, is_now = is_pass(self.old_status), is_pass(self.new_status)
        return OTHER if was == is_now else (WORSE if was else BETTER)

    @property
    def regressed(self) -> bool:
        """Whether the status or a metric got worse significantly."""
        return self.status_direction == WORSE or bool(self.worse_metrics)

    @property
    def worse_metrics(self) -> list[str]:
        """The metrics that got worse significantly; speedup only if the compiled latency was not tested."""
        worse = [name for name, delta in self.deltas.items() if name in JUDGED and delta.change > 0]
        backend = self.deltas.get("backend_ms")
        if (backend is None or not backend.tested) and "speedup" in self.deltas:
            worse += ["speedup"] if self.deltas["speedup"].change < 0 else []
        return [name for name in worse if self.deltas[name].significant]

    @property
    def untested(self) -> bool:
        """Whether a metric could not be tested."""
        return self.disturbed or not all(delta.tested for delta in self.deltas.values())

    @property
    def is_tested(self) -> bool:
        """Whether a metric was tested, or the statuses are two different results."""
        return self.other_status or any(delta.tested for delta in self.deltas.values())

    @property
    def no_latency_tested(self) -> bool:
        """Whether a case with latencies or a speedup has none that could be tested."""
        latencies = [delta for name, delta in self.deltas.items() if is_sampled(name)]
        return self.disturbed or (bool(latencies) and not any(delta.tested for delta in latencies))

    @property
    def nothing_tested(self) -> bool:
        """Whether a case with numbers has no tested latency or no tested number at all."""
        nothing = bool(self.deltas) and not any(delta.tested for delta in self.deltas.values())
        return nothing or self.no_latency_tested

    @property
    def passes(self) -> bool:
        return is_pass(self.old_status) and is_pass(self.new_status)

    @property
    def changed(self) -> bool:
        return self.other_status or any(d.significant for d in self.deltas.values())

    @property
    def other_status(self) -> bool:
        """Whether the sides have two different results."""
        return self.checked_alike and self.old_status != self.new_status and not self.sides_without_result

    @property
    def sides_without_result(self) -> int:
        """How many sides have a status that describes the machine, or left the case out."""
        return (self.old_status in NO_STATUS) + (self.new_status in NO_STATUS)


@dataclass(frozen=True)
class Comparison:
    """The comparison of two sides; `both` has significant changes first, then the largest.

    methods: the methods that differ between the runs (`latency 1 -> 2`). Only numbers by the method of the
    newest run are compared. machines: those of the sides (`on another machine: a | b`), if they have none in
    common: then only statuses have a verdict, because machines of a class differ. in_pairs: whether two
    builds were measured in turn.
    """

    old: ComparedRuns
    new: ComparedRuns
    both: list[ComparedCase]
    only_old: list[Case]
    only_new: list[Case]
    means: list[Means]
    methods: list[str] = field(default_factory=list)
    machines: str = ""
    in_pairs: bool = False

    @property
    def eager_moved(self) -> float | None:
        """The median change (log) of eager's latency; None if small, unknown, or measured in pairs."""
        changes_of_eager = [case.deltas["eager_ms"].change for case in self.both if "eager_ms" in case.deltas]
        if not changes_of_eager or self.in_pairs:
            return None
        moved = statistics.median(changes_of_eager)
        return moved if abs(moved) >= _EAGER_MOVED else None

    @cached_property
    def why_missing(self) -> dict[Case, str]:
        """Why each case of `only_old` is missing on the new side, to follow "as"; empty if it vanished."""
        return why_missing(self.only_old, len(self.both), self.old.runs, self.new.runs)

    @property
    def vanished(self) -> list[Case]:
        """The cases that complete runs of their configuration do not have."""
        return [case for case, why in self.why_missing.items() if not why]

    @property
    def nothing_in_common(self) -> str | None:
        """Why no case can be compared, to end a sentence; None if some can."""
        if not self.both:
            return f"no case is in both{differing_settings(self.only_old, self.only_new)}"
        if all(case.sides_without_result for case in self.both):
            return "no case has a result on both sides"
        if not any(c.checked_alike or c.deltas or c.disturbed or c.unsteady for c in self.both):
            return "every case in both was measured by different methods"
        return None

    @property
    def untested(self) -> str | None:
        """How many cases were not tested or decided, or have no result, and why; None if all were tested."""
        missing = missing_in_words(self.why_missing, len(self.both) + len(self.only_old))
        return "; ".join([*self._not_decided(), *self._without_result(), *missing]) or None

    def _without_result(self) -> list[str]:
        """How many cases have no result on a side, with their statuses; not those that both skipped."""
        parts = []
        for sides, words in ((1, "on one side"), (2, "on either side")):
            cases = [case for case in self.both if case.sides_without_result == sides]
            statuses = [NO_STATUS & {case.old_status, case.new_status} for case in cases]
            lost = [each for each in statuses if sides == 1 or each != {Status.SKIPPED}]
            if lost:
                names = ", ".join(sorted(set().union(*lost) - {""}))
                have = "has" if len(lost) == 1 else "have"
                parts.append(f"{len(lost)} of {len(self.both)} cases {have} no result {words} ({names})")
        return parts

    def _not_decided(self) -> list[str]:
        """In how many cases numbers or statuses were not tested or decided, and why."""
        why = (
            "as other programs disturbed every pair of runs"
            if self.in_pairs
            else f"as they were measured {self.machines}, and machines of a class differ"
            if self.machines
            else "as they were disturbed or nothing is known of the noise; "
            f"give {SEVERAL} runs of a side or {FEWEST_NIGHTS} earlier nights"
        )
        elsewhere = sum(case.elsewhere for case in self.both)
        undecided = sum(any(d.tested and d.undecided for d in case.deltas.values()) for case in self.both)
        sentences = (
            (sum(case.untested and not case.elsewhere for case in self.both), f"could not be tested, {why}"),
            (
                elsewhere,
                "could not be tested, as they were measured on another machine on each side, and machines of "
                "a class differ",
            ),
            (undecided, "are not decided yet; more pairs of runs would tell"),
        )
        parts = [f"numbers of {n} of {len(self.both)} cases {words}" for n, words in sentences if n]
        if unsteady := [f"{case.case.name}: {case.unsteady}" for case in self.both if case.unsteady]:
            parts.append(f"statuses are not the same in all pairs ({first_few(unsteady)})")
        return parts

    @property
    def nothing_to_compare(self) -> str | None:
        """Why no verdict is possible, to end a sentence; None if a status changed or a number was tested."""
        if self.nothing_in_common or any(case.is_tested for case in self.both):
            return self.nothing_in_common
        not_decided = self._not_decided()
        if not_decided or not any(case.passes for case in self.both):
            return "; ".join([*(not_decided or ["no case passes on both sides"]), *self._without_result()])
        return "no number was measured by the same method on both sides" if self.methods else None


def refuse_unlike(old: ComparedRuns, new: ComparedRuns) -> None:
    """Raise UsageError if the runs belong to different testbeds. The two sides may be two lines of builds."""
    sides = [[imported.run for imported in side.runs] for side in (old, new)]
    groups = [{run.testbed_digest: run for run in runs} for runs in sides]
    groups.append({run.way_of_measuring: run for runs in sides for run in runs})
    if unlike := next((beds.values() for beds in groups if len(beds) > 1), None):
        shown = "\n".join(
            f"  {run.host_class}" + "".join(f", {name} {value}" for name, value in run.setting.items())
            for run in unlike
        )
        raise UsageError(
            f"these were measured on unlike hosts, or otherwise, and are never compared:\n{shown}"
        )


def refuse_overlap(old: ComparedRuns, new: ComparedRuns) -> None:
    """Raise UsageError if two windows share a run. One run may be compared with itself."""
    sides = [[imported.run for imported in side.runs] for side in (old, new)]
    names = [{(run.name, run.started, run.host) for run in runs} for runs in sides]
    both = sorted(names[0] & names[1])
    if both and len(old.runs) + len(new.runs) > 2:
        raise UsageError(f"{both[0][0]} is on both sides; give windows that do not overlap")


def compare(
    old: ComparedRuns,
    new: ComparedRuns,
    noise: NoiseByCase | None = None,
    paired: Mapping[Case, Mapping[str, Delta]] | None = None,
    statuses: Mapping[Case, PairedStatus] | None = None,
    *,
    nameless: bool = False,
) -> Comparison:
    """Compare two sides, with `noise` from the history.

    Noise is estimated from a side's own runs where there are several. Without either source only speedups are
    tested, by their own intervals. All p values together pass Benjamini and Hochberg's test at _RATE.
    `paired`, `statuses`: of two builds that were measured in turn, whose changes are already decided.
    `nameless`: host names change every night, and do not tell machines.
    """
    method = new.runs[-1].run.method
    reach = 1.96 if method.get("speedup", 1) >= _COVERS_TRUTH else math.sqrt(2) * 1.96
    sides = [_by_case(side, method) for side in (old, new)]
    runs = [[imported.run for imported in side.runs] for side in (old, new)]
    machines = "" if nameless or paired is not None else other_machines(*runs)
    both = [case for case in sides[0] if case in sides[1]]
    before, after = _statuses(old), _statuses(new)
    ends = {
        case: (statuses or {}).get(case) or PairedStatus(before[case][0], after[case][0]) for case in both
    }
    # A case that fails on a side has no numbers, though earlier runs of the side, or other pairs, passed.
    passing = {case for case, status in ends.items() if is_pass(status.old) and is_pass(status.new)}
    rows = [[side[case] if case in passing else [] for case in both] for side in sides]
    apart = [False] * len(both)
    if paired is None and not nameless and not machines:
        hosts = [_machines_of_cases(side) for side in (old, new)]
        apart = [hosts[0][case].isdisjoint(hosts[1][case]) for case in both]
    logs = {name: (_logs(rows[0], name), _logs(rows[1], name)) for name in (*COMPARED, "compression_ratio")}
    raw = [dict((paired or {}).get(case, {})) if case in passing else {} for case in both]
    if paired is not None:
        logs |= {name: _logs_of_pairs(name, raw) for name in COMPARED}
    for name in COMPARED if paired is None else ():
        for place, delta in _deltas(name, both, rows, logs[name], (noise or {}).get(name, {}), reach):
            refused = machines or (apart[place] and not _has_machines(noise, name, both[place]))
            raw[place][name] = delta._replace(p=None, reach=None) if refused else delta
    tested = [(deltas, name) for deltas in raw for name, delta in deltas.items() if delta.p is not None]
    is_discovery = discoveries(np.array([deltas[name].p for deltas, name in tested], dtype=float), _RATE)
    for (deltas, name), real in zip(tested, is_discovery.tolist(), strict=True):
        if real and abs(deltas[name].change) >= least_change(name):
            deltas[name] = deltas[name]._replace(significant=True)
    compared = []
    for case, was, now, deltas, elsewhere in zip(both, *rows, raw, apart, strict=True):
        status = ends[case]
        can_compare = alike(before[case][1], after[case][1], "status") or stops_running(*status[:2])
        is_alike = can_compare and status.comparable
        disturbed = any(map(is_disturbed, (*was, *now))) and not any(map(is_sampled, deltas))
        elsewhere = elsewhere and bool(deltas) and not any(delta.tested for delta in deltas.values())
        compared.append(
            ComparedCase(case, *status[:2], deltas, is_alike, disturbed, status.unsteady, elsewhere)
        )
    numbers = [delta.pairs for deltas in raw for name, delta in deltas.items() if name == "speedup"]
    pairs = statistics.fmean(number or 1 for number in numbers) if paired is not None and numbers else 0.0
    counted = [not any(map(_is_in_no_mean, (*was, *now))) for was, now in zip(*rows, strict=True)]
    texts = [text for side in (old, new) for one in side.runs for text in changes(one.run.method, method)]
    has_own = any(map(has_own_threads, both))
    return Comparison(
        old,
        new,
        sorted(compared, key=_order),
        [case for case in sides[0] if case not in sides[1]],
        [case for case in sides[1] if case not in sides[0]],
        [
            means
            for name, pair in logs.items()
            if (means := means_of(name, pair, np.array(counted, bool), rows, pairs))
        ],
        list(dict.fromkeys(text for text in texts if has_own or not text.startswith("own_threads "))),
        machines,
        paired is not None,
    )


def _word(row: Row) -> str:
    """The status, or `nothing captured` for a pass without captured calls."""
    return NOTHING_CAPTURED if row.status in PASSING and nothing_captured(row) else row.status


def _order(compared: ComparedCase) -> tuple[Any, ...]:
    largest = max((abs(delta.change) for delta in compared.deltas.values() if delta.significant), default=0.0)
    speedup = compared.deltas.get("speedup")
    case = compared.case
    return (
        not compared.changed,
        compared.status_direction == OTHER,
        -(largest or (abs(speedup.change) if speedup else 0.0)),
        (case.suite, case.model, case.dtype, case.backend, case.batch_size, case.threads),
    )


def _by_case(side: ComparedRuns, method: Mapping[str, int]) -> dict[Case, list[Row]]:
    """The rows of each case, without numbers by another method."""
    rows_by_case: dict[Case, list[Row]] = {}
    for imported in side.runs:
        for row in imported.rows:
            rows_by_case.setdefault(row.case, []).append(_of_method(row, imported.run.method, method))
    return rows_by_case


def _machines_of_cases(side: ComparedRuns) -> dict[Case, set[str]]:
    """The machines that measured each case; all of the run where a result names none."""
    machines: dict[Case, set[str]] = {}
    for imported in side.runs:
        for row in imported.rows:
            host = of_row(row)
            machines.setdefault(row.case, set()).update([host] if host else imported.run.hosts)
    return machines


def _has_machines(noise: NoiseByCase | None, name: str, case: Case) -> bool:
    """Whether what is known of a case's noise has the differences between machines."""
    past = (noise or {}).get(name, {}).get(case)
    return past is not None and past.of_machines


def _of_method(row: Row, measured: Mapping[str, int], method: Mapping[str, int]) -> Row:
    own = has_own_threads(row.case)
    values = {
        name: value
        for name, value in row.values.items()
        if name in OF_ITS_NIGHT or alike(measured, method, name, own)
    }
    return replace(row, values=values)


def _statuses(side: ComparedRuns) -> dict[Case, tuple[str, Mapping[str, int]]]:
    """The last status of each case that describes it, else its last one, with the method of that run."""
    rows = [(row, imported.run.method) for imported in side.runs for row in imported.rows]
    rows.sort(key=lambda item: item[0].status not in NO_STATUS)  # stable: runs stay in their order
    return {row.case: (_word(row), method) for row, method in rows}


def _logs(rows: Sequence[Sequence[Row]], metric: str) -> Array:
    """Logs of a metric, of the shape (cases, runs).

    NaN where it is missing or disturbed, or where the row did not pass and so does not describe the
    compiled model.
    """
    width = max([1, *map(len, rows)])
    every = [row for of_case in rows for row in of_case]
    usable = [_is_usable(row, metric) for row in every]
    flat = [row.values.get(metric, 0.0) if use else 0.0 for row, use in zip(every, usable, strict=True)]
    values = np.zeros((len(rows), width))
    values[np.arange(width) < np.array([len(of_case) for of_case in rows], dtype=int)[:, None]] = flat
    return np.log(np.where(values > 0, values, np.nan))


def _logs_of_pairs(name: str, deltas: Sequence[Mapping[str, Delta]]) -> tuple[Array, Array]:
    """Logs of both sides' levels over all quiet pairs, of the shape (cases, 1); NaN without any."""
    found = [of_case.get(name) for of_case in deltas]
    levels = [(delta.old, delta.new) if delta and delta.pairs else (math.nan,) * 2 for delta in found]
    logs = np.log(np.array(levels, dtype=float).reshape(-1, 2))
    return logs[:, :1], logs[:, 1:]


def _is_usable(row: Row, metric: str) -> bool:
    return is_compiled(row) and not (is_sampled(metric) and is_disturbed(row))


def _is_in_no_mean(row: Row) -> bool:
    """Whether a row keeps its case out of the means, though its numbers are compared."""
    return gave_up(row) or row.status == Status.PASS_DUE_TO_SKIP


def _deltas(
    name: str,
    both: Sequence[Case],
    rows: Sequence[Sequence[Sequence[Row]]],
    logs: tuple[Array, Array],
    noise: Mapping[Case, PastNoise],
    reach: float,
) -> list[tuple[int, Delta]]:
    """(place of the case, its delta) where both sides have the metric; `reach` as in _of_intervals."""
    counts = [np.isfinite(side).sum(axis=1) for side in logs]
    places = np.flatnonzero((counts[0] > 0) & (counts[1] > 0))
    levels, noise_of_runs = levels_and_noise(logs, FLOOR)
    old, new = (level[places] for level in levels)
    if noise:
        # Past noise replaces the sides' own estimate only where it has few degrees of freedom and is smaller.
        for place in np.flatnonzero(~(noise_of_runs.df >= _ENOUGH)).tolist():
            past = noise.get(both[place])
            if past and not noise_of_runs.sd[place] > past.sd:
                noise_of_runs.sd[place], noise_of_runs.df[place] = past.sd, past.df
                noise_of_runs.inflation[place, : len(past.inflation)] = past.inflation
                noise_of_runs.inflation[place, len(past.inflation) :] = past.inflation[-1]
    longest = noise_of_runs.inflation.shape[1]
    # A single night may be an outlier of any size, so it gets the heavy tails of _TAIL_DF degrees of freedom;
    # the mean of many nights is nearly Gaussian.
    freedom = np.minimum(noise_of_runs.df, _TAIL_DF * np.minimum(*counts))[places]
    variances = [np.square(noise_of_runs.sd[places]) for _ in counts]  # of one run of each side
    of_eager = np.zeros(len(places))
    if name == "speedup":
        for index in np.flatnonzero(np.isnan(variances[0])).tolist():
            of_case = [[row for row in side[places[index]] if _is_usable(row, "speedup")] for side in rows]
            runs_of_sides = [[row.values for row in side if row.values.get("speedup")] for side in of_case]
            for variance, runs in zip(variances, runs_of_sides, strict=True):
                variance[index] = _of_intervals(runs, reach)
            of_eager[index] = (_OF_EAGER * _change_of_eager(*runs_of_sides)) ** 2
            freedom[index] = _TAIL_DF
    of_noise = np.zeros(len(places))
    for variance, count in zip(variances, (count[places] for count in counts), strict=True):
        of_noise += variance * noise_of_runs.inflation[places, np.minimum(count, longest) - 1] / count
    excess = _excess_of_pairs([side[places] for side in logs], variances)
    errors = np.sqrt(excess * of_noise + of_eager)
    p = 2 * np.asarray(special.stdtr(freedom, -np.abs(new - old) / errors))  # Student's t, two-sided
    half_widths = np.asarray(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * errors
    columns = (places, np.exp(old), np.exp(new), new - old, p, half_widths)
    return [
        (place, Delta(before, after, change, _or_none(p_value), False, _or_none(half)))
        for place, before, after, change, p_value, half in zip(*(c.tolist() for c in columns), strict=True)
    ]


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _excess_of_pairs(logs: Sequence[Array], variances: Sequence[Array]) -> Array:
    """How much more two runs of a side differ than their noise explains: a ratio of variances, 1 or more.

    `logs`: (cases, runs) of each side, `variances`: (cases,) of one run. A larger difference than expected
    means an outlier or nights in different states. As Birge (1932), Phys. Rev. 40, 207, but each case's ratio
    is shrunk to that of all cases (their median, so that one outlier does not widen all), and this to 1. A
    case of which one side has several runs has their spread in `variances`: it counts as 1.
    """
    counts = np.array([np.isfinite(side).sum(axis=1) for side in logs])
    squares, df = (np.zeros(len(variances[0])) for _ in range(2))
    for side, variance, count in zip(logs, variances, counts, strict=True):
        pairs = count == 2
        difference = np.nanmax(side, axis=1, initial=-np.inf) - np.nanmin(side, axis=1, initial=np.inf)
        squares += np.where(pairs, difference**2 / 2 / variance, 0.0)
        df += pairs
    as_expected = (df == 0) & (counts >= SEVERAL).any(axis=0)
    known = ((df > 0) | as_expected) & np.isfinite(squares)
    if not known.any():
        return np.ones(len(df))
    ratios = np.where(as_expected, 1.0, squares / special.chdtri(np.maximum(df, 1), 0.5))
    weight = float(np.sum(df[known]))
    of_all = (_TAIL_DF + weight * float(np.median(ratios[known]))) / (_TAIL_DF + weight)
    excess = np.maximum(1.0, (_TAIL_DF * of_all + squares) / (_TAIL_DF + df))
    return np.asarray(np.where(as_expected, 1.0, excess))


def _of_intervals(runs: Sequence[Mapping[str, float]], reach: float) -> float:
    """Variance of one run's speedup (log), from the intervals of a side's runs; NaN if unknown.

    `reach`: half the width of an interval in standard deviations of one run's speedup.
    """
    variances = []
    for values in runs:
        low, high = values.get("speedup_low"), values.get("speedup_high")
        if not low or not high:
            return math.nan
        variances.append(max(math.log(high / low) / 2 / reach, FLOOR) ** 2)
    return statistics.fmean(variances)


def _change_of_eager(old: Sequence[Mapping[str, float]], new: Sequence[Mapping[str, float]]) -> float:
    """How far eager's latency differs between the sides, in logs; 0 if that is unknown.

    The intervals of speedups know nothing of the state of the machine that day, which changes what overhead
    and memory cost: where eager's latency differs, so may the speedup.
    """
    sides = [[math.log(value) for run in side if (value := run.get("eager_ms"))] for side in (old, new)]
    return statistics.fmean(sides[1]) - statistics.fmean(sides[0]) if all(sides) else 0.0


def least_change(name: str) -> float:
    """The smallest change (log) of a metric that counts."""
    return math.log1p(JUDGED[name].threshold if name in JUDGED else JUDGED["backend_ms"].threshold)
