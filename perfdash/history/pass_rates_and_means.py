"""Pass rates and means over many results, and which results count in them.

The store, the comment and the terminal show these same numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from perfdash.history.results import Row
from perfdash.records import PASSING, Status
from perfdash.stats.means import (
    arithmetic_mean,
    clipped_geometric_mean,
    geometric_mean,
    geometric_mean_interval,
)

_NOT_ATTEMPTED = frozenset({Status.SKIPPED, Status.PASS_DUE_TO_SKIP, Status.NO_FINITE_OUTPUT})


@dataclass(frozen=True)
class Summary:
    """Counts of some cases, and means over those that passed with captured calls.

    `attempted`: neither skipped, nor passed for being skipped, nor without a finite output. `measured`:
    behind the speedups. `speedup`: geometric mean, low to high its 95 % interval by the models' own (None
    where one of them has none). None: nothing to say it of.
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
    """The summary of some rows, of one suite and setting. What is not above zero was not measured."""
    counted = [row for row in rows if is_counted(row)]

    def of(name: str) -> list[float]:
        return [value for row in counted if 0 < (value := row.values.get(name, 0.0)) < math.inf]

    speedups, ratios = of("speedup"), of("compression_ratio")
    low, high = _interval(counted)
    return Summary(
        cases=len(rows),
        attempted=sum(row.status not in _NOT_ATTEMPTED for row in rows),
        passed=sum(row.status == Status.PASS for row in rows),
        measured=len(speedups),
        speedup=_known(geometric_mean(speedups)),
        speedup_low=_known(low),
        speedup_high=_known(high),
        speedup_clipped=_known(clipped_geometric_mean(speedups)),
        compilation_s=_known(arithmetic_mean(of("compilation_s"))),
        compression_ratio=_known(geometric_mean(ratios)),
        compression_ratio_arithmetic=_known(arithmetic_mean(ratios)),
        statuses=dict(Counter(str(row.status) for row in rows)),
    )


def _interval(counted: Sequence[Row]) -> tuple[float | None, float | None]:
    """The interval of the mean speedup; (None, None) where a model has none: an import, one process alone."""
    speedups = []
    for row in counted:
        value, low, high = (row.values.get(f"speedup{end}", 0.0) for end in ("", "_low", "_high"))
        if 0 < value < math.inf:
            if not 0 < low <= high < math.inf:
                return None, None
            speedups.append((value, low, high))
    return geometric_mean_interval(speedups) if speedups else (None, None)


def is_counted(row: Row) -> bool:
    """Whether a row's numbers enter the means: it passed, and what ran is what was captured."""
    return row.status == Status.PASS and not nothing_captured(row) and not gave_up(row)


def is_compiled(row: Row) -> bool:
    """Whether a row's numbers are of the compiled model: it passed, be it unchecked, and something was
    captured. Those unchecked are shown, with a word, and in no mean."""
    return row.status in PASSING and not nothing_captured(row)


def nothing_captured(row: Row) -> bool:
    """Whether torch.compile ran and captured nothing: the compiled side is eager. Unknown is no.

    The back end `eager` compiles nothing: it is there to be compared with itself.
    """
    if row.case.backend == "eager":
        return False
    return row.values.get("calls_captured") == 0 or row.values.get("graphs") == 0


def gave_up(row: Row) -> bool:
    """Whether dynamo reached its limit of recompiles: part of the compiled side ran in eager."""
    return bool(row.details.get("recompile_limit"))


def setting_of(row: Row) -> tuple[Any, ...]:
    """The setting of a summary: suite, device, dtype, threads, scenario, backend, dynamic."""
    case = row.case
    dtype = f"amp-{case.amp_dtype}" if case.amp_dtype else case.dtype
    return case.suite, case.device, dtype, case.threads, case.scenario, case.backend, case.dynamic


def grouped(rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by `setting_of`, in the order of their first."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(setting_of(row), []).append(row)
    return groups


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
