"""The three pipelines with the real scripts: a tiny suite, a library under test, a GitHub on loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ci.library import Library
from tests.ci.nights import measuring_environment
from tests.command_server import CommandServer
from tests.jenkins.conftest import ONE_MACHINE
from tests.jenkins.controller import ROOT, Built, Controller, tracked
from tests.publish.server import TOKEN, GitHub

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


class Site:
    """A machine with the repository, the library under test, and jobs."""

    def __init__(self, home: Path, hub: GitHub, server: CommandServer):
        self.home = home
        self.hub = hub
        self.library = Library(home)
        self.venv = measuring_environment(home / "venv", server)
        self.scm = home / "scm"
        for name in tracked(ROOT):
            (self.scm / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.scm / name)
        # The environment of this very test is there already.
        (self.scm / "ci" / "setup.sh").write_text("#!/bin/sh\n")
        self.params = {
            "TORCH": "installed",
            "POST": "yes",
            "REPO": "team/perf",
            "ISSUE": "3",
            "GITHUB_CREDENTIAL": "github",
        }

    def job(self, jenkinsfile: str) -> Controller:
        made = Controller(self.home / Path(jenkinsfile).name, ROOT / jenkinsfile, self.scm, ONE_MACHINE)
        made.credentials["github"] = {"secret": TOKEN}
        made.env = {
            "PERFDASH_VENV": str(self.venv),
            "PYTHONPATH": str(ROOT),
            "PERFDASH_ENVIRONMENTS": str(self.home / "environments"),
            "PERFDASH_BUILD_CACHE": str(self.home / "builds"),
            "HOST_ROOT": str(self.home / "root"),
            "GITHUB_API": self.hub.url,
            "PERFDASH_BACKEND": "aot-eager",
            "PERFDASH_PROCESSES": "1",
            **{
                name: os.environ[name] for name in ("PERFDASH_CORES", "OMP_NUM_THREADS") if name in os.environ
            },
        }
        return made


@pytest.fixture
def site(tmp_path: Path, command_server: CommandServer):
    hub = GitHub()
    yield Site(tmp_path, hub, command_server)
    hub.close()


def test_a_night_and_one_in_which_much_breaks(site: Site) -> None:
    site.library.commit("first", steps=2)
    job = site.job("Jenkinsfile")
    wanted = {
        **site.params, "UNDER_TEST": str(site.library.folder), "SUITES": str(site.library.suite),
        "BISECT": "yes", "MODELS": "mixer",
    }  # fmt: skip
    first = job.build(params=wanted)
    assert first.result == "SUCCESS", first.log
    whole(first, "runs/nightly/build-1")
    # A suite that has no such model is a cell that fails, and GitHub takes no comment.
    site.library.commit("Only words")
    site.hub.fault("POST /repos", 403, times=100, message="Resource not accessible")
    second = job.build(params={**wanted, "SUITES": f"timm,{site.library.suite}"})
    assert second.result == "FAILURE", second.log
    broken = [command["script"] for command in second.commands if command["code"] != 0]
    assert broken == ["ci/nightly/cell.sh", "ci/nightly/post.sh", "ci/nightly/post.sh"], second.log
    whole(second, "runs/nightly/build-2")
    # With a cell that is not known tonight's build is no good one yet.
    good = (site.home / "environments" / "good-perfdash-cpu").read_text().splitlines()
    assert good[1] == "1", second.log
    # A comment for each night, edited when posted again.
    assert len(site.hub.of(3)) == 1
    # The history knows both nights, and how they ended.
    listed = [line.split() for line in perfdash(job, "nightly", "list").splitlines()]
    assert [words[1] for words in listed] == ["build-1", "build-2"], listed
    assert "ok" in listed[0], listed
    assert "partial" in listed[1], listed
    assert (job.workspace("xeon") / "site" / "index.html").exists()


def whole(built: Built, night: str) -> None:
    """The one cell that was measured is kept, and in all that was made of it; the token is nowhere."""
    raw = [name for name in built.artifacts if name.startswith(f"{night}/cells/") and "results.jsonl" in name]
    assert len(raw) == 1, built.artifacts
    assert [entry["kind"] for entry in built.published] == ["junit", "html", "html", *["plot"] * 4]
    assert f"{night}/comment.md" in built.artifacts
    assert TOKEN not in built.log
    assert not [name for name in built.artifacts if TOKEN.encode() in built.archived(name).read_bytes()]


def test_a_change_against_its_base(site: Site) -> None:
    site.library.commit("first", steps=2)
    base = site.home / "base"
    shutil.copytree(site.library.folder, base)
    site.library.commit("A slower mixer", steps=12)
    job = site.job("ci/Jenkinsfile.compare")
    wanted = {
        **site.params, "BASE": str(base), "CHANGE": str(site.library.folder), "MODELS": "mixer",
        "SUITES": str(site.library.suite), "QUICK": "no", "PAIRS": "4",
    }  # fmt: skip
    # GitHub refuses the comment: the verdict and the pages are there.
    site.hub.fault("POST /repos", 403, times=100, message="Resource not accessible")
    built = job.build(params=wanted)
    night = "runs/nightly/compare-1"
    assert built.result == "FAILURE", built.log
    assert built.stages["Judge"] == built.stages["Post"] == "FAILURE", built.log
    assert "mixer" in built.artifact(f"{night}/compare.txt")
    assert len([name for name in built.artifacts if "results.jsonl" in name]) == 2
    assert "pairs" in built.artifact(f"{night}/compare.txt")
    (junit,) = built.parts("junit")
    assert junit["failures"] == 1
    assert built.parts("html")
    assert not site.hub.of(3)


def test_a_bisection_between_two_revisions(site: Site) -> None:
    commits = [site.library.commit("first", steps=2)]
    for number in range(4):
        commits.append(site.library.commit(f"Change {number}", steps=12 if number == 2 else None))
    job = site.job("ci/Jenkinsfile.bisect")
    wanted = {
        **site.params, "GOOD": commits[0], "BAD": commits[-1], "SUITE": str(site.library.suite),
        "MODEL": "mixer", "METRIC": "eager", "RECIPE": "git", "BISECT_REPO": str(site.library.folder),
        "BISECT_ARGUMENTS": "--no-confirm --minimum-change 0.5",
    }  # fmt: skip
    built = job.build(params=wanted)
    assert built.result == "SUCCESS", built.log
    assert commits[3][:10] in built.artifact("runs/nightly/bisect-1/report.md")
    assert [part["name"] for part in built.parts("html")] == ["Bisection"]
    assert commits[3][:10] in "\n".join(site.hub.of(3))
    # What cannot begin publishes and posts nothing, least of all the one before.
    wrong = job.build(params={**wanted, "BAD": "nowhere"})
    assert wrong.result == "FAILURE", wrong.log
    assert not wrong.published
    assert "runs/nightly/bisect-2/report.md" not in wrong.artifacts
    assert len(site.hub.of(3)) == 1


def perfdash(job: Controller, *words: str) -> str:
    """A command on the machine's history."""
    folder = job.workspace("xeon")
    return subprocess.run(
        [sys.executable, "-m", "perfdash", *words, "--db", str(folder / "runs" / "history.db")],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
