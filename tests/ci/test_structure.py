"""ci/structure.py: the figures that show how the structure of the program develops. None has a limit."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.ci.nights import CHECKOUT


@pytest.mark.slow
def test_the_figures_of_this_checkout(capsys):
    command = [sys.executable, CHECKOUT / "ci" / "structure.py"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    with capsys.disabled():
        print(f"\n{printed}")
    assert int(re.search(r"^files: (\d+)", printed)[1]) > 100
    crossed = [int(number) for number in re.findall(r": (\d+) modules, \d+ shapes", printed)]
    assert len(crossed) == 2
    assert all(number > 20 for number in crossed), "the path's first module was moved: see PATHS"
