"""perfdash measures the torch of another interpreter from an environment that has none."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.errors import UsageError
from perfdash.runner.messages import Options
from perfdash.runner.slot import Slot
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import backend_names, select
from perfdash.suites.suite_file import load_suite
from perfdash.worker import registry

WORKER = Path(registry.__file__).parent


@pytest.fixture
def no_torch(monkeypatch):
    """As where torch is not installed: it cannot be imported, and no loader, some of which need it."""
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in registry.names("loaders"):
        monkeypatch.setitem(sys.modules, f"perfdash.worker.loaders.{name.replace('-', '_')}", None)


@pytest.fixture
def planned(no_torch):
    """A case of the suite timm, planned without torch."""
    return select([load_suite("timm")], RunSettings(models=("lcnet_050",)))[0]


@pytest.mark.parametrize("loader", registry.names("loaders"))
def test_what_each_loader_wants_beforehand(planned, loader):
    launch = Slot((0,), Options(python="python", threads=1))._launch(replace(planned, loader=loader))
    libraries = {"timm", "torchvision", "transformers"}
    assert launch.packages == ((loader,) if loader in libraries else ())


@pytest.mark.parametrize("path", sorted((WORKER / "backends").glob("*.py")), ids=lambda path: path.stem)
def test_back_ends_import_nothing_heavy_before_they_run(path):
    """They are imported where cases are planned."""
    for node in ast.parse(path.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names or name in ("perfdash.records", "perfdash.worker.backends")


OWN = """
import torch
from perfdash.worker.backends.inductor import vector_isa
LOSSY: bool = True
DTYPES = ("bfloat16",)
HELD = torch.nn.Linear
def prepare(module, inputs, job):
    return torch.compile(module)
"""


def test_a_back_end_of_ones_own_is_not_run(no_torch, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    backends = backend_names(RunSettings(backend=[str(tmp_path / "mine.py")]))
    (case,) = select([load_suite("timm")], RunSettings(models=("lcnet_050",), backend=backends))
    assert case.skip_reason == "back end mine is for dtypes bfloat16, not for float32"
    assert replace(case, skip_reason=None).needs_cpp


@pytest.mark.parametrize("text", [
    "try:\n    from fast import prepare\nexcept ImportError:\n    def prepare(m, i, j): pass\n",
    "import sys\nif sys.version_info > (3,):\n    DTYPES = ('bfloat16',)\n    def prepare(m, i, j): pass\n",
    "import warnings\nwith warnings.catch_warnings():\n    from fast import prepare\n",
    "try:\n    import fast\nfinally:\n    prepare = None\n",
    "from fast import *\n",
])  # fmt: skip
def test_prepare_may_be_defined_within_a_statement_or_imported(no_torch, tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    facts = registry.backend_facts(str(tmp_path / "mine.py"))
    assert getattr(facts, "DTYPES", ("bfloat16",)) == ("bfloat16",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def prepare(:", "SyntaxError"),
        ("def prepare(m, i, j):\n    def inner(): pass\n    prepare = 1\nDTYPES = 3 + x", "DTYPES must be"),
        ("if x:\n    DTYPES = 'a',\nelse:\n    DTYPES = 'b',\nprepare = 1", "DTYPES must have one value"),
        ("def other():\n    def prepare(m, i, j): pass", "has no function prepare"),
        ("import torch\nDTYPES = torch.dtypes\ndef prepare(m, i, j): pass", "DTYPES must be written as a"),
        ("x = 1", "has no function prepare"),
    ],
)
def test_a_file_that_is_no_back_end(no_torch, tmp_path, text, why):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UsageError, match=why):
        backend_names(RunSettings(backend=[str(tmp_path / "mine.py")]))
