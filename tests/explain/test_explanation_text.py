"""The text of an explanation; PERFDASH_UPDATE_GOLDEN=1 writes the golden files anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfdash.explain.explanation_sentence import sentence
from perfdash.explain.explanation_text import text, to_plain
from perfdash.explain.structure_comparison import compare
from perfdash.files import dumps
from tests.explain.sides import BAD, BREAK, LIBRARIES, kernel, side, structure
from tests.report.golden_files import golden

GOLDEN = Path(__file__).with_name("golden")
REST = [kernel("mul add", 5), kernel("sum", 6)]
SOFTMAX = kernel("add _softmax mul", 1)
PLAIN = structure(SOFTMAX, *REST)
SPLIT = structure(kernel("add _softmax", 1), kernel("mul", 2), *REST)
OTHER_TORCH = {**LIBRARIES, "libtorch_cpu.so": "9" * 16}


def explained(new, old=PLAIN, **change):
    return compare(side(old), side(new, BAD, **change))


CHANGES = {
    "split": (
        SPLIT,
        "4 kernels instead of 3: cpp_fused_add__softmax_mul_1 is split into add + _softmax and mul",
    ),
    "host": (PLAIN, "the cause is the host"),
    "outside": ({**PLAIN, "loaded": OTHER_TORCH}, "outside the generated code"),
    "own": (
        {**PLAIN, "loaded": {**LIBRARIES, "perfdash (Python)": "7" * 16}},
        "or how another perfdash measures",
    ),
    "files_unknown": ({**PLAIN, "loaded": None}, "not known"),
    "break": ({**PLAIN, "break_reasons": {BREAK: 1}, "graphs": 2, "fingerprint": "x"}, "graph break"),
    "fallback": ({**PLAIN, "fallbacks": {"aten.foo": 3}, "fingerprint": "x"}, "aten.foo"),
    "library_call": (
        {**PLAIN, "library_calls": {"torch.ops.mkldnn._linear_pointwise": 2}, "fingerprint": "x"},
        "mkldnn._linear_pointwise is called instead of addmm",
    ),
    "recompiles": ({**PLAIN, "recompiles": 2}, "2 recompiles instead of 0"),
    "guards": ({**PLAIN, "guards": 99}, "99 guards instead of 40"),
    "code": (structure(kernel("add _softmax mul", 1, "other"), *REST), "other code in 1 of 3 kernels"),
    "settings": (
        {**SPLIT, "settings": {"mode": None, "config": {"max_fusion_size": 1}}},
        "max_fusion_size: none -> 1",
    ),
    "nothing": ({}, "nothing is known"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_text_of_a_change(name):
    new, words = CHANGES[name]
    found = explained(new)
    shown = text(found)
    assert words.lower() in sentence(found).lower()
    assert max(map(len, shown.splitlines())) <= 80
    assert " ".join(shown.split()).endswith(sentence(found))
    golden(GOLDEN / f"{name}.txt", shown + "\n")


def test_the_plain_values():
    plain = to_plain(explained(SPLIT))
    assert json.loads(dumps(plain)) == plain
    golden(GOLDEN / "split.json", dumps(plain, indent=1) + "\n")


def test_a_merge_is_worded_as_one():
    found = explained(PLAIN, old=SPLIT)
    assert sentence(found) == (
        "3 kernels instead of 4: add + _softmax and mul are merged into cpp_fused_add__softmax_mul_1."
    )


def test_of_the_latency_of_eager_the_generated_code_is_no_reason():
    for new, words in (
        (SPLIT, "eager runs the same files: the cause is the host"),
        ({**SPLIT, "loaded": OTHER_TORCH}, "loaded files differ: libtorch_cpu.so"),
        ({**SPLIT, "loaded": None}, "the contents of loaded files are not known"),
    ):
        found = sentence(explained(new), "eager_ms")
        assert words in found.lower()
        assert "kernel" not in found


def test_of_compilation_latency_the_phase_comes_first():
    found = compare(
        side(PLAIN, phases={"dynamo": 2.0, "compiler": 20.0}),
        side(SPLIT, BAD, phases={"dynamo": 2.1, "compiler": 28.0}),
    )
    told = "The C++ or Triton compiler takes 28.0 s instead of 20.0 s; 4 kernels instead of 3"
    assert sentence(found, "compilation_s").startswith(told)


def test_of_a_side_with_counts_alone_only_the_counts_are_compared():
    """Nights of before the history kept structures."""
    counts = {**PLAIN, "kernels": 3, "library_calls": 2, "fingerprint": "another"}
    assert sentence(explained(PLAIN, old=counts)) == (
        "The generated code differs, and it is not known in what."
    )
    assert sentence(explained(PLAIN, old={**counts, "kernels": 9})) == "3 kernels instead of 9."


def test_a_hostile_name_stays_on_its_line():
    found = explained({**PLAIN, "break_reasons": {"evil\n\n# Heading " + "x" * 500: 1}})
    assert "\n" not in sentence(found)
    assert len(sentence(found)) < 400


def test_a_variable_of_the_run_is_named_and_the_host_is_not_blamed():
    of = structure(kernel("relu"))
    plain, other = side(of), side(of, BAD, setting={"env": {"ONEDNN_MAX_CPU_ISA": "SSE41"}})
    words = sentence(compare(plain, other))
    assert words == (
        "Run with other options (env ONEDNN_MAX_CPU_ISA: none -> SSE41); the generated code is the same."
    )
    assert "host" not in words
    assert sentence(compare(plain, other), "eager_ms").startswith("Run with other options")
    assert "the cause is the host" in sentence(compare(plain, side(of, BAD)))


def test_other_settings_alone_do_not_say_that_each_kernel_has_other_code():
    """Fingerprints hold the settings, so they differ where the code is the same."""
    old = structure(kernel("relu"), settings={"mode": None, "config": {}})
    new = structure(kernel("relu", source="keyed"), settings={"mode": None, "config": {"cpp.simdlen": 1}})
    words = sentence(compare(side(old), side(new, BAD)))
    assert "cpp.simdlen: none -> 1" in words
    assert "other code" not in words
