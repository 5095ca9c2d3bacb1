"""Patterns, what a change asks for, and which revisions share a build. Pure."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfdash.bisection.environments import build_reuse
from perfdash.bisection.recipes import BuildRecipe, Overlay, Recipe, load_recipe
from tests.effort import trials


def recipe(**more):
    return Recipe(name="r", kind="commits", path="/r.toml", build=BuildRecipe(command="true"), **more)


OVER = recipe(
    overlay=Overlay(paths=("pkg/**/*.py",), rebuild=("pkg/gen/**",), into={"pkg": "lib/pkg"}),
    ignore=("docs/**", "**/*.md"),
)


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("**/*.py", "a.py", True),
        ("**/*.py", "a/b/c.py", True),
        ("**/*.py", "a.pyx", False),
        ("a/**", "a/b/c", True),
        ("a/**", "ab/c", False),
        ("a/*.py", "a/b/c.py", False),
        ("a/**/c.py", "a/c.py", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("a.c", "abc", False),
        ("*.md", "docs/x.md", False),
        ("[x].py", "[x].py", True),
        ("**", "any/thing\nat all", True),
    ],
)
def test_patterns(pattern, path, fits):
    assert build_reuse.matches((pattern,), path) is fits


def test_no_pattern_fits_nothing():
    assert not build_reuse.matches((), "a")


@pytest.mark.parametrize(
    ("path", "asks"),
    [
        ("docs/a.py", build_reuse.SAME),
        ("pkg/README.md", build_reuse.SAME),
        ("pkg/a.py", build_reuse.OVERLAY),
        ("pkg/gen/a.py", build_reuse.BUILD),
        ("pkg/a.c", build_reuse.BUILD),
        ("setup.py", build_reuse.BUILD),
    ],
)
def test_what_a_change_asks_for(path, asks):
    assert build_reuse.of_change(OVER, path) == asks
    assert build_reuse.of_change(recipe(), path) == build_reuse.BUILD


def test_pytorch():
    """Half of PyTorch's commits touch only Python, and what generates C++ is not among it."""
    torch = load_recipe("pytorch-source")
    asks = {
        "torch/_inductor/codegen/cpp.py": build_reuse.OVERLAY,
        "torch/_dynamo/symbolic_convert.py": build_reuse.OVERLAY,
        "test/inductor/test_cpu_repro.py": build_reuse.SAME,
        "torchgen/gen.py": build_reuse.BUILD,
        "tools/autograd/gen_variable_type.py": build_reuse.BUILD,
        "setup.py": build_reuse.BUILD,
        "aten/src/ATen/native/native_functions.yaml": build_reuse.BUILD,
        "third_party/ideep": build_reuse.BUILD,
        "torch/csrc/jit/tensorexpr/codegen_external.py": build_reuse.BUILD,
        "README.md": build_reuse.SAME,
    }
    assert {path: build_reuse.of_change(torch, path) for path in asks} == asks
    assert build_reuse.place_of(torch, "torch/_inductor/ir.py") == "torch/_inductor/ir.py"
    assert build_reuse.place_of(torch, "tools/x.py") is None


def test_digests_and_changes():
    before = {"pkg/a.py": "100644 1", "pkg/b.py": "100644 2", "c.c": "100644 3", "docs/d": "100644 4"}
    python = {**before, "pkg/a.py": "100644 9", "pkg/new.py": "100644 8"}
    del python["pkg/b.py"]
    docs = {**before, "docs/d": "100644 9"}
    compiled = {**before, "c.c": "100644 9"}
    mode = {**before, "c.c": "100755 3"}
    same = build_reuse.product_digest(OVER, before)
    assert build_reuse.product_digest(OVER, docs) == same
    assert len({build_reuse.product_digest(OVER, tree) for tree in (before, python, compiled, mode)}) == 4
    assert build_reuse.compiled_digest(OVER, python) == build_reuse.compiled_digest(OVER, before)
    assert build_reuse.compiled_digest(OVER, compiled) != build_reuse.compiled_digest(OVER, before)
    assert build_reuse.changes(OVER, before, python) == [
        build_reuse.FileChange("pkg/a.py", "lib/pkg/a.py", gone=False),
        build_reuse.FileChange("pkg/b.py", "lib/pkg/b.py", gone=True),
        build_reuse.FileChange("pkg/new.py", "lib/pkg/new.py", gone=False),
    ]


@settings(max_examples=trials(100))
@given(st.lists(st.lists(st.sampled_from(["docs/x", "pkg/a.py", "c.c"]), max_size=3), max_size=30))
def test_classes_change_where_something_asks_for_it(touched):
    groups = build_reuse.classes(OVER, touched)
    assert len(groups) == len(touched)
    for (before, after), paths in zip(itertools.pairwise(groups), touched[1:], strict=True):
        assert (after[0] > before[0]) == ("c.c" in paths)
        assert (after[1] > before[1]) == bool({"c.c", "pkg/a.py"} & set(paths))
