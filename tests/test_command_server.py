"""The tests' own servers: they import what is installed, start, and run a command and a case.

ci/test.sh runs this file beside lint and types: a fault here would fail dozens of slow tests much later.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from tests.command_server import LIBRARIES, ROOT, SHARED, CommandServer
from tests.faults.running import children

NET = "import torch\ndef make(size):\n    return torch.nn.Linear(8, 8), (torch.randn(size, 8),)\n"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_of_the_command_server_can_be_imported(library):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(library)


def test_the_command_server_runs_a_command(command_server, tmp_path):
    assert command_server.can_run(dict(os.environ))
    code, out, err, _ = command_server.run(["--version"], tmp_path, dict(os.environ), 300)
    assert (code, out.split()[0], err) == (0, "perfdash", "")


def test_a_command_server_that_does_not_start_says_why(monkeypatch, tmp_path):
    """In its folder is another `perfdash`, which cannot be imported."""
    (tmp_path / "perfdash.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv(SHARED, raising=False)
    server = CommandServer()
    monkeypatch.setattr("tests.command_server.ROOT", tmp_path)
    (tmp_path / "tests").symlink_to(os.path.dirname(__file__))
    try:
        with pytest.raises(RuntimeError, match="No module named 'a_package_that_is_not_there'"):
            server.run(["--version"], tmp_path, dict(os.environ), 300)
    finally:
        server.close()


def test_a_case_is_measured_by_a_warm_worker(command, tmp_path):
    (tmp_path / "net.py").write_text(NET)
    words = ["--model", "net.py:make", "--backend", "eager", "--processes", "1", "--no-history"]
    ran = command("run", *words)
    assert ran.code == 0, ran.err
    assert [result.status for result in ran.every] == ["pass"]


def test_a_script_has_a_process_of_its_own_and_fails_with_its_own_words(command_server):
    workers = command_server.workers
    script = "import os, sys, torch\nprint(os.getpid(), *sys.argv[1:], os.environ['OF_TEST'], __name__)"
    pid, *said = workers.run_script(script, "a", "b", env={"OF_TEST": "c"}).split()
    assert said == ["a", "b", "c", "__main__"]
    assert int(pid) != os.getpid()
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        workers.run_script("1 / 0")


def is_there(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_servers_for_several_parts_end_with_their_shell():
    shell = subprocess.Popen(
        ["bash", "-c", f"{sys.executable} -m tests.servers & echo $!; wait"],
        cwd=ROOT, env={name: text for name, text in os.environ.items() if name != SHARED},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    pid = int(shell.stdout.readline())
    assert ":" in shell.stdout.readline(), "the addresses of both"
    pids = [pid, *children(pid)]
    assert len(pids) == 3
    shell.kill()
    shell.wait()
    shell.stdout.close()
    deadline = time.monotonic() + 60
    while any(map(is_there, pids)):
        assert time.monotonic() < deadline, "they are still there"
        time.sleep(0.05)
