"""The tables of training steps and generations in which both sides have a line."""

from __future__ import annotations

from dataclasses import replace

from markdown_it import MarkdownIt

from perfdash.history.results import Row
from perfdash.records import Case
from perfdash.report.full_tables import full_tables
from perfdash.report.number_format import digits
from perfdash.report.step_tables import generation, tokens_per_second, training
from perfdash.report.techniques.technique_report import technique_report
from tests.report.nights import HOSTILE
from tests.report.technique_runs import night


def part(median, **other):
    return {"median": median, "ci_low": median, "ci_high": median, "n": 30, **other}


def trained(model="resnet50", backend="eager", variant="norm=in_place", **values):
    sides = {
        name: {
            "forward": part(59.65 * by, mean=59.65 * by, stdev=0.07),
            "backward": part(164.39 * by, mean=164.39 * by, stdev=2.58),
        }
        for name, by in (("eager", 1.0), ("backend", 2.0))
    }
    case = Case("s", model, batch_size=64, scenario="training", backend=backend)
    usual = {"eager_ms": 225.0, "backend_ms": 450.0, "eager_peak_bytes": 9e8, "backend_peak_bytes": 6e8}
    details = {
        "parts_ms": sides,
        "spread_ms": {"backend": {"mean": 449.0, "stdev": 1.5, "n": 30}},
        "parameters": 25_560_000,
        "conditions": {"variant": variant} if variant else {},
    }
    return Row(case, "pass", usual | values, details=details)


def generated(size, status="pass", backend="inductor", eager=1283.0, own=641.5):
    case = Case("s", "gpt2", batch_size=size, scenario="generation", backend=backend)
    parts, values = {}, {}
    for name, latency in (("eager", eager), ("backend", own)):
        if latency:
            parts[name] = {"prefill": part(20.0), "decode": part(latency - 20)}
            values |= {f"{name}_ms": latency, f"{name}_peak_bytes": 1e8}
    details = {"parts_ms": parts, "conditions": {"new_tokens": 100} if parts else {}, "load_s": 1.25}
    return Row(case, status, values, details=details)


def test_a_variant_stands_below_what_it_is_compared_with():
    tables = training([trained()])
    assert tables.head == ["model", "bs", "way", "params M", "forward ms", "backward ms", "step ms",
                          "samples/s", "peak MB"]  # fmt: skip
    assert tables.lines == [
        ["resnet50", "64", "eager float32", "25.56", "59.65+-0.07000", "164.4+-2.580", "225.0", "284.4",
         "900.0"],
        ["resnet50", "64", "eager float32, norm=in_place", "25.56", "119.3+-0.07000", "328.8+-2.580",
         "449.0+-1.500", "142.2", "600.0"],
    ]  # fmt: skip


def test_eager_is_reported_once_for_all_ways_and_not_against_itself():
    rows = [trained(variant=""), trained(backend="inductor", variant=""), trained(backend="aot-eager")]
    assert [line[2].split(",")[0] for line in training(rows).lines] == [
        "eager float32",
        "inductor float32",
        "aot-eager float32",
    ]


def test_eager_that_ran_by_itself_was_not_out_of_memory():
    row = generated(8, status="eager_oom", eager=None)
    (eager, own), none = generation([row]).lines, generation([row]).notes
    assert eager[-1] == eager[-2] == "oom"
    assert own[-2] != "oom"
    row.values["eager_peak_bytes"] = 1e8
    tables = generation([row])
    assert tables.lines[0][-2] == "oom beside"
    assert [note for note in tables.notes if note not in none] == [
        "oom beside: eager fits into memory alone, but not both sides in one process"
    ]


def test_what_was_read_and_written_for_each_prompt():
    rows = [generated(1), generated(8)]
    assert generation(rows).notes == ["100 new ones"]
    for row in rows:
        row.details["conditions"] |= {"prompt_tokens": 32, "cache": "static"}
    assert generation(rows).notes == ["prompts of 32 tokens, 100 new ones, static cache"]
    rows[1].details["conditions"]["cache"] = "dynamic"
    assert generation(rows).notes == [
        "gpt2: prompts of 32 tokens, 100 new ones, static cache",
        "gpt2: prompts of 32 tokens, 100 new ones, dynamic cache",
    ]


def test_tokens_a_second_as_the_public_benchmark_counts_them():
    tables = generation([generated(1)])
    assert tables.head[3:] == ["init s", "first token ms", "ms per output token", "latency ms", "tokens/s",
                              "peak MB"]  # fmt: skip
    assert tables.lines[0] == ["gpt2", "1", "eager float32", "1.25", "20.00", digits(1263 / 99), "1,283",
                              "77.94", "100.0"]  # fmt: skip
    assert tables.lines[1][-2] == "155.9"
    assert tokens_per_second(generated(2)) == 2 * 100 / 0.6415


def test_memory_that_ends_is_in_the_cells_of_the_side_that_had_none():
    lines = generation(
        [generated(1), generated(2, "eager_oom", eager=0.0), generated(4, "oom", eager=0.0, own=0.0)]
    ).lines
    assert [(line[1], line[2], line[-2]) for line in lines[2:]] == [
        ("2", "eager float32", "oom"),
        ("2", "inductor float32 ∄", digits(2 * 100 / 0.6415)),
        ("4", "inductor float32", "oom"),
    ]


def test_eager_that_ran_out_is_reported_once_and_in_its_own_dtype():
    def way(backend, dtype, status, own=0.0):
        row = generated(8, status, backend, eager=0.0, own=own)
        conditions = {**row.details["conditions"], "baseline_dtype": "float32"} if dtype != "float32" else {}
        details = {**row.details, "conditions": {**row.details["conditions"], **conditions}}
        return Row(replace(row.case, dtype=dtype), status, row.values, details=details)

    rows = [way("eager", "float32", "oom"), way("eager", "bfloat16", "eager_oom"),
            way("inductor", "float32", "eager_oom", own=641.5), generated(4)]  # fmt: skip
    tables = generation(rows)
    assert [(line[1], line[2], line[-2]) for line in tables.lines] == [
        ("8", "eager float32", "oom"),
        ("8", "eager bfloat16", "oom"),
        ("8", "inductor float32 ∄", "1,247"),
        ("4", "eager float32", "311.8"),
        ("4", "inductor float32", "623.5"),
    ]
    assert [note[0] for note in tables.notes[:-1]] == ["∄"]


def test_wrong_outputs_are_marked_and_what_broke_has_no_numbers():
    wrong = generated(1, "fail_accuracy")
    broken = generated(2, "crash")
    lines = generation([wrong, broken]).lines
    assert [line[2] for line in lines] == ["eager float32", "inductor float32 ✗", "eager float32",
                                           "inductor float32"]  # fmt: skip
    assert set(lines[3][4:]) == {"crash"}


def test_configurations_and_threads_have_lines_of_their_own():
    rows = [generated(1), generated(1)]
    freezing = replace(rows[1].case, configuration="freezing", settings="{}")
    rows[1] = replace(rows[1], case=freezing)
    names = ["default", "freezing"]
    assert [line[2] for line in generation(rows).lines] == [
        f"{way} float32 ({name})" for name in names for way in ("eager", "inductor")
    ]
    rows[1] = replace(rows[0], case=replace(rows[0].case, threads=4, dynamic=True))
    assert [line[2] for line in generation(rows).lines] == [
        "eager float32 (default, threads 1)",
        "inductor float32 (default, threads 1)",
        "eager float32 (dynamic, threads 4)",
        "inductor float32 (dynamic, threads 4)",
    ]


def test_other_scenarios_have_no_such_table():
    rows = [Row(Case("s", "m"), "pass", {"backend_ms": 1.0}, details={"parts_ms": [3]})]
    assert training(rows) is None
    assert generation(rows) is None


def test_grid_and_comment_have_them():
    shown = night([trained(), generated(1), generated(2, "eager_oom", eager=0.0)])
    page, text = technique_report(shown), full_tables(shown)
    assert "## Parts of a training step\n\n| model |" in page
    assert "| `resnet50` | `64` | `eager float32, norm=in_place` | 25.56 | 119.3+-0.07000 |" in page
    assert "## Generation\n\n| model |" in page
    assert "Parts of a training step\n\n```" in text
    assert "| resnet50 | 64 | eager float32, norm=in_place |" in text
    assert "tokens/s" in text


def test_what_others_have_left_in_the_history_stays_text():
    odd = trained(HOSTILE, variant=HOSTILE)
    odd.details["parts_ms"]["backend"]["<b>|x"] = part(1.0)
    odd.details["parts_ms"]["eager"]["forward"] = 3
    for text in (technique_report(night([odd])), full_tables(night([odd]))):
        html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
        assert "<script" not in html
        assert "<img" not in html
        assert "<b>" not in html
