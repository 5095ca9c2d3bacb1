"""Select a night's suspects for re-measurement, and turn the outcome into alerts. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfdash.detect.alert_states import confirmed, dismissed, new_alert
from perfdash.detect.findings import NO_STATUS, WORSE, Finding, is_pass
from perfdash.history.alert_store import CONFIRMED, LIVE, NEW, Alert
from perfdash.history.queries import Panel, RunLine
from perfdash.methods import CURRENT, alike
from perfdash.metrics import JUDGED, PARTS
from perfdash.stats import confirmation_test

PAIRS = confirmation_test.PAIRS
_FAILURES = 2  # pairs that may fail before it is given up: it does not run to the end here and now
_LATENCIES = ("eager_ms", "backend_ms", *PARTS)
STANDS, DISMISSED, MORE, NOTHING = "stands", "dismissed", "more", "nothing"


@dataclass(frozen=True)
class PairedResult:
    """Of one build in a pair: its status, its values by metric, and whether it had its core for itself."""

    status: str
    values: dict[str, float]
    clean: bool = True

    @property
    def passed(self) -> bool:
        return is_pass(self.status, self.values.get("calls_captured"))

    @property
    def known(self) -> bool:
        """Whether the status describes the case and not only the machine."""
        return self.status not in NO_STATUS


def suspects(findings: Sequence[Finding]) -> dict[int, list[Finding]]:
    """The findings worth re-measuring, by case, most suspicious first.

    What is certain first, then what got worse before what got better. A case that vanished cannot be
    measured, a host is not one.
    """
    by_case: dict[int, list[Finding]] = {}
    for finding in findings:
        if finding.case_id is not None and finding.kind in ("metric", "status", "count"):
            by_case.setdefault(finding.case_id, []).append(finding)
    return dict(sorted(by_case.items(), key=lambda item: min(map(_urgency, item[1]))))


def of_this_method(findings: Sequence[Finding], run: RunLine) -> list[Finding]:
    """The findings that this perfdash measures by the run's own method."""
    return [finding for finding in findings if alike(run.method, CURRENT, finding.metric or "")]


def _urgency(finding: Finding) -> tuple[bool, bool, float]:
    score = abs(float(finding.details.get("score", math.inf)))
    return not finding.alarm, finding.direction != WORSE, -score


def measured_before(finding: Finding, panel: Panel, worker: Mapping[str, Any]) -> bool:
    """Whether a night before the change measured this build."""
    if finding.good is None or worker.get("torch_git_version") is None:
        return False
    return any(not other_commits(run, worker) for run in panel.runs[: finding.good + 1])


def other_commits(run: RunLine, worker: Mapping[str, Any]) -> list[str]:
    """Commits that differ between a run and an interpreter: `torch: of the run | of the interpreter`.

    Torch, and packages for which either of them has a commit."""
    own, versions = worker.get("commits") or {}, worker.get("packages") or {}
    pairs = {"torch": (run.torch_git_version, worker.get("torch_git_version"))}
    for name in dict.fromkeys([*run.commits, *own]):
        pairs[name] = run.commits.get(name, run.packages.get(name)), own.get(name, versions.get(name))
        # Nights were taken in before commits were known: then the version has to do.
        if name not in run.commits and run.packages.get(name) == versions.get(name):
            del pairs[name]
    return [
        f"{name}: {own_commit} | {other_commit}"
        for name, (own_commit, other_commit) in pairs.items()
        if own_commit != other_commit
    ]


def decide(finding: Finding, pairs: Sequence[tuple[PairedResult, PairedResult]], most: int = PAIRS) -> Any:
    """Decide from the pairs (old, new) so far: stands, dismissed, more or nothing.

    Returns the decision and the numbers behind it.

    nothing: no decision is possible now, because runs fail, other programs use the core, or the change is
    too small for so few pairs.
    """
    if finding.kind == "metric":
        return _of_metric(finding, pairs, most)
    if not pairs:
        return MORE, None
    old, new = pairs[-1]
    if not (old.known and new.known):
        return (MORE if len(pairs) < _FAILURES else NOTHING), None
    if finding.kind == "count":
        before, after = (side.values.get(str(finding.metric)) for side in (old, new))
        if before is None or after is None:
            return NOTHING, None
        stands = (after - before) * finding.direction > 0
        return (STANDS if stands else DISMISSED), {"old": before, "new": after}
    seen = {"old": old.status, "new": new.status}
    # Where both builds fail, or both pass, it was not the build.
    stands = old.passed != new.passed and new.passed == (finding.direction != WORSE)
    return (STANDS if stands else DISMISSED), seen


def _of_metric(finding: Finding, pairs: Sequence[tuple[PairedResult, PairedResult]], most: int) -> Any:
    name = str(finding.metric)
    passed = [
        (old, new)
        for old, new in pairs
        if old.passed and new.passed and old.values.get(name, 0) > 0 and new.values.get(name, 0) > 0
    ]
    # A latency beside others' work says what they did; CPU seconds and memory are the case's own.
    quiet = [pair for pair in passed if (pair[0].clean and pair[1].clean) or name not in _LATENCIES]
    ratios = [math.log(new.values[name] / old.values[name]) for old, new in quiet]
    if len(pairs) - len(passed) >= _FAILURES or len(passed) - len(quiet) >= most:
        return NOTHING, None
    assert finding.change is not None
    outcome = confirmation_test.decide(
        ratios,
        suspected=finding.change,
        sd=finding.sd,
        df=finding.df,
        minimum_change=JUDGED[name].threshold,
        pairs=most,
    )
    if not ratios:
        return MORE, None
    bounds = [math.exp(max(-50.0, min(50.0, value))) for value in (outcome.low, outcome.high)]
    seen = {"pairs": outcome.pairs, "ratio": math.exp(outcome.estimate), "low": bounds[0], "high": bounds[1]}
    if outcome.decision == "dismissed" and outcome.low <= finding.change <= outcome.high:
        return NOTHING, seen  # it may well be true, only too small for so few pairs
    return str(outcome.decision), seen


def alert_after(
    finding: Finding, decision: str, seen: Any, alerts: Sequence[Alert], panel: Panel, at: str
) -> tuple[Alert, str] | None:
    """The new or changed alert after a decision, with a note; None: nothing."""
    same = [
        alert
        for alert in alerts
        if alert.series == (finding.kind, finding.case_id, finding.metric)
        and alert.direction == finding.direction
        and alert.state in LIVE
    ]
    if decision == STANDS:
        alert = confirmed(same[0], at) if same else new_alert(finding, panel, at, CONFIRMED)
        return replace(alert, details={**alert.details, **_remeasured(seen)}), "stood a re-measurement"
    if decision == DISMISSED and same and same[0].state == NEW:
        alert = dismissed(same[0], at)
        return replace(
            alert, details={**alert.details, **_remeasured(seen)}
        ), "did not stand a re-measurement"
    return None


def _remeasured(seen: Any) -> dict[str, Any]:
    return {"remeasured": seen} if seen else {}
