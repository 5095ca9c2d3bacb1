"""The means of a suite over the nights of one testbed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from perfdash.methods import alike, changes, has_own_threads
from perfdash.report.plots.drawing import BLACK, WIDTH, Picture, heading, number, shown
from perfdash.report.plots.layout import PlotSetting, colour_of, marker_of

_PANELS = (
    ("speedup", "geometric mean speedup\n(band: 95 %;\ndashed, x: clipped at 1)"),
    ("pass_rate", "pass rate, %\n(of those attempted)"),
    ("compilation_s", "mean compilation\ntime, s"),
    ("compression_ratio", "memory compression\nratio, geometric mean"),
)
_MARKED = 70  # points, up to which each has its mark
_FEW = 0.5  # of the median number of cases: a run with fewer is no night, and has means of its own

TrendPoint = Mapping[str, Any]


def trend(nights: Sequence[TrendPoint]) -> Iterator[Picture]:
    """One plot per setting; `nights` come from history.queries.trend.

    Testbeds never share a plot. A run of few cases (one model at a desk) is left out, and counted.
    """
    groups: dict[tuple[int, PlotSetting], dict[str, list[TrendPoint]]] = {}
    for night in nights:
        setting = PlotSetting(
            *(
                night[name]
                for name in (
                    "suite",
                    "device",
                    "dtype",
                    "threads",
                    "scenario",
                    "dynamic",
                    "settings",
                    "configuration",
                )
            )
        )
        of_setting = groups.setdefault((night["testbed_id"], setting), {})
        of_setting.setdefault(night["backend"], []).append(night)
    beds = sorted({bed for bed, _ in groups})
    for (bed, setting), lines in sorted(groups.items()):
        rest = f", testbed {beds.index(bed) + 1} of {len(beds)}" if len(beds) > 1 else ""
        word = f"trend_{setting.word}" + (f"_testbed{beds.index(bed) + 1}" if len(beds) > 1 else "")
        title = f"Trend: {setting.title}{rest}"
        yield Picture(word, title, _figure(title, lines))


def _figure(title: str, every_line: Mapping[str, Sequence[TrendPoint]]) -> Figure:
    lines = {backend: _whole(nights) for backend, nights in every_line.items()}
    backends = sorted(lines, key=lambda name: (name != "inductor", name))
    figure = Figure(figsize=(WIDTH, 7.4), layout="constrained")
    axes = figure.subplots(len(_PANELS), 1, sharex=True, height_ratios=[2, 1, 1, 1])
    days = [_day(night) for of_backend in lines.values() for night in of_backend]
    for axis, (name, label) in zip(axes, _PANELS, strict=True):
        axis.set_ylabel(label, fontsize=7.5)
        axis.yaxis.set_major_formatter(lambda tick, _: number(tick) if tick >= 0 else "")
        for backend in backends:
            _line(axis, name, lines[backend], colour_of(backend, backends), marker_of(backend, backends))
        _reach(axis)
    axes[0].axhline(1.0, color=BLACK, linewidth=0.8, zorder=1)
    edge = max((max(days) - min(days)) * 0.02, 2.0)
    axes[-1].set_xlim(min(days) - edge, max(days) + edge)
    locator = AutoDateLocator(minticks=2, maxticks=9)  # type: ignore[no-untyped-call]
    axes[-1].xaxis.set_major_locator(locator)
    axes[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    count = len(set(days))
    last = max((night for of_backend in lines.values() for night in of_backend), key=_day)
    runs = f"{count} run{'s' if count > 1 else ''} up to {shown(last['run'])}"
    notes = [f"{runs}, torch {shown(last['torch'] or '?')}"]
    ordered = sorted((night for of_backend in lines.values() for night in of_backend), key=_day)
    for before, after in pairwise(ordered):
        if other := changes(before["method"], after["method"]):
            notes.append(f"from {after['started'][:10]} on by another method (dotted): {', '.join(other)}")
    few = _runs(every_line) - _runs(lines)
    if few:
        notes.append(
            f"left out: {few} run{'s' * (few > 1)} with under half of the usual (median) number of cases"
        )
    heading(figure, title, notes)
    entries = [
        Line2D([], [], color=colour_of(name, backends), marker=marker_of(name, backends), markersize=4,
               label=shown(name))
        for name in backends
    ]  # fmt: skip
    figure.legend(handles=entries, loc="outside lower left", ncols=5, fontsize=7.5)
    return figure


def _whole(nights: Sequence[TrendPoint]) -> list[TrendPoint]:
    usual = statistics.median(night["cases"] for night in nights)
    return [night for night in nights if night["cases"] >= _FEW * usual]


def _runs(lines: Mapping[str, Sequence[TrendPoint]]) -> int:
    return len({(night["run"], night["started"]) for of_backend in lines.values() for night in of_backend})


def _line(axis: Axes, name: str, nights: Sequence[TrendPoint], colour: str, marker: str) -> None:
    mark = marker if len(nights) <= _MARKED else ""
    for place, same in enumerate(_by_method(name, nights)):
        if place:  # nothing is joined, or compared, across it
            axis.axvline(_day(same[0]), color=BLACK, linewidth=0.8, linestyle=":", zorder=1)
        _part(axis, name, same, colour, mark)


def _by_method(name: str, nights: Sequence[TrendPoint]) -> list[list[TrendPoint]]:
    """Split nights into stretches measured by one method."""
    column = "status" if name == "pass_rate" else name
    own_threads = any(has_own_threads(SimpleNamespace(**night)) for night in nights[:1])
    stretches: list[list[TrendPoint]] = []
    for night in nights:
        if stretches and alike(stretches[-1][-1]["method"], night["method"], column, own_threads):
            stretches[-1].append(night)
        else:
            stretches.append([night])
    return stretches


def _part(axis: Axes, name: str, nights: Sequence[TrendPoint], colour: str, mark: str) -> None:
    days = [_day(night) for night in nights]
    axis.plot(days, [_value(night, name) for night in nights], color=colour, marker=mark, markersize=3.2)
    if name == "speedup":
        clipped = [_value(night, "speedup_clipped") for night in nights]
        axis.plot(
            days,
            clipped,
            color=colour,
            linestyle=(0, (4, 3)),
            linewidth=0.9,
            marker="x" if mark else "",
            markersize=3,
        )
        low, high = ([_value(night, f"speedup_{end}") for night in nights] for end in ("low", "high"))
        if len(nights) == 1:
            axis.plot([days[0]] * 2, [low[0], high[0]], color=colour, linewidth=2.5, alpha=0.4)
        else:
            axis.fill_between(days, low, high, color=colour, alpha=0.15, linewidth=0)


def _reach(axis: Axes) -> None:
    """Widen the range of a flat line, so that noise does not fill the plot."""
    low, high = axis.dataLim.intervaly
    if not (math.isfinite(low) and math.isfinite(high)):
        axis.set_ylim(0, 1)
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", va="center")
        axis.set_yticks([])
        return
    middle = (low + high) / 2
    half = max((high - low) * 0.55, abs(middle) * 0.03, 1e-9)
    axis.set_ylim(middle - half, middle + half)


def _value(night: TrendPoint, name: str) -> float:
    if name == "pass_rate":
        return 100 * night["passed"] / night["attempted"] if night["attempted"] else math.nan
    number = night[name]
    return math.nan if number is None or not abs(number) < 1e15 else float(number)


def _day(night: TrendPoint) -> float:
    """The start of a run (UTC) in matplotlib's days."""
    moment = datetime.fromisoformat(night["started"])
    if moment.tzinfo:
        moment = (moment - (moment.utcoffset() or timedelta())).replace(tzinfo=None)
    return float(date2num(moment))  # type: ignore[no-untyped-call]
