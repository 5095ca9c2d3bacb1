"""Charts as markup: whatever the numbers and names, well formed, escaped, small, with a text alternative."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash import charts
from perfdash.charts import (
    HeatMap,
    HeatRow,
    Mark,
    NightLabel,
    SampleSide,
    SampleStrip,
    SpeedupBar,
    TrendChart,
    svg,
)
from perfdash.charts.axes import linear_ticks, time_axis, time_range, time_ticks, value_range
from perfdash.charts.heat_map import bucket
from tests.charts.chart_pages import (
    ASSETS,
    DAY,
    NASTY,
    START,
    made_bars,
    made_map,
    made_strip,
    made_trends,
    times,
)

GOLDEN = Path(__file__).parent / "golden"
NAN, INF = math.nan, math.inf


def parsed(markup: str) -> ElementTree.Element:
    """The drawing, checked for what every one must be."""
    root = ElementTree.fromstring(markup)
    has_links = next(root.iter("a"), None) is not None
    assert root.attrib["role"] == ("group" if has_links else "img"), "an image hides its links"
    title, desc = root[0], root[1]
    assert (title.tag, desc.tag) == ("title", "desc")
    assert root.attrib["aria-labelledby"].split() == [title.attrib["id"], desc.attrib["id"]]
    assert desc.text
    for element in root.iter():
        assert element.tag in {"svg", "g", "path", "text", "title", "desc", "a"}
        assert not {name for name in element.attrib if name == "style" or name.startswith("on")}
        if element.tag == "path":
            assert re.fullmatch(r"[MmLlHhVvaz0-9 .-]+", element.attrib["d"]), element.attrib["d"]
    assert "nan" not in markup.replace("not measured", "").lower() or "nan" in title.text.lower()
    return root


def drawn(root: ElementTree.Element, classes: str) -> list[str]:
    return [path.attrib["d"] for path in root.iter("path") if path.attrib.get("class") == classes]


def words(root: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in root.iter("text")]


def line(values, **other) -> TrendChart:
    return TrendChart("Latency", times(len(values)), values, **other)


def check_golden(name: str, text: str) -> None:
    import os

    path = GOLDEN / name
    if os.environ.get("PERFDASH_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_a_trend_is_drawn_as_before():
    values = [10.0, 10.1, None, 9.9, 11.0, 11.2]
    data = line(
        values, lows=[v and v - 0.1 for v in values], highs=[v and v + 0.1 for v in values], failed=[2],
        marks=[Mark(times(6)[4], "worse", "slower by 10 %", "x.html")], unit="ms",
    )  # fmt: skip
    check_golden("trend.svg", charts.trend(data, "a") + "\n")


@pytest.mark.parametrize("name", list(made_trends()))
def test_every_trend_of_a_page_is_well_formed(name):
    root = parsed(charts.trend(made_trends()[name], "p"))
    assert drawn(root, "line") or drawn(root, "dots")


@pytest.mark.parametrize(
    "values",
    [
        [], [None], [NAN, INF, -INF], [1.0], [0.0], [0.0, 0.0], [-1.0, -2.0], [5.0] * 400, [1e308, -1e308],
        [1e-308], [1e300, 1.0], [1.0, NAN, 2.0], [None, None, 3.0],
    ],
)  # fmt: skip
@pytest.mark.parametrize("ratio", [False, True])
def test_any_values_are_drawn(values, ratio):
    data = line(
        values, ratio=ratio, lows=[v and v * 0.9 for v in values], highs=[v and v * 1.1 for v in values]
    )
    root = parsed(charts.trend(data, "p"))
    usable = [v for v in values if v is not None and math.isfinite(v) and (v > 0 or not ratio)]
    assert ("not measured" in words(root)) == (not usable)
    parsed(charts.spark(data, "p"))


numbers = st.none() | st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(st.tuples(st.floats(0, 4e9), numbers, numbers, numbers), max_size=40),
    st.booleans(), st.integers(0, 50), st.lists(st.integers(-2, 50), max_size=5), st.text(max_size=30),
)  # fmt: skip
@pytest.mark.slow
def test_no_numbers_break_a_trend(rows, ratio, weekly, failed, name):
    rows.sort(key=lambda row: row[0])
    at, values, lows, highs = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
    marks = [Mark(value, kind, name, name) for value in at for kind in ("worse", "environment", name)]
    data = TrendChart(name, at, values, lows, highs, failed, marks, name, ratio, weekly)
    ElementTree.fromstring(charts.trend(data, "p"))
    ElementTree.fromstring(charts.spark(data, "p"))
    block = charts.data_block({"one": data}, [NightLabel(name, name)] * len(at))
    json.loads(re.fullmatch(r"<script [^>]*>([^<>&]*)</script>", block).group(1))


@given(st.lists(st.tuples(st.text(max_size=20), numbers, numbers, numbers), max_size=12))
def test_no_numbers_break_the_other_charts(rows):
    bars = [SpeedupBar(name, name, value, low, high, name, name) for name, value, low, high in rows]
    ElementTree.fromstring(charts.bars(bars, "p"))
    cells = [HeatRow(name, name, values, [1, 9]) for name, *values in rows]
    ElementTree.fromstring(charts.heat_map(HeatMap("m", times(3), cells), "p"))
    sides = [SampleSide(name, [v for v in values if v is not None], *values) for name, *values in rows]
    ElementTree.fromstring(charts.strip(SampleStrip("s", sides), "p"))


def test_a_night_without_a_value_breaks_line_and_band():
    values = [1.0, 1.1, None, 1.2, 1.3]
    root = parsed(
        charts.trend(
            line(values, lows=[v and v - 0.05 for v in values], highs=[v and v + 0.05 for v in values]), "p"
        )
    )
    assert drawn(root, "line")[0].count("M") == 2
    assert drawn(root, "band")[0].count("z") == 2


def test_nights_by_different_methods_are_not_joined():
    values = [1.0, 2.0, 3.0, 4.0]
    bounds = {"lows": [0.9 * v for v in values], "highs": [1.1 * v for v in values]}
    root = parsed(charts.trend(line(values, **bounds, breaks=[2]), "p"))
    (path,), (band,) = drawn(root, "line"), drawn(root, "band")
    assert path.count("M") == 2
    assert band.count("z") == 2
    (whole,) = drawn(parsed(charts.trend(line(values, **bounds), "p")), "line")
    assert whole.count("M") == 1
    assert drawn(parsed(charts.spark(line(values, breaks=[2]), "p")), "line")[0].count("M") == 2


def test_weeks_apart_are_joined_only_where_the_points_are_weeks():
    at = (
        [START + k * 7 * DAY for k in range(4)]
        + [START + 28 * DAY + k * DAY for k in range(4)]
        + [START + 60 * DAY]
    )
    root = parsed(charts.trend(TrendChart("t", at, [1.0] * 9, weekly=4), "p"))
    assert drawn(root, "line")[0].count("M") == 2, "a month without a run is not bridged"


def test_nights_have_most_of_the_width_beside_years_of_weeks():
    at = [START + k * 7 * DAY for k in range(200)] + [START + (1400 + k) * DAY for k in range(90)]
    root = parsed(charts.trend(TrendChart("t", at, [1.0, 2.0] * 145, unit="ms", weekly=200), "p"))
    assert {"weeks", "nights"} <= set(words(root))
    assert len(drawn(root, "split")) == 1
    axis = time_axis(at[0], at[-1], at[200] - DAY / 2)
    places = [axis.at(date) for date in at]
    assert places == sorted(places)
    assert places[0] == 0
    assert places[-1] == 1
    assert places[-1] - places[200] > 0.6
    few = time_axis(at[0], at[-1], at[20])
    assert few.split is None, "the nights have half of it anyway"


def test_the_words_of_a_chart_tell_nights_from_weeks():
    at = [START + k * 7 * DAY for k in range(3)] + [START + (21 + k) * DAY for k in range(4)]
    values = [10.0, NAN, 11.0, 10.5, 10.4, NAN, 10.6]
    lows = [9.0, NAN, 10.8, 8.0, 8.0, NAN, 8.0]
    highs = [10.2, NAN, 12.5, 13.0, 13.0, NAN, 13.0]
    data = TrendChart("t", at, values, lows, highs, failed=[1, 5], unit="ms", weekly=3)
    (_, desc, *_) = parsed(charts.trend(data, "p"))
    assert re.sub(r"\d{4}-\d\d-\d\d", "DAY", desc.text) == (
        "3 nights and 2 older points (weeks; four together where older than a year), DAY to DAY: "
        "first 10 ms, last 10.6 ms, range 9 ms to 12.5 ms. Failed on 1. "
        "No night passed in 1 of the older points."
    )
    (_, desc, *_) = parsed(charts.trend(TrendChart("t", at, [NAN] * 7, weekly=3), "p"))
    assert desc.text.startswith("not measured on any of 4 nights and 3 older points (weeks;")
    (_, desc, *_) = parsed(charts.trend(TrendChart("t", at[2:4], [10.0, 10.5], weekly=1), "p"))
    assert desc.text.startswith("1 night and 1 older point (weeks;")


def test_a_share_is_not_above_all():
    shown = words(parsed(charts.trend(line([100.0, 100.0, 99.0], unit="%"), "p")))
    assert "100" in shown
    assert not {"101", "102"} & set(shown)


def test_a_point_without_neighbours_is_seen():
    values = [None if k == 150 or k == 152 else 1.0 for k in range(300)]
    (dots,) = drawn(parsed(charts.trend(line(values), "p")), "dots")
    assert dots.count("h0") == 2, "the lone one and the last"


def test_a_line_goes_where_the_values_are():
    root = parsed(charts.trend(line([0.0, 100.0, 50.0]), "p"))
    (d,) = drawn(root, "line")
    _, y0, x1, y1, x2, y2 = map(int, re.findall(r"-?\d+", d))
    assert x1 == pytest.approx(x2, abs=1)
    assert x1 > 0
    assert y0 > 0
    assert -y1 == pytest.approx(2 * y2, abs=2)


def test_an_axis_does_not_blow_up_noise_and_intervals_do_not_hide_the_values():
    low, high = value_range([100.0, 100.1], [], [])
    assert high - low >= 4, "a thousandth is not a mountain"
    low, high = value_range([100.0, 110.0], [1.0], [1000.0])
    assert low >= 85
    assert high <= 125
    assert value_range([0.1, 5.0], [], [])[0] == 0, "no negative seconds"


def test_a_band_that_is_cut_says_how_wide_it_is():
    data = line([100.0, 110.0], lows=[90.0, 1.0], highs=[120.0, 1000.0], unit="ms")
    assert "band cut; last 1 to 1000 ms" in words(parsed(charts.trend(data, "p")))
    data = line([100.0, 110.0], lows=[99.0, 109.0], highs=[101.0, 111.0], unit="ms")
    assert not [word for word in words(parsed(charts.trend(data, "p"))) if "cut" in word]


def test_ratios_show_their_one_where_it_is_near():
    low, high = value_range([1.3, 1.35], [], [], log=True)
    assert low < 1 < high
    low, high = value_range([7.0, 7.5], [], [], log=True)
    assert low > 1
    assert drawn(parsed(charts.trend(line([1.3, 1.35], ratio=True), "p")), "one")


def test_counts_have_whole_ticks():
    shown = words(parsed(charts.trend(line([2.0] * 5), "p")))
    assert {"2", "3"} <= set(shown)
    assert "2.5" not in shown


@given(st.floats(-1e12, 1e12), st.floats(0.01, 1e12), st.integers(2, 10))
def test_ticks_lie_within_and_are_round(low, part, about):
    width = part * max(1e-6, abs(low))
    ticks = linear_ticks(low, low + width, about)
    assert len(ticks) <= 2 * about + 1
    for value, word in ticks:
        assert low - 1e-6 * width <= value <= low + width * (1 + 1e-6)
        assert float(word) == pytest.approx(value, rel=1e-3, abs=1e-9)


@given(st.floats(-1e11, 3e11), st.floats(0, 2e10))
def test_dates_lie_within_and_are_few(first, width):
    begin, end = time_range(first, first + width)
    ticks = time_ticks(begin, end, 7)
    assert len(ticks) <= 15
    assert all(begin <= at <= end for at, _ in ticks)


def test_the_first_date_says_its_year():
    year = time_ticks(START + 40 * DAY, START + 240 * DAY, 7)
    assert [word for _, word in year][:2] == ["Mar 2026", "Apr"]
    assert [word for _, word in time_ticks(START, START + 6 * DAY, 7)][:2] == ["1 Jan 2026", "2 Jan"]
    assert "2027" in [word for _, word in time_ticks(START, START + 500 * DAY, 7)]


def test_marks_differ_by_letter_and_shape_and_say_what_they_are():
    marks = [
        Mark(times(9)[k], kind, f"what {kind} is", "r.html#3")
        for k, kind in enumerate(charts.trend_chart.KINDS, 2)
    ]
    root = parsed(charts.trend(line([1.0] * 9, marks=marks), "p"))
    signs = [g for g in root.iter("g") if g.attrib.get("class", "").startswith("mark ")]
    assert len({next(text.text for text in g.iter("text")) for g in signs}) == 7
    assert len({[p.attrib["d"] for p in g.iter("path")][1] for g in signs}) == 7
    assert next(signs[0].iter("title")).text.endswith("what worse is")
    assert "what worse is" in root[1].text
    assert {a.attrib["href"] for a in root.iter("a")} == {"r.html#3"}
    key = charts.marks_key()
    assert key.count("<li>") == 10


def test_many_environments_are_ticks_not_a_forest():
    marks = [Mark(at, "environment", "torch") for at in times(30)]
    root = parsed(charts.trend(line([1.0] * 30, marks=marks), "p"))
    assert len(drawn(root, "ticks")) == 1
    assert not [g for g in root.iter("g") if "mark" in g.attrib.get("class", "")]


@pytest.mark.parametrize(
    "href",
    [
        "javascript:alert(1)",
        "https://example.org/",
        "//example.org",
        "\\\\x",
        "/etc",
        " javascript:x",
        "java\x01script:x",
        "",
    ],
)
def test_links_stay_in_the_site(href):
    assert not svg.stays(href)
    assert "<a" not in svg.link(href, "x")


@pytest.mark.parametrize("href", ["models/a:b.html", "../index.html", "x.html#a:b", "a%3Ab.html"])
def test_links_within_the_site_are_links(href):
    assert svg.stays(href)


@pytest.mark.parametrize(
    "make",
    [
        lambda: charts.trend(made_trends()["only"], "p"),
        lambda: charts.heat_map(made_map(3, 5), "p"),
        lambda: charts.bars(made_bars(4), "p"),
        lambda: charts.strip(SampleStrip(NASTY, [SampleSide(NASTY, [1.0])], NASTY), "p"),
    ],
)
def test_names_are_text(make):
    markup = make()
    parsed(markup)
    assert "<script" not in markup
    assert "\x07" not in markup


def test_buckets_are_even_about_one():
    """By distance in spreads: 10 % is nothing in a model that varies by 5 %, and much where it is 1 %."""
    edges = (3.0, 5.0, 8.0)
    away = [-9.0, -5.1, -4.9, -2.9, 2.9, 3.1, 6.0, 8.1]
    assert [bucket(math.exp(0.01 * k), 0.01, edges) for k in away] == [
        "w3", "w2", "w1", "same", "same", "b1", "b2", "b3",
    ]  # fmt: skip
    assert [bucket(1.1, spread, edges) for spread in (0.01, 0.05)] == ["b3", "same"]
    with pytest.raises(ValueError, match="spread"):
        bucket(1.1, 0.0, edges)


def test_heat_map_cells_lie_where_they_belong():
    rows = [
        HeatRow("a", "a.html", [2.0, 2.0, None, 0.5], [1], 0.02, "worse"),
        HeatRow("b", "", [1.0, 1.0, 1.0, 1.0]),
    ]
    root = parsed(charts.heat_map(HeatMap("m", times(4), rows), "p"))
    better, same = drawn(root, "b3")[0], drawn(root, "same")[0]
    assert re.match(r"M174 \d+h14$", better)
    assert re.match(r"M174 \d+h56$", same), "equal neighbours are one stroke"
    assert drawn(root, "failed")
    assert drawn(root, "missing")
    assert root.attrib["data-ratios"] == "2,x,,0.5;1,1,1,1"
    assert root.attrib["data-spreads"] == "0.02;0.01"
    assert "\N{BLACK DOWN-POINTING TRIANGLE} a" in words(root), "an open alert shows"
    assert "1 worse" in root[1].text
    assert "1 the same" in root[1].text
    assert [a.attrib["href"] for a in root.iter("a")] == ["a.html"]


def test_sizes():
    assert len(charts.heat_map(made_map(61, 90), "p")) < 120_000
    year = TrendChart("Speedup", times(90), [1 + k % 7 / 50 for k in range(90)], failed=[3])
    assert len(charts.spark(year, "p")) < 2_000
    assert len(charts.trend(replace(made_trends()["speedup"], marks=()), "p")) < 8_000


def test_bars_are_sorted_and_failures_reported():
    rows = [
        SpeedupBar("slow", "", 0.8, 0.7, 0.9, "slower"),
        SpeedupBar("fast", "f.html", 2.0, 1.9, 2.1, "faster"),
        SpeedupBar("none", "", None, note="timeout", failed=True),
        SpeedupBar("idle", "", None, note="skipped"),
    ]
    root = parsed(charts.bars(rows, "p"))
    shown = words(root)
    assert shown.index("fast") < shown.index("slow") < shown.index("none") < shown.index("timeout")
    assert "1.900 to 2.100" in shown
    assert {g.attrib["class"] for g in root.iter("g")} == {"ahead", "behind"}


def test_a_strip_counts_what_lies_far_out():
    root = parsed(charts.strip(made_strip(), "p"))
    assert words(root).count("1 above ▸") == 2
    assert all(d.count("h0") == 200 for d in drawn(root, "samples s0"))
    assert "200" not in root[1].text
    assert "201 samples" in root[1].text


def test_unequal_columns_and_wrong_ids_are_errors():
    with pytest.raises(ValueError, match="unequal"):
        charts.trend(TrendChart("t", times(3), [1.0]), "p")
    with pytest.raises(ValueError, match="cells"):
        charts.heat_map(HeatMap("m", times(2), [HeatRow("a", "", [1.0])]), "p")
    with pytest.raises(ValueError, match="beginning of an id"):
        charts.trend(line([1.0]), '"x')
    with pytest.raises(ValueError, match="other times"):
        charts.data_block({"a": line([1.0]), "b": line([1.0, 2.0])}, [NightLabel("n")])
    with pytest.raises(ValueError, match="nights"):
        charts.data_block({"a": line([1.0])}, [])


def test_the_block_of_numbers_is_what_was_given():
    trends = made_trends()
    nights = [NightLabel(NASTY, f"torch {k // 90}") for k in range(len(times()))]
    block = charts.data_block(trends, nights)
    numbers = json.loads(re.fullmatch(r"<script [^>]*>([^<>&]*)</script>", block).group(1))
    assert numbers["names"][0] == NASTY
    assert [numbers["torches"][k] for k in numbers["torch"]] == [night.torch for night in nights]
    assert numbers["charts"]["speedup"]["v"] == [
        v and pytest.approx(v, rel=1e-5) for v in trends["speedup"].values
    ]
    assert numbers["charts"]["speedup"]["failed"] == [41, 42]
    assert numbers["charts"]["only"]["marks"][0][1] == NASTY


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(first: str, two: str) -> float:
    high, low = sorted((luminance(first), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_contrast(scheme):
    """WCAG 2.2: 4.5 for text, 3 for what a drawing says."""
    sheet = (ASSETS / "site.css").read_text()
    colours = {
        name: (light, dark)[scheme]
        for name, light, dark in re.findall(r"--([a-z0-9-]+): light-dark\((#\w{6}), (#\w{6})\)", sheet)
    }
    texts, drawings = (
        ("text", "muted", "link", "worse", "better", "fail", "ahead", "behind"),
        ("line", "other", "env", "w2", "w3", "b2", "b3"),
    )
    for back in ("bg", "panel"):
        assert {name for name in texts if contrast(colours[name], colours[back]) < 4.5} == set()
    assert {name for name in drawings if contrast(colours[name], colours["bg"]) < 3} == set()
    for name in ("worse", "better"):
        assert contrast(colours["text"], colours[f"{name}-back"]) > 4.5
        assert contrast(colours["link"], colours[f"{name}-back"]) > 4.5
