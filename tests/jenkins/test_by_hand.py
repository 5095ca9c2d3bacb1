"""ci/Jenkinsfile.compare and .bisect with stand-ins for their scripts: what each failure leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jenkins.conftest import ONE_MACHINE
from tests.jenkins.controller import ROOT, Built, Controller

pytestmark = pytest.mark.slow
SECRET = "ghp_not-a-real-one"
POST = {"POST": "yes", "REPO": "a/b", "ISSUE": "1", "GITHUB_CREDENTIAL": "github"}


def build(tmp_path: Path, scm: Path, name: str, faults: str, clock: float = 1) -> Built:
    job = Controller(tmp_path / "jenkins", ROOT / "ci" / name, scm, ONE_MACHINE)
    job.credentials["github"] = {"secret": SECRET}
    built = job.build(params=POST, env={"FAULTS": faults}, clock=clock)
    assert SECRET not in built.log
    return built


def published(built: Built) -> list[str]:
    return [entry["kind"] for entry in built.published]


# What breaks; what the build then is, what is published, and whether it is still posted.
COMPARE = [
    ("", "SUCCESS", ["junit", "html"], True),
    ("compare:measure", "FAILURE", [], False),
    ("compare:judge", "FAILURE", [], True),
    ("compare=gate:judge", "FAILURE", ["junit", "html"], True),
    ("compare:post", "FAILURE", ["junit", "html"], True),
]


@pytest.mark.parametrize(("fault", "result", "shown", "posts"), COMPARE)
def test_a_comparison(
    tmp_path: Path, standins: Path, fault: str, result: str, shown: list[str], posts: bool
) -> None:
    built = build(tmp_path, standins, "Jenkinsfile.compare", fault)
    assert built.result == result, built.log
    assert "runs/nightly/compare-1/results.jsonl" in built.artifacts
    assert published(built) == shown
    assert bool(built.ran("compare.sh post")) == posts
    if shown:
        assert "runs/nightly/compare-1/junit.xml" in built.artifacts
    if posts:
        assert "the token is ****" in built.log


BISECT = [
    ("", "SUCCESS", ["html"], True),
    ("bisect", "FAILURE", [], False),
    ("bisect:post", "FAILURE", ["html"], True),
]


@pytest.mark.parametrize(("fault", "result", "shown", "posts"), BISECT)
def test_a_bisection(
    tmp_path: Path, standins: Path, fault: str, result: str, shown: list[str], posts: bool
) -> None:
    built = build(tmp_path, standins, "Jenkinsfile.bisect", fault)
    assert built.result == result, built.log
    assert "runs/nightly/bisect-1/journal.jsonl" in built.artifacts
    assert published(built) == shown
    assert bool(built.ran("bisect.sh post")) == posts
    assert built.log.count("bisect gets GITHUB_TOKEN") == posts, "neither builds nor models get it"


@pytest.mark.parametrize(
    ("name", "fault", "left"),
    [
        ("compare", "compare=hang:measure", "results.jsonl"),
        ("bisect", "bisect=hang", "journal.jsonl"),
    ],
)
def test_what_hangs_is_ended_and_kept(
    tmp_path: Path, standins: Path, name: str, fault: str, left: str
) -> None:
    hours = {"compare": 12, "bisect": 48}[name]
    built = build(tmp_path, standins, f"Jenkinsfile.{name}", fault, clock=16 / (hours * 3600))
    assert built.result == "ABORTED", built.log
    assert f"runs/nightly/{name}-1/{left}" in built.artifacts
    assert not built.ran(f"{name}.sh post")


@pytest.mark.parametrize("name", ["compare", "bisect"])
def test_a_restarted_agent_resumes(tmp_path: Path, standins: Path, name: str) -> None:
    job = Controller(tmp_path / "jenkins", ROOT / "ci" / f"Jenkinsfile.{name}", standins, ONE_MACHINE)
    script = {"compare": "ci/compare.sh measure", "bisect": "ci/bisect.sh"}[name]
    left = {"compare": "results.jsonl", "bisect": "journal.jsonl"}[name]
    loss = {"during": script, "when": f"runs/nightly/{name}-1/{left}", "how": "restarted"}
    built = job.build(losses=[loss])
    assert built.result == "SUCCESS", built.log
    assert [command["code"] for command in built.commands if command["script"] == script] == [-1, 0]


def test_an_agent_that_cannot_be_set_up(tmp_path: Path, standins: Path) -> None:
    for name in ("compare", "bisect"):
        built = build(tmp_path / name, standins, f"Jenkinsfile.{name}", "setup")
        assert built.result == "FAILURE"
        assert not built.ran(f"{name}.sh")
