"""The numbers behind the charts of a page as a block of JSON, for hover and the interactive charts.

A browser does not run such a block, so it may stand where scripts may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from perfdash.files import dumps
from perfdash.site.charts.svg import stays
from perfdash.site.charts.values import Night, Number, Trend

# What ends the block, or begins another one, is written as an escape of JSON.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def data_block(charts: Mapping[str, Trend], nights: Sequence[Night]) -> Markup:
    """All charts by name over the same times, and what is known of each of these nights.

    Raises ValueError where a chart has other times, or there are not as many nights.
    """
    times = next(iter(charts.values())).times if charts else ()
    for name, chart in charts.items():
        if chart.times is not times and list(chart.times) != list(times):
            raise ValueError(f"{name}: other times than the first chart of the page")
    if len(nights) != len(times):
        raise ValueError(f"{len(nights)} nights for {len(times)} times")
    # Equal neighbours are told once: a torch is measured for weeks where there are no nightly builds.
    torches = list(dict.fromkeys(night.torch for night in nights))
    place = {torch: k for k, torch in enumerate(torches)}
    parts = {
        "t": f"[{','.join(f'{time:.0f}' for time in times)}]",
        "names": _json([night.name for night in nights]),
        "torches": _json(torches),
        "torch": _json([place[night.torch] for night in nights]),
        "charts": f"{{{','.join(f'{_json(name)}:{_chart(chart)}' for name, chart in charts.items())}}}",
    }
    content = ",".join(f'"{name}":{text}' for name, text in parts.items())
    return Markup(f'<script type="application/json" id="chart-data">{{{content}}}</script>')


def _chart(chart: Trend) -> str:
    values, lows, highs = chart.columns
    plain = {
        "title": chart.title,
        "unit": chart.unit,
        "ratio": chart.ratio,
        "weekly": chart.weekly,
        "failed": [int(k) for k in chart.failed],
        "breaks": [int(k) for k in chart.breaks],
        "marks": [[round(mark.at), mark.kind, mark.text, mark.href if stays(mark.href) else ""]
                  for mark in chart.marks],
    }  # fmt: skip
    interval = f',"low":{_numbers(lows)},"high":{_numbers(highs)}' if lows else ""
    return f'{_json(plain)[:-1]},"v":{_numbers(values)}{interval}}}'


def _numbers(values: Iterable[Number]) -> str:
    return f"[{','.join(['null' if value is None else f'{value:.6g}' for value in values])}]"


def _json(value: object) -> str:
    return dumps(value, separators=(",", ":"), ensure_ascii=True).translate(_ESCAPES)
