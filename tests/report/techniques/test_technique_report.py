"""The grid report; PERFDASH_UPDATE_GOLDEN=1 writes the golden files anew, to be read in the diff."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from perfdash.history.results import from_result
from perfdash.records import Case, Result, Status
from perfdash.report.night_export import to_plain
from perfdash.report.techniques.technique_report import technique_report
from tests.report.nights import HOSTILE
from tests.report.technique_runs import (
    EAGER,
    NIGHTS,
    failed,
    full,
    grid_of,
    hostile,
    measured,
    night,
    single_size,
)

GOLDEN = Path(__file__).parents[1] / "golden"


def rendered(text):
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)


def tables(text):
    """{title: {row label: cells}} of a report of one model."""
    by_title, title = {}, ""
    for line in text.splitlines():
        if match := re.match(r"\*\*(.+?)\*\*", line):
            title = match[1]
        elif line.startswith("|") and title:
            name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            by_title.setdefault(title, {})[name.strip("`")] = cells
    return by_title


@pytest.mark.parametrize("name", NIGHTS)
def test_golden(name):
    text = technique_report(NIGHTS[name]())
    path = GOLDEN / f"grid_{name}.md"
    if os.environ.get("PERFDASH_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", NIGHTS)
def test_no_cell_is_empty_but_the_corner(name):
    for line in technique_report(NIGHTS[name]()).splitlines():
        if line.startswith("|"):
            _, *cells = re.split(r"(?<!\\)\|", line.strip("|"))
            assert all(cell.strip() for cell in cells)


def test_a_row_a_way_in_the_order_of_the_plan_a_column_a_batch_size():
    latency = tables(technique_report(night(grid_of())))["Latency [ms/batch]"]
    assert latency[""] == [f"batch size {size}" for size in (1, 16, 32, 64)]
    assert list(latency)[2:] == [
        "eager float32", "eager bfloat16", "eager amp (bfloat16)", "torchscript float32", "inductor float32",
        "inductor bfloat16", "inductor-freezing float32", "onnxruntime float32", "openvino float32",
        "int8-dynamic int8", "int8-static int8",
    ]  # fmt: skip
    assert latency["inductor float32"][1] == "114.3 ± 0.6 %"


def test_eager_stands_first_whatever_was_measured_first():
    rows = list(reversed(grid_of(sizes=(1,), ways=(EAGER, ("eager", "bfloat16"), ("inductor", "float32")))))
    names = list(tables(technique_report(night(rows)))["Latency [ms/batch]"])[2:]
    assert names == ["eager float32", "eager bfloat16", "inductor float32"]


def test_what_the_numbers_are():
    text = tables(
        technique_report(night([measured(), measured(backend="inductor", size=4, speedup=2.0, f1=0.97)]))
    )
    row = {title: cells["inductor float32"] for title, cells in text.items() if "inductor float32" in cells}
    assert [cells[0] for cells in row.values()] == ["-"] * len(row)
    assert {title: cells[1] for title, cells in row.items()} == {
        "Latency [ms/batch]": "20.00 ± 0.6 %",
        "Throughput [samples/s]": "200.0 ± 0.6 %",
        "p50 / p90 / p99 latency [ms/batch]": "20.29 / 20.69 / 20.78 (of 200)",
        "Improvement over `eager float32` [%]": "+100.0 % (+96.0 to +104.0) `faster`",
        "`eager float32` in the same process [ms/batch]": "40.00",
        "Compilation latency [s]": "12.34",
        "Peak memory [MB]": "50.00 (44.00)",
        "F1": "0.9700 (-0.0023)",
        "Top-1": "0.9700 (-0.0023)",
    }


def test_few_samples_have_no_tail():
    def cell(count):
        return tables(technique_report(night([measured(count=count)])))["p50 / p90 / p99 latency [ms/batch]"][
            "eager float32"
        ]

    assert cell(99)[0].count("/") == 2
    assert "max" in cell(99)[0].split("/")[2]
    assert "max" in cell(19)[0].split("/")[1]
    assert "max" not in cell(100)[0]
    few = technique_report(night([measured(), measured(backend="inductor", count=0)]))
    assert tables(few)["p50 / p90 / p99 latency [ms/batch]"]["inductor float32"] == ["not measured"]


def test_short_calls_are_reported_as_means():
    assert "a sample is their mean" not in technique_report(single_size())
    assert "a sample is their mean" in technique_report(night([measured(speedup=20.0)]))


def test_reasons_stand_once_with_all_they_hold_for():
    text = technique_report(full())
    assert text.count("openvino is not installed") == 1
    assert "`openvino float32` at batch sizes 1, 16, 32 and 64" in text
    assert "- `oom`: `more than 4.0 GB (in compile)`: `int8-dynamic int8` at batch size 64" in text
    assert tables(text)["Latency [ms/batch]"]["int8-dynamic int8"][3] == "`oom`"


def test_a_wrong_result_keeps_its_number_and_is_marked():
    cells = tables(technique_report(full()))["Latency [ms/batch]"]["inductor bfloat16"]
    assert cells[2].endswith("✗")
    assert "✗ the outputs are wrong (`fail_accuracy`)" in technique_report(full())
    improvement = tables(technique_report(full()))["Improvement over `eager float32` [%]"][
        "inductor bfloat16"
    ]
    assert "faster" in improvement[1]
    assert "faster" not in improvement[2]


def test_nothing_captured_is_marked():
    row = measured(backend="inductor")
    row = replace(row, values=row.values | {"graphs": 0})
    text = technique_report(night([measured(), row]))
    assert "∅ nothing was captured" in text
    assert tables(text)["Latency [ms/batch]"]["inductor float32"][0].endswith("∅")


def test_an_interval_of_one_process_says_so():
    text = technique_report(
        night([measured(basis="within"), measured(backend="inductor", speedup=1.5, basis="within")])
    )
    assert "one process)" in tables(text)["Improvement over `eager float32` [%]"]["inductor float32"][0]
    assert "of one process only" in text.split("**Latency")[0].split("\n- **")[1]


def test_another_baseline_is_not_passed_off_as_float32():
    rows = [measured(), measured(backend="inductor", dtype="bfloat16", speedup=3.0, baseline=None)]
    text = technique_report(night(rows))
    assert "`inductor bfloat16` is compared with `eager bfloat16`" in text
    assert "it was compared with eager bfloat16" in text


def test_settings_have_sections_of_their_own():
    rows = [measured(threads=n) for n in (1, 4)] + [measured(threads=1, scenario="training")]
    heads = re.findall(r"(?m)^## .*", technique_report(night(rows)))
    assert heads[0] == "## What to ship"
    assert heads[1:] == [
        f"## `resnet18`, {words}"
        for words in ("1 thread, inference", "4 threads, inference", "1 thread, training")
    ]


def test_configurations_are_named_in_titles_and_advice():
    rows = [measured(configuration=name) for name in ("default", "freezing")]
    rows += [measured(backend="inductor", speedup=1.3)]
    rows += [measured(backend="inductor", speedup=0.8, configuration="freezing")]
    text = technique_report(night(rows))
    heads = re.findall(r"(?m)^## .*", text)
    assert heads[1:] == [f"## `resnet18`, configuration {name}" for name in ("default", "freezing")]
    assert "- **`resnet18`, configuration default**: ship `inductor float32`" in text
    assert "- **`resnet18`, configuration freezing**: nothing within the bound beats" in text


@pytest.mark.parametrize(
    ("change", "words", "sign"),
    [({"verdict": "disturbed"}, "pass (disturbed)", "≈"), ({}, "pass (recompile limit)", "↺")],
)
def test_a_pass_that_does_not_count_has_a_sign_and_a_reason(change, words, sign):
    details = {} if change else {"recompile_limit": True}
    text = technique_report(
        night([measured(), measured(backend="inductor", speedup=2.0, details=details, **change)])
    )
    assert f"Left out: `inductor float32` at 1 (2.00x): {words}." in text
    assert tables(text)["Latency [ms/batch]"]["inductor float32"][0].endswith(sign)
    assert f"{sign} " in text.split("**Latency")[0]
    assert "What did not pass" not in text, "its outputs are right"


def test_odd_nights():
    assert "Nothing was measured" in technique_report(night([]))
    text = technique_report(night([failed("m", "inductor", "float32", 1, "crash", "")]))
    assert "nothing within the bound was measured at batch size 1" in text
    assert "no reason is known" in text
    assert "| `inductor float32` | `crash (RuntimeError)` |" in text


def test_names_and_errors_stay_text():
    text = technique_report(hostile())
    html = rendered(text)
    assert "<script" not in html
    assert "<img" not in html
    assert "<a " not in html
    assert "\u202e" not in text
    assert not re.search(r"(?<!>)@team", re.sub(r"<code>.*?</code>", "", html))


@given(st.text(max_size=40))
def test_any_name_is_one_row(name):
    html = rendered(technique_report(night([measured(name, "eager"), measured(name, name, speedup=1.2)])))
    assert html.count("<table>") == 8
    assert html.count("<tr>") == 2 + 7 * (3 if name != "eager" else 2)


def test_quality_and_distance_are_in_the_json():
    quality = {"metric": "f1", "value": 0.9, "eager_value": 0.95}
    accuracy = {"status": "pass", "distance": {"relative_rmse": 0.1, "cosine": 0.99}}
    result = Result(Case("techniques", "m"), "2026-11-20T00:00:00Z", 1.0, Status.PASS, quality=quality,
                    accuracy=accuracy)  # fmt: skip
    (entry,) = to_plain(night([from_result(result)]))["results"]
    assert entry["details"]["quality"] == quality
    assert entry["details"]["accuracy"]["distance"] == accuracy["distance"]


def test_hostile_text_is_there():
    assert HOSTILE[:20] in technique_report(hostile()).replace("\\", "")
