"""Which results share a picture: one setting, its models as rungs, its back ends side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from perfdash.detect.findings import NOTHING_CAPTURED
from perfdash.history.rows import Row
from perfdash.history.summing import Summary, is_counted, nothing_captured, summarize
from perfdash.records import Status
from perfdash.report.plots.drawing import file_word, shown

_SMALLEST, _LARGEST = 1e-12, 1e15  # what an axis can hold; what lies beyond is written out


@dataclass(frozen=True, order=True)
class Setting:
    """What the cases of one picture have in common. `dtype` is amp-bfloat16 where autocast is used."""

    suite: str
    device: str
    dtype: str
    threads: int
    scenario: str
    dynamic: bool

    @property
    def title(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        words = [shown(self.suite), self.device, self.dtype, threads, self.scenario]
        return ", ".join([*map(shown, words), *(["dynamic shapes"] if self.dynamic else [])])

    @property
    def word(self) -> str:
        """For the name of a file."""
        words = [self.suite, self.device, self.dtype, f"t{self.threads}", self.scenario]
        return "_".join(map(file_word, [*words, *(["dynamic"] if self.dynamic else [])]))


def by_setting(rows: Iterable[Row]) -> dict[Setting, list[Row]]:
    """The results of each setting, by its name."""
    groups: dict[Setting, list[Row]] = {}
    for row in rows:
        case = row.case
        dtype = f"amp-{case.amp_dtype}" if case.amp_dtype else case.dtype
        setting = Setting(case.suite, case.device, dtype, case.threads, case.scenario, case.dynamic)
        groups.setdefault(setting, []).append(row)
    return dict(sorted(groups.items()))


def backends_of(rows: Iterable[Row]) -> list[str]:
    """inductor first, then the others by name."""
    return sorted({row.case.backend for row in rows}, key=lambda name: (name != "inductor", name))


@dataclass(frozen=True)
class Rung:
    """A model at one batch size: its result by back end."""

    label: str
    slots: dict[str, Row]


def rungs_of(rows: Sequence[Row]) -> list[Rung]:
    """A rung a model, or a model and batch size where a model has several; by name."""
    sizes: dict[str, set[int]] = {}
    found: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        case = row.case
        sizes.setdefault(case.model, set()).add(case.batch_size)
        found.setdefault((case.model, case.batch_size), {})[case.backend] = row
    return [
        Rung(shown(model) + (f"  bs {size}" if len(sizes[model]) > 1 else ""), slots)
        for (model, size), slots in sorted(found.items())
    ]


def value(row: Row | None, name: str) -> float | None:
    """A metric that an axis can hold; None where it was not measured, or is NaN, infinite or not above 0."""
    found = row.values.get(name) if row else None
    return found if found is not None and _fits(found) else None


def _fits(number: float) -> bool:
    return _SMALLEST < number < _LARGEST


def summary_of(rows: Iterable[Row]) -> Summary:
    """The means of what an axis can hold, as docs/method.md defines them."""
    return summarize(
        [
            replace(row, values={name: v for name, v in row.values.items() if v == 0 or _fits(v)})
            for row in rows
        ]
    )


def passed(row: Row) -> bool:
    """Whether its numbers are of the compiled model, and so count in the means."""
    return is_counted(row)


def why_not(row: Row, name: str) -> str:
    """Why a result has no mark in the picture of a metric."""
    word = NOTHING_CAPTURED if row.status == Status.PASS and nothing_captured(row) else row.status
    if not passed(row):
        return shown(word)
    odd = row.values.get(name)
    if odd is not None and math.isfinite(odd):
        return f"{shown(word)}, but {odd:.3g}"
    return f"{shown(word)}, but not measured"
