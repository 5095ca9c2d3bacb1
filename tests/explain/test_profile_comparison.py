"""Which kernels, operators and buffers explain a change: on recorded times with known answers."""

from __future__ import annotations

import pytest

from perfdash.explain import profile_text
from perfdash.explain.profile_comparison import align, compare, difference
from tests.explain.profiles import profile

LIBRARY = "extern_kernels.addmm (8, 4x8, 8x8)"
OLD = {LIBRARY: 1.0, "cpp_fused_tanh_0": 0.5, "cpp_fused_add_1": 0.2}


def pairs(old, new, count=4, **more):
    """So many pairs in which each process differs a little from the others."""
    spread = [1.0, 1.004, 0.997, 1.002, 0.999, 1.001][:count]
    return [
        (profile({k: v * f for k, v in old.items()}), profile({k: v * g for k, v in new.items()}, **more))
        for f, g in zip(spread, reversed(spread), strict=True)
    ]


def test_the_slower_kernel_is_named_and_explains_the_change():
    found = compare(pairs(OLD, {**OLD, "cpp_fused_tanh_0": 1.5})).compiled
    assert [row.name for row in found.named] == ["cpp_fused_tanh_0"]
    assert found.share == pytest.approx(1.0, abs=0.03)
    assert found.change_ms.low < 1.0 < found.change_ms.high
    assert not found.costs_more_than_change


def test_the_rows_add_up_to_the_whole_change():
    found = compare(pairs(OLD, {**OLD, "cpp_fused_tanh_0": 1.5}, rest=0.3)).compiled
    assert sum(row.change_ms.estimate for row in found.rows) == pytest.approx(found.change_ms.estimate)
    assert found.rest.change_ms.estimate == pytest.approx(0.3, abs=0.02)
    assert found.share == pytest.approx(1.0 / 1.3, abs=0.03)


def test_without_a_change_nothing_is_explained():
    found = compare(pairs(OLD, OLD)).compiled
    assert found.share is None
    assert "no clear change" in profile_text.sentence(compare(pairs(OLD, OLD)))


def test_clocks_that_cost_more_than_the_change_are_said():
    both = compare(pairs(OLD, {**OLD, "cpp_fused_tanh_0": 0.6}, clocks=0.4))
    assert both.compiled.costs_more_than_change
    assert "cost 0.4 ms a call, more than the change" in profile_text.sentence(both)


@pytest.mark.parametrize(("old", "new", "groups"), [
    (["cpp_fused_a_0", "cpp_fused_b_1"], ["cpp_fused_a_3", "cpp_fused_b_4"],
     [(("cpp_fused_a_0",), ("cpp_fused_a_3",)), (("cpp_fused_b_1",), ("cpp_fused_b_4",))]),
    (["cpp_fused_a_b_0"], ["cpp_fused_a_0", "cpp_fused_b_1"],
     [(("cpp_fused_a_b_0",), ("cpp_fused_a_0", "cpp_fused_b_1"))]),
    (["m (2x2)", "cpp_fused_a_0"], ["m (2x2)", "m (4x4)", "cpp_fused_a_0"],
     [(("m (2x2)",), ("m (2x2)",)), ((), ("m (4x4)",)), (("cpp_fused_a_0",), ("cpp_fused_a_0",))]),
    (["m (2x2)"], ["cpp_fused_m_0"], [(("m (2x2)",), ("cpp_fused_m_0",))]),
    ([], [], []),
])  # fmt: skip
def test_kernels_that_do_the_same_work_belong_together(old, new, groups):
    assert align(old, new) == groups


def test_one_pair_has_no_interval():
    only = difference([0.5])
    assert (only.estimate, only.is_clear) == (0.5, False)


def test_eager_and_memory_are_explained_too():
    old = [(profile(OLD, {"aten.relu.default (4)": 1.0 + f}, memory={"cpp_fused_tanh_0 (4x4)": 1000}),
            profile(OLD, {"aten.relu.default (4)": 3.0 + f}, memory={"cpp_fused_tanh_0 (4x4)": 1000,
                                                                     "extern_kernels.addmm (8x8)": 5000}))
           for f in (0.0, 0.01, 0.02)]  # fmt: skip
    both = compare(old)
    text = profile_text.sentence(both, of_eager=True)
    assert text.startswith("The eager call takes 3.01 ms instead of 1.01 ms")
    assert "aten.relu.default (4) +2 ms explains 100% of it" in text
    assert "6 KB are allocated instead of 1 KB: extern_kernels.addmm (8x8) +5 KB" in text


def test_many_small_kernels_together_explain_the_change():
    """Each of twenty-five kernels has 4 % of the change: enough of them are named, not all."""
    old = {f"cpp_fused_a{k}_{k}": 0.5 for k in range(25)}
    found = compare(pairs(old, dict.fromkeys(old, 1.0))).compiled
    assert 0.8 <= found.share <= 0.9
    assert len(found.named) in (20, 21)
    assert found.remainder_ms.estimate == pytest.approx((1 - found.share) * found.change_ms.estimate)
    text = profile_text.text(compare(pairs(old, dict.fromkeys(old, 1.0))))
    assert all(f"  {row.name} " in text for row in found.named)
    assert "remain" in profile_text.sentence(compare(pairs(old, dict.fromkeys(old, 1.0))))


def test_a_kernel_that_got_faster_meanwhile_is_named_beside_the_slower_one():
    found = compare(
        pairs(OLD, {**OLD, "cpp_fused_tanh_0": 2.5, "cpp_fused_add_1": 0.1, LIBRARY: 0.4})
    ).compiled
    assert {row.name for row in found.named} == {"cpp_fused_tanh_0", LIBRARY, "cpp_fused_add_1"}
    assert found.share == pytest.approx(1.0, abs=0.05)


def test_what_is_in_no_kernel_is_said_as_the_remainder():
    both = compare(pairs(OLD, {**OLD, "cpp_fused_tanh_0": 1.5}, rest=0.5))
    assert both.compiled.remainder_ms.estimate == pytest.approx(0.5, abs=0.02)
    assert "remain, +0.5 ms of it outside of kernels" in profile_text.sentence(both)


KERNELS = {"triton_poi_fused_tanh_0": {"name": "triton_poi_fused_tanh_0", "kind": "triton", "code": ""}}


@pytest.mark.parametrize("how", [{"kernels": KERNELS, "replays_graphs": True}, {"kernels": KERNELS}, {}])
def test_kernels_that_python_does_not_call_are_not_called_guards(how):
    """A CUDA graph replays them, or a wrapper in C++ calls them: the whole call is in the last row."""
    spread = (0.0, 0.01, 0.02)
    both = compare([(profile({}, rest=1.9 + f, **how), profile({}, rest=2.4 + f, **how)) for f in spread])
    (row,) = both.compiled.rows
    assert row.name == "kernels that are not timed, guards, wrapper, allocation"
    assert row.change_ms.estimate == pytest.approx(0.5, abs=0.01)
    text = profile_text.text(both)
    assert "; none of its kernels is timed." in text
    assert "outside of kernels" not in text


def test_kernels_outside_of_a_cuda_graph_are_timed_and_the_others_are_in_the_rest():
    how = {"kernels": KERNELS, "replays_graphs": True}
    (kernel,), spread = KERNELS, (0.0, 0.01, 0.02)
    times = {kernel: 1.0}
    both = compare([(profile(times, rest=2 + f, **how), profile(times, rest=3 + f, **how)) for f in spread])
    assert both.compiled.rest.change_ms.estimate == pytest.approx(1.0, abs=0.01)
    sentence = profile_text.sentence(both)
    assert "and none of its timed kernels does so clearly" in sentence
    assert "none of its kernels is timed" not in sentence


def test_the_times_differ_by_the_difference_that_is_shown():
    """Medians of each side could rise while the mean of the differences falls."""
    old, new = [1.0, 2.0, 9.0], [1.1, 2.1, 3.0]
    both = compare([(profile({"k": a}), profile({"k": b})) for a, b in zip(old, new, strict=True)])
    side = both.compiled
    assert side.new_ms - side.old_ms == pytest.approx(side.change_ms.estimate)
    for row in side.rows:
        assert row.new_ms - row.old_ms == pytest.approx(row.change_ms.estimate)


def test_the_interval_of_the_change_contains_the_truth_as_often_as_it_says():
    """95 % intervals of five pairs, of known differences with noise of both sides."""
    import numpy as np

    random = np.random.default_rng(7)
    rounds = 2000
    held = 0
    for _ in range(rounds):
        old, new = random.normal(10, 0.2, 5), random.normal(10.5, 0.3, 5)
        found = difference(list(new - old))
        held += found.low <= 0.5 <= found.high
    assert 0.935 < held / rounds < 0.965


def test_a_buffer_is_the_same_whatever_number_its_kernel_has():
    """A kernel that is added early gives all later ones other numbers."""
    shared = {"cpp_fused_a_0 (8x8)": 10, "aten::mm": 7}
    old = {**shared, "cpp_fused_b_1 (8x8)": 100, "cpp_fused_b_2 (8x8)": 90, "cpp_fused_c_3 (4x4)": 80}
    new = {
        **shared, "cpp_fused_new_1 (8x8)": 6, "cpp_fused_b_2 (8x8)": 100, "cpp_fused_b_3 (8x8)": 95,
        "cpp_fused_c_4 (4x4)": 82,
    }  # fmt: skip
    memory = compare([(profile(OLD, memory=old), profile(OLD, memory=new))]).compiled.memory
    assert memory.changes == (
        ("cpp_fused_new_1 (8x8)", 0, 6),
        ("cpp_fused_b (8x8)", 190, 195),
        ("cpp_fused_c_4 (4x4)", 80, 82),
    )
