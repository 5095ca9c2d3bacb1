"""ci/test.sh: what it runs in which order, what a failure stops, and the times at the end.

Its programs are stand-ins that write down how they were called; one named in FAILS ends with 1, and one named
in WAITS ends with 2 on Ctrl-C, as pytest does.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
case "$*" in *"${FAILS:-no such words}"*) echo "this failed"; exit 1;; esac
case "$*" in *"${WAITS:-no such words}"*)
  trap 'kill $!; exit 2' INT
  sleep 300 & echo waits >>"$CALLS"; wait;;
esac
"""
SERVERS = "tests/test_command_server.py"


@pytest.fixture
def script(tmp_path):
    """Runs it with these words in a checkout of stand-ins: the code, the output, the calls of pytest."""
    (tmp_path / "ci").mkdir()
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    shutil.copy(CHECKOUT / "ci" / "test.sh", tmp_path / "ci")
    for name, text in {
        "test_a": "",
        "test_b": "pytest.mark.slow",
        "test_c": "pytest.mark.slow, pytest.mark.machine",
        "ci/test_three_nights": "pytest.mark.slow",
    }.items():
        file = tmp_path / "tests" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    programs = [*(f"ci/{name}.sh" for name in ("setup", "postgres", "browser", "groovy", "jenkins_lint"))]
    programs += [f"venv/bin/{name}" for name in ("python", "ruff", "mypy", "shellcheck")]
    for name in programs:
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)

    def run(
        *words: str, fails: str | None = None, interrupted: str | None = None
    ) -> tuple[int, str, list[str]]:
        calls = tmp_path / "calls"
        calls.write_text("")
        env = {**os.environ, "PERFDASH_VENV": "venv", "CALLS": str(calls), "TMPDIR": str(tmp_path)}
        env |= {"FAILS": fails} if fails else {}
        env |= {"WAITS": interrupted} if interrupted else {}
        with subprocess.Popen(
            [tmp_path / "ci" / "test.sh", *words],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        ) as script:  # fmt: skip
            if interrupted:
                while "waits" not in calls.read_text() and script.poll() is None:
                    time.sleep(0.05)
                os.killpg(script.pid, signal.SIGINT)
            out, _ = script.communicate()
        assert not list(tmp_path.glob("perfdash-*")), "its scratch folder is left"
        listed = [line for line in calls.read_text().splitlines() if line.startswith("python -m pytest")]
        return script.returncode, out, listed

    return run


def times(out: str) -> list[str]:
    """The parts that the last line names, each with minutes and seconds."""
    found = re.fullmatch(r"Time: (.+)", out.splitlines()[-1])
    assert found, out
    parts = [re.fullmatch(r"(.+) \d+:\d\d", part) for part in found[1].split(", ")]
    assert all(parts), out
    return [part[1] for part in parts if part]


def test_all_parts_run_and_the_last_line_has_their_times(script):
    code, out, calls = script()
    assert code == 0, out
    assert times(out) == ["lint and types", "quick", "slow", "machine"]
    servers, quick, *both, machine = calls
    waiting, slow = sorted(both)  # they begin at once
    assert servers.endswith(SERVERS)
    assert f"not cuda and not slow --ignore {SERVERS}" in quick
    assert "slow and not machine and not unmeasured and not cuda -n auto --own-core" in slow
    assert slow.endswith("tests/test_b.py tests/test_c.py"), "the others need not be collected"
    assert "slow and not machine and not unmeasured and not cuda -n 1 --own-core tests/ci/" in waiting
    assert "(machine or slow and unmeasured) and not cuda -n 3" in machine
    assert machine.endswith("tests/ci/test_three_nights.py tests/test_b.py tests/test_c.py")


def test_a_shell_for_measurements_takes_no_core_from_the_tests(script, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    _, _, (_, quick) = script("--quick")
    assert f"-n {len(os.sched_getaffinity(0))} --dist" in quick


def test_quick_and_words_run_once(script):
    _, out, (_, quick) = script("--quick")
    assert times(out) == ["lint and types", "quick"]
    assert "not slow" in quick
    _, out, (_, chosen) = script("--lf", "tests/stats")
    assert times(out) == ["lint and types", "chosen"]
    assert chosen.endswith("-m not cuda --lf tests/stats")


@pytest.mark.parametrize("fails", [SERVERS, "format --check"])
def test_servers_and_lint_stop_everything_else_at_once(script, fails):
    code, out, calls = script(fails=fails)
    assert code == 1
    assert "this failed" in out
    assert times(out) == ["lint and types"]
    assert len(calls) <= 1, "only the servers were tried"


def test_a_part_that_fails_does_not_hide_the_next(script):
    code, out, calls = script(fails="not cuda and not slow")
    assert code == 1
    assert times(out) == ["lint and types", "quick", "slow", "machine"]
    assert len(calls) == 5


@pytest.mark.parametrize("fails", ["-n 1 --own-core", "-n auto --own-core"])
def test_what_fails_of_tests_at_the_same_time_is_shown(script, fails):
    code, out, calls = script(fails=fails)
    assert code == 1
    assert out.count("this failed") == 1
    assert len(calls) == 5


@pytest.mark.parametrize(
    ("part", "later"),
    [(f"not slow --ignore {SERVERS}", "slow and not machine"), ("-n auto --own-core", "machine or slow")],
)
def test_ctrl_c_ends_it(script, part, later):
    code, out, calls = script(interrupted=part)
    assert code == 130, out
    assert not [call for call in calls if later in call], "another part began"
