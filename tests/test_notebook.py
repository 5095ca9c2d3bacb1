"""docs/notebook.ipynb runs from its first cell to its last, in a kernel without a display."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lazy import lazy

nbformat = lazy("nbformat")

ROOT = Path(__file__).parents[1]
# Run before the first cell: neither the numbers themselves nor how a worker starts are the point.
BEFORE = """
from tests.few_samples import take_few_samples
from tests.warm_workers import use_warm_workers

take_few_samples()
use_warm_workers({address!r})
"""


def text_of(cell) -> str:
    """All that a cell has shown, as text and as HTML."""
    shown = []
    for output in cell.outputs:
        data = output.get("data", {})
        shown += [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]
    return "\n".join(shown)


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """The kernel's: its files in a folder of the test, and perfdash of this checkout."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PERFDASH_WAIT", "5m")
    monkeypatch.setenv("PERFDASH_PROCESSES", "1")  # intervals are not the point


# In a process of its own, so that the sockets of its client end with it.
EXECUTE = """
import sys

import nbclient
import nbformat

path, folder = sys.argv[1:]
notebook = nbformat.read(path, as_version=4)
resources = {"metadata": {"path": folder}}
nbclient.NotebookClient(notebook, timeout=1700, kernel_name="python3", resources=resources).execute()
nbformat.write(notebook, path)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)  # it compiles, on a machine that may be busy
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_runs(tmp_path, environment, command_server):
    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "results belong into results/"
    before = BEFORE.format(address=command_server.workers.address)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(before))
    path = tmp_path / "executed.ipynb"
    nbformat.write(notebook, path)
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(path), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=1750,
    )
    assert done.returncode == 0, done.stderr
    executed = nbformat.read(path, as_version=4)
    cells = [cell for cell in executed.cells if cell.cell_type == "code"][1:]
    shown = [text_of(cell) for cell in cells]
    assert "own_notebook.make_cpu_float32_bs16_t1_inference_inductor: pass" in shown[1]
    assert "<th>speedup</th>" in shown[1]
    assert "net.make" in shown[-2]
    assert "<table" in shown[-2]
    assert "aot-eager" in shown[-2]
    saved = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert len([path for path in saved if path.name == "plan.json"]) == 4
    assert not [path for path in saved if b"Perceptron" in path.read_bytes() and "logs" not in path.parts]
