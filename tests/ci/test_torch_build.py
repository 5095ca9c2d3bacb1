"""ci/torch_build.sh: environments by content, kept, pruned; torch here is a package of two lines."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.ci.library import Library, project
from tests.ci.nights import CHECKOUT, variables
from tests.repositories import Repository
from tests.wheels import make_index, make_wheel

pytestmark = pytest.mark.slow

SCRIPT = CHECKOUT / "ci" / "torch_build.sh"
COMMIT = "c0ffee" + "0" * 34


def torch_files(commit: str = COMMIT) -> dict[str, str]:
    return {
        "torch/__init__.py": "from torch import version\n__version__ = version.__version__\n",
        "torch/version.py": f"__version__ = '1'\ngit_version = {commit!r}\n",
    }


class Builds:
    """An environment of perfdash with pip and nothing else, and the folder of environments."""

    def __init__(self, home: Path, own: Path) -> None:
        self.home = home
        self.own = own
        self.kept = home / "environments"
        self.wheels = home / "wheels"

    def torch(self, version: str, commit: str = COMMIT) -> Path:
        return make_wheel(self.wheels, "torch", version, files=torch_files(commit))

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = variables(self.home, PERFDASH_VENV=str(self.own), TORCH_WITH="", PIP_NO_INDEX="1")
        return subprocess.run(
            [SCRIPT, *words], env={**env, **more}, cwd=self.home, capture_output=True, text=True
        )

    def python(self, *words: str, **more: str) -> Path:
        done = self.run(*words, **more)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip())

    def environments(self, kind: str) -> set[str]:
        return {path.name for path in self.kept.glob(f"{kind}-*")}


def ask(python: Path, code: str) -> str:
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return done.stdout.strip()


def about(python: Path) -> dict[str, str]:
    lines = (python.parents[1] / "about").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "venv"
    venv.create(folder, with_pip=True)
    return folder


@pytest.fixture
def builds(tmp_path, own):
    return Builds(tmp_path, own)


def test_the_newest_nightly_of_an_index(builds):
    index = make_index(builds.home / "index", [builds.torch("2.15.0.dev20261120"), builds.torch("2.14.0")])
    python = builds.python(TORCH="nightly", TORCH_INDEX=index, PIP_NO_INDEX="")
    assert ask(python, "import torch; print(torch.__file__)").startswith(str(python.parents[1]))
    assert about(python)["git_version"] == COMMIT
    assert ask(python, "from importlib.metadata import version; print(version('torch'))").endswith("1120")
    # Nothing new: the same one, found without building.
    again = builds.run(TORCH="nightly", TORCH_INDEX=index, PIP_NO_INDEX="")
    assert again.stdout.strip() == str(python)
    assert "Making" not in again.stderr
    make_index(builds.home / "index", [builds.torch("2.15.0.dev20261121")])
    assert builds.python(TORCH="nightly", TORCH_INDEX=index, PIP_NO_INDEX="") != python


def test_a_version_and_a_wheel(builds):
    wheel = builds.torch("2.14.0")
    builds.torch("2.15.0")
    by_version = builds.python(TORCH="2.14.0", TORCH_INDEX="wheels")
    by_file = builds.python(TORCH=f"wheels/{wheel.name}")
    for python in (by_version, by_file):
        assert ask(python, "from importlib.metadata import version; print(version('torch'))") == "2.14.0"
    # The same name with another content is another environment.
    builds.torch("2.14.0", "d" * 40)
    other = builds.python(TORCH=f"wheels/{wheel.name}")
    assert other not in (by_version, by_file)
    assert about(other)["git_version"] == "d" * 40


def test_all_cells_of_a_night_measure_one_build(builds):
    """A newer torch and a newer commit of the library come while the second cell waits for its agent."""
    library = Repository(builds.home / "mylib")
    first = library.commit("one", project("mylib"))
    builds.torch("2.15.0.dev20261120", "1" * 40)
    night = builds.home / "night"
    asked = {
        "TORCH": "nightly", "TORCH_INDEX": str(builds.wheels), "UNDER_TEST": f"git+file://{library.folder}",
        "NIGHT": str(night), "PERFDASH_NIGHTLY": str(night), "SUITES": "timm", "SHARDS": "2",
    }  # fmt: skip
    env = variables(builds.home, PERFDASH_VENV=str(builds.own), TORCH_WITH="", PIP_NO_INDEX="1")

    def script(name, *words, **more):
        done = subprocess.run(
            [CHECKOUT / "ci/nightly" / name, *words], env={**env, **asked, **more},
            cwd=builds.home, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    script("pin.sh")
    cells = json.loads(script("cells.sh", "measure", "--json"))
    measured = []
    for cell in cells:
        script("torch.sh", **cell)
        folder = Path(cell["PERFDASH_NIGHTLY"])
        measured.append([(folder / name).read_text().strip() for name in ("git_version", "python")])
        builds.torch("2.15.0.dev20261121", "2" * 40)
        library.commit("two", {"mylib/new.py": ""})
    assert len(measured) == 2
    assert measured[0] == measured[1]
    assert measured[0][0] == "1" * 40
    assert first in about(Path(measured[0][1]))["UNDER_TEST"]
    # An agent that cannot have it, e.g. with another Python, takes its own newest, and says so.
    (night / "build").write_text("TORCH=2.15.0.dev20270101\nUNDER_TEST=\n")
    cell = json.loads(script("cells.sh", "measure", "--json"))[0]
    assert "it takes its own newest" in script("torch.sh", **cell)
    assert (Path(cell["PERFDASH_NIGHTLY"]) / "git_version").read_text().strip() == "2" * 40
    # Where it cannot be found out each cell does so, and the log says what that means.
    (night / "build").unlink()
    out = script("pin.sh", TORCH_INDEX=str(builds.home / "elsewhere"))
    assert "cells may measure different builds" in out
    assert "TORCH" not in json.loads(script("cells.sh", "measure", "--json"))[0]


def test_a_library_that_cannot_be_read_where_the_build_is_chosen_leaves_torch_chosen(builds):
    builds.torch("2.15.0.dev20261120")
    more = {"TORCH": "nightly", "TORCH_INDEX": "wheels", "UNDER_TEST": "git+file:///nowhere"}
    done = builds.run("--pin", **more)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "TORCH=2.15.0.dev20261120\nUNDER_TEST=git+file:///nowhere\n"
    assert "each cell takes its newest" in done.stderr


def test_choosing_a_build_does_not_wait_for_one_that_is_made(builds):
    builds.kept.mkdir(exist_ok=True)
    with (builds.kept / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = builds.run("--pin", TORCH="installed")
    assert done.returncode == 0, done.stderr


def test_a_commit_is_built_from_source(builds):
    repository = Repository(builds.home / "pytorch")
    commit = repository.commit("one", {**torch_files("e" * 40), **project("torch")})
    repository.commit("two", {"build_backend/backend.py": "raise SystemExit('not this one')\n"})
    python = builds.python(TORCH=commit[:12], TORCH_REPO="pytorch")
    assert about(python)["git_version"] == "e" * 40
    assert about(python)["commit"] == commit
    bad = builds.run(TORCH=repository.head, TORCH_REPO="pytorch")
    assert bad.returncode == 3
    assert "cannot be built" in bad.stderr
    assert len(builds.environments("torch")) == 1, "of what failed nothing is left"


def test_a_library_on_top_of_it(builds, tmp_path):
    builds.torch("2.14.0")
    library = Library(tmp_path)
    first = library.commit("first")
    base = {"TORCH": "2.14.0", "TORCH_INDEX": "wheels", "UNDER_TEST": "tinylib"}
    base_python = builds.python(**base)
    second = library.commit("second", steps=12)
    two = builds.python(**base)
    assert base_python != two
    for python, commit, steps in ((base_python, first, "10"), (two, second, "12")):
        code = "import importlib.metadata as m; print(m.distribution('tinylib').read_text('direct_url.json'))"
        assert json.loads(ask(python, code))["vcs_info"]["commit_id"] == commit
        # What tinylib imports is not there in this little torch, so it is read.
        where = ask(python, "import importlib.util as u; print(u.find_spec('tinylib').origin)")
        assert f"STEPS = {steps}" in Path(where).read_text()
        assert ask(python, "import torch; print(torch.version.git_version)") == COMMIT
    assert len(builds.environments("torch")) == 1, "they share what they stand on"
    (library.folder / "tinylib" / "__init__.py").write_text("broken(")
    done = builds.run(**base)
    assert done.stdout.strip() == str(two)
    assert "what is not committed there is not measured" in done.stderr


def test_the_last_good_one_outlives_the_limit(builds):
    builds.torch("2.14.0")

    def night(number, **more):
        """With another version of the library, a wheel: nothing is built."""
        make_wheel(builds.wheels, "mylib", f"{number}.0")
        base = {"TORCH": "2.14.0", "TORCH_INDEX": "wheels", "KEEP_NIGHTS": "1"}
        links = {"UNDER_TEST": f"mylib=={number}.0", "PIP_FIND_LINKS": str(builds.wheels)}
        return builds.python(**base, **links, **more)

    assert builds.run("--last-good").stdout == ""
    nights = []
    for number in range(3):
        nights.append(night(number))
        os.utime(nights[-1].parents[1] / "about", (1e9 + number, 1e9 + number))
        if number == 0:
            assert builds.run("--good", str(nights[0])).returncode == 0
    assert [path.exists() for path in nights] == [True, False, True]
    assert builds.run("--last-good").stdout.strip() == str(nights[0])
    assert ask(nights[0], "import torch; print(torch.version.git_version)") == COMMIT
    # Another nightly has a good one of its own, which stays as well.
    assert builds.run("--last-good", JOB="other").stdout == ""
    builds.run("--good", str(nights[2]), JOB="a second")
    more = night(3, JOB="a third")
    (builds.kept / "night-killed").mkdir()
    night(4, JOB="a third")
    assert [path.exists() for path in [*nights, more]] == [True, False, True, False]
    assert not (builds.kept / "night-killed").exists(), "half made"


def test_the_most_recently_used_are_kept_and_the_base_of_the_last_good_one(builds):
    """Environments on torches of their own, used one after another; nothing is built."""
    for number, name in enumerate([*(f"torch-{n}" for n in "1234"), *(f"night-{n}" for n in "1234")]):
        python = builds.kept / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
        about = builds.kept / name / "about"
        about.write_text(f"base={python}\n".replace("night-", "torch-"))
        os.utime(about, (1e9 + number, 1e9 + number))
    builds.run("--good", str(builds.kept / "night-1" / "bin" / "python"))
    done = builds.run(TORCH="installed", KEEP_NIGHTS="2", KEEP_ENVIRONMENTS="2")
    assert done.returncode == 0, done.stderr
    assert builds.environments("night") == {"night-1", "night-3", "night-4"}
    assert builds.environments("torch") == {"torch-1", "torch-3", "torch-4"}


def test_what_is_open_waits_three_nights(builds):
    for name in ("old", "new"):
        (builds.home / name).symlink_to(sys.executable)
    old, new = (str(builds.home / name) for name in ("old", "new"))
    builds.run("--good", old)
    for night in "123":
        for _ in range(2):  # one that is gone on with is one night
            assert builds.run("--doubt", new, PERFDASH_NIGHTLY=night).returncode == 0
        assert builds.run("--last-good").stdout.strip() == old
    builds.run("--doubt", new, PERFDASH_NIGHTLY="4")
    assert builds.run("--last-good").stdout.strip() == new


def test_each_line_of_builds_has_its_own_last_good_one(builds):
    pythons = {line: builds.home / f"python-{line}" for line in ("main", "team/feature")}
    for line, python in pythons.items():
        python.parent.mkdir(exist_ok=True)
        python.symlink_to(sys.executable)
        assert builds.run("--last-good", LINE=line).stdout == ""
        assert builds.run("--good", str(python), LINE=line).returncode == 0
    for line, python in pythons.items():
        assert builds.run("--last-good", LINE=line).stdout.strip() == str(python)
    assert builds.run("--last-good").stdout == ""


@pytest.mark.parametrize(("more", "code", "why"), [
    ({"TORCH": "nightly"}, 2, "give the index of nightly wheels"),
    ({"TORCH": "tomorrow"}, 2, "is none of installed, nightly, a version, a wheel, a commit"),
    ({"TORCH": "none.whl"}, 2, "there is no file none.whl"),
    ({"TORCH": "abcdef0"}, 2, "of which clone? TORCH_REPO=PATH"),
    ({"TORCH": "9.9.9", "TORCH_INDEX": "wheels"}, 3, "pip finds no such torch in wheels"),
    ({"TORCH": "2.14.0", "TORCH_INDEX": "nowhere"}, 2, "no such folder"),
    ({"UNDER_TEST": "wheels"}, 2, "no git repository with a commit"),
    ({"TORCH_INDEX": "https://me:secret@host/"}, 2, "put it into ~/.netrc"),
    ({"UNDER_TEST": "git+https://me:secret@host/x"}, 2, "put it into ~/.netrc"),
    ({"TORCH": "https://me:secret@host/torch.whl"}, 2, "TORCH: an address with a password is seen by others"),
    ({"TORCH_WITH": "timm@https://me:secret@host/x"}, 2, "TORCH_WITH: an address with a password"),
])  # fmt: skip
def test_what_cannot_be(builds, more, code, why):
    builds.wheels.mkdir()
    done = builds.run(**more)
    assert done.returncode == code, done.stderr
    assert why in done.stderr
    assert done.stdout == ""
    assert not builds.environments("torch")


@pytest.mark.parametrize("more", [
    {"TORCH_INDEX": "https://host/whl", "UNDER_TEST": f"git+https://host/x@{COMMIT}"},
    {"UNDER_TEST": f"git+https://host:8443/x@{COMMIT}"},
    {"UNDER_TEST": f"git+ssh://git@host:8443/x@{COMMIT}"},
])  # fmt: skip
def test_a_pinned_library_is_no_address_with_a_password(builds, more):
    """ci/nightly/pin.sh gives every cell of Jenkins the library with its commit behind an @."""
    done = builds.run(TORCH="tomorrow", **more)  # refused next, before pip looks for anything
    assert "TORCH=tomorrow is none of" in done.stderr
    assert "password" not in done.stderr


def test_a_torch_that_does_not_import_leaves_nothing(builds):
    make_wheel(builds.wheels, "torch", "2.14.0", files={"torch/__init__.py": "import nowhere\n"})
    done = builds.run(TORCH="2.14.0", TORCH_INDEX="wheels")
    assert done.returncode == 3
    assert "torch does not import" in done.stderr
    assert not builds.environments("torch")
