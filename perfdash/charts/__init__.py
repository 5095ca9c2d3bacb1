"""Draw charts as inline SVG: pure functions from values to markup, complete without a script."""

from perfdash.charts.heat_map import heat_map
from perfdash.charts.night_charts import bars, strip
from perfdash.charts.trend_chart import marks_key, spark, trend
from perfdash.charts.values import (
    HeatMap,
    HeatRow,
    Mark,
    NightLabel,
    SampleSide,
    SampleStrip,
    SpeedupBar,
    TrendChart,
    data_block,
)

__all__ = [
    "SpeedupBar",
    "HeatMap",
    "HeatRow",
    "Mark",
    "NightLabel",
    "SampleSide",
    "SampleStrip",
    "TrendChart",
    "bars",
    "data_block",
    "heat_map",
    "marks_key",
    "spark",
    "strip",
    "trend",
]
