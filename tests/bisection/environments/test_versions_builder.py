"""Versions of a package by real pip, from folders and indexes that the tests make."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from perfdash.bisection.environments import KNOWN_NOT_TO_BUILD, Unbuildable, open_builder
from perfdash.bisection.environments import pip as pip_calls
from perfdash.bisection.environments.interpreter import plain_environment, probe
from perfdash.bisection.recipes import load_recipe
from perfdash.bisection.sources import BuildContext, open_source
from perfdash.errors import MachineError, UsageError
from tests.wheels import make_index, make_interpreter, make_wheel, site_of

pytestmark = pytest.mark.slow


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


def imported(built, statement="import alpha; print(alpha.__version__)"):
    done = subprocess.run(
        [built.python, "-c", statement], env={**plain_environment(), **built.variables()},
        capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    return done.stdout.strip() or done.stderr


def recipe(word="wheels:alpha"):
    return load_recipe(word)


def test_no_such_interpreter(tmp_path, where):
    bad = tmp_path / "python"
    bad.write_text("#!/bin/sh\necho broken >&2; exit 1\n")
    bad.chmod(0o755)
    for python, message in ((tmp_path / "none", "cannot be run"), (bad, "no working interpreter: broken")):
        with pytest.raises(UsageError, match=message):
            open_builder(recipe(), BuildContext(python=python, cache=tmp_path / "c"))


def test_an_interpreter_that_says_more(tmp_path):
    """As one with a sitecustomize that prints."""
    loud = tmp_path / "python"
    loud.write_text(f'#!/bin/sh\necho hello\nexec {sys.executable} "$@"\n')
    loud.chmod(0o755)
    assert probe(loud).version == sys.version


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        ("x.cpp: error: OutOfMemoryError is not a member of c10\n1 error", None),
        ("cc1plus: fatal error: out of memory allocating 65536 bytes", "memory"),
        ("  File a.py\nMemoryError\n", "memory"),
        ("WARNING: 401 Error, Credentials not correct for http://x/", "network"),
        ("fatal: could not read Username for 'https://x': terminal prompts disabled", "network"),
        ("ERROR: HTTP error 503 while getting https://x/y.whl", "network"),
    ],
)
def test_whose_fault_it_was(log, fault):
    blame = pip_calls.machine_fault(log)
    assert (fault in blame) if fault else blame is None


def test_a_version_is_laid_over_the_base(tmp_path, where):
    for version in ("1.0", "2.0"):
        make_wheel(tmp_path / "w", "alpha", version)
    place = where(str(tmp_path / "w"))
    revisions = open_source(recipe(), place).revisions("1.0", "2.0")
    with open_builder(recipe(), place) as builder:
        assert not builder.known(revisions[0])
        built = [builder.build(revision) for revision in revisions]
        assert [imported(build) for build in built] == ["1.0", "2.0"]
        assert built[0].packages == {"alpha": "1.0"}
        assert not built[0].reused
        again = builder.build(revisions[0])
        assert again.reused
        assert (again.key, again.seconds) == (built[0].key, built[0].seconds)
        assert builder.known(revisions[0])
        assert builder.costs(revisions) == [0.0, 0.0]
        fresh = builder.build(revisions[0], fresh=True)
        assert fresh.folder != built[0].folder
        assert imported(fresh) == "1.0"
    with open_builder(recipe(), place) as builder:
        assert builder.build(revisions[1]).reused
    assert imported(built[0], "import alpha") == ""
    assert (
        "No module"
        in subprocess.run([place.python, "-c", "import alpha"], capture_output=True, text=True).stderr
    )  # the base is as it was


def test_the_exact_version_not_its_cpu_sister(tmp_path, where):
    for version in ("2.13.0", "2.13.0+cpu"):
        make_wheel(tmp_path / "w", "alpha", version)
    make_wheel(tmp_path / "w", "alpha", "2.14.0")
    place = where(str(tmp_path / "w"))
    first = open_source(recipe(), place).revisions("2.13.0", "2.14.0")[0]
    with open_builder(recipe(), place) as builder:
        assert imported(builder.build(first)) == "2.13.0"


def test_a_wheel_made_anew_is_built_anew(tmp_path, where):
    make_wheel(tmp_path / "w", "alpha", "1.0")
    make_wheel(tmp_path / "w", "alpha", "2.0")
    place = where(str(tmp_path / "w"))
    first, second = open_source(recipe(), place).revisions("1.0", "2.0")
    with open_builder(recipe(), place) as builder:
        builder.build(first)
        keys = builder.key(first), builder.key(second)
        make_wheel(tmp_path / "w", "alpha", "1.0", files={"alpha/__init__.py": "__version__ = 'anew'"})
        assert builder.key(second) == keys[1]
        assert builder.key(first) != keys[0]
        assert imported(builder.build(first)) == "anew"


def test_what_the_base_does_not_have(tmp_path, where):
    make_wheel(tmp_path / "w", "alpha", "1.0")
    make_wheel(
        tmp_path / "w", "alpha", "2.0",
        requires=["beta>=2; python_version >= '3'", "gamma; extra == 'all'", "delta; os_name == 'nt'"],
    )  # fmt: skip
    make_wheel(tmp_path / "w", "beta", "2.1", requires=["epsilon<3"])
    make_wheel(tmp_path / "w", "epsilon", "2.9")
    make_wheel(tmp_path / "w", "epsilon", "3.0")
    links = str(tmp_path / "w")
    last = open_source(recipe(), where(links)).revisions("1.0", "2.0")[-1]
    with open_builder(recipe(), where(links)) as builder:
        with pytest.raises(
            Unbuildable, match=r"alpha needs beta>=2, and there is none in the base; --set"
        ) as e:
            builder.build(last)
        assert not e.value.remembered
        assert e.value.log.exists()
        assert builder.known(last)
        assert builder.costs([last]) == [KNOWN_NOT_TO_BUILD]
        with pytest.raises(Unbuildable, match="alpha needs beta") as e:
            builder.build(last)
        assert e.value.remembered
        with pytest.raises(Unbuildable) as e:
            builder.build(last, again=True)
        assert not e.value.remembered
    with open_builder(recipe(), where(links, **{"versions.dependencies": "add"})) as builder:
        assert builder.build(last).packages == {"alpha": "2.0", "beta": "2.1", "epsilon": "2.9"}
    with open_builder(recipe(), where(links, **{"versions.dependencies": "ignore"})) as builder:
        assert builder.build(last).packages == {"alpha": "2.0"}


def test_what_the_base_has_is_not_what_it_should_be(tmp_path):
    python = make_interpreter(tmp_path / "base")
    links = tmp_path / "w"
    for wheel in (make_wheel(links, "beta", "1.0"), make_wheel(links, "zeta", "1.0", requires=["alpha<2"])):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site_of(tmp_path / "base"))
    make_wheel(links, "alpha", "1.0")
    make_wheel(links, "alpha", "2.0", requires=["beta<1"])
    make_wheel(links, "alpha", "3.0")
    place = BuildContext(python=python, cache=tmp_path / "cache", links=str(links))
    _, second, third = open_source(recipe(), place).revisions("1.0", "3.0")
    with open_builder(recipe(), place) as builder:
        with pytest.raises(Unbuildable, match=r"alpha needs beta<1, and there is 1.0 in the base"):
            builder.build(second)
        assert builder.build(third).notes == ("with 3.0: zeta needs alpha<2, and there is 3.0",)


def test_an_index_with_what_was_withdrawn(tmp_path, where):
    wheels = [make_wheel(tmp_path / "w", "alpha", version) for version in ("1.0", "1.1", "1.2")]
    address = make_index(tmp_path / "index", wheels, yanked=["1.1"])
    place = where(address)
    revisions = open_source(recipe(), place).revisions("1.0", "1.2")
    assert [revision.label for revision in revisions] == ["1.0", "1.2"]
    with open_builder(recipe(), place) as builder:
        assert imported(builder.build(revisions[0])) == "1.0"
    with pytest.raises(UsageError, match="or it was withdrawn"):
        labels(recipe(), place, "1.0", "1.1")
    folder = where(str(tmp_path / "index"))  # the same, said as a folder
    assert labels(recipe(), folder, "1.0", "1.2") == ["1.0", "1.2"]


def test_a_base_without_pip(tmp_path):
    for version in ("1.0", "2.0"):
        make_wheel(tmp_path / "w", "alpha", version)
    python = make_interpreter(tmp_path / "base", with_pip=False)
    place = BuildContext(python=python, cache=tmp_path / "cache", links=str(tmp_path / "w"))
    first = open_source(recipe(), place).revisions("1.0", "2.0")[0]
    with open_builder(recipe(), place) as builder:
        assert imported(builder.build(first)) == "1.0"


def test_the_users_own_pip_settings(tmp_path, where, monkeypatch):
    for version in ("1.0", "2.0"):
        make_wheel(tmp_path / "w", "alpha", version)
    place = where(str(tmp_path / "w"))
    revision = open_source(recipe(), place).revisions("1.0", "2.0")[0]
    (tmp_path / "constraints.txt").write_text("alpha==2.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    monkeypatch.setenv("PIP_ROOT", str(tmp_path / "root"))
    with open_builder(recipe(), place) as builder:
        with monkeypatch.context() as patch:
            patch.setattr(pip_calls, "_ELSEWHERE", ())
            patch.setenv("PIP_DRY_RUN", "1")
            patch.delenv("PIP_CONSTRAINT")
            with pytest.raises(MachineError, match="has installed no alpha"):
                builder.build(revision)
        assert not builder.known(revision)
        assert imported(builder.build(revision)) == "1.0"


def test_only_the_users_links_are_asked(tmp_path, where, monkeypatch):
    make_wheel(tmp_path / "w", "alpha", "1.0")
    make_wheel(tmp_path / "w", "alpha", "2.0")
    make_wheel(tmp_path / "other", "alpha", "1.5")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "other"))
    assert labels(recipe(), where(str(tmp_path / "w")), "1.0", "2.0") == ["1.0", "2.0"]
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(UsageError, match="are the same version"):
        labels(recipe("pypi:alpha"), where(), "1.5", "1.5.0")


def test_secrets_stay_secret(tmp_path, where, monkeypatch):
    address = "http://ann:s3cret@127.0.0.1:9/simple"
    monkeypatch.setenv("PIP_RETRIES", "0")
    place = where(address)
    with pytest.raises((UsageError, MachineError)) as error:
        open_source(recipe(), place)
    assert "s3cret" not in str(error.value)
    make_wheel(tmp_path / "w", "alpha", "1.0")
    make_wheel(tmp_path / "w", "alpha", "2.0")
    revision = open_source(recipe(), where(str(tmp_path / "w"))).revisions("1.0", "2.0")[0]
    with open_builder(recipe(), place) as builder, pytest.raises((Unbuildable, MachineError)) as failure:
        builder.build(revision)
    assert "s3cret" not in str(failure.value)
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" for path in files)
    for path in files:
        assert b"s3cret" not in path.read_bytes(), path


def test_a_base_that_has_its_own_way_is_noticed(tmp_path):
    """As an editable install whose finder comes before the path."""
    python = make_interpreter(tmp_path / "base")
    site = site_of(tmp_path / "base")
    (tmp_path / "dev" / "alpha").mkdir(parents=True)
    (tmp_path / "dev" / "alpha" / "__init__.py").write_text("__version__ = 'dev'")
    (site / "finder.py").write_text(
        "import sys, importlib.machinery as m\n"
        "class F(m.PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        if name == 'alpha':\n"
        f"            return m.PathFinder.find_spec(name, [{str(tmp_path / 'dev')!r}])\n"
        "sys.meta_path.insert(0, F)\n"
    )
    (site / "finder.pth").write_text("import finder\n")
    for version in ("1.0", "2.0"):
        make_wheel(tmp_path / "w", "alpha", version)
    place = BuildContext(python=python, cache=tmp_path / "cache", links=str(tmp_path / "w"))
    first = open_source(recipe(), place).revisions("1.0", "2.0")[0]
    with (
        open_builder(recipe(), place) as builder,
        pytest.raises(MachineError, match=r"imports alpha from .*dev"),
    ):
        builder.build(first)


@pytest.mark.slow
def test_a_real_index(where):
    versions = load_recipe("pypi:iniconfig")
    place = where()
    revisions = open_source(versions, place).revisions("1.1.1", "2.0.0")
    assert [revision.label for revision in revisions] == ["1.1.1", "2.0.0"]
    with open_builder(versions, place) as builder:
        built = builder.build(revisions[-1])
        assert (
            imported(built, "import iniconfig, importlib.metadata as m; print(m.version('iniconfig'))")
            == "2.0.0"
        )
