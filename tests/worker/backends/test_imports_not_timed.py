"""Imports belong to no compilation latency: prepare finds its library imported."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

capabilities = lazy("perfdash.worker.capabilities")

PACKAGES = {
    "openvino": "openvino",
    "onnxruntime": "onnxscript",
    "onnxruntime-int8": "onnxscript",
    "int8-static": "torchao",
}
# A process for each back end, forked when torch is imported and nothing of a back end is.
SCRIPT = """
import json, os, sys
import torch
from perfdash.records import Case, Job
from perfdash.worker import capabilities, registry
def imported(name, scratch):
    os.mkdir(scratch)
    job = Job(case=Case("s", "m", backend=name, batch_size=2), loader="", target="", scratch=scratch)
    capabilities.prepare_backend(job)
    before = set(sys.modules)
    if name.startswith("int8"):  # no compiler starts for a kernel: Python's imports are the point
        from torch._inductor.async_compile import AsyncCompile
        AsyncCompile.cpp_pybinding = lambda self, argument_types, source: lambda *tensors: None
    module, inputs = torch.nn.Linear(8, 8).eval(), (torch.ones(2, 8),)
    with torch.no_grad():
        registry.find("backends", name).prepare(module, inputs, job)(*inputs)
    libraries = ("openvino.", "torch.onnx.", "torch.export.", "onnxruntime.", "onnxscript.", "torchao.")
    return sorted(module for module in set(sys.modules) - before if module.startswith(libraries))
folder, *names = sys.argv[1:]
for name in names:
    if os.fork() == 0:
        try:
            made = imported(name, os.path.join(folder, name))
            with open(os.path.join(folder, name + ".json"), "w") as file:
                json.dump(made, file)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """By back end: what converting imported of its library. One that failed is not there."""
    folder = tmp_path_factory.mktemp("imported")
    names = [name for name, package in PACKAGES.items() if importlib.util.find_spec(package)]
    subprocess.run([sys.executable, "-c", SCRIPT, str(folder), *names], check=True)
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_a_module_that_another_version_cannot_import_does_not_fail_the_case(tmp_path, monkeypatch):
    """Converting may do without it; if not, converting says so."""
    (tmp_path / "broken_module.py").write_text("import torch\ntorch.was_renamed\n")
    backend = tmp_path / "mine.py"
    backend.write_text(
        "MODULES = ('no_such_module', 'broken_module')\ndef prepare(module, inputs, job): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    capabilities.prepare_backend(
        Job(case=Case("s", "m", backend="mine"), loader="", target="", scratch="", backend_file=str(backend))
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", PACKAGES)
def test_converting_imports_nothing_of_its_library(backend, imported):
    pytest.importorskip(PACKAGES[backend])
    assert imported[backend] == []
