"""Pictures: what is in them, that nothing is left out in silence, that no name or number breaks them."""

import math
import re
import struct
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from perfdash.history.results import Row
from perfdash.records import Case
from perfdash.report.plots import KINDS, files_of_rows, files_of_trend
from perfdash.report.plots.drawing import Picture, encoded, log_ticks, look, number, shown
from perfdash.report.plots.layout import PER_PAGE
from perfdash.report.plots.trend_plot import trend
from tests.effort import trials

FILE = re.compile(r"[A-Za-z0-9._-]+")
SVG = "{http://www.w3.org/2000/svg}"
EVIL = ["<script>alert(1)</script>", "a|b", "`c`", "模型 🚀", "$x_1^2$", "new\nline\x07", "\\alpha",
        "x" * 300, "\u202eright to left", "lone \ud800 half", "", "\x00", "&amp;"]  # fmt: skip


def row(model="resnet18", ratio=1.5, status="pass", *, suite="timm", verdict="faster", **case):
    size = case.get("batch_size", 1)
    values = {
        "speedup": ratio, "speedup_low": ratio * 0.95, "speedup_high": ratio * 1.05,
        "eager_ms": 3.0 * size, "backend_ms": 2.0 * size, "backend_ms_low": 1.9 * size,
        "backend_ms_high": 2.1 * size, "compilation_s": 20.0, "compilation_cpu_s": 26.0,
        "eager_peak_bytes": 3e8, "backend_peak_bytes": 2e8, "compression_ratio": 1.5, "calls_captured": 9,
    }  # fmt: skip
    return Row(Case(suite, model, **case), status, values, verdict=verdict)


def failed(model, status="crash", **case):
    return Row(Case("timm", model, **case), status, {})


def night(day="2026-11-01", **other):
    return {
        "run": "r", "started": f"{day}T01:00:00Z", "testbed_id": 1, "torch": "2.15.0", "suite": "timm",
        "device": "cpu", "dtype": "float32", "threads": 1, "scenario": "inference", "backend": "inductor",
        "dynamic": False, "settings": "", "configuration": "default", "cases": 10,
        "attempted": 10, "passed": 9, "speedup": 0.9, "speedup_low": 0.8,
        "speedup_high": 1.0, "speedup_clipped": 1.1, "compilation_s": 20.0, "compression_ratio": 1.2,
        "method": {},
    } | other  # fmt: skip


def words(content):
    """All the text of an SVG."""
    return [element.text or "" for element in ET.fromstring(content).iter(f"{SVG}text")]


def svgs(kind, rows):
    return {name: words(content) for name, content in files_of_rows(kind, rows) if name.endswith(".svg")}


def only(kind, rows):
    ((_, text),) = svgs(kind, rows).items()
    return text


def figure_of(kind, rows):
    with look():
        (picture,) = KINDS[kind](rows)
    return picture.figure


def test_speedups_lie_where_they_should_the_fastest_first():
    figure = figure_of("speedup", [row("slow", 0.5, verdict="slower"), row("fast", 2.0), row("mid", 1.25)])
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["fast", "mid", "slow"]
    marks = [line for line in axis.lines if len(line.get_xdata()) == 1]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in marks] == [(2.0, 0), (1.25, 1), (0.5, 2)]
    intervals = [list(line.get_xdata()) for line in axis.lines if len(set(line.get_ydata())) == 1][::2]
    assert intervals[0] == pytest.approx([1.9, 2.1])
    low, high = axis.get_xlim()
    assert low < 0.475 < 2.1 < high
    assert any(list(line.get_xdata()) == [1.0, 1.0] for line in axis.lines)


def test_both_means_are_named_and_say_of_how_many():
    rows = [row("a", 2.0), row("b", 0.5), row("wrong", 8.0, "fail_accuracy"), failed("c")]
    text = "\n".join(only("speedup", rows))
    assert "geometric mean 1.000x (95 %: 0.964 to 1.038) over 2" in text
    assert "clipped at 1 from below: 1.414x" in text
    assert "2 of 4 cases do not count" in text


@pytest.mark.parametrize("kind", ["speedup", "memory", "compile"])
def test_who_has_no_mark_is_named_with_its_status(kind):
    nothing = row("uncaptured", 1.0)
    nothing.values["calls_captured"] = 0
    rows = [row("good"), row("wrong", 3.0, "fail_accuracy"), failed("left_out", "skipped"), nothing,
            row("beside_others", verdict="disturbed")]  # fmt: skip
    text = only(kind, rows)
    for word in ("good", "wrong", "fail_accuracy", "left_out", "skipped", "uncaptured",
                 "pass (nothing captured)", "beside_others", "pass (disturbed)"):  # fmt: skip
        assert word in text
    assert not any("3.0" in text_line for text_line in text if "fail" in text_line)


def test_back_ends_lie_side_by_side_and_a_missing_one_is_reported():
    rows = [row("a"), row("a", 1.1, backend="onnxruntime"), row("b"),
            failed("c", "oom", backend="onnxruntime"), row("c")]  # fmt: skip
    text = only("speedup", rows)
    assert {"inductor", "onnxruntime", "onnxruntime: oom", "onnxruntime: no such case"} <= set(text)


def test_an_interval_that_is_not_known_is_reported():
    unknown_row = row()
    del unknown_row.values["speedup_low"]
    assert "hollow: no interval known" in only("speedup", [unknown_row])


def test_batch_sizes_make_panels_and_a_model_with_one_makes_none():
    rows = [row("many", batch_size=size) for size in (1, 4, 16)]
    rows += [failed("many", "oom", batch_size=64), row("single", batch_size=8)]
    figure = figure_of("latency", rows)
    (axis,) = figure.axes
    assert axis.get_title(loc="left") == "many"
    assert axis.get_xlabel() == "bs 64: oom"
    eager, compiled = (line for line in axis.lines if len(line.get_xdata()) == 3)
    assert list(eager.get_ydata()) == [3.0, 12.0, 48.0]
    assert list(compiled.get_ydata()) == [2.0, 8.0, 32.0]
    (axis,) = figure_of("throughput", rows).axes
    eager, compiled = (line for line in axis.lines if len(line.get_xdata()) == 3)
    assert list(eager.get_ydata()) == pytest.approx([1000 / 3] * 3)
    assert list(compiled.get_ydata()) == pytest.approx([500] * 3)
    bars = [list(line.get_ydata()) for line in axis.lines if len(line.get_xdata()) == 2]
    assert bars[0] == pytest.approx([1000 / 2.1, 1000 / 1.9])


def test_a_batch_size_of_0_is_not_known():
    """Importers give it to models that failed."""
    rows = [row("many", batch_size=size) for size in (0, 1, 4)]
    rows += [failed("many", batch_size=0, backend="aot-eager"), row("one", batch_size=0), row("one")]
    for unknown_row in (rows[0], rows[4]):
        unknown_row.values.update(eager_ms=3.0, backend_ms=2.0)
    for kind in ("latency", "throughput"):
        (axis,) = figure_of(kind, rows).axes
        assert axis.get_title(loc="left") == "many"
        assert [list(line.get_xdata()) for line in axis.lines[:2]] == [[1, 4], [1, 4]]
        assert axis.get_xlabel() == "bs ? aot-eager: crash"


def test_eager_beside_several_back_ends_is_their_median():
    rows = [row("m", batch_size=size, backend=name) for size in (1, 2) for name in ("a", "b", "c")]
    for unknown_row, latency in zip(rows, (1.0, 2.0, 30.0, 5.0, 6.0, 7.0), strict=True):
        unknown_row.values["eager_ms"] = latency
    (axis,) = figure_of("latency", rows).axes
    assert list(axis.lines[0].get_ydata()) == [2.0, 6.0]


@pytest.mark.parametrize("kind", ["latency", "throughput", "memory"])
def test_eager_of_another_dtype_is_named_with_it(kind):
    cases = [(size, name) for size in (1, 2) for name in ("eager", "inductor")]
    rows = [row(batch_size=size, backend=name, dtype="bfloat16") for size, name in cases]
    for low_precision in rows:
        low_precision.details["conditions"] = {"baseline_dtype": "float32"}
    (legend,) = figure_of(kind, rows).legends
    assert [text.get_text() for text in legend.get_texts()] == ["eager float32", "inductor", "eager"]


@pytest.mark.parametrize(("backend", "eager"), [("inductor", "eager"), ("eager", "eager float32")])
def test_eager_is_in_a_legend_once(backend, eager):
    rows = [row(batch_size=size, backend=backend) for size in (1, 2)]
    for kind in ("latency", "memory"):
        (legend,) = figure_of(kind, rows).legends
        assert [text.get_text() for text in legend.get_texts()] == [eager, backend]


def test_settings_have_pictures_of_their_own():
    rows = [row(), row(dtype="bfloat16"), row(dtype="amp", amp_dtype="bfloat16"), row(threads=4),
            row(suite="my|suite"), row(suite="my/suite"), row(dynamic=True)]  # fmt: skip
    names = [name for name, _ in files_of_rows("speedup", rows)]
    assert len(names) == len(set(names)) == 14
    assert "speedup_timm_cpu_amp-bfloat16_t1_inference.png" in names
    assert all(FILE.fullmatch(name) for name in names)


def test_many_models_are_split_and_each_is_there():
    rows = [row(f"model_{place}", 1 + place / 100) for place in range(PER_PAGE + 3)]
    pages = svgs("speedup", rows)
    assert sorted(pages) == [f"speedup_timm_cpu_float32_t1_inference-{page}.svg" for page in (1, 2)]
    assert {f"model_{place}" for place in range(PER_PAGE + 3)} <= {w for text in pages.values() for w in text}


@pytest.mark.parametrize("kind", list(KINDS))
def test_nothing_to_draw_makes_no_file(kind):
    assert list(files_of_rows(kind, [])) == []
    if kind != "speedup":
        assert list(files_of_rows(kind, [failed("a"), failed("b")])) == []


def test_only_failures_are_a_picture():
    text = only("speedup", [failed("a"), failed("b", "oom")])
    assert {"a", "b", "crash", "oom"} <= set(text)
    assert any("no speedup counts" in text_line for text_line in text)


ODD = [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e300, 1e-300, 5e-324]


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_odd_numbers_break_nothing(kind):
    """Each in one metric of a model that has good ones besides, and in all metrics of a model."""
    rows = [
        row("good", batch_size=size, backend=backend) for size in (1, 2) for backend in ("inductor", "eager")
    ]
    for name in row().values:
        rows.append(row(f"odd_{name}", batch_size=1))
        for size, odd in enumerate(ODD, start=2):
            rows.append(row(f"odd_{name}", batch_size=size))
            rows[-1].values[name] = odd
    assert list(files_of_rows(kind, rows))
    alone = [row(f"alone_{odd}") for odd in ODD]
    for odd, lone_row in zip(ODD, alone, strict=True):
        lone_row.values.update(dict.fromkeys(lone_row.values, odd))
    list(files_of_rows(kind, alone))


@pytest.mark.slow
def test_odd_names_are_shown_and_well_formed():
    rows = [row(name, batch_size=size, backend=EVIL[3]) for name in EVIL for size in (1, 2)]
    rows += [failed(f"x{place}", status) for place, status in enumerate(EVIL)]
    rows += [row("one", suite=EVIL[3], dtype=EVIL[5], scenario=EVIL[4])]
    for kind in KINDS:
        for name, content in files_of_rows(kind, rows):
            assert FILE.fullmatch(name)
            if name.endswith(".svg"):
                words(content)
    text = only("speedup", [row(name) for name in EVIL])
    shown_names = {"<script>alert(1)</script>", "a|b", "`c`", r"\u6a21\u578b \U0001f680", "$x_1^2$",
                   r"new\nline\x07", r"\alpha", "&amp;"}  # fmt: skip
    assert shown_names <= set(text)


@given(st.text())
@pytest.mark.slow
def test_a_name_is_drawn_with_glyphs_that_there_are(text):
    plain = shown(text)
    assert len(plain) <= 44
    figure = Figure()
    with look():
        figure.suptitle(plain)
        encoded(Picture("p", "t", figure))  # a glyph that is missing is a warning, and an error here


@settings(max_examples=trials(100))
@given(st.floats(1e-12, 1e14), st.floats(1.05, 1e6))
def test_ticks_are_few_round_and_inside(low, factor):
    ticks = log_ticks(low, low * factor)
    assert 1 <= len(ticks) <= 32
    assert all(low <= tick <= low * factor for tick in ticks)
    assert len({number(tick) for tick in ticks}) == len(ticks)


def test_the_same_numbers_give_the_same_bytes_whatever_the_settings(monkeypatch):
    rows = [row("a"), row("b", 0.8), failed("c")]
    first = dict(files_of_rows("speedup", rows))
    before = dict(mpl.rcParams)
    with mpl.rc_context({"font.size": 30, "text.parse_math": True, "savefig.dpi": 20, "axes.grid": False}):
        assert dict(files_of_rows("speedup", rows)) == first
    assert dict(mpl.rcParams) == before
    png = next(content for name, content in first.items() if name.endswith(".png"))
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert 900 < width < 1300
    assert height > 200
    assert b"2026" not in next(content for name, content in first.items() if name.endswith(".svg"))


def test_the_trend_shows_both_means_and_a_hole_is_a_hole():
    nights = [night(f"2026-11-{day:02}") for day in range(1, 8)]
    nights[3].update(dict.fromkeys(("speedup", "speedup_low", "speedup_high", "speedup_clipped")))
    nights[4].update(attempted=0, passed=0)
    with look():
        (picture,) = trend(nights)
    speedup, rate, *_ = picture.figure.axes
    assert [line.get_ydata()[0] for line in speedup.lines[:2]] == [0.9, 1.1]
    assert math.isnan(speedup.lines[0].get_ydata()[3])
    assert rate.lines[0].get_ydata()[0] == 90
    assert math.isnan(rate.lines[0].get_ydata()[4])
    assert "clipped at 1" in speedup.get_ylabel()


def test_a_trend_is_parted_where_the_method_changes():
    nights = [night(f"2026-11-0{day}", method={"memory": 2} if day > 3 else {}) for day in range(1, 7)]
    with look():
        (picture,) = trend(nights)
    speedup, _, _, memory = picture.figure.axes
    lines = [line for line in memory.lines if line.get_marker() == "o"]
    assert [len(line.get_xdata()) for line in lines] == [3, 3]
    assert len([line for line in memory.lines if line.get_linestyle() == ":"]) == 1
    assert [len(line.get_xdata()) for line in speedup.lines if line.get_marker() == "o"] == [6]
    note = "from 2026-11-04 on by another method (dotted): memory 1 -> 2"
    assert note in picture.figure.get_suptitle()


def test_a_trend_of_own_threads_is_parted_where_their_method_changes():
    method = {"own_threads": 2}
    nights = [
        night(f"2026-11-0{day}", method=method if day > 3 else {}, threads=2, backend=backend)
        for backend in ("openvino", "inductor")
        for day in range(1, 7)
    ]
    with look():
        (picture,) = trend(nights)
    lines = [line for line in picture.figure.axes[0].lines if line.get_marker() not in ("None", "", "x")]
    assert sorted(len(line.get_xdata()) for line in lines) == [3, 3, 6]


def test_an_edited_configuration_has_a_trend_of_its_own():
    """It keeps its name, so the settings separate the two."""
    edited = [
        night(configuration="mine", settings=f'{{"inductor_config":{{"max_fusion_size":{size}}}}}')
        for size in (16, 64)
    ]
    with look():
        pictures = list(trend(edited))
    assert len({picture.name for picture in pictures}) == 2
    for picture, size in zip(pictures, (16, 64), strict=True):
        assert re.fullmatch("trend_timm_cpu_float32_t1_inference_mine_[0-9a-f]{8}", picture.name)
        assert f"configuration mine (max_fusion_size={size})" in picture.title
    rows = [row(configuration="mine", settings=edited[0]["settings"])]
    (name,) = svgs("speedup", rows)
    assert name.partition("_")[2] == f"{pictures[0].name.partition('_')[2]}.svg"


@pytest.mark.slow
def test_trends_never_mix_testbeds_or_settings():
    nights = [night(), night(testbed_id=7), night(dtype="bfloat16"), night(backend="onnxruntime")]
    names = [name for name, _ in files_of_trend(nights) if name.endswith(".png")]
    assert sorted(names) == [
        "trend_timm_cpu_bfloat16_t1_inference_testbed1.png",
        "trend_timm_cpu_float32_t1_inference_testbed1.png",
        "trend_timm_cpu_float32_t1_inference_testbed2.png",
    ]


def test_a_run_of_few_cases_is_no_night():
    nights = [night(f"2026-11-{day:02}") for day in range(1, 5)]
    desk = night("2026-11-04", run="desk", started="2026-11-04T12:00:00Z", cases=4, speedup=0.1)
    with look():
        (picture,) = trend([*nights, desk, night("2026-11-05", cases=5)])
    assert list(picture.figure.axes[0].lines[0].get_ydata()) == [0.9] * 5
    note = picture.figure.get_suptitle()
    assert "5 runs up to r" in note
    assert "left out: 1 run with under half of the usual (median) number of cases" in note
    with look():
        (whole,) = trend(nights)
    assert "left out" not in whole.figure.get_suptitle()


@pytest.mark.slow
def test_a_trend_of_one_night_of_nothing_or_of_a_day():
    assert list(files_of_trend([])) == []
    empty = dict.fromkeys(
        ("speedup", "speedup_low", "speedup_high", "speedup_clipped", "compilation_s", "compression_ratio",
         "torch")
    )  # fmt: skip
    for nights in ([night()], [night(**empty, attempted=0)], [night(started="2023-06-01", run="模型")]):
        assert [len(content) > 1000 for _, content in files_of_trend(nights)] == [True, True]
    _, (_, svg) = files_of_trend([night(**empty)])
    assert words(svg).count("not measured") == 3


def test_the_places_of_a_picture_are_found_once():
    """Finding them takes longer than drawing; both files of a picture have the same."""
    with look():
        figure = Figure(layout="constrained")
        figure.subplots().plot([1, 2, 3])
        engine = figure.get_layout_engine()
        found = []
        execute = engine.execute
        engine.execute = lambda *words: found.append(1) or execute(*words)
        files = encoded(Picture("a", "a title", figure))
    assert set(files) == {"a.png", "a.svg"}
    assert found == [1]
