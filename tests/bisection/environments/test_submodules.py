"""Submodules follow their commit, from the user's clones where those have it; bisecting inside a pin."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.bisection.environments import Unbuildable, open_builder
from perfdash.bisection.recipes import load_recipe
from perfdash.bisection.sources import BuildContext, InsidePin, open_source
from perfdash.bisection.sources.finer_range import pin_changes
from perfdash.bisection.sources.git_repository import reverted
from perfdash.errors import MachineError
from tests.repositories import Repository, picture

pytestmark = pytest.mark.slow

RECIPE = """
name = "outer"
kind = "commits"
[build]
incremental = true
command = 'cat inner/n.txt inner/deep/d.txt pin.txt > $PREFIX/said'
[[pins]]
name = "inner"
repository = "somewhere"
submodule = "inner"
[[pins]]
name = "other"
repository = "elsewhere"
file = "pin.txt"
[[pins]]
name = "deep"
repository = "x"
submodule = "deep"
"""


@pytest.fixture
def made(tmp_path):
    """outer has the submodule inner, which has the submodule deep; `user` is the user's clone of outer."""
    deep = Repository(tmp_path / "deep")
    deep.commit("d1", {"d.txt": "d1\n"})
    inner = Repository(tmp_path / "inner")
    inner.git("submodule", "--quiet", "add", "../deep", "deep")
    inner.commit("i1", {"n.txt": "i1\n"})
    outer = Repository(tmp_path / "outer")
    outer.git("submodule", "--quiet", "add", "../inner", "inner")
    outer.git("submodule", "--quiet", "update", "--init", "--recursive")
    outer.commit("o1", {"pin.txt": f"{'a' * 40}\n"})
    for number in (2, 3, 4):
        inner.commit(f"i{number}", {"n.txt": f"i{number}\n"})
    outer.git("-C", "inner", "pull", "--quiet")
    outer.commit("o2 pins i4", {})
    outer.commit("o3 pins b", {"pin.txt": f"{'b' * 40}\n"})
    (tmp_path / "outer.toml").write_text(RECIPE)
    recipe = load_recipe(str(tmp_path / "outer.toml"))
    where = BuildContext(python=Path("/usr/bin/env"), repo=outer.folder, cache=tmp_path / "cache")
    return outer, inner, deep, recipe, where


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    """These builds need no Python."""
    from perfdash.bisection.environments import commits_builder, interpreter

    fake = interpreter.Interpreter(Path("/usr/bin/env"), "3", "", "linux", {}, {}, {})
    monkeypatch.setattr(commits_builder, "probe", lambda python: fake)


def imported(built):
    return (built.folder / "said").read_text().split()


def test_submodules_follow(made):
    outer, _, _, recipe, where = made
    revisions = open_source(recipe, where).revisions("main~2", "main")
    before = picture(outer.folder)
    with open_builder(recipe, where) as builder:
        for revision, number, pin in zip(revisions, "144", "aab", strict=True):
            assert imported(builder.build(revision))[:3] == [f"i{number}", "d1", pin * 40]
        # back again in the same lane
        assert imported(builder.build(revisions[0], fresh=True))[:3] == ["i1", "d1", "a" * 40]
    assert picture(outer.folder) == before


def test_from_the_users_own_clones_without_the_remote(made):
    _, inner, deep, recipe, where = made
    revisions = open_source(recipe, where).revisions("main~2", "main")
    for gone in (inner, deep):
        shutil.rmtree(gone.folder)
    with open_builder(recipe, where) as builder:
        assert imported(builder.build(revisions[0]))[0] == "i1"
        assert imported(builder.build(revisions[2]))[0] == "i4"


def test_from_the_remote_where_the_user_has_not_got_it(made, tmp_path):
    """A clone without its submodules; their addresses are relative to where it was cloned from."""
    outer, _, _, recipe, where = made
    subprocess.run(["git", "clone", "--quiet", outer.folder, tmp_path / "elsewhere" / "user"], check=True)
    where = replace(where, repo=tmp_path / "elsewhere" / "user")
    revisions = open_source(recipe, where).revisions("main~2", "main")
    with open_builder(recipe, where) as builder:
        assert imported(builder.build(revisions[0]))[:2] == ["i1", "d1"]
        assert imported(builder.build(revisions[1]))[:2] == ["i4", "d1"]


def test_a_folder_that_becomes_a_submodule_and_back(tmp_path):
    """In one lane; a file that git ignores keeps the folder there."""
    inner = Repository(tmp_path / "inner")
    inner.commit("i1", {"n.txt": "i1"})
    outer = Repository(tmp_path / "outer")
    outer.commit("folder", {"inner/n.txt": "plain", ".gitignore": "*.o\n"})
    outer.git("rm", "-rq", "inner")
    outer.git("submodule", "--quiet", "add", "../inner", "inner")
    outer.commit("submodule")
    outer.git("rm", "-q", "inner")
    outer.commit("folder again", {"inner/n.txt": "again"})
    (tmp_path / "own.toml").write_text(
        'name = "own"\nkind = "commits"\n[build]\nincremental = true\n'
        "command = 'cat inner/n.txt > $PREFIX/said; touch inner/left.o'"
    )
    recipe = load_recipe(str(tmp_path / "own.toml"))
    where = BuildContext(python=Path("/usr/bin/env"), repo=outer.folder, cache=tmp_path / "cache")
    revisions = open_source(recipe, where).revisions("main~2", "main~1")
    revisions += open_source(recipe, where).revisions("main~1", "main")[1:]
    with open_builder(recipe, where) as builder:
        assert [imported(builder.build(revisions[place])) for place in (0, 1, 2)] == [
            ["plain"],
            ["i1"],
            ["again"],
        ]


def test_taken_back_with_submodules(made, tmp_path):
    """From the user's clones of them; the token of the address is not written down."""
    outer, inner, deep, recipe, where = made
    outer.git("config", "remote.origin.url", "https://T0KEN@127.0.0.1:9/o/outer")
    for gone in (inner, deep):
        shutil.rmtree(gone.folder)
    revisions = open_source(recipe, where).revisions("main~2", "main")
    own = tmp_path / "own"
    back = reverted(outer.folder, revisions[-1], revisions[1], own)
    with open_builder(recipe, replace(where, repo=own)) as builder:
        assert imported(builder.build(back))[:2] == ["i1", "d1"]
    assert "T0KEN" not in (own / "config").read_text()


def test_a_submodule_that_is_nowhere(made):
    outer, _, _, recipe, where = made
    outer.git("config", "--file", ".gitmodules", "submodule.inner.url", "../vanished")
    outer.git("update-index", "--cacheinfo", f"160000,{'1' * 40},inner")
    outer.git("add", ".gitmodules")
    outer.git("commit", "--quiet", "-m", "broken")
    revisions = open_source(recipe, where).revisions("main~1", "main")
    with open_builder(recipe, where) as builder, pytest.raises(Unbuildable) as error:
        builder.build(revisions[-1])
    assert str(error.value).startswith("git submodule: ")
    assert "vanished" in str(error.value)


def test_a_password_of_the_origin_comes_to_no_file(made, tmp_path):
    outer, _, _, recipe, where = made
    shutil.rmtree(outer.folder / ".git" / "modules")
    outer.git("config", "remote.origin.url", "http://ann:s3cret@127.0.0.1:9/o/outer.git")
    revisions = open_source(recipe, where).revisions("main~1", "main")
    with open_builder(recipe, where) as builder:
        with pytest.raises(MachineError, match="the network failed") as error:
            builder.build(revisions[0])
        assert not builder.known(revisions[0])
    assert "s3cret" not in str(error.value)
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            assert b"s3cret" not in path.read_bytes(), path


def test_pins_that_a_commit_changes(made):
    outer, inner, _, recipe, _ = made
    (change,) = pin_changes(recipe.pins, outer.folder, outer.git("rev-parse", "main~1"))
    assert change.pin.name == "inner"
    assert (change.old, change.new) == (inner.git("rev-parse", "main~3"), inner.head)
    (change,) = pin_changes(recipe.pins, outer.folder, "main")
    assert (change.pin.name, change.old, change.new) == ("other", "a" * 40, "b" * 40)
    assert pin_changes(recipe.pins, outer.folder, "main~2") == []


def test_inside_a_pin(made):
    outer, inner, deep, recipe, where = made
    culprit = outer.git("rev-parse", "main~1")
    (change,) = pin_changes(recipe.pins, outer.folder, culprit)
    inside = InsidePin(pin=change.pin, repo=inner.folder, outer=culprit)
    there = replace(where, inside=inside)
    revisions = open_source(recipe, there).revisions(change.old, change.new)
    assert [revision.title for revision in revisions] == ["i1", "i2", "i3", "i4"]
    with open_builder(recipe, there) as builder:
        built = [builder.build(revision) for revision in (revisions[2], revisions[0])]
        assert [imported(build)[0] for build in built] == ["i3", "i1"]
        assert imported(built[0])[2] == "a" * 40, "all else is as the outer commit has it"
        assert builder.costs(revisions)[0] == 0.0
        assert builder.costs(revisions)[1] > 0

    deep.commit("d2", {"d.txt": "d2\n"})
    pins = {pin.name: pin for pin in recipe.pins}
    deeper = InsidePin(
        pin=pins["deep"], repo=deep.folder, outer=culprit, folder="inner",
        fixed=(("inner", revisions[2].id, inner.folder),),
    )  # fmt: skip
    there = replace(where, inside=deeper)
    revisions = open_source(recipe, there).revisions("main~1", "main")
    with open_builder(recipe, there) as builder:
        assert imported(builder.build(revisions[1]))[:2] == ["i3", "d2"]


def test_inside_a_file_that_pins(made):
    outer, inner, _, recipe, where = made
    pin = next(pin for pin in recipe.pins if pin.file)
    there = replace(where, inside=InsidePin(pin=pin, repo=inner.folder, outer=outer.head))
    revisions = open_source(recipe, there).revisions("main~1", "main")
    with open_builder(recipe, there) as builder:
        assert imported(builder.build(revisions[0]))[2] == revisions[0].id


def test_the_worktree_of_a_command_keeps_its_pin_when_it_is_reused(made, tmp_path):
    """As a resumed bisection reuses it."""
    outer, inner, _, _, where = made
    text = RECIPE[: RECIPE.index("[build]")] + "exclusive = true\n" + RECIPE[RECIPE.index("[[pins]]") :]
    (tmp_path / "outer.toml").write_text(text)
    recipe = load_recipe(str(tmp_path / "outer.toml"))
    pin = next(pin for pin in recipe.pins if pin.file)
    there = replace(where, inside=InsidePin(pin=pin, repo=inner.folder, outer=outer.head))
    (revision, *_) = open_source(recipe, there).revisions("main~1", "main")
    for is_reused in (False, True):
        with open_builder(recipe, there) as builder:
            built = builder.build(revision)
            assert built.reused == is_reused
            assert (built.folder / "pin.txt").read_text().split() == [revision.id]
            (built.folder / "pin.txt").write_text("changed by a measurement")
