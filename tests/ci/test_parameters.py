"""Parameters of a nightly are checked before anything uses them: at a desk, under Jenkins, in each stage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ci.nights import CHECKOUT
from tests.ci.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def script(stage: Stage, name: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """One script of ci/, called as Jenkins calls it."""
    env = {**stage.env, "PERFDASH_NIGHTLY": str(stage.home / "night"), **more}
    return subprocess.run(
        [CHECKOUT / "ci" / name, *words], cwd=stage.home, env=env, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(("name", "words", "parameter"), [
    ("nightly/measure.sh", [], "BASE_RUNS"),
    ("nightly/measure.sh", [], "SHARDS"),
    ("nightly/bisect.sh", [], "BISECT_HOURS"),
    ("nightly/cell.sh", [], "CELL_MINUTES"),
    ("nightly/check.sh", [], "CONFIRM_MOST"),
    ("compare.sh", ["measure"], "PAIRS"),
    ("bisect.sh", [], "BISECT_HOURS"),
])  # fmt: skip
def test_a_number_that_is_a_command_is_refused_and_not_run(stage, name, words, parameter):
    """Bash runs what stands in brackets of an arithmetic expression."""
    marker = stage.home / "ran"
    more = {"BISECT": "yes", "BISECT_RECIPE": "nightly", parameter: f"PATH[$(touch {marker})]"}
    done = script(stage, name, *words, **more)
    assert not marker.exists()
    assert done.returncode == 2, done.stderr
    assert f"{parameter}=PATH[$(touch" in done.stderr
    assert not stage.calls()


def test_a_parameter_with_a_password_is_refused_and_not_lost(stage):
    """Where secrets are left out of the environment, it must not be taken for one of them."""
    done = script(stage, "nightly/torch.sh", UNDER_TEST="git+https://me:s3cret@host/x")
    assert (done.returncode, "put it into ~/.netrc" in done.stderr) == (2, True)
    done = script(stage, "nightly/torch.sh", UNDER_TEST="git+https://me@127.0.0.1:9/x")
    assert "UNDER_TEST=git+https://me@127.0.0.1:9/x cannot be read by pip" in done.stderr


def test_what_installs_packages_gets_no_secret(stage):
    """Neither ci/torch_build.sh nor ci/setup.sh, whatever the stage around them gets."""
    (stage.venv / "bin" / "python").unlink()
    python = stage.venv / "bin" / "python"
    python.write_text(f'#!/bin/sh\nenv >>{stage.home}/seen\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    fails = stage.home / "fails"
    fails.write_text(f"#!/bin/sh\nenv >>{stage.home}/seen\nexit 1\n")
    fails.chmod(0o755)
    names = ("GITHUB_TOKEN", "PERFDASH_DB", "PERFDASH_SMTP_PASSWORD", "PERFDASH_WEBHOOK", "MY_PASSWORD")
    for name, code in (("setup", 3), ("torch", 0)):
        done = script(stage, f"nightly/{name}.sh", PYTHON=str(fails), **dict.fromkeys(names, "s3cret"))
        assert done.returncode == code, done.stderr
        assert "PATH=" in (stage.home / "seen").read_text(), name
        assert "s3cret" not in (stage.home / "seen").read_text(), name
        (stage.home / "seen").unlink()


POST = {"POST": "yes", "REPO": "o/r", "ISSUE": "7"}


def test_the_first_stage_of_jenkins_takes_what_is_right(stage):
    """Its credentials are not in the environment there: only their names."""
    more = {**POST, "GITHUB_CREDENTIAL": "github", "WEBHOOK": "yes", "WEBHOOK_CREDENTIAL": "chat"}
    done = script(stage, "nightly/check.sh", "SUITES", **more)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("words", "more", "why"), [
    ([], POST, "GITHUB_CREDENTIAL"),
    ([], {"WEBHOOK": "yes"}, "WEBHOOK_CREDENTIAL"),
    ([], {"PAIRS": "3"}, "PAIRS=3: give a number from 4"),
    ([], {"CELL_MINUTES": "0"}, "CELL_MINUTES=0: give a number from 1"),
    ([], {"DB": "postgresql://me:hidden@host/perf"}, "DB_CREDENTIAL"),
    (["BASE", "CHANGE"], {"BASE": "v1"}, "CHANGE is empty"),
])  # fmt: skip
def test_the_first_stage_of_jenkins_refuses_what_is_wrong(stage, words, more, why):
    done = script(stage, "nightly/check.sh", *words, **more)
    assert done.returncode == 2, done.stderr
    assert why in done.stderr
    assert "hidden" not in done.stderr
