"""The command within this process: no interpreter is started, and imports are paid for once."""

from __future__ import annotations

import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfdash.cli import main
from perfdash.history.ingest import take_in
from perfdash.history.store import open_store
from tests.detect.simulated import farm, judge_last, slower

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Called:
    """What a call printed, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture
def called(tmp_path, monkeypatch, capsys):
    """called(...) as `perfdash ...` in a temporary folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("DB", "OUT", "WEBHOOK", "SMTP", "SMTP_USER", "SMTP_PASSWORD", "MAIL_FROM"):
        monkeypatch.delenv(f"PERFDASH_{name}", raising=False)

    def call(*words: str, env: dict[str, str] | None = None) -> Called:
        with monkeypatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["perfdash", *words])
            handlers = {number: signal.getsignal(number) for number in ENDING}
            with pytest.raises(SystemExit) as left:
                main()
            for number, handler in handlers.items():  # a bisection has its own
                signal.signal(number, handler)
        printed = capsys.readouterr()
        return Called(int(left.value.code or 0), printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def farm_of_30(tmp_path_factory):
    """A history of 30 nights, not judged yet, in which one model got 15 % slower on the 28th."""
    path = tmp_path_factory.mktemp("farm") / "history.db"
    with open_store(str(path)) as store:
        take_in(store, farm(30, models=24, change=slower("model03", 27, 1.15)))
    return path


@pytest.fixture(scope="session")
def judged_farm(tmp_path_factory, farm_of_30):
    """The same, judged."""
    path = tmp_path_factory.mktemp("judged") / "history.db"
    shutil.copy(farm_of_30, path)
    with open_store(str(path)) as store:
        judge_last(store, 4)
    return path


def _copied(history: Path, folder: Path) -> Path:
    (folder / "runs").mkdir()
    shutil.copy(history, folder / "runs" / "history.db")
    return folder


@pytest.fixture
def farmed(tmp_path, judged_farm):
    """A folder with a copy of the judged history as runs/history.db."""
    return _copied(judged_farm, tmp_path)


@pytest.fixture
def unjudged(tmp_path, farm_of_30):
    """A folder with a copy of the history that nobody has judged as runs/history.db."""
    return _copied(farm_of_30, tmp_path)
