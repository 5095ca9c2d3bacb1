"""Ctrl-C, and worse."""

import os
import signal
import subprocess
import sys
import time

import pytest

from perfdash.records import Status
from perfdash.runner.run_journal import read_info, read_results
from tests.conftest import HERE
from tests.faults.running import left_over

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("numbers", [
    (signal.SIGINT, signal.SIGINT),  # a time limit passes on what the whole group got
    (signal.SIGTERM,),
])  # fmt: skip
def test_what_was_measured_is_kept_and_no_process_is_left(tmp_path, numbers):
    (tmp_path / "s.toml").write_text(SUITE.format(models=HERE / "truth" / "models.py"))
    arguments = ["run", "--suite", "s.toml", "--backend", "aot_eager", "--processes", "1", "--no-history"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.few_samples", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parent), "TRUTH_HANGS": str(tmp_path / "hangs")},
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("[2/2]"):
            break
    else:
        pytest.fail(f"the run ended with {process.wait(400)}:\n{''.join(lines)}")
    deadline = time.monotonic() + 400
    while not (tmp_path / "hangs").exists():  # the second case hangs in its compilation by then
        assert time.monotonic() < deadline, "the second case never came to where it hangs"
        time.sleep(0.01)
    for number in numbers:
        os.killpg(process.pid, number)
        time.sleep(0.003)
    rest = process.stdout.read()
    assert process.wait(400) == 130
    process.stdout.close()
    assert "Interrupted after 1 of 2 cases" in rest
    (folder,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    assert [(r.case.model, r.status) for r in read_results(folder)] == [("first", Status.PASS)]
    assert read_info(folder).state == "interrupted"
    assert left_over(process.pid) == []
    assert "Traceback" not in rest
