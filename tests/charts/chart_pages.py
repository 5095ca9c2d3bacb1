"""Pages with every chart, tables and a comparison, for tests of their look."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from pathlib import Path

import perfdash.charts as charts
from perfdash.charts import (
    HeatMap,
    HeatRow,
    Mark,
    NightLabel,
    SampleSide,
    SampleStrip,
    SpeedupBar,
    TrendChart,
)
from perfdash.site.render import POLICY

ASSETS = Path(charts.__file__).parents[1] / "site" / "assets"
START, DAY = 1_767_225_600.0, 86_400.0  # 2026-01-01
NIGHTS = 200
NASTY = "a|b`c`<script>alert(1)</script>🦙\n\x07" + "long" * 60


def times(count: int = NIGHTS, first: float = START) -> list[float]:
    return [first + DAY * night + 3600 for night in range(count)]


def level(count: int, value: float, seed: int, step: float = 1.0) -> list[float | None]:
    """A noisy level with one step at two thirds, and a hole."""
    draw = random.Random(seed)
    values = [
        value * math.exp(draw.gauss(0, 0.006)) * (step if k > count * 2 // 3 else 1) for k in range(count)
    ]
    return [None if 40 <= k < 44 else level_value for k, level_value in enumerate(values)]


def made_trend(title: str, value: float, unit: str, seed: int, step: float = 1.0, **other) -> TrendChart:
    values = level(NIGHTS, value, seed, step)
    options = {
        "lows": [v and v * 0.992 for v in values],
        "highs": [v and v * 1.008 for v in values],
        "failed": [41, 42],
    } | other
    return TrendChart(title, times(), values, unit=unit, **options)


def made_trends() -> dict[str, TrendChart]:
    marks = [
        Mark(times()[60], "environment", "torch 2.14.0 → 2.15.0"),
        Mark(times()[133], "change", "level 10.0 → 10.9 ms"),
        Mark(times()[134], "worse", "compiled latency +9.1 % (8.5 % to 9.8 %)", "index.html"),
        Mark(times()[90], "better", "speedup +3 %"),
    ]
    trends = {
        "speedup": made_trend("Speedup", 1.35, "x", 1, 0.915, marks=marks, ratio=True),
        "backend_ms": made_trend("Compiled latency", 10.0, "ms", 2, 1.091, marks=marks),
        "eager_ms": made_trend("Eager latency", 13.5, "ms", 3, marks=marks[:1]),
        "compilation_s": made_trend("Compilation", 31.0, "s", 4, weekly=30),
        "compression_ratio": made_trend("Memory compression", 0.97, "x", 5, ratio=True, lows=(), highs=()),
        "breaks": TrendChart("Graph breaks", times(), [2.0] * NIGHTS),
    }
    trends["only"] = TrendChart(
        NASTY,
        times(),
        [None] * (NIGHTS - 1) + [3.2],
        unit="ms",
        marks=[Mark(START + DAY, "worse", NASTY, NASTY)],
    )
    return trends


def made_map(models: int = 61, nights: int = 90) -> HeatMap:
    draw = random.Random(7)
    rows = []
    for model in range(models):
        own = math.exp(draw.gauss(0.12, 0.25))
        ratios = [
            own * math.exp(draw.gauss(0, 0.02)) if draw.random() > 0.02 else None for _ in range(nights)
        ]
        if model % 20 == 5:
            ratios = [*ratios[: nights // 2], *[None] * (nights - nights // 2)]
        failed = list(range(60, 64)) if model % 9 == 2 else []
        rows.append(
            HeatRow(f"model_{model}_with_a_name" if model else NASTY, f"m{model}.html", ratios, failed)
        )
    return HeatMap("Speedup of every model", times(nights), rows)


def made_bars(models: int = 61) -> list[SpeedupBar]:
    draw = random.Random(9)
    bars = [
        SpeedupBar(NASTY, "", None, note="timeout", failed=True),
        SpeedupBar("vit", "vit.html", None, note="crash (SIGSEGV)", failed=True),
    ]
    for model in range(models - 2):
        value = math.exp(draw.gauss(0.15, 0.35))
        verdict = "faster" if value > 1.03 else "slower" if value < 0.97 else "equivalent"
        verdict = "inconclusive" if model == 3 else verdict
        bars.append(
            SpeedupBar(f"model_{model}", f"m{model}.html", value, value * 0.98, value * 1.03, verdict)
        )
    return bars


def made_strip() -> SampleStrip:
    draw = random.Random(11)
    sides = [
        SampleSide(
            name,
            [ms * math.exp(abs(draw.gauss(0, 0.02))) for _ in range(200)] + [ms * 9],
            ms * 1.013,
            ms * 1.01,
            ms * 1.016,
        )
        for name, ms in (("eager", 13.5), ("inductor", 10.0))
    ]
    return SampleStrip("Samples of the last night", sides)


def write(folder: Path) -> Path:
    """index.html and compare.html with all that they need."""
    assets = folder / "assets"
    shutil.copytree(ASSETS, assets)
    (folder / "compare.html").write_text(_page("compare.html", block=_nights(folder / "data")))
    trends = made_trends()
    nights = [NightLabel(f"night {k} <b>", f"2.15.0 {k // 3:010x}") for k in range(NIGHTS)]
    index = _page(
        "index.html",
        rows="".join(_row(k, charts.spark(trends["speedup"], f"s{k}")) for k in range(20)),
        tile=charts.spark(trends["speedup"], "tile"),
        key=charts.marks_key(),
        figures="".join(
            f'<figure class="chart" data-chart="{name}"><figcaption>{name} <span class="muted">what it is'
            f"</span></figcaption>{charts.trend(data, f'c-{name}')}</figure>"
            for name, data in trends.items()
        ),
        strip=charts.strip(made_strip(), "strip"),
        heat=charts.heat_map(made_map(), "heat"),
        bars=charts.bars(made_bars(), "bars"),
        data=charts.data_block(trends, nights),
    )
    (folder / "index.html").write_text(index)
    return folder / "index.html"


def made_weeks() -> TrendChart:
    """Four years of weeks, then ninety nights."""
    at = [START + k * 7 * DAY for k in range(200)] + [START + (1400 + k) * DAY for k in range(90)]
    values = level(len(at), 20.0, 3, 1.1)
    return TrendChart("Latency", at, values, unit="ms", weekly=200)


def write_weeks(folder: Path) -> None:
    """weeks.html beside what `write` wrote: one chart whose time is split."""
    data = made_weeks()
    drawing = charts.trend(data, "w")
    figure = f'<figure class="chart" data-chart="ms"><figcaption>Latency</figcaption>{drawing}</figure>'
    nights = [NightLabel(f"night {k}") for k in range(len(data.times))]
    text = _page("index.html", figures=figure, data=charts.data_block({"ms": data}, nights))
    (folder / "weeks.html").write_text(text)


def _page(name: str, **parts: str) -> str:
    """A page of tests/charts/pages with its {{names}} filled in; those not given are left out."""
    text = (Path(__file__).parent / "pages" / name).read_text()
    parts["policy"] = POLICY
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts.get(match[1], ""), text)


def _row(k: int, spark: str) -> str:
    value = 1 + k * 7 % 20 / 10
    badge = ("worse", "better", "same", "unknown", "fail")[k % 5]
    return (
        f'<tr><th scope="row"><a href="index.html">model_{k}</a></th>'
        f'<td class="num" data-v="{value}">{value:.3f}x <span class="ci">1.200 to 1.310</span></td>'
        f'<td><span class="badge {badge}">{badge}</span></td><td class="num">{k if k % 4 else ""}</td>'
        f'<td class="spark">{spark}</td><td class="wrap">why it failed, at some length, so it wraps</td></tr>'
    )


def _nights(data: Path) -> str:
    """Three nights of five cases as files, the last case in the first alone; the block that lists them."""
    data.mkdir()
    ids = [f"{k:08x}" for k in range(5)]
    cases = {
        "case": ids,
        "name": ["resnet18", "vit", NASTY, "bert", "gone"],
        "page": ["../index.html", *[""] * 4],
    }
    (data / "cases.js").write_text(f"perfdash.cases({json.dumps(cases)});")
    nights = []
    for night, factor in enumerate((1.0, 1.1, 1.21)):
        name = f"2026-01-0{night + 1}T01-00-00Z_farm"
        places = slice(0, 5 if night == 0 else 4)
        speed = [2.0 / factor, 1.5, 1.2, None, 1.0][places]
        low, high = ([v and v * part for v in speed] for part in (0.99, 1.01))
        tonight = {
            "name": name,
            "file": f"{name}.js",
            "case": ids[places],
            "status": ["pass", "pass", "pass", "timeout" if night else "fail_accuracy", "pass"][places],
            "methods": {"speedup": "speedup 1", "compilation_s": "compilation 1", "status": "accuracy 1"},
            "metrics": {
                "speedup": {"v": speed, "low": low, "high": high},
                "compilation_s": {"v": [30.0, 20.0, None, 4.0, 5.0][places]},
            },
        }
        (data / f"{name}.js").write_text(f"perfdash.night({json.dumps(tonight)});")
        shown = {"name": name, "label": name[:10], "torch": f"2.15.0 {night}"}
        nights.append({**shown, "file": f"{name}.js", "word": f"'{name} night'"})
    return json.dumps({"command": "perfdash compare {old} {new}", "nights": nights})
