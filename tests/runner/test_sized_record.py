"""The figures of a case at several sizes, from made-up events."""

from __future__ import annotations

import pytest

from perfdash.runner.sized_record import notes_of, of_sizes

MS = 1e6  # nanoseconds


def rows(*columns: float, pairs: int = 20) -> list[list[float]]:
    """As many rows of the same nanoseconds a size."""
    return [[value * MS for value in columns] for _ in range(pairs)]


def event(graphs=(1, 0, 0), **more) -> dict:
    names = ("batch 1", "batch 4", "batch 8")
    first = {name: {"seconds": 0.5, "graphs": count} for name, count in zip(names, graphs, strict=True)}
    static = {
        "first_s": dict.fromkeys(names, 0.4),
        "static_ns": rows(1.0, 2.0, 4.0),
        "dynamic_ns": rows(1.1, 2.0, 5.0),
        "clean": [True] * 20,
    }
    return {"of": "batch", "sizes": [1, 4, 8], "first": first, "fixed": None, "static": static, **more}


def latency(**more) -> dict:
    both = {"eager_parts_ns": rows(2.2, 4.0, 5.0), "backend_parts_ns": rows(1.1, 2.0, 5.0)}
    return {**both, "clean": [True] * 20, **more}


def test_each_size_has_a_speedup_and_a_cost_and_the_means_are_geometric():
    sizes = of_sizes(event(), [latency(), latency()])
    by_size = sizes["by_size"]
    assert [figures["speedup"]["value"] for figures in by_size.values()] == pytest.approx([2.0, 2.0, 1.0])
    assert [figures["cost"]["value"] for figures in by_size.values()] == pytest.approx([1.1, 1.0, 1.25])
    assert by_size["batch 8"]["eager_ms"] == 5.0
    assert by_size["batch 8"]["static_ms"] == 4.0
    assert sizes["overall"]["speedup"] == pytest.approx(4 ** (1 / 3), rel=1e-5)
    assert sizes["overall"]["cost"] == pytest.approx((1.1 * 1.25) ** (1 / 3), rel=1e-5)


def test_the_first_call_of_the_first_size_contains_the_build_as_that_of_an_artefact_of_one_size_does():
    by_size = of_sizes(event(), [], build_s=2.5)["by_size"]
    assert [figures["first_call_s"] for figures in by_size.values()] == [3.0, 0.5, 0.5]


def test_pairs_that_other_programs_spoilt_are_left_out_where_enough_are_clean():
    spoilt = latency()
    spoilt["eager_parts_ns"] = [[9e9, 9e9, 9e9]] * 8 + rows(2.2, 4.0, 5.0, pairs=12)
    spoilt["clean"] = [False] * 8 + [True] * 12
    assert of_sizes(event(), [spoilt])["by_size"]["batch 1"]["speedup"]["value"] == pytest.approx(2.0)


def test_a_size_has_no_latency_where_a_process_has_too_few_clean_pairs():
    spoilt = latency(eager_parts_ns=rows(9.0, 9.0, 9.0), clean=[True] * 2 + [False] * 18)
    static = {**event()["static"], "clean": [False] * 20}
    figures = of_sizes(event(static=static), [latency(), spoilt])["by_size"]["batch 1"]
    assert figures == {"first_call_s": 0.5, "graphs": 1, "static_first_call_s": 0.4}


def test_what_failed_after_the_timing_is_noted():
    spoilt = {**event()["static"], "clean": [False] * 20}
    failed = {"automatic": "RuntimeError: no room"}
    sizes = of_sizes(event(static=spoilt, failed=failed), [])
    assert sizes["failed"] == {**failed, "static": "a process has fewer than 3 clean pairs"}
    assert notes_of(sizes) == [
        "the cost of any size without marks is not known: RuntimeError: no room",
        "the cost beside an artefact of one size is not known: a process has fewer than 3 clean pairs",
    ]
    assert "failed" not in of_sizes(event(failed={}), [])


def test_without_samples_what_was_compiled_is_kept():
    sizes = of_sizes(event(static=None), [])
    assert sizes["by_size"]["batch 4"] == {"first_call_s": 0.5, "graphs": 0}
    assert sizes["overall"] == {}
    assert notes_of(sizes) == []


def test_notes_say_what_was_compiled_again_and_why():
    fixed = of_sizes(event((1, 1, 1), fixed="it fixes the size at 4"), [])
    assert notes_of(fixed) == [
        "the model specialises: it fixes the size at 4, though its batch size is marked dynamic; it is "
        "compiled again for each size"
    ]
    again = of_sizes(event((1, 1, 0)), [])
    assert notes_of(again) == [
        "dynamo compiled again at batch 4: 2 artefacts for 3 sizes; "
        "it always compiles for a size of 1 by itself"
    ]


def test_a_note_says_what_the_second_size_costs_without_marks():
    automatic = {
        "batch 4": {"seconds": 1.0, "graphs": 1},
        "batch 8": {"seconds": 2.5, "graphs": 1},
        "batch 16": {"seconds": 0.0, "graphs": 0},
    }
    (note,) = notes_of(of_sizes(event(automatic=automatic), []))
    assert note == (
        "without marks the second size (batch 8) costs 2.50 s of compiling, after 1.00 s for batch 4"
    )
