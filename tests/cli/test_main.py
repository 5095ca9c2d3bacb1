"""What every command has in common: exit codes, tracebacks, and no secret in what is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfdash.cli import main
from perfdash.errors import MachineError, UsageError
from perfdash.runner.doctor import MachineFinding

SECRET = "ghx-0123456789abcdef"


@pytest.mark.parametrize("debug", [[], ["--debug"]])
@pytest.mark.parametrize(
    ("error", "code"), [(UsageError, 2), (MachineError, 3), (ValueError, 3), (KeyboardInterrupt, 130)]
)
def test_debug_does_not_change_the_exit_code(called, monkeypatch, error, code, debug):
    def fails(*_, **__):
        raise error(f"it was {SECRET}")

    monkeypatch.setattr("perfdash.settings.resolve", fails)
    result = called(*debug, "config", env={"SOME_TOKEN": SECRET})
    assert result.code == code
    assert SECRET not in result.err
    assert ("Traceback" in result.err) == (bool(debug) and error is not KeyboardInterrupt)


def test_debug_within_a_command_of_the_user_s_own_stays_there(called, monkeypatch):
    calls = []
    monkeypatch.setattr("perfdash.cli.command", lambda: lambda args, **_: calls.append(args))
    own = ["--", "python", "bench.py", "--debug"]
    called("--debug", "bisect", "--good", "a", *own)
    assert calls == [["bisect", "--good", "a", *own]]


def test_a_reader_that_has_gone_away_does_not_change_the_exit_code(monkeypatch, capsys):
    """`perfdash list | head -0`"""
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "argv", ["perfdash", "list"])
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as left:
            main()
    assert left.value.code == 0
    assert capsys.readouterr().err == ""


def test_what_a_command_prints_holds_no_secret(called):
    result = called("config", env={"PERFDASH_DB": "postgresql://u:s3@h/x", "PERFDASH_OUT": f"/tmp/{SECRET}",
                                 "SOME_TOKEN": SECRET})  # fmt: skip
    assert result.code == 0
    assert SECRET not in result.out
    assert "/tmp/***" in result.out


def test_check_leaves_a_configuration_of_perfdash_toml_out(called, tmp_path, monkeypatch):
    """It would name another back end than eager, which nobody gave."""
    checked = []

    def check_models(settings, *_):
        checked.append(settings)
        return []

    monkeypatch.setattr("perfdash.runner.model_check.check_models", check_models)
    (tmp_path / "perfdash.toml").write_text('[run]\nconfiguration = "max-autotune"\n')
    assert called("check", "--suite", "timm").code == 0
    assert (checked[0].backend, checked[0].configuration) == (("eager",), ())


@pytest.mark.parametrize(("words", "python"), [([], "/mine/python"), (["--python", "/other"], "/other")])
def test_doctor_examines_the_interpreter_that_a_run_measures(called, monkeypatch, words, python):
    examined = []

    def examine(interpreter):
        examined.append(interpreter)
        return [MachineFinding("ok", "torch", "2.15")]

    monkeypatch.setattr("perfdash.runner.doctor.examine", examine)
    assert called("doctor", *words, env={"PERFDASH_PYTHON": "/mine/python"}).code == 0
    assert examined == [python]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["show", "nothing"], 2),
        (["nonsense"], 2),
        (["nightly", "list"], 2),
        (["--debug", "show", "nothing"], 2),
    ],
)
def test_a_full_disk_below_the_messages_does_not_change_the_exit_code(tmp_path, words, code):
    """The log of a nightly's stage; 1 would be a gate's, so that what failed would count as measured."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "perfdash", *words], cwd=tmp_path, stdout=full, stderr=full
        )
    assert done.returncode == code
