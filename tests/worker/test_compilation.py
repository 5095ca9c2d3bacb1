"""What is read from dynamo's counters; compiled by its back end `eager`, which generates no code."""

from __future__ import annotations

import os
import tempfile

import pytest
import torch

from perfdash.worker import compilation


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def branches(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


def breaks(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def test_a_branch_that_depends_on_data_is_a_graph_break():
    with compilation.capture_figures() as found:
        torch.compile(branches, backend="eager")(torch.ones(3))
    assert found["graphs"] == 2
    assert (found["graph_breaks"], found["unique_graph_breaks"]) == (1, 1)
    (reason,) = found["break_reasons"]
    assert "depends on data in test_compilation.py:" in reason


def test_any_other_break_counts_once_as_before():
    with compilation.capture_figures() as found:
        torch.compile(breaks, backend="eager")(torch.ones(3))
    assert (found["graphs"], found["graph_breaks"]) == (2, 1)
    with compilation.capture_figures() as found:
        torch.compile(torch.sin, backend="eager")(torch.ones(3))
    assert found["graph_breaks"] == 0


class Counts(torch.nn.Module):
    """A number that dynamo compiles for changes at every call; what it returns does not."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + 0 * self.calls


def test_the_limit_of_recompiles_is_told_when_it_is_reached_later():
    module = Counts()
    with torch._dynamo.config.patch(recompile_limit=3), compilation.capture_figures():
        model = torch.compile(module, backend="eager")
        model(torch.ones(3))
    assert compilation.gave_up() is None
    before = compilation.compiled_graphs()
    with torch._dynamo.config.patch(recompile_limit=3):
        for _ in range(6):
            model(torch.ones(3))
    assert compilation.compiled_graphs() > before
    assert "limit" in compilation.gave_up()


def test_temporary_files_of_python_are_in_the_scratch_folder_too(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, os.environ.get(name, tempfile.gettempdir()))
    assert tempfile.gettempdir() != str(tmp_path / "tmp"), "python has looked it up before"
    compilation.use_caches_in(str(tmp_path))
    with tempfile.NamedTemporaryFile() as file:
        assert file.name.startswith(str(tmp_path / "tmp"))
