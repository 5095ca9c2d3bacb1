"""A model of a notebook: it comes by a descriptor, and by nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdash.runner.notebook_model import notebook_model
from perfdash.worker.loaders import notebook

PACKAGE = Path(notebook.__file__).parents[2]
LOAD = """
import sys
from types import SimpleNamespace
from perfdash.worker.loaders import notebook

notebook.receive(int(sys.argv[1]))
module, inputs = notebook.load(SimpleNamespace(target="make", case=SimpleNamespace(batch_size=3)))
"""
# The second begins when the first has ended, and has its descriptor: what that has read stays read.
IN_TWO_PROCESSES = """
import os
import torch
import torch._dynamo

if os.fork():
    os.wait()
"""
CELL = """
import torch

FACTOR = 2.0


def scaled(values):
    return values * FACTOR


class Block(torch.nn.Module):
    def forward(self, values):
        return scaled(values)


def make(batch_size):
    return torch.nn.Sequential(Block(), torch.nn.Linear(4, 2)), (torch.ones(batch_size, 4),)
"""


def job(target="make"):
    return SimpleNamespace(target=target, case=SimpleNamespace(batch_size=3))


def of_a_cell(text: str):
    """What a cell defines; its names are those of `__main__`, as in a notebook."""
    names = {"__name__": "__main__"}
    exec(text, names)
    return names


def loaded_elsewhere(descriptor: int, more: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Load it in a process of its own, which does something before and something more then.

    It begins in another folder, so that the notebook's is found by nothing but the loader.
    """
    return subprocess.run(
        [sys.executable, "-c", before + LOAD + more, str(descriptor)],
        pass_fds=[descriptor], capture_output=True, text=True, cwd="/",
    )  # fmt: skip


@pytest.fixture
def receive(monkeypatch):
    monkeypatch.setattr(notebook, "_descriptor", None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    main = sys.modules["__main__"]
    monkeypatch.setitem(sys.modules, "__main__", main)
    return notebook.receive


def test_a_job_without_a_model_is_refused(receive):
    with pytest.raises(LookupError, match=r"only perfdash\.measure\(\) in that notebook"):
        notebook.load(job())


@pytest.mark.slow
def test_the_model_of_a_cell_is_made_in_another_process_and_compiled_by_its_global_names():
    """The first traced frame is torch's, so guards look for FACTOR in `__main__`."""
    compiled = 'print(torch.compile(module, backend="eager")(*inputs).shape, flush=True)\n'
    with notebook_model(of_a_cell(CELL)["make"], "make") as model:
        done = loaded_elsewhere(model.descriptor, compiled, before=IN_TWO_PROCESSES)
    assert done.stdout == 2 * "torch.Size([3, 2])\n", f"each process reads it anew: {done.stderr}"


def test_the_names_of_a_cell_are_those_of_main(receive):
    cell = "FACTOR = 2.0\n\ndef make(count):\n    return None, (FACTOR * count,)\n"
    with notebook_model(of_a_cell(cell)["make"], "make") as model:
        receive(model.descriptor)
        assert notebook.load(job())[1] == (6.0,)
    assert sys.modules["__main__"].FACTOR == 2.0


@pytest.mark.slow
def test_modules_beside_the_notebook_are_found(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("def inputs(count):\n    return (count,)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    make = of_a_cell("import beside\n\ndef make(count):\n    return None, beside.inputs(count)\n")["make"]
    with notebook_model(make, "make") as model:
        done = loaded_elsewhere(model.descriptor, "print(inputs)\n")
    assert done.stdout.strip() == "(3,)", done.stderr


def test_nobody_can_change_it_and_it_ends_with_its_run():
    with notebook_model(lambda size: (None, ()), "lambda") as model:
        for change in (
            lambda: os.pwrite(model.descriptor, b"x", 0),
            lambda: os.ftruncate(model.descriptor, 0),
        ):
            with pytest.raises(PermissionError):
                change()
        assert "memfd:perfdash-model" in os.readlink(f"/proc/self/fd/{model.descriptor}")
        assert not os.get_inheritable(model.descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(model.descriptor)


def test_another_python_is_refused_before_anything_is_unpickled(receive):
    descriptor = os.memfd_create("other")
    os.write(descriptor, json.dumps({"python": [3, 8], "folder": "/"}).encode() + b"\nno pickle")
    receive(descriptor)
    with pytest.raises(
        RuntimeError, match=r"under Python 3\.8, and .* is Python 3\.\d+: write it into a file"
    ):
        notebook.load(job())
    os.close(descriptor)


def test_a_worker_without_cloudpickle_says_so(receive, monkeypatch):
    with notebook_model(lambda size: (None, ()), "lambda") as model:
        receive(model.descriptor)
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
        with pytest.raises(ImportError, match=r"cloudpickle.*needs it here as well; or write it into a file"):
            notebook.load(job())


def test_what_the_function_returns_is_checked(receive):
    with notebook_model(lambda size: "nothing", "make") as model:
        receive(model.descriptor)
        with pytest.raises(
            TypeError, match=r"make must return \(module, inputs\).*returned an object of type str"
        ):
            notebook.load(job())


def test_nothing_else_is_unpickled():
    words = (
        "import cloudpickle",
        "pickle.load",
        "Unpickler",
        "allow_pickle=True",
        "weights_only=False",
        "joblib",
    )
    using = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(word in path.read_text() for word in words)
    }
    assert using == {"runner/notebook_model.py", "worker/loaders/notebook.py"}
