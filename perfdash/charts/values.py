"""The values that charts draw, also as JSON for the page's script.

Times are seconds since the epoch (UTC), ascending. None, NaN and infinities are "no number" everywhere.
A browser does not run the JSON block, so a strict policy that forbids inline scripts allows it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from perfdash.files import dumps

Number = float | None
Array = NDArray[np.float64]

# Beyond these a difference of two may overflow, or its inverse; no metric comes near.
_HUGE, _TINY = 1e150, 1e-150


class Mark(NamedTuple):
    """Something that happened at a time, such as a change point, an alert or an excluded night.

    kind: change | weak | worse | better | environment | method | excluded. text: one short sentence. href: a
    relative link, or "".
    """

    at: float
    kind: str
    text: str
    href: str = ""


@dataclass(frozen=True)
class TrendChart:
    """One metric over nights.

    values, and lows and highs where there are intervals, are as long as times; failed: places of the
    nights on which the case failed. ratio: a logarithmic axis with a line at 1.0. weekly: the first so
    many points are weeks: the median, and from the lowest to the highest. breaks: places from which on
    another method measures: no line joins them to what was before. members: further series over the same
    times, drawn thin: the values are what they have in common.
    """

    title: str
    times: Sequence[float]
    values: Sequence[Number]
    lows: Sequence[Number] = ()
    highs: Sequence[Number] = ()
    failed: Sequence[int] = ()
    marks: Sequence[Mark] = ()
    unit: str = ""
    ratio: bool = False
    weekly: int = 0
    breaks: Sequence[int] = ()
    members: Sequence[Sequence[Number]] = ()

    @cached_property
    def columns(self) -> tuple[Array, Array, Array]:
        """values, lows, highs with NaN for unmeasured nights; drawn, and given to the script.

        Raises ValueError for unequal lengths.
        """
        count = len(self.times)
        if len(self.values) != count or len(self.lows) not in (0, count) or len(self.highs) != len(self.lows):
            raise ValueError(f"{self.title}: columns of unequal length")
        lows, highs = finite_array(self.lows, self.ratio), finite_array(self.highs, self.ratio)
        return finite_array(self.values, self.ratio), lows, highs


@dataclass(frozen=True)
class HeatRow:
    """A model's nights. ratios above 1 are better; failed: the columns in which it failed.

    spread: standard deviation of the logs of ratios from night to night. open: whether an alert is open,
    worse | better | fail | "".
    """

    label: str
    href: str
    ratios: Sequence[Number]
    failed: Sequence[int] = ()
    spread: float = 0.01
    open: str = ""


@dataclass(frozen=True)
class HeatMap:
    """Models by nights. edges: of the three buckets on each side, in spreads; measure: what the ratio is."""

    title: str
    times: Sequence[float]
    rows: Sequence[HeatRow]
    edges: tuple[float, float, float] = (3.0, 5.0, 8.0)
    measure: str = "speedup"


@dataclass(frozen=True)
class SampleSide:
    """The samples of one side of a case; their median and its interval if known."""

    name: str
    samples: Sequence[float]
    median: Number = None
    low: Number = None
    high: Number = None


@dataclass(frozen=True)
class SampleStrip:
    """The samples of both sides on one axis."""

    title: str
    sides: Sequence[SampleSide]
    unit: str = "ms"


@dataclass(frozen=True)
class SpeedupBar:
    """A model's speedup. value None: there is none, and `note` says why. verdict: as in the results.

    failed: without a value, the model has the cross of a failure; what was skipped, disturbed or not checked
    has a dash.
    """

    label: str
    href: str
    value: Number
    low: Number = None
    high: Number = None
    verdict: str = ""
    note: str = ""
    failed: bool = False


class NightLabel(NamedTuple):
    """The label of a night: the run's name and its torch."""

    name: str
    torch: str = ""


def finite(values: Iterable[Number], positive: bool = False) -> list[Number]:
    """Replace unmeasured values by None, and clip huge and tiny ones before they overflow.

    positive: zero and below count as not measured, since no logarithm shows them.
    """
    # Fast path: almost all values are plain numbers and pass two comparisons, which NaN fails.
    return [
        value if value is not None and _TINY <= value <= _HUGE else _odd(value, positive) for value in values
    ]


def _odd(value: Number, positive: bool) -> Number:
    if value is None or not math.isfinite(value) or (positive and value <= 0):
        return None
    if abs(value) < _TINY:
        return _TINY if positive else 0.0
    return math.copysign(min(abs(value), _HUGE), value)


def finite_array(values: Sequence[Number], positive: bool = False) -> Array:
    """As `finite`, but an array with NaN for what was not measured."""
    array = np.array(values, dtype=float)  # None becomes NaN
    if np.all((array >= _TINY) & (array <= _HUGE)):
        return array
    known = np.isfinite(array)
    if positive:
        known &= array > 0
    array[known & (np.abs(array) < _TINY)] = _TINY if positive else 0.0
    return np.where(known, np.clip(array, -_HUGE, _HUGE), np.nan)


# `</script>` or `<!--` in a name would end the block: these characters are written as JSON escapes.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def data_block(charts: Mapping[str, TrendChart], nights: Sequence[NightLabel]) -> Markup:
    """The JSON block of a page: its charts by name over the same nights.

    Raises ValueError where a chart has other times, or there are not as many nights.
    """
    times = next(iter(charts.values())).times if charts else ()
    for name, chart in charts.items():
        if chart.times is not times and list(chart.times) != list(times):
            raise ValueError(f"{name}: other times than the first chart of the page")
    if len(nights) != len(times):
        raise ValueError(f"{len(nights)} nights for {len(times)} times")
    lines = ",".join([f"{_json(name)}:{_chart(chart)}" for name, chart in charts.items()])
    content = f'{_nights(tuple(times), tuple(nights))},"charts":{{{lines}}}'
    return Markup(f'<script type="application/json" id="chart-data">{{{content}}}</script>')


@lru_cache(maxsize=64)
def _nights(times: tuple[float, ...], nights: tuple[NightLabel, ...]) -> str:
    """The times and labels of nights as fields of JSON; cached, as the cases of a testbed share them."""
    # Each torch is listed once: without nightly builds the same torch is measured for weeks.
    torches = list(dict.fromkeys(night.torch for night in nights))
    place = {torch: k for k, torch in enumerate(torches)}
    parts = {
        "t": f"[{','.join(f'{time:.0f}' for time in times)}]",
        "names": _json([night.name for night in nights]),
        "torches": _json(torches),
        "torch": _json([place[night.torch] for night in nights]),
    }
    return ",".join(f'"{name}":{text}' for name, text in parts.items())


def _chart(chart: TrendChart) -> str:
    values, lows, highs = chart.columns
    words = _words(chart.title, chart.unit, chart.weekly, tuple(chart.failed), tuple(chart.marks))
    interval = f',"low":{_numbers(lows)},"high":{_numbers(highs)}' if len(lows) else ""
    return f'{words[:-1]},"v":{_numbers(values)}{interval}}}'


@lru_cache(maxsize=256)
def _words(title: str, unit: str, weekly: int, failed: tuple[int, ...], marks: tuple[Mark, ...]) -> str:
    """What a chart has beside its numbers, as JSON; cached, as many charts of a testbed have the same."""
    plain = {
        "title": title,
        "unit": unit,
        "weekly": weekly,
        "failed": [int(k) for k in failed],
        "marks": [[round(mark.at), mark.text] for mark in marks],
    }
    return _json(plain)


def _numbers(values: Array) -> str:
    # One format for all: a page has some thousand numbers.
    text = ("%.6g," * len(values) % tuple(values.tolist()))[:-1]
    return f"[{text.replace('nan', 'null')}]"


def _json(value: object) -> str:
    return dumps(value, separators=(",", ":"), ensure_ascii=True).translate(_ESCAPES)
