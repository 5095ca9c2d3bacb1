"""Select what of a night is measured again, and turn the outcome into alerts. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from perfdash.detect.alert_states import confirmed, dismissed, new_alert
from perfdash.detect.environment_changes import changed_in_build, other_build
from perfdash.detect.findings import NO_STATUS, NOTHING_CAPTURED, WORSE, Finding, is_pass
from perfdash.history.alert_store import CONFIRMED, FIXED, NEW, REMEASURED, SHOWN, SUSPECTED, Alert
from perfdash.history.queries import Panel, RunLine
from perfdash.methods import CURRENT, alike
from perfdash.metrics import JUDGED, PARTS
from perfdash.stats import confirmation_test

PAIRS = confirmation_test.PAIRS
_FAILURES = 2  # failed pairs after which a case is given up
_LATENCIES = ("eager_ms", "backend_ms", "speedup", *PARTS)
STANDS, DISMISSED, MORE, NOTHING = "stands", "dismissed", "more", "nothing"


@dataclass(frozen=True)
class PairedResult:
    """The result of one build of a pair: status and values by metric.

    `clean`: no other program used its core.
    """

    status: str
    values: dict[str, float]
    clean: bool = True

    @property
    def passed(self) -> bool:
        return is_pass(self.status, self.values.get("calls_captured"))

    @property
    def word(self) -> str:
        """The status, or `nothing captured` for a pass without captured calls."""
        return NOTHING_CAPTURED if is_pass(self.status) and not self.passed else self.status

    @property
    def has_status(self) -> bool:
        """Whether the status describes the case and not only the machine."""
        return self.status not in NO_STATUS


class PairedStatus(NamedTuple):
    """The statuses of a case over all pairs of two builds.

    unsteady: where a build did not end alike in all pairs, how often it failed, else empty. comparable: False
    where both builds failed, but not always: then no status is the build's.
    """

    old: str
    new: str
    comparable: bool = True
    unsteady: str = ""


def candidates(findings: Sequence[Finding]) -> dict[int, list[Finding]]:
    """The findings worth re-measuring, by case, the most urgent first.

    Certain changes come first, then suspected ones, and of each the regressions before the improvements.
    Vanished cases and host shifts cannot be re-measured.
    """
    by_case: dict[int, list[Finding]] = {}
    for finding in findings:
        if finding.case_id is not None and finding.kind in ("metric", "status", "count"):
            by_case.setdefault(finding.case_id, []).append(finding)
    return dict(sorted(by_case.items(), key=lambda item: min(map(_urgency, item[1]))))


def of_this_method(findings: Sequence[Finding], run: RunLine) -> list[Finding]:
    """The findings whose metric this version of perfdash measures by the run's method."""
    return [finding for finding in findings if alike(run.method, CURRENT, finding.metric or "")]


def _urgency(finding: Finding) -> tuple[bool, bool, bool, float]:
    score = abs(float(finding.details.get("score", math.inf)))
    return not finding.alarm, not finding.suspect, finding.direction != WORSE, -score


def changed_with(finding: Finding, panel: Panel) -> list[str]:
    """The names of what of the build changed between the last night before a change and the first with it."""
    if finding.good is None:
        return []
    return changed_in_build(panel.runs[finding.good].worker, panel.runs[finding.bad].worker)


def measured_before(finding: Finding, panel: Panel, worker: Mapping[str, Any]) -> bool:
    """Whether a night before the change measured this build."""
    if finding.good is None or worker.get("torch_git_version") is None:
        return False
    changed = changed_with(finding, panel)
    return any(not other_build(run.worker, worker, changed) for run in panel.runs[: finding.good + 1])


def decide(finding: Finding, pairs: Sequence[tuple[PairedResult, PairedResult]], most: int = PAIRS) -> Any:
    """Decide from the pairs (old, new) so far: stands, dismissed, more or nothing.

    Returns the decision and its numbers. `nothing` means that no decision is possible now, because runs fail,
    other programs use the core, or the change is too small for so few pairs.
    """
    if finding.kind == "metric":
        return _of_metric(finding, pairs, most)
    if not pairs:
        return MORE, None
    old, new = pairs[-1]
    if not (old.has_status and new.has_status):
        return (MORE if len(pairs) < _FAILURES else NOTHING), None
    if finding.kind == "count":
        before, after = (side.values.get(str(finding.metric)) for side in (old, new))
        if before is None or after is None:
            return NOTHING, None
        stands = (after - before) * ((finding.after or 0.0) - (finding.before or 0.0)) > 0
        return (STANDS if stands else DISMISSED), {"old": before, "new": after}
    # If both builds fail, or both pass, the build is not the cause.
    stands = old.passed != new.passed and new.passed == (finding.direction != WORSE)
    return (STANDS if stands else DISMISSED), {"old": old.status, "new": new.status}


def _of_metric(finding: Finding, pairs: Sequence[tuple[PairedResult, PairedResult]], most: int) -> Any:
    name = str(finding.metric)
    passed = passed_pairs(name, pairs)
    quiet = quiet_pairs(name, passed)
    ratios = [math.log(new.values[name] / old.values[name]) for old, new in quiet]
    if len(pairs) - len(passed) >= _FAILURES or len(passed) - len(quiet) >= most:
        return NOTHING, None
    assert finding.change is not None
    outcome = confirmation_test.decide(
        ratios,
        suspected=finding.change,
        sd=finding.sd,
        df=finding.df,
        minimum_change=finding.details.get("minimum_change", JUDGED[name].threshold),
        pairs=most,
    )
    if not ratios:
        return MORE, None
    bounds = [math.exp(max(-50.0, min(50.0, value))) for value in (outcome.low, outcome.high)]
    numbers = {
        "pairs": outcome.pairs,
        "ratio": math.exp(outcome.estimate),
        "low": bounds[0],
        "high": bounds[1],
    }
    if outcome.wanted is not None:
        numbers["wanted"] = outcome.wanted
    if outcome.decision == "undecided":
        return NOTHING, numbers  # the change may be real but too small for so few pairs
    return str(outcome.decision), numbers


def passed_pairs(
    metric: str, pairs: Sequence[tuple[PairedResult, PairedResult]]
) -> list[tuple[PairedResult, PairedResult]]:
    """The pairs in which both builds passed and have the metric."""
    return [
        (old, new)
        for old, new in pairs
        if old.passed and new.passed and old.values.get(metric, 0) > 0 and new.values.get(metric, 0) > 0
    ]


def quiet_pairs(
    metric: str, pairs: Sequence[tuple[PairedResult, PairedResult]]
) -> list[tuple[PairedResult, PairedResult]]:
    """The pairs that no other program disturbed; it disturbs latencies, not CPU seconds or memory."""
    return [pair for pair in pairs if (pair[0].clean and pair[1].clean) or metric not in _LATENCIES]


def alert_after(
    finding: Finding, decision: str, numbers: Any, alerts: Sequence[Alert], panel: Panel, at: str
) -> tuple[Alert, str] | None:
    """The new or changed alert after a decision, with a note; None if nothing changes.

    `numbers`: the numbers that `decide` returned.
    """
    same = [
        alert
        for alert in alerts
        if alert.series == (finding.kind, finding.case_id, finding.metric)
        and alert.direction == finding.direction
        and alert.state in SHOWN
        and _may_be_of(alert, finding, panel)
    ]
    if decision == STANDS:
        alert = confirmed(same[-1], at) if same else new_alert(finding, panel, at, CONFIRMED)
        return replace(alert, details={**alert.details, **_remeasured(numbers)}), f"confirmed {REMEASURED}"
    if decision == DISMISSED and same and same[-1].state in (SUSPECTED, NEW):
        alert, tonight = dismissed(same[-1], at), panel.runs[-1]
        first = {same[-1].bad_run_id, panel.runs[finding.bad].id}
        since = min(run.started for run in panel.runs if run.id in first)
        details = {**alert.details, "refuted": {"since": since, "night": tonight.started}}
        if alert.state != FIXED:  # otherwise it is as it was before its change seemed to return
            details |= _remeasured(numbers)
        return replace(alert, details=details), f"dismissed {REMEASURED}"
    return None


def _may_be_of(alert: Alert, finding: Finding, panel: Panel) -> bool:
    """Whether an open alert of a finding's series and direction may be of the same change.

    Of a metric several may be open: a confirmed step that the nights before the finding have is another
    change, and so is one that began after the panel's last night.
    """
    if finding.kind != "metric":
        return True
    places = {run.id: place for place, run in enumerate(panel.runs)}
    bad, tonight = places.get(alert.bad_run_id or -1), panel.runs[-1]
    if alert.state not in (SUSPECTED, NEW):
        return bad is not None and (finding.good is None or bad > finding.good)
    level_night = str(alert.details.get("level_night", ""))
    begins_later = alert.good_run_id == tonight.id or level_night > tonight.started
    return bad is not None or not begins_later


def _remeasured(numbers: Any) -> dict[str, Any]:
    return {"remeasured": numbers} if numbers else {}
