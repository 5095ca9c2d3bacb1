"""Versions of a package as pip lists them, from folders that the tests make; what is wrong with two ends."""

from pathlib import Path

import pytest

from perfdash.bisection.recipes import load_recipe
from perfdash.bisection.sources import BuildContext, open_source
from perfdash.bisection.sources.versions_source import PackageVersions
from perfdash.errors import UsageError
from tests.wheels import make_interpreter, make_wheel


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make_interpreter(tmp_path_factory.mktemp("base") / "own")


@pytest.fixture
def where(tmp_path, base):
    def make(links=None, **settings):
        return BuildContext(python=base, cache=tmp_path / "cache", links=links, settings=settings)

    return make


def labels(recipe, where, good, bad):
    return [revision.label for revision in open_source(recipe, where).revisions(good, bad)]


def recipe(word="wheels:alpha"):
    return load_recipe(word)


@pytest.mark.slow
def test_versions_of_a_folder_in_order(tmp_path, where):
    for version in ("1.10", "1.9", "1.0", "1.9.1rc1", "2.0+cpu", "2.0+cu128", "3.0"):
        make_wheel(tmp_path / "w", "alpha", version)
    make_wheel(tmp_path / "w", "alpha", "2.5", tag="cp27-cp27m-linux_x86_64")
    make_wheel(tmp_path / "w", "beta", "2.6")
    source = open_source(recipe(), where(str(tmp_path / "w")))
    for bad, last in (("3.0", "3.0"), ("2.0+cpu", "2.0+cpu")):
        versions = [revision.label for revision in source.revisions("1.0", bad)]
        assert versions == ["1.0", "1.9", "1.9.1rc1", "1.10", last]
    without = where(str(tmp_path / "w"), **{"versions.pre": False})
    assert "1.9.1rc1" not in labels(recipe(), without, "1.9", "1.10")


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("3.0", "1.0", "are swapped"),
        ("1.0", "1.0.0", "are the same version"),
        ("1.0", "1.2", "no such version of alpha"),
        ("main", "3.0", "--good 'main' is no version"),
        ("1.0", "2.0", "may be 2.0\\+cpu or 2.0\\+cu128: say which"),
    ],
)
def test_bad_ends(good, bad, message):
    source = PackageVersions(recipe(), ["3.0", "2.0+cpu", "2.0+cu128", "1.0", "2004b"])
    with pytest.raises(UsageError, match=message):
        source.revisions(good, bad)


def test_nightlies_by_date(tmp_path, where):
    text = "__version__ = 'x'\ngit_version = '{}'\n"
    folder = tmp_path / "my wheels"
    for number, day in enumerate(("20261030", "20261031", "20261102")):
        version = f"2.15.0.dev{day}+cpu" if number else f"2.14.0.dev{day}+cpu"
        make_wheel(folder, "torch", version, files={"torch/version.py": text.format(f"{number}" * 40)})
    make_wheel(folder, "torch", "2.14.0")
    nightly, place = recipe("nightly"), where(str(folder))
    source = open_source(nightly, place)
    revisions = source.revisions("2026-10-30", "20261102")
    assert [revision.date for revision in revisions] == ["2026-10-30", "2026-10-31", "2026-11-02"]
    assert revisions[1].title == "torch 2.15.0.dev20261031+cpu of commit 1111111111"
    assert source.touched(revisions) == [(), (), ()]
    assert source.inside(revisions[1], 2, [revisions[0].id]) == []
    with pytest.raises(UsageError, match="the nearest: 2026-10-31 and 2026-11-02"):
        source.revisions("2026-11-01", "2026-11-02")


@pytest.mark.slow
def test_wheels_have_to_be_somewhere(tmp_path, where):
    for links, message in ((None, "say where the wheels are"), (str(tmp_path / "x"), "no such folder")):
        with pytest.raises(UsageError, match=message):
            open_source(recipe(), where(links))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=f"no version of alpha .* in {tmp_path}/empty"):
        open_source(recipe(), where(str(tmp_path / "empty")))
    make_wheel(tmp_path / "w", "torch", "2.14.0")
    with pytest.raises(UsageError, match="has a date in it"):
        open_source(recipe("nightly"), where(str(tmp_path / "w")))
