"""The configurations that need more than another back end: a socket's threads, several sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdash.records import Result, Status
from tests.conftest import HERE, perfdash

pytestmark = [pytest.mark.slow, pytest.mark.timeout(580)]


def measured(home: Path, configurations: str) -> dict[str, Result]:
    """The results by configuration, all of which pass."""
    model = f"{HERE / 'truth' / 'shape_models.py'}:plain"
    words = ["--model", model, "--backend", "aot-eager", "--configuration", configurations]
    ran = perfdash("run", *words, "--processes", "1", cwd=home, quickly=True)
    assert ran.code == 0, ran.err
    results = {result.case.configuration: result for result in ran.every}
    assert set(results) == set(configurations.split(","))
    assert {result.status for result in results.values()} == {Status.PASS}
    return results


def test_one_artefact_serves_the_batch_sizes(tmp_path):
    results = measured(tmp_path, "default,dynamic-batch")
    sizes = results["dynamic-batch"].sizes
    assert [figures["graphs"] for figures in sizes["by_size"].values()] == [1, 0, 0]
    assert list(sizes["by_size"]) == ["batch 2", "batch 4", "batch 8"]
    assert results["default"].sizes == {}
    assert "memory_nodes" not in results["default"].conditions


@pytest.mark.machine
def test_threads_and_memory_of_a_socket_are_bound(tmp_path):
    (result,) = measured(tmp_path, "socket").values()
    assert result.conditions["memory_nodes"] is not None
    assert result.conditions["torch_threads"] == result.case.threads == len(result.conditions["core"])
