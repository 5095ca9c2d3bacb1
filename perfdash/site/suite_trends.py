"""Read a testbed's nightly means by setting, for the overview and the suite pages."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any

import sqlalchemy as sa

from perfdash.detect.nights import is_complete_beside
from perfdash.history import schema
from perfdash.history.pass_rates_and_means import Summary
from perfdash.history.queries import RunLine
from perfdash.methods import alike, changes
from perfdash.site.suite_setting import SuiteSetting
from perfdash.site.testbed_history import Testbed, epoch, monday

_NEAR = 5  # runs on either side, beside which a night is seen to be one
_NUMBERS = (
    "cases", "attempted", "passed", "measured", "speedup", "speedup_low", "speedup_high", "speedup_clipped",
    "compilation_s", "compression_ratio", "compression_ratio_arithmetic",
)  # fmt: skip


@dataclass(frozen=True)
class TrendLine:
    """One metric over nights, NaN or None where there is nothing.

    `lows` and `highs` are an interval, or of the first `weekly` points the range. `breaks`: the points from
    which on another method measures, with what it is called.
    """

    name: str
    title: str
    hint: str
    values: list[float | None]
    lows: list[float | None]
    highs: list[float | None]
    unit: str = ""
    ratio: bool = False
    breaks: Mapping[int, str] = field(default_factory=dict)

    @property
    def column(self) -> str:
        """The column whose method decides what may be compared."""
        return "status" if self.name == "pass_rate" else self.name


@dataclass(frozen=True)
class SuiteTrend:
    """A setting's nights, oldest first; those with few of its cases are left out: `partial` counts them."""

    setting: SuiteSetting
    nights: list[tuple[RunLine, Summary]]
    partial: int = 0

    @property
    def last(self) -> tuple[RunLine, Summary]:
        return self.nights[-1]

    def lines(self, nights: Sequence[tuple[RunLine, Summary]]) -> list[TrendLine]:
        """The charts of some of its nights, a point each."""
        every = [summary for _, summary in nights]
        empty: list[float | None] = [None] * len(every)

        def of(name: str) -> list[float | None]:
            return [getattr(summary, name) for summary in every]

        rates = [100 * s.passed / s.attempted if s.attempted else None for s in every]
        lines = [
            TrendLine("pass_rate", "Pass rate", "passed / attempted", rates, empty, empty, "%"),
            TrendLine(
                "speedup", "Geometric mean speedup", "not clipped; band: 95 %",
                of("speedup"), of("speedup_low"), of("speedup_high"), "x", True,
            ),
            TrendLine(
                "compilation_s", "Mean compilation", "cold caches",
                of("compilation_s"), empty, empty, "s",
            ),
            TrendLine(
                "compression_ratio", "Memory compression", "geometric mean; higher is better",
                of("compression_ratio"), empty, empty, "x", True,
            ),
        ]  # fmt: skip
        methods = [run.method for run, _ in nights]
        return [replace(line, breaks=method_breaks(methods, line.column)) for line in lines]


def read_trends(
    connection: sa.Connection, bed: Testbed, runs: Sequence[RunLine], setting: SuiteSetting | None = None
) -> list[SuiteTrend]:
    """All settings that some runs of a testbed have (or that one), in order of their names."""
    table = schema.summaries
    by_id = {run.id: run for run in runs}
    names = table.c["run_id", *SuiteSetting._fields, *_NUMBERS]
    query = sa.select(*names, table.c.statuses).join_from(
        table, schema.runs, table.c.run_id == schema.runs.c.id
    )
    if runs:
        query = query.where(schema.runs.c.started >= runs[0].started)
    if setting is not None:
        query = query.where(*(table.c[name] == value for name, value in setting._asdict().items()))
    found: dict[SuiteSetting, list[tuple[RunLine, Summary]]] = {}
    width = 1 + len(SuiteSetting._fields)
    for row in connection.execute(query.where(schema.runs.c.testbed_id == bed.id)):
        run = by_id.get(row[0])
        if run is not None:
            summary = Summary(*row[width:])
            found.setdefault(SuiteSetting(*row[1:width]), []).append((run, summary))
    return [_whole(setting, found[setting]) for setting in sorted(found)]


def _whole(setting: SuiteSetting, nights: list[tuple[RunLine, Summary]]) -> SuiteTrend:
    """Without the runs that have under half of the cases of those about them: a mean over them is of
    something else."""
    nights = sorted(nights, key=lambda pair: (pair[0].started, pair[0].id))
    counts = [summary.cases for _, summary in nights]
    kept = [
        pair
        for place, pair in enumerate(nights)
        if is_complete_beside(counts[place], counts[max(0, place - _NEAR) : place + _NEAR + 1])
    ]
    return SuiteTrend(setting, kept, len(nights) - len(kept))


def method_breaks(methods: Sequence[Mapping[str, int]], column: str) -> dict[int, str]:
    """Of some nights those from which on another method measures a column, with its name."""
    pairs = enumerate(pairwise(methods), start=1)
    return {k: ", ".join(other) for k, (old, new) in pairs if (other := changes(old, new, column))}


@dataclass(frozen=True)
class Drawn:
    """A trend as it is drawn: one `times` for all lines, the first `weekly` of them weeks."""

    times: list[float]
    names: list[str]
    weekly: int
    lines: list[TrendLine]


def drawn(trend: SuiteTrend, first_daily: str) -> Drawn:
    """What started before `first_daily` by weeks: median, least and most; the rest night by night.

    A week is that of the nights by the method of its last.
    """
    old = [pair for pair in trend.nights if pair[0].started < first_daily]
    new = trend.nights[len(old) :]
    weeks = [(day, list(group)) for day, group in groupby(old, key=lambda pair: monday(pair[0].started))]
    recent = trend.lines(new)
    by_week = [trend.lines(group) for _, group in weeks]
    methods = [group[-1][0].method for _, group in weeks] + [run.method for run, _ in new]
    lines = []
    for place, line in enumerate(recent):
        spans = [_span(_of_last(group, week[place])) for (_, group), week in zip(weeks, by_week, strict=True)]
        lines.append(
            replace(
                line,
                values=[span[0] for span in spans] + line.values,
                lows=[span[1] for span in spans] + line.lows,
                highs=[span[2] for span in spans] + line.highs,
                breaks=method_breaks(methods, line.column),
            )
        )
    return Drawn(
        [epoch(str(day)) + 3 * 86400 for day, _ in weeks] + [epoch(run.started) for run, _ in new],
        [f"week of {day}" for day, _ in weeks] + [run.name for run, _ in new],
        len(weeks),
        lines,
    )


def _of_last(nights: Sequence[tuple[RunLine, Summary]], line: TrendLine) -> list[float | None]:
    """The values of the nights that were measured as the last of them."""
    last = nights[-1][0].method
    pairs = zip(nights, line.values, strict=True)
    return [value for (run, _), value in pairs if alike(run.method, last, line.column)]


def _span(values: Sequence[float | None]) -> tuple[Any, Any, Any]:
    known = [value for value in values if value is not None]
    return (statistics.median(known), min(known), max(known)) if known else (None, None, None)
