"""A model that was edited between two runs is profiled from the copies that the runs kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.errors import UsageError
from perfdash.explain.profiling import ProfiledBuild, refuse_same_build, with_kept_model
from perfdash.records import Case
from perfdash.runner import code_files
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned
from perfdash.worker.own_files import digest_of_text
from perfdash.worker.structure import packed_text

CASE = Case("own", "net.make")
OLD, NEW = "import layers\n", "import layers  # edited\n"
FILES = {"net.py": OLD, "parts/layers.py": "x = 1\n"}
DIGESTS = {name: digest_of_text(text) for name, text in FILES.items()}


@pytest.fixture
def build(tmp_path):
    (tmp_path / "user" / "parts").mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / "user" / name).write_text(text)
    planned = Planned(case=CASE, loader="python", target=f"{tmp_path / 'user' / 'net.py'}:make")
    return ProfiledBuild("old", planned, RunSettings(jobs=1), {})


def run_with_copy(tmp_path, files):
    (tmp_path / "run").mkdir()
    code_files.write_model(tmp_path / "run", CASE, {name: packed_text(text) for name, text in files.items()})
    return tmp_path / "run"


def test_a_file_that_is_as_it_was_stays_where_it_is(build, tmp_path):
    assert with_kept_model(build, tmp_path, DIGESTS, tmp_path / "copy") is build
    assert with_kept_model(build, tmp_path, {}, tmp_path / "copy") is build


def test_an_edited_file_is_taken_from_the_runs_copy(build, tmp_path):
    run = run_with_copy(tmp_path, FILES)
    (tmp_path / "user" / "net.py").write_text(NEW)
    old = with_kept_model(build, run, DIGESTS, tmp_path / "copy")
    file, _, function = old.planned.target.rpartition(":")
    assert (Path(file).read_text(), function) == (OLD, "make")
    assert (Path(file).parent / "parts" / "layers.py").read_text() == FILES["parts/layers.py"]
    assert (tmp_path / "user" / "net.py").read_text() == NEW
    refuse_same_build(old, build)  # two models under one interpreter are two builds
    with pytest.raises(UsageError, match="one build to profile"):
        refuse_same_build(build, replace(build, run="new"))


@pytest.mark.parametrize("kept", [None, {"net.py": "*** instead of a secret\n"}, {"../net.py": OLD}])
def test_without_a_copy_that_is_the_same_there_is_one_message(build, tmp_path, kept):
    run = tmp_path if kept is None else run_with_copy(tmp_path, kept)
    (tmp_path / "user" / "net.py").write_text(NEW)
    with pytest.raises(UsageError, match=r"net\.py was edited since old measured it, and the run kept no"):
        with_kept_model(build, run, DIGESTS, tmp_path / "copy")
    assert not (tmp_path / "net.py").exists()
