"""Turn page views into charts: values with their titles and marks. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from perfdash import charts
from perfdash.site.model_page import ModelView, NewestResult
from perfdash.site.overview_page import Stand, TestbedView
from perfdash.site.suite_page import SuiteView
from perfdash.site.suite_trends import TrendLine
from perfdash.site.timeline import ChartEvent, build_words

# Of a suite's heat map: what differs less than 2 % from the row's median is as usual.
_EDGES = (1.02, 1.05, 1.2)


@dataclass(frozen=True)
class Figure:
    """A chart with its caption; `name` where the page's data block has its numbers."""

    name: str
    title: str
    hint: str
    svg: Markup


def _trend(
    line: TrendLine,
    times: Sequence[float],
    weekly: int,
    marks: Sequence[charts.Mark] = (),
    failed: Sequence[int] = (),
) -> charts.TrendChart:
    """With a mark where another method begins."""
    by_method = [
        charts.Mark(times[place], "method", f"another method from here on ({name})")
        for place, name in line.breaks.items()
    ]
    bounded = any(value is not None and math.isfinite(value) for value in line.lows)
    return charts.TrendChart(
        line.title,
        times,
        line.values,
        line.lows if bounded else (),
        line.highs if bounded else (),
        unit=line.unit,
        ratio=line.ratio,
        weekly=weekly,
        marks=[*marks, *by_method],
        failed=failed,
        breaks=tuple(line.breaks),
    )


def model_figures(view: ModelView) -> tuple[list[Figure], Markup]:
    """The charts of a case, and the block with their numbers."""
    data = {}
    for line in view.lines:
        marks = [
            charts.Mark(event.at, event.kind, event.text, event.href)
            for event in view.events
            if event.kind != "method" and (event.metric in (None, line.name) or _moves(event, line.name))
        ]
        data[line.name] = _trend(line, view.times, view.weekly, marks=marks, failed=view.failed)
    figures = [
        Figure(line.name, line.title, line.hint, charts.trend(data[line.name], f"c-{line.name}"))
        for line in view.lines
    ]
    nights = [charts.NightLabel(name, build) for name, build in zip(view.names, view.builds, strict=True)]
    return figures, charts.data_block(data, nights) if data else Markup("")


def _moves(event: ChartEvent, name: str) -> bool:
    """Whether an alert on a latency is marked on the speedup too, which follows from it."""
    return name == "speedup" and event.kind != "change" and event.metric in ("eager_ms", "backend_ms")


def samples(last: NewestResult) -> Markup:
    """The samples of a case's newest result; empty without any."""
    row = last.row
    sides = [
        charts.SampleSide(
            name,
            row.samples[key],
            row.values.get(key),
            row.values.get(f"{key}_low"),
            row.values.get(f"{key}_high"),
        )
        for key, name in (("eager_ms", "eager"), ("backend_ms", row.case.backend))
        if row.samples.get(key)
    ]
    return (
        charts.strip(charts.SampleStrip("Samples of the newest result", sides), "samples")
        if sides
        else Markup("")
    )


def suite_figures(view: SuiteView) -> tuple[list[Figure], Markup]:
    """The trends of a suite, and the block with their numbers."""
    drawn = view.drawn
    data = {
        line.name: _trend(line, drawn.times, drawn.weekly)
        for line in drawn.lines
        if any(value is not None for value in line.values)
    }
    figures = [
        Figure(line.name, line.title, line.hint, charts.trend(data[line.name], f"c-{line.name}"))
        for line in drawn.lines
        if line.name in data
    ]
    # Names of runs may be alike: a point's build is that of its own run. Weeks have none.
    last = len(drawn.names) - drawn.weekly
    runs = [run for run, _ in view.trend.nights[len(view.trend.nights) - last :]]
    builds = [""] * drawn.weekly + [build_words(run) for run in runs]
    nights = [charts.NightLabel(name, build) for name, build in zip(drawn.names, builds, strict=True)]
    return figures, charts.data_block(data, nights) if data else Markup("")


def heat_map(view: SuiteView) -> Markup:
    """Models by nights; empty without any."""
    if not view.heat or not view.heat_times:
        return Markup("")
    rows = [charts.HeatRow(line.label, line.href, line.ratios, line.failed) for line in view.heat]
    title = f"{view.trend.setting.suite}, the last {len(view.heat_times)} nights"
    return charts.heat_map(charts.HeatMap(title, view.heat_times, rows, _EDGES, view.heat_of), "heat")


def speedup_bars(view: SuiteView) -> Markup:
    """The speedup of each model on the last night; empty without any."""
    rows = []
    for one in view.rows:
        label = f"{one.case.model} ({one.case.batch_size})" if view.several_sizes else one.case.model
        value = one.number("speedup") if one.passed else None
        note = "" if one.passed and value is not None else one.word
        low, high = one.number("speedup_low"), one.number("speedup_high")
        verdict = (one.row.verdict or "") if one.passed else ""
        rows.append(charts.SpeedupBar(label, one.href, value, low, high, verdict, note))
    return charts.bars(rows, "bars") if rows else Markup("")


def small(stand: Stand, place: int, prefix: str) -> Markup:
    """A setting's small chart of its `place`-th line; empty without a value."""
    nights = stand.trend.nights[-len(stand.nights) :]
    line = stand.trend.lines(nights)[place]
    if all(value is None for value in line.values):
        return Markup("")
    return charts.spark(_trend(line, stand.nights, 0), prefix)


def noise(view: TestbedView, prefix: str) -> Markup:
    """A testbed's noise over nights; empty where it was not measured."""
    if not view.noise:
        return Markup("")
    times, values = zip(*view.noise, strict=True)
    shown = [100 * value for value in values]
    title = "Noise: a model against itself"
    line = TrendLine("noise", title, "", shown, [], [], unit="%", breaks=view.noise_breaks)
    return charts.spark(_trend(line, times, 0), prefix)


def moment(at: float) -> str:
    """A time of a chart as a day."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
