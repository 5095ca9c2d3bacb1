"""Axes: map values and times to coordinates, with ranges that do not exaggerate noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

import numpy as np

from perfdash.charts.values import Array

DAY = 86_400.0
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# An axis spans at least this fraction of the largest value: noise of 0.1 % must not look like a mountain.
_LEAST = 0.1
_ROOM = 0.06  # margin above and below, as a fraction of the span
NEAR = 0.62
_EARLIEST, _LATEST = -62_135_596_800.0, 253_402_214_400.0  # years 1 to 9999


class Axis:
    """Values from `low` to `high`, linear or logarithmic, onto `start` to `end` (whole numbers)."""

    def __init__(self, low: float, high: float, start: int, end: int, log: bool = False) -> None:
        self.low, self.high, self.log = low, high, log
        self.start, self.end = start, end
        first, last = (math.log(low), math.log(high)) if log else (low, high)
        self.factor = (end - start) / (last - first)
        self.offset = start - first * self.factor

    def at(self, value: float) -> int:
        """The coordinate of a value; a value outside the range is drawn at the edge."""
        value = min(max(value, self.low), self.high)
        return round((math.log(value) if self.log else value) * self.factor + self.offset)

    def places(self, values: Array) -> Array:
        """The coordinates of many values, whole numbers; NaN where a value is."""
        inside = np.clip(values, self.low, self.high)
        places: Array = np.rint((np.log(inside) if self.log else inside) * self.factor + self.offset)
        return places + 0.0  # no -0

    def ticks(self, about: int, least: float = 0.0) -> list[tuple[float, str]]:
        """The values of the ticks and their labels; least: the smallest step between them."""
        if self.log and self.high / self.low > 4:
            values = _log_ticks(self.low, self.high, about)
            return [(value, f"{value:g}") for value in values]
        return linear_ticks(self.low, self.high, about, least)


def value_range(
    values: Sequence[float] | Array,
    lows: Sequence[float] | Array,
    highs: Sequence[float] | Array,
    log: bool = False,
) -> tuple[float, float]:
    """The range of a value axis. Intervals may widen it to three times the values' own span.

    log: all values are above zero; 1.0 is included where that leaves the values enough room.
    """
    if not len(values):
        return (0.5, 2.0) if log else (0.0, 1.0)
    low, high = float(np.min(values)), float(np.max(values))
    ends = low, high, float(np.min(lows)) if len(lows) else low, float(np.max(highs)) if len(highs) else high
    if log:
        return _ratio_range(*map(math.log, ends))
    least_span = _LEAST * max(abs(low), abs(high)) or 1.0
    first, last = _spanned(*ends, least_span)
    return (0.0 if first < 0 <= low else first), last


def count_range(values: Array) -> tuple[float, float]:
    """The range of a count: at least one below to one above, for whole ticks."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    room = 0.1 * (high - low)
    return low - (0 if low == 0 else max(1.0, room)), high + max(1.5, room)


def _ratio_range(low: float, high: float, lowest: float, highest: float) -> tuple[float, float]:
    """The range of ratios, given as logarithms; the arguments are those of `_spanned`."""
    low, high = _spanned(low, high, lowest, highest, _LEAST)
    room = _ROOM * max(high - low, high, -low)
    with_one = min(low, -room), max(high, room)
    near = math.log(2)
    if (-near <= low and high <= near) or with_one[1] - with_one[0] <= 3 * (high - low):
        low, high = with_one
    return math.exp(low), math.exp(high)


def _spanned(
    low: float, high: float, lowest: float, highest: float, least_span: float
) -> tuple[float, float]:
    """From the low to the high end of values with a margin, at least `least_span` wide.

    `lowest` and `highest`: the ends of their intervals.
    """
    span = max(high - low, least_span / 2)
    low, high = min(low, max(lowest, low - span)), max(high, min(highest, high + span))
    room = max(0.0, least_span - (high - low)) / 2 + _ROOM * (high - low)
    return low - room, high + room


def linear_ticks(low: float, high: float, about: int, least_step: float = 0.0) -> list[tuple[float, str]]:
    """About so many round values between two, with their labels."""
    step = _step(max((high - low) / about, least_step))
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if last - first > 3 * about:  # too near to each other for floating point
        return []
    far = max(abs(low), abs(high)) >= 1e6 or digits > 5
    return [
        (k * step, f"{k * step:.4g}" if far else f"{k * step:.{digits}f}") for k in range(first, last + 1)
    ]


def _step(least_step: float) -> float:
    """The smallest round step (1, 2, 5 times a power of ten) from `least_step` up."""
    power = 10.0 ** math.floor(math.log10(least_step))
    return next(n * power for n in (1, 2, 5, 10, 100) if n * power >= least_step * (1 - 1e-9))


def _log_ticks(low: float, high: float, about: int) -> list[float]:
    """Ticks at 1, 2, 5 times powers of ten; fewer where the range is wide."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, math.ceil((last - first) / about))
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [n * 10.0**k for k in range(first, last + 1) if k % stride == 0 for n in steps]
    return [value for value in ticks if low <= value <= high]


@dataclass(frozen=True)
class TimeAxis:
    """Times from `first` to `last` onto 0 to 1. What comes after `split` has NEAR of the width for itself."""

    first: float
    last: float
    split: float | None = None

    def at(self, time: float) -> float:
        """The place of a time; what lies outside is put on the edge."""
        time = min(max(time, self.first), self.last)
        if self.split is None:
            return (time - self.first) / (self.last - self.first)
        if time < self.split:
            return (1 - NEAR) * (time - self.first) / (self.split - self.first)
        return 1 - NEAR * (self.last - time) / (self.last - self.split)

    def ticks(self, about: int) -> tuple[tuple[float, str], ...]:
        """Times and their words, of both parts."""
        if self.split is None:
            return time_ticks(self.first, self.last, about)
        far = round(about * (1 - NEAR))
        return time_ticks(self.first, self.split, far) + time_ticks(self.split, self.last, about - far)


@lru_cache(maxsize=64)
def time_axis(first: float, last: float, split: float | None = None) -> TimeAxis:
    """The axis for nights from first to last; split: where weeks end and nights begin.

    It is split only where the nights would get less than half of the width otherwise.
    """
    first, last = time_range(first, last)
    if split is not None and first + DAY < split < last - DAY and last - split < (last - first) / 2:
        return TimeAxis(first, last, split)
    return TimeAxis(first, last)


def time_range(first: float, last: float) -> tuple[float, float]:
    """What a time axis spans; a single night stands in the middle of a week."""
    first, last = (min(max(t, _EARLIEST), _LATEST) for t in (first, last))
    least_span = 6 * DAY
    if last - first < least_span:
        middle = (first + last) / 2
        first, last = middle - least_span / 2, middle + least_span / 2
    return max(first, _EARLIEST), min(last, _LATEST)


@lru_cache(maxsize=64)
def time_ticks(first: float, last: float, about: int) -> tuple[tuple[float, str], ...]:
    """Ticks at days, Mondays or first days of months; the first label has the year."""
    begin, end = day(first), day(last)
    days = max(1, (end - begin).days)
    for step in (1, 2, 7, 14):
        if days / step <= about:
            anchor = begin - timedelta(begin.weekday()) if step >= 7 and begin.toordinal() > 7 else begin
            dates = [
                anchor + timedelta(k) for k in range(0, days + 8, step) if anchor.toordinal() + k < 3_652_059
            ]
            return _dated([tick for tick in dates if begin <= tick <= end], first, last, by_month=False)
    months = days / 30.44
    step = next((s for s in (1, 2, 3, 6, 12, 24, 60, 120) if months / s <= about), 1200)
    total = range(begin.year * 12, end.year * 12 + 12)
    dates = [date(k // 12, k % 12 + 1, 1) for k in total if (k % 12 if step < 12 else k) % step == 0]
    return _dated([tick for tick in dates if begin <= tick <= end], first, last, by_month=True)


def _dated(days: list[date], first: float, last: float, by_month: bool) -> tuple[tuple[float, str], ...]:
    ticks: list[tuple[float, str]] = []
    year = 0
    for tick in days:
        at = datetime(tick.year, tick.month, tick.day, tzinfo=UTC).timestamp()
        if not first <= at <= last:
            continue
        month = _MONTHS[tick.month - 1]
        if by_month:
            word = (f"{month} {tick.year}" if not year and tick.month > 1 else
                    str(tick.year) if tick.month == 1 else month)  # fmt: skip
        else:
            word = f"{tick.day} {month}" + (f" {tick.year}" if tick.year != year else "")
        year = tick.year
        ticks.append((at, word))
    return tuple(ticks)


def day(at: float) -> date:
    """The date of a time in UTC."""
    return datetime.fromtimestamp(min(max(at, _EARLIEST), _LATEST), UTC).date()
