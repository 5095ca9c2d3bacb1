"""Commits as environments: by path, by a build with a real compiler, by an overlay; the cache around it."""

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.bisection.environments import KNOWN_NOT_TO_BUILD, BuildStopped, Unbuildable, open_builder
from perfdash.bisection.environments.build_holds import BuildHolds
from perfdash.bisection.recipes import load_recipe
from perfdash.errors import MachineError
from tests.environments import ask, listed, own, sleeping
from tests.repositories import Repository, picture

pytestmark = pytest.mark.slow

# A package with a C extension: built incrementally, and each compilation is counted.
COMPILED = r"""
name = "compiled"
kind = "commits"
ignore = ["docs/**"]
[build]
incremental = true
cost_s = 100
command = '''
mkdir -p build
if ! [ build/fast.o -nt fast.c ]; then
  include=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  gcc -O0 -fPIC -I"$include" -c fast.c -o build/fast.o
  echo compiled >> "$COUNT"
fi
cp -r pkg "$PREFIX/pkg"
gcc -shared build/fast.o -o "$PREFIX/pkg/fast.so"
echo built >> "$COUNT"
'''
[overlay]
paths = ["pkg/**/*.py"]
"""
FAST = """
#include <Python.h>
static struct PyModuleDef it = {{PyModuleDef_HEAD_INIT, "fast", 0, -1, 0}};
PyMODINIT_FUNC PyInit_fast(void) {{
  PyObject *m = PyModule_Create(&it);
  PyModule_AddIntConstant(m, "number", {number});
  return m;
}}
"""
ASK = "import pkg, pkg.fast, pkg.word; print(pkg.fast.number, pkg.word.word)"


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """A repository whose commits change what its name says, and the recipe for it."""
    repo = Repository(tmp_path / "compiled")
    repo.commit("c1", {
        "fast.c": FAST.format(number=1), "pkg/__init__.py": "", "pkg/word.py": "word = 'a'",
        "docs/x.md": "", ".gitignore": "build/\n", "tests/test_a.py": "",
    })  # fmt: skip
    repo.commit("py2", {"pkg/word.py": "word = 'b'"})
    repo.commit("docs3", {"docs/x.md": "more"})
    repo.commit("c4", {"fast.c": FAST.format(number=4)})
    repo.commit("py5", {"pkg/word.py": "from pkg.sub.new import word", "pkg/sub/__init__.py": "",
                        "pkg/sub/new.py": "word = 'new'", "pkg/gone.py": "", "pkg/top.py": ""})  # fmt: skip
    repo.commit("py6", {"pkg/gone.py": None})
    (tmp_path / "compiled.toml").write_text(COMPILED)
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    return repo, load_recipe(str(tmp_path / "compiled.toml"))


def counted(tmp_path):
    path = tmp_path / "count"
    words = path.read_text().split() if path.exists() else []
    return words.count("built"), words.count("compiled")


def test_pure_python_by_path(pure, where):
    recipe, where = load_recipe("git"), replace(where, repo=pure.folder)
    before = picture(pure.folder)
    _, revisions = listed(recipe, where)
    with open_builder(recipe, where) as builder:
        built = [builder.build(revision) for revision in revisions]
        assert [ask(build, "import lib; print(lib.n)") for build in built] == ["1", "2", "1"]
        assert built[0].pythonpath == (built[0].folder,)
        assert built[2].reused, "the same files as the first"
        assert built[2].key == built[0].key != built[1].key
        assert builder.build(revisions[0], fresh=True).folder != built[0].folder
        assert list(built[0].folder.glob("lib/__pycache__/*.pyc")), "imports as fast the first time"
    assert picture(pure.folder) == before


def test_src_layout_settings_and_environment(pure, where, tmp_path, monkeypatch):
    pure.commit("src", {"src/deep/__init__.py": "n = 7", "lib/__init__.py": None, "deep/x.txt": ""})
    pure.commit("more", {"src/deep/__init__.py": "n = 8"})
    where = replace(where, repo=pure.folder)
    recipe = own(tmp_path, 'env = { COLOUR = "red" }')
    monkeypatch.setenv("PYTHONPATH", "/users/own")
    _, revisions = listed(recipe, where, "main~1")
    with open_builder(recipe, where) as builder:
        built = builder.build(revisions[0])
    assert built.pythonpath == (built.folder / "src",)
    assert built.variables() == {"COLOUR": "red", "PYTHONPATH": f"{built.folder / 'src'}:/users/own"}
    assert ask(built, "import deep; print(deep.n)") == "7"


def test_hooks_and_filters_of_the_repository_are_not_run(pure, where, tmp_path):
    marker = tmp_path / "was-run"
    for hook in ("post-checkout", "reference-transaction", "post-index-change", "post-merge"):
        file = pure.folder / ".git" / "hooks" / hook
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\ntouch {marker}\n")
        file.chmod(0o755)
    pure.git("config", "filter.spy.smudge", f"touch {marker}; cat")
    pure.git("config", "core.hooksPath", str(pure.folder / ".git" / "hooks"))
    (pure.folder / ".git" / "info").mkdir(exist_ok=True)
    (pure.folder / ".git" / "info" / "attributes").write_text("* filter=spy\n")
    where = replace(where, repo=pure.folder)
    recipe = load_recipe("git")
    with open_builder(recipe, where) as builder:
        builder.build(listed(recipe, where)[1][0])
    assert not marker.exists()


def test_a_command_gets_a_worktree_of_its_own(pure, where):
    recipe, where = load_recipe("command"), replace(where, repo=pure.folder)
    pure.git("tag", "-a", "-m", "x", "v1", "main~2")
    _, revisions = listed(recipe, where)
    with open_builder(recipe, where) as builder:
        first, third = builder.build(revisions[0]), builder.build(revisions[2])
        assert first.key != third.key, "a script may ask git for the commit"
        head = subprocess.run(["git", "describe", "--tags"], cwd=third.folder, capture_output=True, text=True)
        assert head.stdout.startswith("v1-2-g")
        assert first.pythonpath == ()


def test_two_bisections_that_want_each_others_worktrees_go_on(pure, where):
    """Each holds its ends to its end: one that waits for the other's would wait without end."""
    recipe, where = load_recipe("command"), replace(where, repo=pure.folder)
    _, (first, middle, last) = listed(recipe, where)
    with open_builder(recipe, where) as other:
        with open_builder(recipe, where) as one:
            own = one.build(first)
            assert other.build(last).notes == ()
            assert one.build(middle).notes == ()
            copies = [other.build(first), one.build(last), other.build(middle)]
            assert not any(copy.reused for copy in copies)
            for copy in copies:
                assert copy.notes == ("it is in use by another bisection, so this one has a copy of it",)
            assert copies[0].key == own.key
            assert copies[0].folder != own.folder
            assert other.build(first).folder == copies[0].folder
        with open_builder(recipe, where) as third:  # the first copy that is free
            built = third.build(first)
            assert (built.folder, built.reused, built.notes) == (own.folder, True, ())


def test_builders_of_one_bisection_share_its_worktrees(pure, where):
    """As the stage inside a merge, which needs the worktree of its base that the stage above has."""
    recipe, where = load_recipe("command"), replace(where, repo=pure.folder)
    revision = listed(recipe, where)[1][0]
    holds = BuildHolds()
    with open_builder(recipe, where, holds) as outer:
        built = outer.build(revision)
        with open_builder(recipe, where, holds) as inner:
            assert inner.build(revision).folder == built.folder
        with open_builder(recipe, where) as other:  # the outer one has it still
            assert other.build(revision).folder != built.folder
    with open_builder(recipe, where) as other:
        assert other.build(revision).folder == built.folder


def test_built_with_a_compiler_and_overlaid(compiled, where, tmp_path):
    repo, recipe = compiled
    where = replace(where, repo=repo.folder)
    before = picture(repo.folder)
    source, revisions = listed(recipe, where)
    touched = source.touched(revisions)
    with open_builder(recipe, where) as builder:
        assert builder.costs(revisions, touched) == [100.0] * 6
        c1, py2, docs3, c4, py5, py6 = [builder.build(revision) for revision in revisions]
        assert [ask(build, ASK) for build in (c1, py2, docs3, c4, py5, py6)] == (
            ["1 a", "1 b", "1 b", "4 b", "4 new", "4 new"]
        )  # fmt: skip
        assert counted(tmp_path) == (2, 2), "c1 and c4"
        assert [build.compiled_from for build in (c1, py2, c4, py5)] == [
            None, revisions[0].id, None, revisions[3].id
        ]  # fmt: skip
        assert docs3.reused
        assert docs3.folder == py2.folder
        assert not (py6.folder / "pkg" / "gone.py").exists()
        assert (py5.folder / "pkg" / "gone.py").exists()
        assert (c4.folder / "pkg" / "fast.so").samefile(py5.folder / "pkg" / "fast.so"), "no copy"
        assert builder.costs(revisions, touched) == [0.0] * 6

        fresh = builder.build(revisions[5], fresh=True)
        assert counted(tmp_path) == (3, 3), "from nothing, not from the lane"
        ours = {name: seen[:1] for name, seen in picture(py6.folder).items() if "__pycache__" not in name}
        theirs = {name: seen[:1] for name, seen in picture(fresh.folder).items() if "__pycache__" not in name}
        assert ours == theirs, "an overlay is what a build would have been"
    assert picture(repo.folder) == before


def test_incremental_builds_share_a_lane(compiled, where, tmp_path):
    repo, recipe = compiled
    repo.commit("both7", {"pkg/word.py": "word = 'z'", "setup.cfg": "[x]"})
    where = replace(where, repo=repo.folder)
    _, revisions = listed(recipe, where)
    with open_builder(recipe, where) as builder:
        builder.build(revisions[3])
        assert ask(builder.build(revisions[6]), ASK) == "4 z"
    assert counted(tmp_path) == (2, 1), "fast.o was still there"
    assert len(list((tmp_path / "cache" / "lanes").iterdir())) == 1


def test_costs_of_what_is_near_a_build(compiled, where, tmp_path):
    repo, recipe = compiled
    where = replace(where, repo=repo.folder)
    source, revisions = listed(recipe, where)
    touched = source.touched(revisions)
    with open_builder(recipe, where) as builder:
        built = builder.build(revisions[1])
        full = built.seconds
        costs = builder.costs(revisions, touched)
        assert costs[1:3] == [0.0, 0.0]
        assert costs[0] == 3.0, "an overlay, as none was measured"
        assert costs[3:] == pytest.approx([full] * 3, abs=0.002)


def test_a_build_that_fails(pure, where, tmp_path, monkeypatch):
    recipe = own(tmp_path, "[build]\ncommand = 'echo once >> $COUNT; echo it says why; exit 3'")
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    where = replace(where, repo=pure.folder)
    _, revisions = listed(recipe, where)
    with open_builder(recipe, where) as builder:
        with pytest.raises(Unbuildable, match="exit code 3: it says why") as error:
            builder.build(revisions[0])
        assert "it says why" in error.value.log.read_text()
        with pytest.raises(Unbuildable, match="exit code 3") as error:
            builder.build(revisions[0])
        assert error.value.remembered
        assert (tmp_path / "count").read_text().split() == ["once"]
        assert builder.costs(revisions)[0] == KNOWN_NOT_TO_BUILD
        with pytest.raises(Unbuildable):
            builder.build(revisions[0], again=True)
        assert (tmp_path / "count").read_text().split() == ["once"] * 2
        assert not list((tmp_path / "cache" / "built").iterdir())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cc1: fatal error: No space left on device", "no space left"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "memory did not suffice"),
        ("fatal: Temporary failure in name resolution", "the network failed"),
    ],
)
def test_what_is_not_the_commits_fault_is_not_remembered(pure, where, tmp_path, line, message):
    command = f"touch $PREFIX/x; [ -e {tmp_path}/well ] || {{ echo {line}; exit 1; }}"
    recipe = own(tmp_path, f"[build]\ncommand = '{command}'")
    where = replace(where, repo=pure.folder)
    _, revisions = listed(recipe, where)
    with open_builder(recipe, where) as builder:
        with pytest.raises(MachineError, match=message):
            builder.build(revisions[0])
        (tmp_path / "well").touch()
        assert not builder.build(revisions[0]).reused


def test_time_limit_ends_all_that_a_build_started(pure, where, tmp_path):
    recipe = own(tmp_path, "[build]\ntime_limit_s = 1\ncommand = 'setsid sleep 61.125 & sleep 61.125'")
    where = replace(where, repo=pure.folder)
    _, revisions = listed(recipe, where)
    with open_builder(recipe, where) as builder:
        with pytest.raises(Unbuildable, match="not done in 1 s"):
            builder.build(revisions[0])
        (left,) = (tmp_path / "cache" / "built").iterdir()
        assert [path.name for path in left.iterdir()] == ["build.log"]
        assert not builder.known(revisions[0]), "another day it may do"
    assert not sleeping("61.125")


def test_a_build_is_stopped(pure, where, tmp_path):
    recipe = own(tmp_path, "[build]\ncommand = 'sleep 62.125'")
    where = replace(where, repo=pure.folder)
    _, revisions = listed(recipe, where)
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    with open_builder(recipe, where) as builder, pytest.raises(BuildStopped):
        builder.build(revisions[0], stop=stop)
    assert not sleeping("62.125")


def test_each_build_asks_for_the_cores_that_are_free_when_it_begins(pure, where, tmp_path):
    """A night may have begun since the bisection did."""
    recipe = own(tmp_path, "[build]\ncommand = 'grep Cpus_allowed_list /proc/self/status > $PREFIX/cores'")
    asked = []

    def cores():
        asked.append((0,))
        return asked[-1]

    where = replace(where, repo=pure.folder, cores=cores)
    _, revisions = listed(recipe, where)
    with open_builder(recipe, where) as builder:
        assert asked == []
        built = [builder.build(revisions[place]) for place in (0, 1, 0)]
    assert len(asked) == 2, "one for each build, none for that of the cache"
    assert [(each.folder / "cores").read_text().split()[1:] for each in built] == [["0"]] * 3


def test_variables_of_a_build(pure, where, tmp_path, monkeypatch):
    command = "env > $PREFIX/env; which python >> $PREFIX/env"
    recipe = own(tmp_path, f"[build]\ngib_per_job = 0.001\nenv = {{MINE = 'yes'}}\ncommand = '{command}'")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    for name in ("GITHUB_TOKEN", "PERFDASH_DB", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "s3cret")
    where = replace(where, repo=pure.folder, cores=lambda: (0,))
    _, revisions = listed(recipe, where)
    with open_builder(recipe, where) as builder:
        built = builder.build(revisions[0])
    lines = (built.folder / "env").read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines[:-1] if "=" in line)
    assert env["MINE"] == "yes"
    assert env["MAX_JOBS"] == "1"
    assert env["REVISION"] == revisions[0].id
    assert env["PYTHON"] == sys.executable
    assert Path(lines[-1]).parent == Path(sys.executable).parent
    assert "GIT_INDEX_FILE" not in env
    assert "PYTHONPATH" not in env
    assert "s3cret" not in "".join(lines), "a build runs code of others, and its log is read by others"
