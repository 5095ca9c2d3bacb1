"""That what is imported is the build that was asked for: layouts, overlays, the base, the cache."""

import os
import time
import venv
from dataclasses import replace

import pytest

from perfdash.bisection.environments import Unbuildable, cached_builder, open_builder
from perfdash.bisection.environments.interpreter import probe
from perfdash.bisection.recipes import load_recipe
from perfdash.errors import MachineError
from tests.environments import ask, listed, own
from tests.wheels import make_interpreter, site_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("files", "paths"),
    [
        ({"src/space/pkg/__init__.py": "n = 7"}, ["source/src"]),
        ({"src/space/pkg/__init__.py": "n = 7", "other/__init__.py": ""}, ["source/src", "source"]),
        ({"src/gen.py": "", "space/__init__.py": "", "space/pkg.py": "n = 7"}, ["source/src", "source"]),
        (
            {"src/__init__.py": "", "src/x.py": "", "space/__init__.py": "", "space/pkg.py": "n = 7"},
            ["source"],
        ),
    ],
)
def test_where_packages_lie(pure, where, files, paths):
    pure.commit("laid out", {"lib/__init__.py": None, **files})
    where = replace(where, repo=pure.folder)
    recipe = load_recipe("git")
    last = listed(recipe, where, "main~1")[1][-1]
    with open_builder(recipe, where) as builder:
        built = builder.build(last)
    assert [str(path.relative_to(built.folder.parent)) for path in built.pythonpath] == paths
    assert ask(built, "import space.pkg; print(space.pkg.n)") == "7"


def test_packages_where_nobody_looks(pure, where, tmp_path):
    """The base has the package too: it would be measured instead."""
    pure.commit("deep", {"lib/__init__.py": None, "python/lib/__init__.py": "n = 7"})
    venv.create(tmp_path / "base", with_pip=False)
    (site,) = (tmp_path / "base").glob("lib/python*/site-packages")
    (site / "lib").mkdir()
    (site / "lib" / "__init__.py").write_text("n = 'base'")
    where = replace(where, repo=pure.folder, python=tmp_path / "base" / "bin" / "python")
    recipe = load_recipe("git")
    last = listed(recipe, where, "main~1")[1][-1]
    message = r"""imports lib from .*base.*in python/: say so \(--set 'pythonpath=\["python"\]'"""
    with open_builder(recipe, where) as builder, pytest.raises(MachineError, match=message):
        builder.build(last)
    with open_builder(recipe, replace(where, settings={"pythonpath": ["python"]})) as builder:
        assert ask(builder.build(last), "import lib; print(lib.n)") == "7"


def test_a_build_into_its_prefix_only(pure, where, tmp_path):
    """A package called src, and nothing at all."""
    where = replace(where, repo=pure.folder)
    recipe = own(
        tmp_path, "[build]\ncommand = 'cp -r lib $PREFIX; mkdir $PREFIX/src; cp lib/*.py $PREFIX/src'"
    )
    last = listed(recipe, where)[1][-1]
    with open_builder(recipe, where) as builder:
        assert ask(builder.build(last), "import lib, src; print(lib.n)") == "1"
    nothing = own(tmp_path, "[build]\ncommand = 'true'", "nothing")
    with open_builder(nothing, where) as builder, pytest.raises(Unbuildable, match=r"nothing into .PREFIX"):
        builder.build(last)


def test_compilers_and_their_flags_are_in_the_key(pure, where, tmp_path, monkeypatch):
    where = replace(where, repo=pure.folder)
    recipe = own(tmp_path, "[build]\ncommand = 'echo $CFLAGS > $PREFIX/flags'")
    last = listed(recipe, where)[1][-1]
    for flags in ("-O0", "-O2", "-O0"):
        monkeypatch.setenv("CFLAGS", flags)
        monkeypatch.setenv("BUILD_NUMBER", flags)
        with open_builder(recipe, where) as builder:
            assert (builder.build(last).folder / "flags").read_text() == f"{flags}\n"
    assert len(list((tmp_path / "cache" / "built").iterdir())) == 2


def test_an_overlay_has_no_bytecode_of_what_is_below(pure, where, tmp_path):
    """Python tells bytecode by the time in seconds and the size of its source: here they agree."""
    command = 'cp -r lib "$PREFIX"; "$PYTHON" -m compileall -q "$PREFIX"'
    recipe = own(tmp_path, f"[build]\ncommand = '{command}'\n[overlay]\npaths = ['lib/**/*.py']")
    where = replace(where, repo=pure.folder)
    _, revisions = listed(recipe, where)
    with open_builder(recipe, where) as builder:
        first = builder.build(revisions[0])
        code = first.folder / "lib" / "__init__.py"
        os.utime(code, (int(time.time()) + 1,) * 2)
        (bytecode,) = (first.folder / "lib" / "__pycache__").iterdir()
        bytecode.unlink()
        ask(first, "import lib")
        time.sleep(1 - time.time() % 1)
        second = builder.build(revisions[1])
        assert second.compiled_from == revisions[0].id
        assert (ask(first, "import lib; print(lib.n)"), ask(second, "import lib; print(lib.n)")) == ("1", "2")
        assert len(list((second.folder / "lib" / "__pycache__").iterdir())) == 1, (
            "imports as fast as the other"
        )


def test_an_overlay_is_not_enough_for_a_new_package(pure, where, tmp_path):
    command = 'for each in [a-z]*/; do cp -r "$each" "$PREFIX"; done'
    recipe = own(tmp_path, f"[build]\ncommand = '{command}'\n[overlay]\npaths = ['**/*.py']")
    pure.commit("another", {"lib/__init__.py": "from more import n", "more/__init__.py": "n = 9"})
    pure.commit("a folder less", {"more/__init__.py": None, "lib/__init__.py": "n = 8"})
    where = replace(where, repo=pure.folder)
    _, revisions = listed(recipe, where)
    with open_builder(recipe, where) as builder:
        built = [builder.build(revisions[place]) for place in (0, 3, 4)]
        assert [ask(build, "import lib; print(lib.n)") for build in built] == ["1", "9", "8"]
        assert [build.compiled_from for build in built] == [None, None, revisions[3].id]
        assert not (built[2].folder / "more").exists()


def test_a_worktree_that_was_measured_in_is_put_right(pure, where):
    recipe, where = load_recipe("command"), replace(where, repo=pure.folder)
    first = listed(recipe, where)[1][0]
    with open_builder(recipe, where) as builder:
        folder = builder.build(first).folder
        (folder / "lib" / "__init__.py").write_text("changed")
        (folder / "stray").touch()
    with open_builder(recipe, where) as builder:
        assert builder.build(first).reused
    assert (folder / "lib" / "__init__.py").read_text() == "n = 1"
    assert not (folder / "stray").exists()


def test_the_base_is_asked_again_of_a_build_from_the_cache(pure, where, monkeypatch):
    recipe, where = load_recipe("git"), replace(where, repo=pure.folder)
    first = listed(recipe, where)[1][0]
    with open_builder(recipe, where) as builder:
        builder.build(first)
    monkeypatch.setattr(cached_builder, "origins", lambda *_: {"lib": "/editable/lib/__init__.py"})
    with (
        open_builder(recipe, where) as builder,
        pytest.raises(MachineError, match="imports lib from /editable"),
    ):
        builder.build(first)


def test_what_a_package_of_setup_py_requires(tmp_path):
    python = make_interpreter(tmp_path / "env", with_pip=False)
    info = site_of(tmp_path / "env") / "old.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: old\nVersion: 1.0\n\nName: none\n")
    (info / "requires.txt").write_text("numpy>1\n")
    found = probe(python)
    assert (found.packages["old"], found.requires["old"]) == ("1.0", ("numpy>1",))
