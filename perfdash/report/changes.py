"""The changes of a run, from the alerts of the history or from a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.comparison import ComparedCase, Comparison
from perfdash.detect.findings import WORSE
from perfdash.history.alert_store import ACKNOWLEDGED, FIXED
from perfdash.history.alert_store import SUSPECTED as SUSPECTED_STATE
from perfdash.history.results import RunRow
from perfdash.metrics import JUDGED, title_of
from perfdash.records import Case
from perfdash.report.alert_text import CULPRIT, culprits, decision, what
from perfdash.report.commit_links import CommitRange, commit_ranges
from perfdash.report.number_format import percent_change, with_unit

REGRESSION, IMPROVEMENT, NEW_FAILURE, REPAIRED, APPEARED, VANISHED = (
    "Regressions", "Improvements", "New failures", "Fixed", "Appeared", "Vanished"
)  # fmt: skip
# A re-measurement or the next night says whether these are real; worse ones and better ones.
SUSPECTED, SUSPECTED_BETTER = "Suspected regressions", "Suspected improvements"
GROUPS = (NEW_FAILURE, REGRESSION, VANISHED, SUSPECTED, REPAIRED, IMPROVEMENT, SUSPECTED_BETTER, APPEARED)
BAD = (NEW_FAILURE, REGRESSION, VANISHED)
MEASURED_AGAIN = "measured again"  # what changed for a case that had vanished


@dataclass(frozen=True)
class ChangeEnd:
    """A build that was measured, and when: one end of a change."""

    started: str
    torch: str | None = None
    torch_git_version: str | None = None
    commits: Mapping[str, str] = field(default_factory=dict)  # of packages that come from a repository
    repositories: Mapping[str, str] = field(default_factory=dict)  # these packages' addresses

    @classmethod
    def of(cls, run: RunRow | None) -> ChangeEnd | None:
        if run is None:
            return None
        return cls(run.started, run.torch, run.torch_git_version, run.commits, run.repositories)


@dataclass(frozen=True)
class Machine:
    """A testbed: its digest, a name for readers, and its host class, which other settings share."""

    testbed: str
    name: str
    host_class: str


@dataclass(frozen=True)
class RunChange:
    """One change; `change` is the log of after / before, `interval` its 95 % interval.

    It came after the build `good`; `bad` is the first build that has it. `fresh`: first seen in the reported
    run. `of_run`: the reported run shows it; otherwise only another testbed does, by the same cause. `case`
    None: most models of the host. `machine`: that saw it; None: that of the reported run.
    """

    group: str
    case: Case | None
    what: str
    before: str = ""
    after: str = ""
    change: float | None = None
    interval: tuple[float, float] | None = None
    good: ChangeEnd | None = None
    bad: ChangeEnd | None = None
    fresh: bool = True
    state: str | None = None
    alert: int | None = None
    metric: str | None = None
    notes: tuple[str, ...] = field(default=())
    of_run: bool = True
    machine: Machine | None = None

    @property
    def acknowledged(self) -> bool:
        return self.state == ACKNOWLEDGED

    @property
    def fails_check(self) -> bool:
        """Whether it fails `--fail-on regression`: the run is certainly worse, and nobody acknowledged it."""
        return self.of_run and self.group in BAD and not self.acknowledged

    @property
    def culprits(self) -> list[str]:
        """The notes that name a culprit found by a bisection."""
        return [note for note in self.notes if note.startswith(CULPRIT)]

    @property
    def between(self) -> list[CommitRange]:
        """The builds around it."""
        return commit_ranges(self.good, self.bad)


def of_alert(evidence: AlertEvidence, run_id: int) -> RunChange:
    """The change that an alert shows in a run, as open or as fixed there."""
    alert = evidence.alert
    good, bad = evidence.between
    undone = alert.state == FIXED and alert.details.get("fixed_run_id") == run_id
    is_back = undone and alert.kind == "vanished"
    before, after = _levels(evidence)
    again = evidence.remeasured
    size = again.ratio if again else alert.change
    notes = culprits(alert)
    if evidence.speedup:
        notes.append(f"speedup {evidence.speedup[0]:.3f}x -> {evidence.speedup[1]:.3f}x")
    if again:
        notes.append(f"measured again in {again.pairs} pairs; by the nights {percent_change(alert.change)}")
    if both := evidence.seen_again:
        notes.append(f"measured again: {both[0]} -> {both[1]}")
    if decided := decision(alert):
        notes.append(decided)
    if undone:
        notes = [f"back where it was before {bad.started[:10]}"] if bad else []
    # The alert was fixed on a later night: on this night it was still open.
    state = alert.state if alert.state != FIXED or undone else "fixed since"
    return RunChange(
        group=REPAIRED if undone and alert.direction == WORSE else _group(evidence, undone),
        case=evidence.case,
        what="status" if alert.kind == "status" else MEASURED_AGAIN if is_back else what(alert),
        before=after if undone else before,
        after=before if undone else after,
        change=_reversed(size) if undone else size,
        interval=None if undone else evidence.interval,
        good=None if undone else ChangeEnd.of(good),
        bad=None if undone else ChangeEnd.of(bad),
        fresh=undone
        or run_id in (alert.details.get("born_run_id"), alert.details.get("raised_run_id"))
        or (bad is not None and bad.id == run_id),
        state=state,
        alert=alert.id,
        metric=alert.metric,
        notes=tuple(notes),
    )


def without_lost(over: Iterable[AlertEvidence], is_open: Iterable[AlertEvidence]) -> list[AlertEvidence]:
    """The alerts that are over, without lost improvements: an open alert of the series reports the loss."""
    series = {(item.alert.testbed_id, item.alert.series) for item in is_open if item.alert.direction == WORSE}
    return [
        item
        for item in over
        if item.alert.direction == WORSE or (item.alert.testbed_id, item.alert.series) not in series
    ]


def _reversed(change: float | None) -> float | None:
    return None if change is None else -change


def _group(evidence: AlertEvidence, undone: bool) -> str:
    alert = evidence.alert
    if alert.kind == "vanished":
        return VANISHED
    worse = (alert.direction == WORSE) != undone
    if alert.kind == "status":
        return NEW_FAILURE if worse else REPAIRED
    if alert.state == SUSPECTED_STATE:
        return SUSPECTED if worse else SUSPECTED_BETTER
    return REGRESSION if worse else IMPROVEMENT


def _levels(evidence: AlertEvidence) -> tuple[str, str]:
    alert = evidence.alert
    if alert.kind == "status":
        return str(alert.details.get("before") or "?"), str(alert.details.get("after") or "?")
    after, again = alert.after, evidence.remeasured
    if again and alert.before:  # of the change that is shown; a note has that of the nights
        after = alert.before * math.exp(again.ratio)
    return with_unit(alert.metric, alert.before), with_unit(alert.metric, after)


def of_comparison(comparison: Comparison) -> list[RunChange]:
    """All significant changes between two sides, and the cases that only one side has."""
    good, bad = (ChangeEnd.of(side.runs[-1].run) for side in (comparison.old, comparison.new))
    changes = [change for compared in comparison.both for change in _of_case(compared, good, bad)]
    changes += [
        RunChange(VANISHED, case, "no longer measured", good=good, bad=bad) for case in comparison.vanished
    ]
    changes += [
        RunChange(APPEARED, case, "not measured before", good=good, bad=bad) for case in comparison.only_new
    ]
    return changes


def _of_case(compared: ComparedCase, good: ChangeEnd | None, bad: ChangeEnd | None) -> Iterator[RunChange]:
    if compared.status_direction:
        group = NEW_FAILURE if compared.status_direction == WORSE else REPAIRED
        yield RunChange(
            group, compared.case, "status", compared.old_status, compared.new_status, good=good, bad=bad
        )
    for name, delta in compared.deltas.items():
        # Speedup follows from the latencies: reporting it too would count one change twice. It is reported
        # only where no compiled latency could be tested.
        if not delta.significant or (name == "speedup" and compared.deltas["backend_ms"].tested
                                     if "backend_ms" in compared.deltas else False):  # fmt: skip
            continue
        worse = (delta.change > 0) == (name in JUDGED)
        reach = delta.reach
        yield RunChange(
            REGRESSION if worse else IMPROVEMENT,
            compared.case,
            title_of(name),
            with_unit(name, delta.old),
            with_unit(name, delta.new),
            delta.change,
            None if reach is None else (delta.change - reach, delta.change + reach),
            good,
            bad,
            metric=name,
        )


def ordered(changes: Iterable[RunChange]) -> list[RunChange]:
    """Sort changes by group, new ones first, then by size; statuses before sizes."""

    def rank(change: RunChange) -> tuple[object, ...]:
        size = abs(change.change) if change.change is not None and math.isfinite(change.change) else math.inf
        case = change.case
        name = (case.suite, case.model, case.name) if case else ("", "", "")
        return GROUPS.index(change.group), change.acknowledged, not change.fresh, -size, name

    return sorted(changes, key=rank)
