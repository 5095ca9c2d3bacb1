"""Imports belong to no compilation latency: prepare finds its library imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

capabilities = lazy("perfdash.worker.capabilities")

SCRIPT = """
import sys
import torch
from perfdash.records import Case, Job
from perfdash.worker import capabilities, registry
name, scratch = sys.argv[1:]
job = Job(case=Case("s", "m", backend=name, batch_size=2), loader="", target="", scratch=scratch)
capabilities.prepare_backend(job)
before = set(sys.modules)
module, inputs = torch.nn.Linear(8, 8).eval(), (torch.ones(2, 8),)
with torch.no_grad():
    registry.find("backends", name).prepare(module, inputs, job)(*inputs)
libraries = ("openvino.", "torch.onnx.", "torch.export.", "onnxruntime.", "onnxscript.", "torchao.")
print(sorted(module for module in set(sys.modules) - before if module.startswith(libraries)))
"""


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
@pytest.mark.parametrize(
    ("backend", "package"),
    [
        ("openvino", "openvino"),
        ("onnxruntime", "onnxscript"),
        ("onnxruntime-int8", "onnxscript"),
        ("int8-static", "torchao"),
    ],
)
def test_converting_imports_nothing_of_its_library(backend, package, tmp_path):
    pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, backend, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
