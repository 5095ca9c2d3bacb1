"""Pass rates and means over many results, and which results count in them.

The store, the comment and the terminal all show these numbers. docs/method.md defines them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfdash.history.results import Row
from perfdash.records import DISTURBED, NOT_MEASURED, PASSING, Case, Status
from perfdash.stats.means import (
    arithmetic_mean,
    clipped_geometric_mean,
    geometric_mean,
    geometric_mean_interval,
)

# The columns that identify the setting of a summary; the name of the configuration does not.
SETTING = ("suite", "device", "dtype", "threads", "scenario", "backend", "dynamic", "settings")
NAMED_SETTING = (*SETTING, "configuration")
# A change of this needs a migration of the stored summaries, as 0014 is one.
_NOT_ATTEMPTED = NOT_MEASURED | {Status.PASS_DUE_TO_SKIP, Status.NO_FINITE_OUTPUT}


@dataclass(frozen=True)
class Summary:
    """Counts of some cases, and means over the cases that passed with captured calls.

    `attempted`: neither skipped, nor passed for being skipped, nor without a finite output, nor failed
    because of the machine. `measured`: the number of speedups in the mean. `speedup`: geometric mean;
    `speedup_low` to `speedup_high` is its 95 % interval from the models' own intervals, None if a model has
    none. A mean of no values is None.
    """

    cases: int
    attempted: int
    passed: int
    measured: int
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    speedup_clipped: float | None
    compilation_s: float | None
    compression_ratio: float | None
    compression_ratio_arithmetic: float | None
    statuses: dict[str, int]


def summarize(rows: Sequence[Row]) -> Summary:
    """Summarize rows of one suite and setting."""
    counted = [row for row in rows if is_counted(row)]

    def measured(name: str) -> list[float]:
        return [row.values[name] for row in counted if was_measured(row, name)]

    speedups, ratios = measured("speedup"), measured("compression_ratio")
    low, high = _interval(counted)
    return Summary(
        cases=len(rows),
        attempted=sum(row.status not in _NOT_ATTEMPTED for row in rows),
        passed=sum(row.status == Status.PASS for row in rows),
        measured=len(speedups),
        speedup=_or_none(geometric_mean(speedups)),
        speedup_low=_or_none(low),
        speedup_high=_or_none(high),
        speedup_clipped=_or_none(clipped_geometric_mean(speedups)),
        compilation_s=_or_none(arithmetic_mean(measured("compilation_s"))),
        compression_ratio=_or_none(geometric_mean(ratios)),
        compression_ratio_arithmetic=_or_none(arithmetic_mean(ratios)),
        statuses=dict(Counter(str(row.status) for row in rows)),
    )


def _interval(counted: Sequence[Row]) -> tuple[float | None, float | None]:
    """The interval of the mean speedup; (None, None) if a model has no interval.

    An imported model and a model measured in one process have none.
    """
    speedups, one_parent = [], 0
    for row in counted:
        value, low, high = (row.values.get(f"speedup{end}", 0.0) for end in ("", "_low", "_high"))
        if 0 < value < math.inf:
            if not 0 < low <= high < math.inf:
                return None, None
            speedups.append((value, low, high))
            one_parent += row.basis == "pooled"  # sampled in one process
    return geometric_mean_interval(speedups, one_parent=one_parent) if speedups else (None, None)


def was_measured(row: Row, name: str) -> bool:
    """Whether a row has a value of a metric; one that is not above zero was not measured."""
    return 0 < row.values.get(name, 0.0) < math.inf


def is_counted(row: Row) -> bool:
    """Whether a row counts in the means: it passed undisturbed, and all of it was compiled."""
    counts = row.status == Status.PASS and not is_disturbed(row)
    return counts and not nothing_captured(row) and not gave_up(row)


def is_compiled(row: Row) -> bool:
    """Whether a row's numbers are of the compiled model: it passed with captured calls.

    A row whose accuracy was not checked is compiled too; it is shown with a note and counts in no mean.
    """
    return row.status in PASSING and not nothing_captured(row)


def nothing_captured(row: Row) -> bool:
    """Whether torch.compile captured nothing, so that the compiled side is eager.

    False where the count is unknown, and for the back end `eager`, which is compared with itself.
    """
    if row.case.backend == "eager":
        return False
    return row.values.get("calls_captured") == 0 or row.values.get("graphs") == 0


def is_disturbed(row: Row) -> bool:
    """Whether other programs spoilt its samples: its latencies and speedup say nothing of the model."""
    return row.verdict == DISTURBED


def gave_up(row: Row) -> bool:
    """Whether dynamo reached its recompile limit, after which it runs in eager."""
    return bool(row.details.get("recompile_limit"))


def remark(row: Row) -> str | None:
    """Why a pass counts in no mean: nothing captured, recompile limit or disturbed; None of any other row."""
    if row.status not in PASSING:
        return None
    if nothing_captured(row):
        return "nothing captured"
    if gave_up(row):
        return "recompile limit"
    return "disturbed" if is_disturbed(row) else None


def setting_of(row: Row) -> tuple[Any, ...]:
    """The setting of a row, in the order of SETTING."""
    return setting_of_case(row.case)


def setting_of_case(case: Case) -> tuple[Any, ...]:
    """The setting of a case, in the order of SETTING."""
    dtype = f"amp-{case.amp_dtype}" if case.amp_dtype else case.dtype
    return (
        case.suite, case.device, dtype, case.threads, case.scenario, case.backend, case.dynamic,
        case.settings,
    )  # fmt: skip


def with_configuration(row: Row, name: str) -> Row:
    """The row under another name of its configuration."""
    if row.case.configuration == name:
        return row
    return replace(row, case=replace(row.case, configuration=name))


def grouped(rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by setting, in order of first appearance; the keys are in the order of NAMED_SETTING."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(setting_of(row), []).append(row)
    return {(*setting, group[0].case.configuration): group for setting, group in groups.items()}


def _or_none(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
