"""Group alerts that one date and range of builds explains into causes.

First the alerts of each testbed, by the likelihoods of their dates; then the groups of all testbeds, by the
builds that came with those dates. Failures, and slow drifts, are grouped apart from changed numbers.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import numpy as np
import sqlalchemy as sa

from perfdash.detect.alert_evidence import REAL, AlertEvidence, failing_status, gather
from perfdash.detect.environment_changes import NOT_OF_A_BUILD, build_changes, machine_changes
from perfdash.detect.findings import WORSE
from perfdash.history import alert_store
from perfdash.history.alert_store import ACKNOWLEDGED, LIVE, SHOWN, SUSPECTED, Alert
from perfdash.history.queries import RunLine
from perfdash.metrics import JUDGED, METRICS
from perfdash.records import Status
from perfdash.stats.common_dates import IMPOSSIBLE, date_range, group
from perfdash.stats.intervals import Array

Build = tuple[object, ...]
COMPILER, LIBRARY, HOST, UNKNOWN = "compiler", "library", "host", "unknown"
_LATENCIES = ("eager_ms", "backend_ms")
# Statuses of models that the compiler never gets: they end while they are loaded or run in eager mode.
_EAGER_FAILURES = {
    str(status)
    for status in (
        Status.EAGER_FAIL_TO_RUN, Status.EAGER_OOM, Status.EAGER_TWO_RUNS_DIFFER, Status.NO_FINITE_OUTPUT,
        Status.MODEL_FAIL_TO_LOAD, Status.MISSING_DEPENDENCY,
    )
}  # fmt: skip
# Not `start`: a batch size that was not tried, because a smaller one ran out of time, has that phase, too.
_EAGER_PHASES = ("load", "eager")
_UNAVAILABLE = {str(Status.NEEDS_NETWORK), str(Status.MISSING_DATA)}  # no package explains these
_WITHOUT_SIZE = 9.0  # log change of a failure or a count, for the order: first
_NEW_BUILD = 0.05  # probability that a new build came with it, below which a change is its testbed's own
_SAME = -5.0  # log likelihood above which the changes of a series on two testbeds may be one


@dataclass(frozen=True)
class Cause:
    """Alerts that one change explains. members: regressions first, then the largest.

    The change came after the run `good`, with the run `bad` at the latest, both of one testbed. attribution:
    what changed between them: compiler, library (what eager runs on too), host, or unknown. narrowest: this
    range on each testbed on which the builds leave no wider one.
    """

    members: tuple[AlertEvidence, ...]
    good: RunLine | None
    bad: RunLine | None
    attribution: str = UNKNOWN
    narrowest: tuple[tuple[RunLine, RunLine], ...] = ()

    def on(self, testbed_id: int) -> Cause:
        """The cause with the range of this testbed, if it is among the narrowest."""
        for good, bad in self.narrowest:
            if bad.testbed_id == testbed_id:
                on_it = replace(self, good=good, bad=bad)
                return replace(on_it, attribution=_attribution(on_it))
        return self

    @property
    def id(self) -> int:
        """The lowest number of its alerts; it stays when later alerts join."""
        return min(member.alert.id or 0 for member in self.members)

    @property
    def is_failure(self) -> bool:
        """Whether its members fail, vanished, or work again."""
        return self.members[0].alert.kind in ("status", "vanished")

    @property
    def direction(self) -> int:
        return self.members[0].alert.direction

    @property
    def testbeds(self) -> list[int]:
        """The testbeds that saw it, by their numbers in the store."""
        return sorted({member.alert.testbed_id for member in self.members})

    @property
    def hosts(self) -> list[str]:
        """The machines that measured its members around the change; none where one's are unknown."""
        of_members = [member.hosts for member in self.members]
        return sorted({host for hosts in of_members for host in hosts}) if all(of_members) else []

    @property
    def is_suspected(self) -> bool:
        """Whether no member is an alert yet."""
        return all(member.alert.state == SUSPECTED for member in self.members)

    @property
    def is_acknowledged(self) -> bool:
        live = [member.alert.state for member in self.members if member.alert.state in LIVE]
        return bool(live) and all(state == ACKNOWLEDGED for state in live)

    @property
    def main(self) -> list[AlertEvidence]:
        """The members of its headline: those of the direction and metric that most of the worst share."""
        direction = self.direction
        same = [member for member in self.members if member.alert.direction == direction]
        metrics = [member.alert.metric for member in same]
        metric = max(metrics, key=lambda name: (metrics.count(name), name == "backend_ms"))
        return [member for member in same if member.alert.metric == metric]

    @property
    def change(self) -> float | None:
        """The median log change of its main members; None for failures and counts."""
        changes = [
            member.alert.change
            for member in self.main
            if member.alert.change is not None and member.alert.kind != "count"
        ]
        return float(median(changes)) if changes else None

    @property
    def eager_moved(self) -> bool:
        """Whether eager latency changed in the same direction as the headline."""
        return any(
            (metric := JUDGED.get(member.alert.metric or "")) is not None
            and metric.of_eager
            and member.alert.direction == self.direction
            for member in self.members
        )

    @property
    def pairs(self) -> int:
        """Pairs of runs by which its members were re-measured and confirmed."""
        return sum(
            member.remeasured.pairs if member.remeasured else 1 if member.seen_again else 0
            for member in self.members
            if member.alert.state in LIVE
        )

    @property
    def nights(self) -> int:
        """Nights that show the change, of the member that has the most."""
        return max(member.nights for member in self.members)

    @property
    def rank(self) -> tuple[object, ...]:
        """For sorting: worst first. Acknowledged and suspected causes and improvements come later."""
        size = _WITHOUT_SIZE if self.change is None else abs(self.change)
        return (
            self.direction != WORSE,
            self.is_acknowledged,
            self.is_suspected,
            -size * len(self.main) ** 0.5,
            self.id,
        )


def causes(evidence: Sequence[AlertEvidence]) -> list[Cause]:
    """The causes of some alerts, each alert in one, the worst first."""
    order = _build_order(evidence)
    grouped: list[Cause] = []
    for members in _by(evidence, _kind):
        twins = _by(members, lambda item: (item.alert.series, item.alert.direction))
        of_twins = {item.alert.id: others for others in twins for item in others}
        groups = [
            dated
            for bed in _by(members, lambda item: item.alert.testbed_id)
            for dated in _of_testbed(bed, of_twins, order)
        ]
        grouped += [_cause(linked, order) for linked in _linked(groups, order)]
    return sorted(grouped, key=lambda cause: cause.rank)


def gather_in_causes(connection: sa.Connection, alerts: Sequence[Alert]) -> list[AlertEvidence]:
    """The evidence of some alerts, in their order; open ones have the range of their cause."""
    chosen = {alert.id for alert in alerts}
    others = [alert for alert in alert_store.load(connection, states=SHOWN) if alert.id not in chosen]
    evidence = gather(connection, [*alerts, *others])
    is_open = [item for item in evidence if item.alert.state in SHOWN]
    ranged = {member.alert.id: member for cause in causes(is_open) for member in cause.members}
    return [ranged.get(item.alert.id, item) for item in evidence[: len(alerts)]]


def runs_that_date_open_alerts(connection: sa.Connection) -> set[int]:
    """The ids of the runs that a history must keep, so that open alerts keep their dates and causes.

    Also those with which the other changes of a series began or were over: they bound the levels around it.
    """
    evidence = gather(connection, alert_store.load(connection, states=SHOWN))
    members = [member for cause in causes(evidence) for member in cause.members]
    ids = {run_id for member in members for run_id in member.dating_runs}
    series = {(member.alert.testbed_id, member.alert.series) for member in members}
    for alert in alert_store.load(connection, states=REAL):
        if (alert.testbed_id, alert.series) in series:
            ids |= {alert.bad_run_id or -1, *(run_id for spell in alert.spells for run_id in spell)}
    return ids


def strongest(members: Sequence[AlertEvidence]) -> AlertEvidence:
    """The member with the largest step in units of its noise, of those that can be bisected."""
    return max(members, key=lambda member: (can_be_bisected(member), steps_of_noise(member)))


def can_be_bisected(member: AlertEvidence) -> bool:
    """Whether a member is of one model, and of a metric that bisect measures."""
    metric = METRICS.get(member.alert.metric or "")
    known = member.alert.kind in ("metric", "count", "drift") and metric is not None and bool(metric.name)
    return member.case is not None and (member.alert.kind == "status" or known)


def steps_of_noise(member: AlertEvidence) -> float:
    """The change of an alert in standard deviations of a night; infinite for a status or a count."""
    alert = member.alert
    if alert.kind in ("status", "count") or alert.change is None:
        return math.inf
    sd = float(alert.details.get("sd") or 0)
    if not sd and (interval := member.interval):
        sd = (interval[1] - interval[0]) / 3.92
    return abs(alert.change) / sd if sd else 0.0


def _kind(item: AlertEvidence) -> tuple[object, ...]:
    """Alerts of different kinds are never put together."""
    alert = item.alert
    if alert.kind == "drift":  # has no date
        return "drift", alert.id
    if alert.kind == "status":
        return "status", alert.direction, alert.details.get("after")
    return ("vanished",) if alert.kind == "vanished" else ("change",)


def _by(items: Iterable[AlertEvidence], key: Callable[[AlertEvidence], object]) -> list[list[AlertEvidence]]:
    groups: dict[object, list[AlertEvidence]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


@dataclass(frozen=True)
class _DatedGroup:
    """Alerts of one testbed with one date. runs: the possible first runs; logs: their log likelihoods, with
    the run before each."""

    members: list[AlertEvidence]
    good: RunLine | None
    bad: RunLine | None
    steps: list[tuple[RunLine, RunLine, float]]


def _of_testbed(
    members: list[AlertEvidence],
    twins: Mapping[int | None, Sequence[AlertEvidence]],
    order: Mapping[Build, int],
) -> list[_DatedGroup]:
    """Group the alerts of a testbed over the runs that measured any of their cases.

    One without a date, whose first runs were pruned, is alone.

    `twins`: of each alert, those of its series on all testbeds: they help to date it.
    """
    undated = [_DatedGroup([member], member.good, member.bad, []) for member in members if not member.dates]
    members = [member for member in members if member.dates]
    by_id = {run.id: run for member in members for run, _ in member.dates}
    runs = sorted(by_id.values(), key=_time)
    if not runs:
        return undated
    builds = [(order[build_of(old)], order[build_of(new)]) for old, new in pairwise(runs)]
    of_run = {run.id: order[build_of(run)] for run in runs}
    logs = np.stack(
        [_with_twins(_over(runs, member, of_run), member, twins, builds, order) for member in members]
    )
    groups = group(logs)
    dated = list(undated)
    for number in range(len(groups.dates)):
        own = [member for member, label in zip(members, groups.label, strict=True) if label == number]
        low, _, high = date_range(groups.dates[number])
        good = runs[low - 1] if low else min((m.good for m in own if m.good), key=_time, default=None)
        steps = [
            (runs[place - 1], runs[place], float(groups.dates[number, place]))
            for place in range(1, len(runs))
        ]
        dated.append(_DatedGroup(own, good, runs[high], steps))
    return dated


def _over(runs: Sequence[RunLine], member: AlertEvidence, builds: Mapping[int, int]) -> Array:
    """The log likelihoods of a member's dates over the runs of its testbed.

    A change that is first seen in a run of its case may have come with any run since the case's run before,
    but not with one of the build that the case was measured with before, where it got another one since.
    `builds`: the builds of the runs, by their ids.
    """
    own = [run for run, _ in member.dates]
    times = [_time(run) for run in own]
    logs = np.full(len(runs), IMPOSSIBLE)
    for place, run in enumerate(runs):
        later = bisect.bisect_left(times, _time(run))
        if later == len(own):
            continue
        if later > 0 and builds[own[later - 1].id] == builds[run.id] != builds[own[later].id]:
            later -= 1
        logs[place] = member.dates[later][1]
    return logs


def _with_twins(
    own: Array,
    member: AlertEvidence,
    twins: Mapping[int | None, Sequence[AlertEvidence]],
    builds: Sequence[tuple[int, int]],
    order: Mapping[Build, int],
) -> Array:
    """A member's log likelihoods with those of its series on other testbeds, where both can be one change.

    `builds`: the places of the builds of each two neighbouring runs.
    """
    logs = own
    for twin in twins.get(member.alert.id, ()):
        if twin.alert.testbed_id == member.alert.testbed_id:
            continue
        by_build = _of_builds([(old, new, log) for (old, _), (new, log) in pairwise(twin.dates)], order)
        if by_build is None:
            continue
        mapped = np.full(len(own), IMPOSSIBLE)
        for place, (low, high) in enumerate(builds, 1):
            if low < high:
                mapped[place] = by_build[low + 1 : high + 1].max()
        if float(np.max(logs + mapped)) > _SAME:
            logs = logs + mapped
    return logs


def _time(run: RunLine) -> tuple[str, int]:
    return run.started, run.id


def build_of(run: RunLine) -> Build:
    """What a run measured: torch and the packages of its build, with their commits."""
    packages, commits = (
        tuple(sorted((name, value) for name, value in versions.items() if name not in NOT_OF_A_BUILD))
        for versions in (run.packages, run.commits)
    )
    return run.torch, run.torch_git_version, run.python, packages, commits


def _build_order(evidence: Sequence[AlertEvidence]) -> dict[Build, int]:
    """The builds of all dates, numbered by when they were first measured."""
    first: dict[Build, tuple[str, int]] = {}
    for item in evidence:
        for run, _ in item.dates:
            build = build_of(run)
            first[build] = min(first.get(build, _time(run)), _time(run))
    return {build: place for place, build in enumerate(sorted(first, key=lambda build: first[build]))}


def _linked(groups: list[_DatedGroup], order: Mapping[Build, int]) -> list[list[_DatedGroup]]:
    """Put together the groups of different testbeds whose changes came with the same builds.

    A group whose builds did not change is its testbed's own.
    """
    if len({item.members[0].alert.testbed_id for item in groups}) < 2:
        return [[item] for item in groups]
    logs = [_of_builds(item.steps, order) for item in groups]
    alone = [[item] for item, of_item in zip(groups, logs, strict=True) if of_item is None]
    linkable = [item for item, of_item in zip(groups, logs, strict=True) if of_item is not None]
    if not linkable:
        return alone
    labels = group(np.stack([of_item for of_item in logs if of_item is not None])).label
    return alone + [
        [item for item, label in zip(linkable, labels, strict=True) if label == number]
        for number in sorted(set(labels.tolist()))
    ]


def _of_builds(steps: Sequence[tuple[RunLine, RunLine, float]], order: Mapping[Build, int]) -> Array | None:
    """The log likelihoods of a change over builds; None if it probably came without a new build.

    `steps`: neighbouring runs, with the log likelihood that it came with the second.
    """
    logs = np.full(len(order), IMPOSSIBLE)
    total = new_build = 0.0
    best = max((value for *_, value in steps), default=0.0)
    for before, run, value in steps:
        weight = float(np.exp(value - best))
        total += weight
        low, high = order[build_of(before)], order[build_of(run)]
        if low < high:
            new_build += weight
            logs[low + 1 : high + 1] = np.maximum(logs[low + 1 : high + 1], max(value - best, IMPOSSIBLE))
    return logs if total and new_build / total > _NEW_BUILD else None


def _cause(linked: list[_DatedGroup], order: Mapping[Build, int]) -> Cause:
    """The cause of linked groups: its range is what all of them leave possible.

    Each member has it by runs of its own testbed: two machines differ by more than what changed.
    """
    if len(linked) == 1:
        ranges = [(linked[0].good, linked[0].bad)]
    else:
        low, high = _common_builds(linked, order)
        ranges = [_range_of_builds(item, low, high, order) for item in linked]
    ranged = [
        replace(member, range=around)
        for item, around in zip(linked, ranges, strict=True)
        for member in item.members
    ]
    members = sorted(ranged, key=_rank)
    known = [(good, bad) for member in members for good, bad in (member.between,) if good and bad]
    widths = [order.get(build_of(bad), 0) - order.get(build_of(good), 0) for good, bad in known]
    narrowest: dict[int, tuple[RunLine, RunLine]] = {}
    for around, width in zip(known, widths, strict=True):
        if width == min(widths):
            narrowest.setdefault(around[1].testbed_id, around)
    good, bad = next(iter(narrowest.values()), members[0].between)
    cause = Cause(tuple(members), good, bad, narrowest=tuple(narrowest.values()))
    return replace(cause, attribution=_attribution(cause))


def _common_builds(linked: Sequence[_DatedGroup], order: Mapping[Build, int]) -> tuple[int, int]:
    """The last good and the first bad build that all groups leave possible, by their places in `order`."""
    goods = [order.get(build_of(item.good), -1) for item in linked if item.good]
    bads = [order[build_of(item.bad)] for item in linked if item.bad]
    low, high = max(goods, default=-1), min(bads, default=len(order))
    if low >= high:  # ranges of two clocks that only touch: the widest
        low, high = min(goods), max(bads)
    return low, high


def _range_of_builds(
    item: _DatedGroup, low: int, high: int, order: Mapping[Build, int]
) -> tuple[RunLine | None, RunLine | None]:
    """The runs of a group around the builds `low` and `high`: the last no newer, the first no older."""
    runs = [*(before for before, _, _ in item.steps[:1]), *(run for _, run, _ in item.steps)]
    places = [order[build_of(run)] for run in runs]
    last = max(
        (
            place
            for place, build in enumerate(places)
            if build <= low and (item.bad is None or _time(runs[place]) < _time(item.bad))
        ),
        default=None,
    )
    first = next((place for place in range((last or 0) + 1, len(runs)) if places[place] >= high), None)
    return item.good if last is None else runs[last], item.bad if first is None else runs[first]


def _rank(member: AlertEvidence) -> tuple[object, ...]:
    alert = member.alert
    size = _WITHOUT_SIZE if alert.change is None else abs(alert.change)
    return alert.state == SUSPECTED, -alert.direction, -size, alert.id


def _attribution(cause: Cause) -> str:
    """What changed, by what the environments say and by which sides moved."""
    if cause.good is None or cause.bad is None:
        return UNKNOWN
    if cause.main[0].alert.kind == "vanished":  # nothing of it was run
        return UNKNOWN
    packages = build_changes(cause.good, cause.bad)
    on_other_machine = bool(machine_changes(cause.good, cause.bad, cause.hosts))
    failures = {failing_status(member.alert) for member in cause.main}
    eager_moved = (
        cause.eager_moved
        or not failures.isdisjoint(_EAGER_FAILURES)
        or any(member.failed_phase in _EAGER_PHASES for member in cause.main)
    )
    if not packages or (on_other_machine and eager_moved):
        return HOST if on_other_machine else UNKNOWN
    if not failures.isdisjoint(_UNAVAILABLE):
        return UNKNOWN
    latency = [member for member in cause.main if member.alert.metric in _LATENCIES]
    if eager_moved or (latency and latency[0].alert.metric == "eager_ms"):
        return LIBRARY
    return COMPILER if packages[0].startswith("torch:") else LIBRARY
