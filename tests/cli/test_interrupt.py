"""Ctrl-C, and worse."""

import os
import signal
import subprocess
import sys
import time

import pytest

from perfdash.records import Status
from perfdash.runner.journal import read_info, read_results
from tests.conftest import HERE

pytestmark = [pytest.mark.slow, pytest.mark.machine]  # no other run may be left in the list of processes

SUITE = """
name = "interrupted"
loader = "python"
[[models]]
name = "first"
target = "{models}:itself"
[[models]]
name = "second"
target = "{models}:hangs"
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_measured_is_kept_and_no_process_is_left(tmp_path, number):
    (tmp_path / "s.toml").write_text(SUITE.format(models=HERE / "truth" / "models.py"))
    arguments = ["run", "--suite", "s.toml", "--backend", "aot_eager", "--processes", "1", "--no-history"]
    process = subprocess.Popen(
        [sys.executable, "-m", "perfdash", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    for line in process.stdout:
        if line.startswith("[2/2]"):
            break
    time.sleep(1.5)  # the second case hangs in its compilation by now
    os.killpg(process.pid, number)
    start = time.monotonic()
    rest = process.stdout.read()
    assert process.wait() == 130
    assert time.monotonic() - start < 5, "what does not end by itself gets five seconds and is killed"
    process.stdout.close()
    assert "Interrupted after 1 of 2 cases" in rest
    (folder,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    assert [(r.case.model, r.status) for r in read_results(folder)] == [("first", Status.PASS)]
    assert read_info(folder).state == "interrupted"
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "perfdash.worker" not in listing
    assert "Traceback" not in rest
