"""Agents that are folders, and a repository whose stages are stand-ins."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.jenkins.controller import HERE, ROOT, Controller

STAGES = (
    "check", "setup", "torch", "host", "measure", "gather", "merge", "detect", "report", "post", "confirm",
    "bisect", "publish", "notify", "heartbeat", "broken",
)  # fmt: skip
ONE_MACHINE = {"xeon": ["perfdash-cpu", "perfdash-report"]}


@pytest.fixture
def standins(tmp_path: Path) -> Path:
    """A repository in which every stage is tests/jenkins/standin.sh, but for cells.sh and cell.sh.

    These are the real ones, cell.sh with seconds for minutes.
    """
    scm = tmp_path / "scm"
    nightly = scm / "ci" / "nightly"
    nightly.mkdir(parents=True)
    for stage in STAGES:
        shutil.copy(HERE / "standin.sh", nightly / f"{stage}.sh")
    for name in ("common.sh", "cells.sh"):
        shutil.copy(ROOT / "ci" / "nightly" / name, nightly)
    shutil.copy(ROOT / "ci" / "secrets.sh", scm / "ci")
    cell = (ROOT / "ci" / "nightly" / "cell.sh").read_text()
    assert '}m" ' in cell
    (nightly / "cell.sh").write_text(cell.replace('}m" ', '}s" '))
    (nightly / "cell.sh").chmod(0o755)
    for name in ("compare.sh", "bisect.sh"):
        shutil.copy(HERE / "standin.sh", scm / "ci" / name)
    return scm


@pytest.fixture
def nightly(tmp_path: Path, standins: Path) -> Controller:
    """The nightly's job on one machine that does all."""
    return Controller(tmp_path / "jenkins", ROOT / "Jenkinsfile", standins, ONE_MACHINE)
