"""The metrics that can be bisected: of a case, its status, and of a user's command. Pure.

A reading is the result of one measurement; the search's observations are made from readings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfdash import metrics
from perfdash.detect.findings import NOTHING_CAPTURED, is_pass
from perfdash.errors import UsageError
from perfdash.history.results import from_result
from perfdash.metrics import Metric
from perfdash.records import PASSING, Result, Status
from perfdash.suggestions import did_you_mean

GOOD, BAD, SKIP = "good", "bad", "skip"  # statuses of a command, by its exit code
PASSED, WRONG = "right", "wrong"  # statuses of the accuracy check
_NOT_THE_BUILDS_FAULT = {str(Status.INFRA_ERROR), str(Status.SKIPPED), str(Status.NOT_TONIGHT)}


METRICS = {metric.name: metric for metric in metrics.METRICS.values() if metric.name}
# perfdash does not know whether more is worse of a command's number.
OF_COMMAND = {
    metric.name: metric
    for metric in (
        Metric("", "exit code of the command", "status", "exit-code", more_is_worse=None),
        Metric("", "number printed by the command", "ratio", "stdout", more_is_worse=None),
    )
}


@dataclass(frozen=True)
class Reading:
    """The result of one measurement: a status, and a value if the metric has one.

    beside: other numbers of the measurement by their names in the history. message: why there is no value.
    """

    status: str
    value: float | None = None
    beside: Mapping[str, float] = field(default_factory=dict)
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values; empty ones are left out."""
        values = {
            "status": self.status,
            "value": self.value,
            "beside": dict(self.beside),
            "message": self.message,
        }
        return {key: value for key, value in values.items() if value not in (None, {}, "")}


def reading_from_json(data: Mapping[str, Any]) -> Reading:
    """The inverse of Reading.to_json. Raises ValueError if it is not a reading."""
    try:
        value = data.get("value")
        beside = {str(key): float(number) for key, number in data.get("beside", {}).items()}
        return Reading(
            str(data["status"]),
            None if value is None else float(value),
            beside,
            str(data.get("message", "")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a reading: {error}") from error


def metric_named(name: str, of_command: bool) -> Metric:
    """The metric of a name. Raises UsageError if it does not exist, or not for what is measured."""
    here, there = (OF_COMMAND, METRICS) if of_command else (METRICS, OF_COMMAND)
    if name in here:
        return here[name]
    if name in there:
        why = "a command of yours is measured" if of_command else "it needs a command of yours, after --"
        raise UsageError(f"--metric {name}: {why}; there are: {', '.join(here)}")
    hint = did_you_mean(name, list(here))
    raise UsageError(f"--metric {name!r}: no such metric{hint}; there are: {', '.join(here)}")


def refuse_unmeasured_part(metric: Metric, scenario: str, optimizer: str) -> None:
    """Raise UsageError for a part of a step that no case of this scenario has."""
    if metric.scenario not in (None, scenario):
        raise UsageError(
            f"--metric {metric.name} is measured in --scenario {metric.scenario}, and this case is of "
            f"scenario {scenario}"
        )
    if metric.name == "optimizer" and optimizer == "none":
        raise UsageError(f"--metric {metric.name}: a step of this case has no optimizer")


def reading_of(metric: Metric, result: Result) -> Reading:
    """The reading of a metric from a measured case."""
    row = from_result(result)
    beside = {
        name: value for name in ("eager_ms", "backend_ms", "speedup") if (value := row.values.get(name))
    }
    message = result.error.message if result.error else result.skip_reason or ""
    status = str(result.status)
    if metric.name == "accuracy":
        word = {Status.FAIL_ACCURACY: WRONG, Status.EAGER_TWO_RUNS_DIFFER: status}.get(
            result.status, PASSED if result.status in PASSING else status
        )
        return Reading(word, None, beside, message)
    captured = row.values.get("calls_captured")
    if metric.name == "status" and result.status in PASSING and not is_pass(status, captured):
        status = NOTHING_CAPTURED  # as the alert of a night calls it
    value = row.values.get(metric.column) if metric.column else None
    if value is not None and (not math.isfinite(value) or (metric.comparison == "ratio" and value <= 0)):
        value = None
    if metric.comparison != "status" and value is None:
        message = message or f"{metric.bisect_title} was not measured"
    return Reading(status, value, beside, message)


def comparable(metric: Metric, value: float) -> float:
    """A value as the search compares it: the log of a ratio, a count unchanged."""
    return math.log(value) if metric.comparison == "ratio" else value


def plain(metric: Metric, value: float) -> float:
    """The inverse of comparable."""
    return math.exp(min(value, 700.0)) if metric.comparison == "ratio" else value


def answer_of(metric: Metric, status: str, of_good: Sequence[str], of_bad: Sequence[str]) -> bool | None:
    """Whether a status is the fault. None if it is neither the fault nor its absence.

    of_good, of_bad: the statuses of the two ends so far. The good end's first status counts as right, so that
    a fix is found as well as a fault.
    """
    if status in _NOT_THE_BUILDS_FAULT or status == SKIP:
        return None
    words = {"accuracy": {PASSED, WRONG}, "exit-code": {GOOD, BAD}}.get(metric.name)
    if words is not None and status not in words:
        return None
    right = of_good[0] if of_good else None
    if right is None or status == right:
        return False
    judged = words or set(of_bad)
    return True if status in judged else None
