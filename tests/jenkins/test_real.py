"""The three pipelines with the real scripts: a tiny suite, a library under test, a GitHub on loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ci.library import Library
from tests.ci.nights import measuring_environment
from tests.command_server import CommandServer
from tests.jenkins.pipelines import ROOT, STARTED, Built, run
from tests.publish.server import TOKEN, GitHub

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


class Site:
    """A machine that measures, one that reports, the library under test, and a GitHub."""

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
        self.root = home / "jenkins"
        self.history = home / "history.db"
        self.started = STARTED
        self.params = {
            "TORCH": "installed", "POST": "yes", "REPO": "team/perf", "ISSUE": "3",
            "GITHUB_CREDENTIAL": "github",
        }  # fmt: skip

    def build(self, jenkinsfile: str, **params: str) -> Built:
        """Each has the number 1, as on controllers that were set up anew, and starts after the last."""
        self.started += 1000
        env = {
            "JOB_NAME": "perfdash",
            "BUILD_NUMBER": "1",
            "BUILD_URL": "https://jenkins.example/job/perfdash/1/",
            "PERFDASH_VENV": str(self.venv),
            "PYTHONPATH": str(ROOT),
            "PERFDASH_ENVIRONMENTS": str(self.home / "environments"),
            "PERFDASH_BUILD_CACHE": str(self.home / "builds"),
            "HOST_ROOT": str(self.home / "root"),
            "GITHUB_API": self.hub.url,
            "PERFDASH_BACKEND": "aot-eager",
            "PERFDASH_PROCESSES": "1",
            **{
                name: os.environ[name]
                for name in ("PERFDASH_CORES", "PERFDASH_LOCKS", "OMP_NUM_THREADS")
                if name in os.environ
            },
        }
        scenario: dict[str, Any] = {
            "jenkinsfile": str(ROOT / jenkinsfile), "params": {**self.params, **params}, "env": env,
            "credentials": {"github": TOKEN}, "agents": {"perfdash-cpu": "xeon", "perfdash-report": "desk"},
            "root": str(self.root), "scm": str(self.scm), "started": self.started,
        }  # fmt: skip
        built = run({"build": scenario}, timeout=1800)["build"]
        assert TOKEN not in built.log
        return built

    def artifact(self, name: str) -> str:
        return (self.root / "archive" / name).read_text()

    def artifacts(self, folder: str) -> list[str]:
        top = self.root / "archive"
        return sorted(str(path.relative_to(top)) for path in (top / folder).rglob("*") if path.is_file())


def tracked(folder: Path) -> list[str]:
    """The files that a checkout would have."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=folder, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    return [name for name in listed if name and (folder / name).is_file()]


@pytest.fixture
def site(tmp_path: Path, command_server: CommandServer) -> Iterator[Site]:
    hub = GitHub()
    yield Site(tmp_path, hub, command_server)
    hub.close()


def test_a_night_and_one_in_which_much_breaks(site: Site) -> None:
    site.library.commit("first", steps=2)
    wanted = {
        "UNDER_TEST": str(site.library.folder), "SUITES": str(site.library.suite), "BISECT": "yes",
        "BISECT_REPO": str(site.library.folder), "MODELS": "mixer", "DB": str(site.history),
    }  # fmt: skip
    first = site.build("Jenkinsfile", **wanted)
    assert first.result == "SUCCESS", first.log
    whole(site, first)
    # A suite that has no such model is a cell that fails, and GitHub takes no comment.
    site.library.commit("Only words")
    site.hub.fault("POST /repos", 403, times=100, message="Resource not accessible")
    second = site.build("Jenkinsfile", **{**wanted, "SUITES": f"timm,{site.library.suite}"})
    assert second.result == "FAILURE", second.log
    broken = [event["script"] for event in second.ran() if event["code"] != 0]
    assert broken == ["ci/nightly/cell.sh", "ci/nightly/post.sh", "ci/nightly/post.sh"], second.log
    whole(site, second)
    # With a cell that is not known tonight's build is no good one yet.
    good = (site.home / "environments" / "good-perfdash-cpu").read_text().splitlines()
    assert good[1] == "1", second.log
    # A comment for each night, edited when posted again.
    assert len(site.hub.of(3)) == 1
    # The history knows both nights, and how they ended.
    listed = [line.split() for line in perfdash(site, "nightly", "list").splitlines()]
    assert [words[1] for words in listed] == [Path(folder(build)).name for build in (first, second)], listed
    assert "ok" in listed[0], listed
    assert "partial" in listed[1], listed
    assert (site.root / "agents" / "desk" / "site" / "index.html").exists()


def folder(built: Built) -> str:
    """That of the build, below its workspace."""
    return str(built.ran()[0]["env"]["PERFDASH_NIGHTLY"])


def whole(site: Site, built: Built) -> None:
    """The one cell that was measured is kept, and in all that was made of it; the token is nowhere."""
    night = folder(built)
    there = site.artifacts(night)
    raw = [name for name in there if name.startswith(f"{night}/cells/") and "results.jsonl" in name]
    assert len(raw) == 1, there
    published = [event["kind"] for event in built.events if event["kind"] in ("junit", "html", "plot")]
    assert published == ["junit", "html", "html", *["plot"] * 4]
    assert f"{night}/comment.md" in there
    labels, values = site.artifact(f"{night}/trend/speedup_geometric_mean.csv").splitlines()
    assert len(labels.split(",")) == len(values.split(",")) == 1
    assert not [name for name in there if TOKEN in (site.root / "archive" / name).read_text(errors="replace")]


def test_a_change_against_its_base(site: Site) -> None:
    site.library.commit("first", steps=2)
    base = site.home / "base"
    shutil.copytree(site.library.folder, base)
    site.library.commit("A slower mixer", steps=12)
    # GitHub refuses the comment: the verdict and the pages are there.
    site.hub.fault("POST /repos", 403, times=100, message="Resource not accessible")
    built = site.build(
        "ci/Jenkinsfile.compare", BASE=str(base), CHANGE=str(site.library.folder), MODELS="mixer",
        SUITES=str(site.library.suite), QUICK="no", PAIRS="4",
    )  # fmt: skip
    night = folder(built)
    assert built.result == "FAILURE", built.log
    assert built.stages["Judge"] == built.stages["Post"] == "FAILURE", built.log
    text = site.artifact(f"{night}/compare.txt")
    assert "mixer" in text
    assert "pairs" in text
    assert len([name for name in site.artifacts(night) if "results.jsonl" in name]) == 2
    assert site.artifact(f"{night}/junit.xml").count("<failure") == 1
    assert built.of("html")
    assert not site.hub.of(3)


def test_a_bisection_between_two_revisions(site: Site) -> None:
    commits = [site.library.commit("first", steps=2)]
    for number in range(4):
        commits.append(site.library.commit(f"Change {number}", steps=12 if number == 2 else None))
    wanted = {
        "GOOD": commits[0], "BAD": commits[-1], "SUITE": str(site.library.suite), "MODEL": "mixer",
        "METRIC": "eager", "RECIPE": "git", "BISECT_REPO": str(site.library.folder),
        "BISECT_ARGUMENTS": "--no-confirm --minimum-change 0.5",
    }  # fmt: skip
    built = site.build("ci/Jenkinsfile.bisect", **wanted)
    assert built.result == "SUCCESS", built.log
    assert commits[3][:10] in site.artifact(f"{folder(built)}/report.md")
    assert [event["pattern"] for event in built.of("html")] == [f"{folder(built)}/report.html"]
    assert commits[3][:10] in "\n".join(site.hub.of(3))
    # What cannot begin publishes and posts nothing, least of all the one before.
    wrong = site.build("ci/Jenkinsfile.bisect", **{**wanted, "BAD": "nowhere"})
    assert wrong.result == "FAILURE", wrong.log
    assert not wrong.of("html")
    assert f"{folder(wrong)}/report.md" not in site.artifacts(folder(wrong))
    assert len(site.hub.of(3)) == 1


def perfdash(site: Site, *words: str) -> str:
    """A command on the machines' history."""
    return subprocess.run(
        [sys.executable, "-m", "perfdash", *words, "--db", str(site.history)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
