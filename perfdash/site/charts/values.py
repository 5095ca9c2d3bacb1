"""What the charts draw, as plain values: no SVG here, nothing of the store.

Times are seconds since the epoch (UTC), ascending. None, NaN and infinities are "not measured" everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

Number = float | None

# Beyond these a difference of two may overflow, or its inverse; no metric comes near.
_HUGE, _TINY = 1e150, 1e-150


@dataclass(frozen=True)
class Mark:
    """Something that happened at a time: a change point, an alert, another environment or method.

    kind: change | worse | better | environment | method. text: one short sentence. href: a relative link,
    or "".
    """

    at: float
    kind: str
    text: str
    href: str = ""


@dataclass(frozen=True)
class Trend:
    """One metric over nights.

    values, and lows and highs where there are intervals, are as long as times; failed: places of the
    nights on which the case failed. ratio: a logarithmic axis with a line at 1.0. weekly: the first so
    many points are weeks: the median, and from the lowest to the highest. breaks: places from which on
    another method measures: no line joins them to what was before.
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

    @cached_property
    def columns(self) -> tuple[list[Number], list[Number], list[Number]]:
        """values, lows, highs with None for what is not measured; drawn, and told to the script.

        Raises ValueError for unequal lengths.
        """
        count = len(self.times)
        if len(self.values) != count or len(self.lows) not in (0, count) or len(self.highs) != len(self.lows):
            raise ValueError(f"{self.title}: columns of unequal length")
        lows, highs = finite(self.lows, self.ratio), finite(self.highs, self.ratio)
        return finite(self.values, self.ratio), lows, highs


@dataclass(frozen=True)
class HeatRow:
    """A model's nights. ratios above 1 are better; failed: the columns in which it failed."""

    label: str
    href: str
    ratios: Sequence[Number]
    failed: Sequence[int] = ()


@dataclass(frozen=True)
class HeatMap:
    """Models by nights. edges: of the three buckets on each side of 1; measure: what the ratio is."""

    title: str
    times: Sequence[float]
    rows: Sequence[HeatRow]
    edges: tuple[float, float, float] = (1.05, 1.2, 1.5)
    measure: str = "speedup"


@dataclass(frozen=True)
class Side:
    """The samples of one side of a case, with their median and its interval if there is one."""

    name: str
    samples: Sequence[float]
    median: Number = None
    low: Number = None
    high: Number = None


@dataclass(frozen=True)
class Strip:
    """The samples of both sides on one axis."""

    title: str
    sides: Sequence[Side]
    unit: str = "ms"


@dataclass(frozen=True)
class Bar:
    """A model's speedup. value None: there is none, and `note` says why. verdict: as in the results."""

    label: str
    href: str
    value: Number
    low: Number = None
    high: Number = None
    verdict: str = ""
    note: str = ""


@dataclass(frozen=True)
class Night:
    """What is said of a night beside its values: the run's name, and which torch was measured."""

    name: str
    torch: str = ""


def finite(values: Iterable[Number], positive: bool = False) -> list[Number]:
    """The values with None for what is not measured; what is huge or tiny stops short of overflowing.

    positive: zero and below count as not measured, since no logarithm shows them.
    """
    # Almost all values are plain numbers: those are told by two comparisons, which NaN fails.
    return [
        value if value is not None and _TINY <= value <= _HUGE else _odd(value, positive) for value in values
    ]


def _odd(value: Number, positive: bool) -> Number:
    if value is None or not math.isfinite(value) or (positive and value <= 0):
        return None
    if abs(value) < _TINY:
        return _TINY if positive else 0.0
    return math.copysign(min(abs(value), _HUGE), value)
