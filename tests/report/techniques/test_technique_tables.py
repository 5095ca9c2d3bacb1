"""The tables of training steps and generations."""

from __future__ import annotations

from perfdash.history.results import Row
from perfdash.records import Case
from perfdash.report.number_format import digits
from perfdash.report.step_tables import new_tokens
from perfdash.report.techniques.technique_report import part_names, tables
from perfdash.report.techniques.technique_results import groups, has_numbers, mark, ordered


def part(median, **other):
    return {"median": median, "ci_low": median * 0.99, "ci_high": median * 1.01, "n": 30, **other}


def training(size, status="pass"):
    parts = {
        "forward": part(59.65, mean=59.7, stdev=0.07),
        "backward": part(164.39, mean=165.0, stdev=2.58),
        "optimizer": part(1.5, mean=1.5, stdev=None),
    }
    case = Case("s", "m", batch_size=size, scenario="training", backend="eager")
    values = {"backend_ms": 225.0, "backend_ms_low": 224.0, "backend_ms_high": 226.0}
    return Row(case, status, values, details={"parts_ms": {"eager": parts, "backend": parts}})


def generation(size, status="pass", latency=1283.0):
    parts = {"prefill": part(20.0), "decode": part(latency - 20)}
    case = Case("s", "m", batch_size=size, scenario="generation", backend="eager")
    values = {"backend_ms": latency, "backend_ms_low": latency, "backend_ms_high": latency} if latency else {}
    details = {"parts_ms": {"backend": parts}, "conditions": {"new_tokens": 100}} if latency else {}
    return Row(case, status, values, details=details)


def of(rows):
    (group,) = groups(rows)
    return "\n\n".join(tables(group, ordered(rows))[0])


def test_a_training_step_is_shown_by_its_parts():
    text = of([training(1), training(2)])
    assert "**Forward [ms]** median, ± 95 % interval (mean+-standard deviation)" in text
    assert "59.65 ± 1.0 % (59.70+-0.07000)" in text
    assert "1.500 ± 1.0 % |" in text, "one sample has no deviation"
    assert text.index("**Forward") < text.index("**Backward") < text.index("**Optimizer")
    assert "tokens" not in text


def test_a_generation_is_shown_in_tokens():
    text = of([generation(1), generation(2, latency=2566.0)])
    # 100 tokens in 1.283 s: 77.94 a second, 12.83 ms each, as the public benchmark writes it.
    assert "77.94 \\| 12.83" in text
    assert "**Time per output token [ms]**" in text
    assert f"| {digits(1263 / 99)} |" in text


def test_out_of_memory_is_in_its_cell_and_a_back_end_without_eager_is_marked():
    rows = [generation(1), generation(2, status="eager_oom"), generation(4, status="oom", latency=0)]
    text = of(rows)
    assert [has_numbers(row) for row in rows] == [True, True, False]
    assert mark(rows[1]) == "∄"
    assert "`oom`" in text
    assert "∄ |" in text


def test_what_others_have_left_in_the_history_breaks_nothing():
    row = Row(Case("s", "m"), "pass", {"backend_ms": 1.0}, details={"parts_ms": [1], "conditions": 3})
    assert part_names([row]) == []
    assert new_tokens(row) is None
    odd = Row(Case("s", "m"), "pass", {"backend_ms": 1.0}, details={"parts_ms": {"backend": {"forward": 3}}})
    assert part_names([odd]) == []


def test_a_variant_is_a_way_of_its_own():
    plain, varied = training(1), training(2)
    varied = Row(
        varied.case,
        "pass",
        varied.values,
        details={**varied.details, "conditions": {"variant": "norm=in_place"}},
    )
    assert [way.label for way in ordered([plain, varied])] == [
        "eager float32",
        "eager float32, norm=in_place",
    ]


def test_the_name_of_a_part_is_text():
    row = Row(
        Case("s", "m"), "pass", {"backend_ms": 1.0}, details={"parts_ms": {"backend": {"<b>|x": part(1.0)}}}
    )
    assert "<b>" not in of([row])
