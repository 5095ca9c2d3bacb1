"""Charts as inline SVG: pure functions from values to markup, complete without a script."""

from perfdash.site.charts.bars import bars
from perfdash.site.charts.data import data_block
from perfdash.site.charts.heat_map import heat_map
from perfdash.site.charts.marks import marks_key
from perfdash.site.charts.strip import strip
from perfdash.site.charts.trend import spark, trend
from perfdash.site.charts.values import Bar, HeatMap, HeatRow, Mark, Night, Side, Strip, Trend

__all__ = [
    "Bar",
    "HeatMap",
    "HeatRow",
    "Mark",
    "Night",
    "Side",
    "Strip",
    "Trend",
    "bars",
    "data_block",
    "heat_map",
    "marks_key",
    "spark",
    "strip",
    "trend",
]
