"""What to ship: fastest within the bound, what cannot be told apart, and when to stay with eager."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.report.techniques.recommendation import QUALITY_DROP, recommend
from perfdash.report.techniques.technique_results import Technique, groups
from tests.report.technique_runs import failed, measured

EAGER = measured()


def technique(backend, dtype="float32"):
    return Technique(backend, dtype)


def of(*rows):
    (group,) = groups([EAGER, *rows])
    return recommend(group)


def only(*rows):
    (choice,) = of(*rows).choices
    return choice


def test_the_fastest_within_the_bound():
    choice = only(
        measured(backend="inductor", speedup=1.5),
        measured(backend="onnxruntime", speedup=2.0),
        measured(backend="int8-static", speedup=3.0, status="fail_accuracy"),
        failed("resnet18", "openvino", "float32", 1, "oom", "too large"),
    )
    assert choice.fastest.technique == technique("onnxruntime")
    assert choice.as_fast == ()
    assert [(entry.technique, why) for entry, why in choice.left_out] == [
        (technique("int8-static"), "fail_accuracy")
    ]


def test_intervals_that_overlap_cannot_be_told_apart():
    choice = only(
        measured(backend="a", speedup=2.0), measured(backend="b", speedup=1.95),
        measured(backend="c", speedup=1.5),
    )  # fmt: skip
    assert choice.fastest.technique == technique("a")
    assert [entry.technique for entry in choice.as_fast] == [technique("b")]


@pytest.mark.parametrize(
    ("drop", "names"), [(QUALITY_DROP, True), (QUALITY_DROP + 0.001, False), (-0.1, True)]
)
def test_the_score_may_fall_by_so_much(drop, names):
    choice = only(measured(backend="int8-static", speedup=2.0, f1=0.9723 - drop))
    assert (choice.fastest is not None) == names
    if not names:
        assert choice.left_out[0][1] == "F1 is 0.0110 below eager's"


@pytest.mark.parametrize(
    ("speedup", "reach", "beats"),
    [(0.9, 0.02, False), (1.0, 0.001, False), (1.01, 0.005, False), (1.05, 0.1, False), (1.05, 0.01, True)],
)
def test_nothing_but_what_is_surely_faster_beats_eager(speedup, reach, beats):
    choice = of(measured(backend="inductor", speedup=speedup, reach=reach))
    assert set(choice.ship) == ({technique("inductor")} if beats else {None})
    if not beats:
        assert choice.choices[0].next_best.technique == technique("inductor")


def test_one_process_is_known_as_such():
    choice = only(measured(backend="inductor", speedup=1.5, basis="within"))
    assert choice.next_best.speed.one_process
    assert choice.next_best.speed.low < 1.5 < choice.next_best.speed.high


@pytest.mark.parametrize(
    "row",
    [
        measured(backend="inductor", speedup=1.5, basis="within"),
        measured(backend="inductor", speedup=1.035, reach=0.005, verdict="inconclusive"),
    ],
    ids=["one process", "98.5 % interval"],
)
def test_only_what_its_verdict_calls_faster_is_shipped(row):
    choice = only(row)
    assert choice.fastest is None
    assert choice.next_best.row == row


def test_without_an_interval_nothing_is_faster():
    row = measured(backend="inductor", speedup=1.5)
    ends = ("speedup_low", "speedup_high", "backend_ms_low")
    values = {name: value for name, value in row.values.items() if name not in ends}
    row = replace(row, values=values, verdict=None)
    assert only(row).fastest is None


def test_what_is_not_checked_or_not_compiled_or_measured_against_another_is_left_out():
    nothing = measured(backend="inductor", speedup=1.5)
    choice = only(
        replace(nothing, values=nothing.values | {"graphs": 0}),
        measured(backend="torchscript", speedup=2.0, status="pass_due_to_skip"),
        measured(backend="onnxruntime", dtype="bfloat16", speedup=3.0, baseline=None),
    )
    assert choice.fastest is None
    assert {entry.technique.backend: why for entry, why in choice.left_out} == {
        "inductor": "nothing was captured: it is eager",
        "torchscript": "its outputs were not checked",
        "onnxruntime": "it was compared with eager bfloat16",
    }


def test_one_way_serves_as_many_batch_sizes_as_it_can():
    rows = [measured(size=size) for size in (2, 4, 8)]
    rows += [measured(backend="a", size=size, speedup=2.0) for size in (1, 2)]
    rows += [measured(backend="b", size=size, speedup=1.97) for size in (1, 2, 4)]
    recommended = of(*rows)
    assert recommended.ship == {technique("b"): (1, 2, 4), None: (8,)}
    assert [choice.fastest and choice.fastest.technique.backend for choice in recommended.choices] == [
        "a",
        "a",
        "b",
        None,
    ]
    assert recommended.candidate(technique("b"), 1).speed.value == 1.97


def test_the_smallest_memory_and_what_is_as_small():
    choice = only(
        measured(backend="a", peak=3e7), measured(backend="b", peak=3.05e7), measured(backend="c", peak=4e7),
        measured(backend="wrong", peak=1e7, status="fail_accuracy"),
    )  # fmt: skip
    assert [entry.technique.backend for entry in choice.smallest] == ["a", "b"]
    assert choice.eager_peak_bytes == 5e7


def test_nothing_measured_is_nothing_to_ship():
    (group,) = groups([failed("m", "inductor", "float32", 1, "crash", "")])
    choice = recommend(group)
    assert choice.ship == {}
    assert not choice.choices[0].measured


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([1, 2, 4]), st.floats(0.2, 5),
                          st.floats(0.001, 0.5)), max_size=12))  # fmt: skip
def test_each_batch_size_is_served_once_by_what_cannot_be_told_from_the_fastest(given_):
    rows = {(name, size): measured(backend=name, size=size, speedup=speedup, reach=reach)
            for name, size, speedup, reach in given_}  # fmt: skip
    recommended = of(*rows.values())
    assert sorted(size for sizes in recommended.ship.values() for size in sizes) == sorted(
        choice.batch_size for choice in recommended.choices
    )
    for shipped, sizes in recommended.ship.items():
        for choice in recommended.choices:
            if choice.batch_size in sizes:
                alike = {entry.technique for entry in (choice.fastest, *choice.as_fast) if entry}
                assert shipped in alike if shipped else choice.fastest is None
