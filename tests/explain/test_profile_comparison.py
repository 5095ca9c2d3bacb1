"""Which kernels, operators and buffers explain a change: on recorded times with known answers."""

from __future__ import annotations

import pytest

from perfdash.explain import profile_text
from perfdash.explain.profile_comparison import align, compare, difference
from tests.explain.profiles import profile

OLD = {"extern_kernels.addmm (8, 4x8, 8x8)": 1.0, "cpp_fused_tanh_0": 0.5, "cpp_fused_add_1": 0.2}


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
