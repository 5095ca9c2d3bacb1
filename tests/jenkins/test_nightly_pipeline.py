"""The nightly's Jenkinsfile with stand-ins for its stages: what runs where, what each failure leaves."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.jenkins.controller import ROOT, Built, Controller

pytestmark = pytest.mark.slow
CELL = "runs/nightly/build-{}/cells/{}/out/run-{}/results.jsonl"
SECRET = "ghp_not-a-real-one"
TWO = {"SUITES": "timm,huggingface", "ALARM_TO": "team@example.org"}


def archived(built: Built, number: int = 1) -> list[str]:
    """The cells whose raw results are in the artifacts."""
    return [
        cell
        for cell in ("timm-cpu-float32-1", "huggingface-cpu-float32-1", "own-cpu-float32-1")
        if CELL.format(number, cell, cell) in built.artifacts
    ]


def test_a_night_as_it_should_be(nightly: Controller) -> None:
    kinds = ("GITHUB", "DB", "SMTP", "WEBHOOK")
    nightly.credentials.update({kind: {"secret": f"{kind}-{SECRET}"} for kind in kinds})
    posting = {"POST": "yes", "REPO": "a/b", "ISSUE": "1", **{f"{kind}_CREDENTIAL": kind for kind in kinds}}
    built = nightly.build(params={"SUITES": "timm, mine.toml", "BISECT": "yes", **posting})
    assert built.result == "SUCCESS", built.log
    assert archived(built) == ["timm-cpu-float32-1", "own-cpu-float32-1"]
    assert "suites=mine.toml devices=cpu dtypes=float32 shard= " in built.artifact(
        "runs/nightly/build-1/cells/own-cpu-float32-1/measure.log"
    )
    order = [command["script"].split()[0].rpartition("/")[2] for command in built.commands]
    assert [name for name in order if name not in ("check.sh", "setup.sh", "cells.sh", "cell.sh", "cd")] == [
        "gather.sh", "merge.sh", "detect.sh", "gather.sh", "report.sh", "post.sh", "gather.sh", "report.sh",
        "post.sh", "publish.sh", "heartbeat.sh", "notify.sh",
    ]  # fmt: skip
    assert [len(built.ran(f"{name}.sh")) for name in ("confirm", "bisect")] == [1, 1]
    assert [entry["kind"] for entry in built.published] == ["junit", "html", "html", *["plot"] * 4]
    assert built.artifact("runs/nightly/build-1/notify.log").endswith("arguments=\n")
    assert "No artifacts match" not in built.log  # allowEmptyArchive is for what failed
    assert built.ran("heartbeat.sh end ok")
    assert not built.mails
    # Secrets reached the scripts that use them, and nobody else.
    assert "the token is ****" in built.log
    telling = {"PERFDASH_DB", "PERFDASH_SMTP_PASSWORD", "PERFDASH_WEBHOOK"}
    gets: dict[str, set[str]] = {}
    for stage, name in re.findall(r"(\w+) gets (\w+)", built.log):
        gets.setdefault(stage, set()).add(name)
    assert gets.pop("post") == {"PERFDASH_DB", "GITHUB_TOKEN"}
    assert gets.pop("notify") == telling
    assert set(gets) == {
        "setup", "gather", "merge", "detect", "report", "confirm", "bisect", "publish", "heartbeat",
    }  # fmt: skip
    assert all(names == {"PERFDASH_DB"} for names in gets.values())
    left = [path for path in built.folder.rglob("*") if path.is_file() and path.name != "scenario.json"]
    assert not [path for path in left if SECRET in path.read_text(errors="replace")]


def test_cells_go_to_the_agents_of_their_device_and_shards_are_cut(tmp_path: Path, standins: Path) -> None:
    agents = {
        "xeon-1": ["perfdash-cpu"],
        "xeon-2": ["perfdash-cpu"],
        "gpu": ["perfdash-cuda"],
        "desk": ["perfdash-report"],
    }
    jenkins = Controller(tmp_path / "jenkins", ROOT / "Jenkinsfile", standins, agents)
    wanted = {
        "SUITES": "timm mine.toml",
        "DEVICES": "cpu,cuda",
        "DTYPES": "amp",
        "SHARDS": "2",
        "BISECT": "yes",
    }
    built = jenkins.build(params=wanted)
    assert built.result == "SUCCESS", built.log
    # What is switched off is no stage.
    measured = {name: node for name, node in built.nodes.items() if name.startswith("Measure / ")}
    assert set(measured) == {
        f"Measure / {suite}-{device}-amp-{part}"
        for suite, part in (("own", "1"), ("timm", "1"), ("timm", "2"))
        for device in ("cpu", "cuda")
    }
    assert {built.stages[name] for name in measured} == {"SUCCESS"}
    assert all((node == "gpu") == ("cuda" in name) for name, node in measured.items())
    assert "shard=2/2" in built.artifact("runs/nightly/build-1/cells/timm-cpu-amp-2/measure.log")
    assert "shard= " in built.artifact("runs/nightly/build-1/cells/own-cuda-amp-1/measure.log")
    # Confirmed and bisected on an agent that measured, for each device; the stages between elsewhere.
    assert {command["node"] for command in built.ran("confirm.sh")} >= {"gpu"}
    assert len(built.ran("confirm.sh")) == 2
    assert built.nodes["Find out / cuda"] == "gpu"
    assert built.nodes["Find out / cpu"] in ("xeon-1", "xeon-2")
    assert {command["node"] for command in built.ran("report.sh")} == {"desk"}
    assert len(built.ran("bisect.sh")) == 2


def test_a_wrong_parameter_ends_the_build_before_anything_is_done(
    nightly: Controller, standins: Path
) -> None:
    for name in ("check.sh", "parameters.sh"):
        shutil.copy(ROOT / "ci" / "nightly" / name, standins / "ci" / "nightly")
    built = nightly.build(params={**TWO, "BASE_RUNS": "PATH[$(touch ran)]"})
    assert built.result == "FAILURE"
    assert "BASE_RUNS=PATH[$(touch ran)]: give a number from 1" in built.log
    assert [command["script"] for command in built.commands] == [
        "ci/nightly/check.sh", "ci/nightly/broken.sh 'failed'",
    ]  # fmt: skip
    assert len(built.mails) == 1
    assert not list(built.folder.parents[1].rglob("ran"))


def test_a_cell_that_fails_loses_only_itself(nightly: Controller) -> None:
    built = nightly.build(params=TWO, env={"FAULTS": "measure:timm-cpu-float32-1"})
    assert built.result == "FAILURE"
    assert archived(built) == [
        "timm-cpu-float32-1",
        "huggingface-cpu-float32-1",
    ]  # also what it had until then
    assert built.ran("merge.sh")
    assert built.ran("publish.sh")
    # The chat hears of it too: the other cell's news would not say it.
    assert "arguments=perfdash #1: not all of it was done" in built.artifact(
        "runs/nightly/build-1/notify.log"
    )
    assert built.ran("heartbeat.sh end partial")
    assert [mail["to"] for mail in built.mails] == ["team@example.org"]


def test_a_cell_that_takes_too_long_is_a_failure(nightly: Controller) -> None:
    built = nightly.build(
        params={**TWO, "CELL_MINUTES": "6"}, env={"FAULTS": "measure=hang:timm-cpu-float32-1"}
    )
    assert built.result == "FAILURE", built.log
    assert archived(built) == ["timm-cpu-float32-1", "huggingface-cpu-float32-1"]
    assert built.ran("heartbeat.sh end partial")
    assert len(built.mails) == 1


def test_a_hung_agent_is_ended_by_jenkins_and_is_a_failure(nightly: Controller) -> None:
    # Its 160 minutes take 12 seconds; the limit within the script is longer.
    built = nightly.build(params={**TWO, "CELL_MINUTES": "100"}, clock=12 / 9600,
                          env={"FAULTS": "measure=hang:timm-cpu-float32-1"})  # fmt: skip
    assert built.result == "FAILURE", built.log
    assert "160 minutes are over" in built.log
    assert archived(built) == ["timm-cpu-float32-1", "huggingface-cpu-float32-1"]
    assert built.ran("confirm.sh")
    assert built.ran("report.sh")
    assert built.ran("heartbeat.sh end partial")
    assert len(built.mails) == 1


def test_a_cell_that_cannot_be_kept_ends_nothing_else(nightly: Controller) -> None:
    built = nightly.build(params=TWO, no_room_for="cells/timm")
    assert built.result == "FAILURE", built.log
    # What was measured is with the night's own artifacts, from its stash.
    assert archived(built) == ["timm-cpu-float32-1", "huggingface-cpu-float32-1"]
    assert built.ran("heartbeat.sh end partial")
    assert len(built.mails) == 1


@pytest.mark.parametrize("stage", ["report", "post", "detect", "merge", "publish", "notify", "setup"])
def test_a_stage_that_breaks_holds_up_nothing_else(nightly: Controller, stage: str) -> None:
    posting = {"POST": "yes", "REPO": "a/b", "ISSUE": "1"}
    built = nightly.build(params={**TWO, **posting}, env={"FAULTS": stage})
    assert built.result == "FAILURE"
    if stage != "setup":
        assert archived(built) == ["timm-cpu-float32-1", "huggingface-cpu-float32-1"]
    ran = [name for name in ("detect", "report", "post", "publish", "notify") if built.ran(f"{name}.sh")]
    assert ran == ["detect", "report", "post", "publish", "notify"]
    assert [mail["to"] for mail in built.mails] == ["team@example.org"]


def test_without_a_bisection_it_is_told_once(nightly: Controller) -> None:
    built = nightly.build(params={**TWO, "POST": "yes", "REPO": "a/b", "ISSUE": "1"})
    assert built.result == "SUCCESS", built.log
    order = [command["script"] for command in built.commands]
    assert len(built.ran("post.sh")) == len(built.ran("report.sh")) == 1
    confirmed = next(index for index, script in enumerate(order) if "confirm.sh" in script)
    assert confirmed < order.index("ci/nightly/report.sh")


@pytest.mark.parametrize("fault", ["confirm", "confirm=hang"])
def test_a_confirmation_that_breaks_or_hangs_holds_up_no_comment(nightly: Controller, fault: str) -> None:
    posting = {"POST": "yes", "REPO": "a/b", "ISSUE": "1", "CONFIRM_MINUTES": "0.5"}
    built = nightly.build(params={**TWO, **posting}, clock=1 / 100, env={"FAULTS": fault})
    assert built.result == "FAILURE", built.log
    assert len(built.ran("post.sh")) == 1
    assert built.ran("publish.sh")
    assert "runs/nightly/build-1/found-cpu/confirm.log" in built.artifacts
    assert built.ran("heartbeat.sh end partial")


def test_a_bisection_that_hangs_ends_and_the_night_is_told_with_what_it_found(nightly: Controller) -> None:
    """Its hour and the 30 minutes of Jenkins' own limit take nine seconds."""
    posting = {"POST": "yes", "REPO": "a/b", "ISSUE": "1", "BISECT": "yes", "BISECT_HOURS": "1"}
    built = nightly.build(params={**TWO, **posting}, clock=9 / 5400, env={"FAULTS": "bisect=hang"})
    assert built.result == "FAILURE", built.log
    assert "90 minutes are over" in built.log
    assert "runs/nightly/build-1/found-cpu/journal.jsonl" in built.artifacts
    assert built.ran("post.sh")[-1]["stage"].endswith("Post again")
    assert built.ran("publish.sh")
    assert built.ran("heartbeat.sh end partial")


def test_a_regression_makes_the_build_unstable_and_is_no_breakage(nightly: Controller) -> None:
    built = nightly.build(params=TWO, env={"FAULTS": "report=gate"})
    assert built.result == "UNSTABLE"
    assert built.ran("heartbeat.sh end ok")
    assert not built.mails


def test_it_is_reported_when_mail_is_refused_too(nightly: Controller) -> None:
    """Jenkins cannot send: the other way is still tried, and the build is red."""
    built = nightly.build(params=TWO, mail_refused=True, env={"FAULTS": "notify"})
    assert built.result == "FAILURE"
    assert "connection refused" in built.log
    assert built.ran("broken.sh")


def test_a_missing_credential_is_reported(nightly: Controller) -> None:
    posting = {"POST": "yes", "REPO": "a/b", "ISSUE": "1", "GITHUB_CREDENTIAL": "none such"}
    built = nightly.build(params={**TWO, **posting})
    assert built.result == "FAILURE"
    assert "could not find credentials entry with ID 'none such'" in built.log
    assert archived(built) == ["timm-cpu-float32-1", "huggingface-cpu-float32-1"]
    assert len(built.mails) == 1
