"""Pictures of every way to run a model: what is drawn where, who is named and why."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from perfdash.report.plots import KINDS, files_of_rows
from perfdash.report.plots.drawing import look
from perfdash.report.plots.technique_plot import _apart
from tests.report.technique_runs import EAGER, SIZES, WAYS, failed, full, grid_of, measured

COMPARISONS = ("latency_comparison", "throughput_comparison")


def words(content):
    return [element.text or "" for element in ET.fromstring(content).iter("{http://www.w3.org/2000/svg}text")]


def figure_of(kind, rows):
    with look():
        (picture,) = KINDS[kind](rows)
    return picture.figure


@pytest.mark.parametrize("kind", COMPARISONS)
def test_a_picture_a_model_named_by_it(kind):
    names = [name for name, _ in files_of_rows(kind, full().rows)]
    assert names == [f"{kind}_{model}_techniques_cpu_t1_inference.{form}"
                     for model in ("resnet18", "vit_b_16") for form in ("png", "svg")]  # fmt: skip


@pytest.mark.parametrize(("kind", "expected"), [(COMPARISONS[0], [10, 20.0]), (COMPARISONS[1], [100, 200.0])])
def test_marks_lie_where_they_should_with_their_intervals(kind, expected):
    rows = [measured(), measured(backend="inductor", size=4, speedup=2.0)]
    (axis,) = figure_of(kind, rows).axes
    assert axis.get_yscale() == "log"
    marks = [line.get_ydata()[0] for line in axis.lines if len(line.get_xdata()) == 1][:2]
    assert marks == pytest.approx(expected)
    upright = [sorted(line.get_ydata()) for line in axis.lines
               if len(line.get_xdata()) == 2 and len(set(line.get_xdata())) == 1]  # fmt: skip
    assert all(low < middle < high for (low, high), middle in zip(upright, expected, strict=True))


def test_every_way_has_a_name_and_looks_of_its_own():
    rows = grid_of()
    (axis,) = figure_of("latency_comparison", rows).axes
    assert len(axis.texts) == len(WAYS)
    keys = [line for line in axis.lines if list(line.get_xdata()) == [1.042]]
    looks = {(line.get_color(), line.get_marker(), line.get_markerfacecolor()) for line in keys}
    assert len(looks) == len(WAYS)
    heights = sorted(text.get_position()[1] for text in axis.texts)
    assert all(b - a > 0.05 for a, b in itertools.pairwise(heights))
    assert 0 <= heights[0] <= heights[-1] <= 1


def test_who_is_not_drawn_is_named_with_the_status():
    content = dict(files_of_rows("latency_comparison", full().rows))
    text = " ".join(words(content["latency_comparison_resnet18_techniques_cpu_t1_inference.svg"]))
    for phrase in (
        "openvino float32 at batch size 1, 16, 32, 64: missing_dependency",
        "int8-dynamic int8 at batch size 64: oom",
        "inductor bfloat16 at batch size 32, 64: fail_accuracy",
    ):  # fmt: skip
        assert phrase in text


def test_what_nobody_has_checked_is_drawn_and_reported():
    rows = [measured(size=size, backend=name) for name in ("eager", "inductor") for size in (1, 16)]
    sure = " ".join(words(dict(files_of_rows("latency_comparison", rows)).popitem()[1]))
    assert "not checked" not in sure
    rows[-1] = replace(rows[-1], status="pass_due_to_skip")
    content = dict(files_of_rows("latency_comparison", rows))
    text = " ".join(words(next(text for name, text in content.items() if name.endswith("svg"))))
    assert "The outputs of some ways were not checked at batch size 16." in text
    assert "Not drawn" not in text


def test_one_way_is_no_comparison():
    assert list(files_of_rows("latency_comparison", [measured(size=size) for size in SIZES])) == []
    dtypes = [measured(backend="inductor", dtype=dtype) for dtype in ("float32", "bfloat16")]
    assert list(files_of_rows("latency_comparison", dtypes)) == []
    lost = [measured(), failed("resnet18", "inductor", "float32", 1, "crash", "")]
    assert list(files_of_rows("latency_comparison", lost)) == []
    eager = [measured(), measured(dtype="bfloat16")]
    assert list(files_of_rows("latency_comparison", eager))


def test_a_single_batch_size_and_odd_names():
    for name in ("a|b<script>", "模型 🚀", "$x^2$", "new\nline", "x" * 300, ""):
        rows = [measured(name), measured(name, backend=name or "b", speedup=1.001)]
        for file, content in files_of_rows("throughput_comparison", rows):
            assert re.fullmatch(r"throughput_comparison_[A-Za-z0-9._-]+", file)
            if file.endswith(".svg"):
                words(content)


def test_names_are_moved_apart_within_the_axes():
    assert _apart([0.5]) == [0.5]
    for wanted in ([0.5] * 12, [0.0] * 5, [1.0] * 5, [0.5] * 40, [0.1, 0.9]):
        moved = _apart(wanted)
        assert moved == sorted(moved)
        assert -1e-9 <= moved[0] <= moved[-1] <= 1 + 1e-9
    assert _apart([0.1, 0.9]) == [0.1, 0.9]


def test_the_same_rows_give_the_same_bytes():
    rows = grid_of(sizes=(1, 16), ways=(EAGER, ("inductor", "float32")))
    assert dict(files_of_rows("latency_comparison", rows)) == dict(files_of_rows("latency_comparison", rows))


def test_a_back_end_that_was_measured_without_eager_is_drawn_and_reported():
    rows = [measured(scenario="generation"), measured(backend="inductor", scenario="generation", speedup=2.0)]
    alone = measured(backend="inductor", scenario="generation", size=4, status="eager_oom", speedup=2.0)
    facts = {"conditions": {"new_tokens": 10}}
    rows = [replace(row, details=facts) for row in (*rows, alone)]
    (axis,) = figure_of("throughput_comparison", rows).axes
    assert axis.get_ylabel() == "new tokens a second (more is better)"
    marks = [line.get_ydata()[0] for line in axis.lines if len(line.get_xdata()) == 1][:3]
    assert marks == pytest.approx([1000, 2000, 2000])
    assert "At batch size 4 eager was out of memory" in axis.get_xlabel()
