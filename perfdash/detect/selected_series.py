"""Apply rules for selected series to a panel: accepted levels, thresholds, and what is not judged. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfdash.detect.findings import PARTS_OF, Finding, Key
from perfdash.history.queries import Panel
from perfdash.history.results import case_digest
from perfdash.metrics import JUDGED, JUDGED_COUNTS
from perfdash.records import Case
from perfdash.series_rules import STATUS, SeriesRule, rule_for


@dataclass(frozen=True)
class AcceptedLevel:
    """A person accepted the level of some series from a run on: `started` is the run's start.

    `case`: the digest of the only case; None: all that the rule selects.
    """

    rule: SeriesRule
    started: str
    case: str | None = None

    @classmethod
    def of(cls, details: Mapping[str, Any]) -> AcceptedLevel:
        """From the details of an act."""
        suite, model, metric = (str(details.get(name) or "*") for name in ("suite", "model", "metric"))
        return cls(SeriesRule(suite, model, metric), str(details["started"]), details.get("case"))

    def selects(self, case: Case, metric: str) -> bool:
        """Whether a series is one of them. The parts of a step follow their step."""
        if self.case is not None and self.case != case_digest(case):
            return False
        wholes = [whole for whole, parts in PARTS_OF.items() if metric in parts]
        return any(self.rule.selects(case.suite, case.model, name) for name in (metric, *wholes))


@dataclass(frozen=True)
class SeriesSelection:
    """Which series of a testbed are judged differently: by rules of perfdash.toml, and by accepted levels."""

    rules: Sequence[SeriesRule] = ()
    levels: Sequence[AcceptedLevel] = ()
    cases: Mapping[int, Case] = field(default_factory=dict)

    def is_judged(self, case_id: int | None, metric: str | None) -> bool:
        """Whether no rule says that a series is not judged; `metric` None: the case's presence."""
        case = self.cases.get(case_id or -1)
        if case is None:
            return True
        names = [metric or STATUS, *(whole for whole, parts in PARTS_OF.items() if metric in parts)]
        rules = (rule_for(self.rules, case.suite, case.model, name) for name in names)
        rule = next((rule for rule in rules if rule is not None), None)  # a part follows its step
        return rule is None or rule.minimum_change is not None

    def minimum_changes(self) -> dict[Key, float]:
        """The series with a minimum change of their own."""
        chosen = {}
        for number, case in self.cases.items() if self.rules else ():
            for metric in JUDGED:
                rule = rule_for(self.rules, case.suite, case.model, metric)
                if rule is not None and rule.minimum_change is not None:
                    chosen[number, metric] = rule.minimum_change
        return chosen

    def first_night(self, panel: Panel, case_id: int, metric: str | None) -> int:
        """The first night of a series that counts: that of its last accepted level.

        The number of nights, so that none counts, if the series is not judged.
        """
        case = self.cases.get(case_id)
        if case is None:
            return 0
        if not self.is_judged(case_id, metric):
            return len(panel.runs)
        starts = [level.started for level in self.levels if level.selects(case, metric or STATUS)]
        reached = [started for started in starts if started <= panel.runs[-1].started]
        if not reached:
            return 0
        return sum(run.started < max(reached) for run in panel.runs)

    def masked(self, panel: Panel) -> Panel:
        """The panel without the numbers that do not count."""
        if not self.rules and not self.levels:
            return panel
        values = dict(panel.values)
        for metric in JUDGED:
            first = [self.first_night(panel, number, metric) for number in panel.case_ids]
            if any(first):
                early = np.arange(len(panel.runs))[None, :] < np.array(first)[:, None]
                values[metric] = np.where(early, np.nan, values[metric])
        return replace(panel, values=values)

    def kept(self, panel: Panel, findings: Sequence[Finding]) -> list[Finding]:
        """The findings without those against a night that does not count, and without too small drifts."""
        least = self.minimum_changes()
        return [finding for finding in findings if self._counts(panel, finding, least)]

    def _counts(self, panel: Panel, finding: Finding, least: Mapping[Key, float]) -> bool:
        if finding.case_id is None:
            return True
        if finding.kind == "drift":
            minimum = least.get((finding.case_id, str(finding.metric)), 0.0)
            return abs(finding.change or 0.0) >= math.log1p(minimum)
        if finding.kind == "metric" or finding.good is None:
            return True
        metric = finding.metric if finding.metric in JUDGED_COUNTS else STATUS
        return finding.good >= self.first_night(panel, finding.case_id, metric)
