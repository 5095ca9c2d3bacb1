"""What differs between two sides: kernels by operators, calls, breaks, files."""

from __future__ import annotations

import pytest

from perfdash.explain import structure_comparison as comparison
from perfdash.explain.explanation_sentence import sentence
from perfdash.explain.structure_comparison import LATENCY, MEMORY, PHASE, compare, match_kernels
from perfdash.methods import CURRENT
from tests.explain.sides import BAD, LIBRARIES, kernel, side, structure


def how(changes):
    """The changes as (how, number of kernels before, number after)."""
    return [(change.how, len(change.before), len(change.after)) for change in changes]


def test_a_kernel_with_the_same_fingerprint_is_the_same_wherever_it_is():
    first, second = kernel("add relu"), kernel("mul", 1)
    assert how(match_kernels([first, second], [{**second, "name": "x"}, first])) == [("same", 1, 1)] * 2


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (["add relu"], ["add relu"], "changed"),
        (["add _softmax mul"], ["add _softmax", "mul"], "split"),
        (["add _softmax", "mul"], ["add _softmax mul"], "merged"),
        (["add relu mul"], ["add relu div"], "regrouped"),
        ([], ["add"], "new"),
        (["add"], [], "gone"),
    ],
)
def test_other_kernels_are_matched_by_their_operators(before, after, expected):
    rest = [kernel("sum", 9)]
    old = [kernel(operators, number) for number, operators in enumerate(before)]
    new = [kernel(operators, number, "other") for number, operators in enumerate(after)]
    same, changed = match_kernels(rest + old, new + rest)
    assert same.how == "same"
    assert how([changed]) == [(expected, len(before), len(after))]


def test_each_kernel_is_in_one_change():
    old = [kernel("add relu mul", n) for n in range(3)] + [kernel("sum", 7), kernel("sum", 8)]
    new = [kernel("add relu", 1), kernel("mul", 2), kernel("sum", 3, "other"), kernel("gelu", 4)]
    changes = match_kernels(old, new)
    for side_kernels, given in (("before", old), ("after", new)):
        found = [id(k) for change in changes for k in getattr(change, side_kernels)]
        assert sorted(found) == sorted(map(id, given))


def test_each_difference_is_a_finding():
    old = structure(kernel("add"))
    new = structure(
        kernel("add"),
        fallbacks={"aten.foo": 1},
        break_reasons={"print": 2},
        graphs=3,
        recompiles=1,
        frames_given_up={"Unsupported: loop": 1},
        library_calls={"extern_kernels.mm": 2},
        guards=50,
        settings={"mode": "max-autotune", "config": {"max_fusion_size": 1}},
        isa="avx2",
        loaded={**LIBRARIES, "libtorch_cpu.so": "9" * 16},
    )
    packages = {"torch": "2.16.0", "torch_git_version": "b" * 40}
    found = compare(
        side(old, phases={"dynamo": 2.0, "compiler": 20.0}),
        side(new, BAD, phases={"dynamo": 2.1, "compiler": 28.0}, torch=packages["torch"]),
    )
    assert [(f.about, f.what, f.before, f.after) for f in found.findings] == [
        ("package", "torch", "2.15.0 aaaaaaaaaa", "2.16.0 aaaaaaaaaa"),
        ("setting", "vector instructions", "avx512", "avx2"),
        ("setting", "mode", None, "max-autotune"),
        ("setting", "max_fusion_size", None, 1),
        ("fallback", "aten.foo", 0, 1),
        ("graph break", "print", 0, 2),
        ("graphs", "graphs", 1, 3),
        ("recompiles", "recompiles", 0, 1),
        ("frames given up", "Unsupported: loop", 0, 1),
        ("library call", "extern_kernels.addmm", 2, 0),
        ("library call", "extern_kernels.mm", 0, 2),
        ("guards", "guards", 40, 50),
        ("loaded file", "libtorch_cpu.so", "1" * 16, "9" * 16),
        ("compile phase", "compiler", 20.0, 28.0),
    ]
    assert {f.about for f in found.findings} < set(comparison.ABOUT)


def test_code_and_files_are_the_same_only_where_both_sides_say_so():
    plain = structure(kernel("add"))
    for change, code, files in (
        ({}, True, True),
        ({"fingerprint": "other"}, False, True),
        ({"fingerprint": None}, None, True),
        ({"version": 2}, None, True),  # fingerprints of another normalisation cannot be compared
        ({"loaded": None}, True, None),
        ({"loaded": {"libc.so.6": "5"}}, True, False),
    ):
        found = compare(side(plain), side({**plain, **change}, BAD))
        assert (found.same_code, found.same_files) == (code, files), change


def test_a_side_that_has_only_counts_says_so():
    """Nights of before the history kept structures."""
    old = {"kernels": 42, "guards": 10, "library_calls": 3, "fingerprint": "a", "version": 1}
    found = compare(side(old), side(structure(kernel("add")), BAD))
    assert found.kernels == ()
    assert found.unknown[0].startswith("kernels of 2026-11-01")
    assert [f.about for f in found.findings] == ["guards"]


def numbers(factor):
    """Peaks and latencies with narrow intervals, all times a factor."""
    latencies = {
        f"{name}{end}": value * factor
        for name in ("backend_ms", "eager_ms")
        for end, value in (("", 10.0), ("_low", 9.9), ("_high", 10.1))
    }
    return {"backend_peak_bytes": 1e8 * factor, "eager_peak_bytes": 2e8 * factor, **latencies}


@pytest.mark.parametrize(
    ("after", "left_out", "why"),
    [
        ({}, set(), ()),
        ({"method": {**CURRENT, "memory": 9}}, {MEMORY}, ("peak memory (method: memory 2 -> 9)",)),
        ({"method": {**CURRENT, "latency": 9}}, {LATENCY}, ("latency (method: latency 2 -> 9)",)),
        ({"method": {**CURRENT, "compilation": 9}}, {PHASE}, ("compile phase (method: compilation 3 -> 9)",)),
        ({"verdict": "disturbed"}, {LATENCY}, (f"latency (disturbed: {BAD}T01-00-00Z_farm)",)),
    ],
)
def test_numbers_of_different_methods_and_disturbed_ones_are_not_compared(after, left_out, why):
    of = structure(kernel("add"))
    before = side(of, values=numbers(1.0), phases={"compiler": 9.0})
    found = compare(before, side(of, BAD, values=numbers(1.5), phases={"compiler": 2.0}, **after))
    assert {item.about for item in found.findings} == {MEMORY, LATENCY, PHASE} - left_out
    assert found.unknown == tuple(f"change of {text}" for text in why)


def test_counts_of_another_method_are_no_change():
    """A later method counts branches on data, which were there before."""
    reasons = {"a branch that depends on data in net.py:9 (if)": 1}
    of = structure(kernel("add"))
    old = side({**of, "graphs": 1, "graph_breaks": 0, "break_reasons": {}}, method={**CURRENT, "capture": 1})
    new = side({**of, "graphs": 2, "graph_breaks": 1, "break_reasons": reasons, "recompiles": 3}, BAD)
    found = compare(old, new)
    assert not {item.about for item in found.findings} & {"graph break", "graphs", "recompiles"}
    assert found.unknown == ("change of graph break, graphs, recompiles (method: capture 1 -> 2)",)
    assert "graph" not in sentence(found)
