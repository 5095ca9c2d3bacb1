"""The command within this process: no interpreter is started, and imports are paid for once."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from perfdash.cli import main


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
            with pytest.raises(SystemExit) as left:
                main()
        printed = capsys.readouterr()
        return Called(int(left.value.code or 0), printed.out, printed.err)

    return call
