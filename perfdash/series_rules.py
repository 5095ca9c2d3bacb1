"""Rules for selected series: the least change that counts, and what is not judged. Pure.

`[[thresholds]]` of perfdash.toml holds them; a series is one case in one metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from perfdash.errors import UsageError
from perfdash.metrics import JUDGED, JUDGED_COUNTS

STATUS = "status"  # pass or failure, and whether a case is measured at all
SERIES = (*JUDGED, *JUDGED_COUNTS, STATUS)
_KEYS = ("suite", "model", "metric", "minimum_change", "judge")
_MOST = 10.0  # a larger minimum is a percentage by mistake


@dataclass(frozen=True)
class SeriesRule:
    """A rule for the series whose suite, model and metric match the patterns (`*`, `?`, `[ab]`).

    `minimum_change`: the least relative change that counts (0.05 = 5 %); None: the series is not judged.
    """

    suite: str = "*"
    model: str = "*"
    metric: str = "*"
    minimum_change: float | None = None

    def selects(self, suite: str, model: str, metric: str) -> bool:
        """Whether a series matches; a pattern ignores upper and lower case."""
        pairs = ((suite, self.suite), (model, self.model), (metric, self.metric))
        return all(fnmatchcase(name.lower(), pattern.lower()) for name, pattern in pairs)

    def __str__(self) -> str:
        return ", ".join(f"{name} {getattr(self, name)}" for name in _KEYS[:3] if getattr(self, name) != "*")


def rule_for(rules: Sequence[SeriesRule], suite: str, model: str, metric: str) -> SeriesRule | None:
    """The last rule that selects a series; None if no rule does.

    A minimum change says nothing of counts and of the status, of which every change counts.
    """
    return next(
        (
            rule
            for rule in reversed(rules)
            if (metric in JUDGED or rule.minimum_change is None) and rule.selects(suite, model, metric)
        ),
        None,
    )


def check_metric(pattern: str, where: str) -> None:
    """Raise UsageError for a pattern that matches no judged metric."""
    if not any(fnmatchcase(name, pattern.lower()) for name in SERIES):
        raise UsageError(f"{where}: {pattern!r} matches no metric that is judged: {', '.join(SERIES)}")


def read_rules(tables: Any, where: str) -> tuple[SeriesRule, ...]:
    """Read the rules of `[[thresholds]]`. Raises UsageError, which names file, rule and key."""
    if isinstance(tables, Mapping):
        tables = [tables]
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise UsageError(f"{where}: 'thresholds' must be tables: write [[thresholds]] before each rule")
    return tuple(
        _rule(table, f"{where}: [[thresholds]] rule {number}") for number, table in enumerate(tables, start=1)
    )


def _rule(table: Mapping[str, Any], where: str) -> SeriesRule:
    for key in table:
        if key not in _KEYS:
            raise UsageError(f"{where} has no key {key!r}; there are: {', '.join(_KEYS)}")
    patterns = {key: table[key] for key in _KEYS[:3] if key in table}
    for key, pattern in patterns.items():
        if not isinstance(pattern, str) or not pattern:
            raise UsageError(f"{where}: {key} = {pattern!r}: give a name or a pattern, such as 'resnet*'")
    if "metric" in patterns:
        check_metric(patterns["metric"], f"{where}: metric")
    if ("minimum_change" in table) == ("judge" in table):
        raise UsageError(
            f"{where}: give one of minimum_change (0.05 = 5 %) and judge = false (do not judge these series)"
        )
    if "judge" in table:
        if table["judge"] is not False:
            raise UsageError(f"{where}: judge = {table['judge']!r}: only false is possible")
        return SeriesRule(**patterns)
    least = table["minimum_change"]
    is_number = isinstance(least, int | float) and not isinstance(least, bool)
    if not is_number or not math.isfinite(least) or not 0 < least <= _MOST:
        raise UsageError(
            f"{where}: minimum_change = {least!r}: give a fraction above 0 and up to {_MOST:g} (0.05 = 5 %)"
        )
    if "metric" in patterns and not any(fnmatchcase(name, patterns["metric"].lower()) for name in JUDGED):
        raise UsageError(
            f"{where}: minimum_change is for {', '.join(JUDGED)}; of {patterns['metric']!r} every change "
            "counts; judge = false switches it off"
        )
    return SeriesRule(**patterns, minimum_change=float(least))
