"""A step of scenario sizes: its samples, its words, and the reports of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from perfdash.history.results import Row
from perfdash.records import Case
from perfdash.report.dashboard_tables import all_numbers, four_tables
from perfdash.report.full_tables import full_tables
from perfdash.report.plots import KINDS, files_of_rows
from perfdash.report.plots.drawing import look
from perfdash.report.step_sizes import samples_of_step, size_in_words, step_in_words
from perfdash.report.techniques.technique_report import technique_report
from tests.report.technique_runs import night


def step(sizes="1,4,16", of="batch", *, backend="inductor", batch_size=8, speedup=2.0):
    """A step that takes 21 ms."""
    case = Case("own", "net", scenario="sizes", batch_size=batch_size, backend=backend)
    values = {
        "eager_ms": 21.0 * speedup, "backend_ms": 21.0, "backend_ms_low": 20.9, "backend_ms_high": 21.1,
        "speedup": speedup, "speedup_low": speedup * 0.99, "speedup_high": speedup * 1.01,
    }  # fmt: skip
    return Row(case, "pass", values, verdict="faster", basis="processes",
               details={"conditions": {"sizes": sizes, "sizes_of": of}})  # fmt: skip


def both(**change):
    return [step(**change), step(backend="aot-eager", speedup=1.2, **change)]


@pytest.mark.parametrize(
    ("row", "samples", "words", "size"),
    [
        (step(), 21, "batch 1, 4, 16", "batch 1, 4, 16"),
        (step("32,64", "sequence"), 16, "sequence 32, 64", "batch size 8, sequence 32, 64"),
        (step("32,64", "<b>"), 8, "", "batch size 8"),
        (Row(Case("s", "m", batch_size=4), "pass", {}), 4, "", "batch size 4"),
        (Row(Case("s", "m", scenario="sizes"), "pass", {}, details={"conditions": 3}), 1, "", "batch size 1"),
    ],
)
def test_what_a_step_runs(row, samples, words, size):
    assert (samples_of_step(row), step_in_words(row), size_in_words(row)) == (samples, words, size)


def test_tables_of_results_name_the_sizes_instead_of_a_batch_size_that_did_not_run():
    tables = [text for _, text in four_tables(both())] + [all_numbers(both())]
    for text in tables:
        assert re.search(r"\| +net +\| +1, 4, 16 +\|", text), text
    assert re.search(r"\| +net +\| +8 +\|", all_numbers(both(sizes="32,64", of="sequence")))


def test_the_report_of_techniques_counts_the_samples_of_all_sizes():
    text = technique_report(night(both()))
    assert "## `net`, steps of batch 1, 4, 16" in text
    assert "**Latency [ms/step]**" in text
    assert "**Throughput [samples/s]** samples of a step over median latency" in text
    assert "|  | steps of batch 1, 4, 16 |" in text
    assert "| `inductor float32` | 1,000 ± 0.5 % |" in text
    assert "ship `inductor float32` at steps of batch 1, 4, 16 (at batch 1, 4, 16: 2.00x" in text
    assert "batch size 8" not in text


def test_sizes_of_a_sequence_have_the_batch_size_of_the_case():
    text = technique_report(night(both(sizes="32,64", of="sequence")))
    assert "## `net`, steps of sequence 32, 64" in text
    assert "|  | batch size 8 |" in text
    assert "| `inductor float32` | 761.9 ± 0.5 % |" in text


def test_the_plots_of_techniques_count_the_samples_of_all_sizes():
    with look():
        (picture,) = KINDS["throughput_comparison"](both())
    (axis,) = picture.figure.axes
    marks = [line.get_ydata()[0] for line in axis.lines if len(line.get_xdata()) == 1][:2]
    assert marks == pytest.approx([1000, 1000])
    assert [label.get_text() for label in axis.get_xticklabels()] == ["batch 1, 4, 16"]
    assert "steps of batch 1, 4, 16" in picture.title
    with look():
        (picture,) = KINDS["latency_comparison"](both())
    assert picture.figure.axes[0].get_ylabel() == "milliseconds a step (less is better)"


def test_only_what_has_a_batch_size_is_plotted_over_it():
    assert list(files_of_rows("throughput", [step(batch_size=size) for size in (1, 8)])) == []
    with look():
        (picture,) = KINDS["throughput"]([step("32,64", "sequence", batch_size=size) for size in (1, 8)])
    (axis,) = picture.figure.axes
    eager, compiled = (list(line.get_ydata()) for line in axis.lines[:2])
    assert eager == pytest.approx([2e3 / 42, 16e3 / 42])
    assert compiled == pytest.approx([2e3 / 21, 16e3 / 21])


def test_the_summary_of_all_tables_names_the_sizes():
    text = full_tables(night(both()))
    assert "Each experiment runs one step: a forward pass at each of several sizes" in text
    assert "1. A step has these sizes: batch 1, 4, 16.\n2. Only the dimensions that differ" in text
    assert "Batch size is" not in text
    assert "do not cover dynamic shapes" not in text
    text = full_tables(night(both(sizes="32,64", of="sequence")))
    assert "1. A step has these sizes: sequence 32, 64.\n2. Batch size is 8.\n" in text
    skipped = replace(step(), status="skipped", values={}, details={})
    assert "1. A step has these sizes: batch 1, 4, 16.\n2. Only" in full_tables(night([step(), skipped]))
