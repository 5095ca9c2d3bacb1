"""The configurations that need more than another back end: a socket's threads, several sizes."""

from __future__ import annotations

import pytest

from perfdash.records import Status
from tests.conftest import HERE, perfdash

pytestmark = [pytest.mark.slow, pytest.mark.machine, pytest.mark.timeout(580)]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    model = f"{HERE / 'truth' / 'shape_models.py'}:plain"
    arguments = [
        "--model",
        model,
        "--backend",
        "aot-eager",
        "--configuration",
        "default,dynamic-batch,socket",
    ]
    home = tmp_path_factory.mktemp("configurations")
    ran = perfdash("run", *arguments, "--processes", "1", cwd=home, quickly=True)
    assert ran.code == 0, ran.err
    return {result.case.configuration: result for result in ran.every}


def test_each_says_what_it_measured(results):
    assert set(results) == {"default", "dynamic-batch", "socket"}
    assert {result.status for result in results.values()} == {Status.PASS}


def test_threads_and_memory_of_a_socket_are_bound(results):
    conditions = results["socket"].conditions
    assert conditions["memory_nodes"] is not None
    assert conditions["torch_threads"] == results["socket"].case.threads == len(conditions["core"])
    assert "memory_nodes" not in results["default"].conditions


def test_one_artefact_serves_the_batch_sizes(results):
    sizes = results["dynamic-batch"].sizes
    assert [figures["graphs"] for figures in sizes["by_size"].values()] == [1, 0, 0]
    assert list(sizes["by_size"]) == ["batch 2", "batch 4", "batch 8"]
    assert results["default"].sizes == {}
