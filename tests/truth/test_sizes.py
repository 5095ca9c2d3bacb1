"""One artefact at several sizes: a model that takes any, one that specialises, one that recompiles."""

from __future__ import annotations

import pytest

from perfdash.records import Status
from tests.conftest import HERE, perfdash

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODELS = HERE / "truth" / "shape_models.py"
NAMES = ("plain", "specialises", "remembers", "same_at_every_size")
OWN_OPERATOR = """
import torch
from torch import nn

LIBRARY = torch.library.Library("perfdash_test", "DEF")  # a second definition raises
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")


class Twice(nn.Module):
    def forward(self, x):
        return torch.ops.perfdash_test.twice(x)


def make(batch_size):
    return Twice(), (torch.randn(batch_size, 64),)
"""
BATCHES = ["batch 2", "batch 3", "batch 5"]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    models = [word for name in NAMES for word in ("--model", f"{MODELS}:{name}")]
    arguments = ["--scenario", "sizes", "--sizes", "2,3,5", "--backend", "aot-eager", "--processes", "1"]
    home = tmp_path_factory.mktemp("sizes")
    ran = perfdash("run", *models, *arguments, cwd=home, quickly=True)
    assert ran.code == 0, ran.err
    return {result.case.model.rpartition(".")[2]: result for result in ran.every}


def test_one_artefact_serves_every_size_of_a_model_that_takes_any(results):
    result = results["plain"]
    assert result.status is Status.PASS, result.error
    by_size = result.sizes["by_size"]
    assert list(by_size) == BATCHES
    assert [figures["graphs"] for figures in by_size.values()] == [1, 0, 0]
    assert result.structure["recompiles"] == 0
    for figures in by_size.values():
        assert figures["speedup"]["ci_low"] <= figures["speedup"]["value"] <= figures["speedup"]["ci_high"]
        assert figures["static_ms"] > 0
        assert figures["cost"]["value"] > 0
    assert set(result.sizes["overall"]) == {"speedup", "cost"}
    assert result.speedup is not None
    assert result.sizes["fixed"] is None
    assert not any("dynamo compiled again" in note or "specialises" in note for note in result.notes)


def test_without_marks_the_second_size_is_compiled_and_the_third_is_not(results):
    automatic = results["plain"].sizes["automatic"]
    assert {name: facts["graphs"] for name, facts in automatic.items()} == {
        "batch 2": 1,
        "batch 3": 1,
        "batch 5": 0,
    }
    assert automatic["batch 3"]["seconds"] > automatic["batch 5"]["seconds"]
    assert any(
        note.startswith("without marks the second size (batch 3) costs") for note in results["plain"].notes
    )


def test_a_model_that_specialises_says_so(results):
    result = results["specialises"]
    assert result.status is Status.PASS, result.error
    assert result.sizes["fixed"] == "it fixes the size at 2"
    assert any("the model specialises: it fixes the size at 2" in note for note in result.notes)
    by_size = result.sizes["by_size"]
    assert [figures["graphs"] for figures in by_size.values()] == [1, 1, 1]
    assert result.capture["graphs"] == 3, "without the attempt at which dynamo raises"
    assert not result.structure["frames_given_up"]
    assert result.structure["recompiles"] == 2
    assert sum(figures["first_call_s"] for figures in by_size.values()) <= result.first_call_s + 0.001


def test_a_model_that_recompiles_at_every_size_says_so(results):
    result = results["remembers"]
    assert result.status is Status.PASS, result.error
    assert result.sizes["fixed"] is None
    assert all(figures["graphs"] for figures in result.sizes["by_size"].values())
    assert result.structure["recompiles"] == 2
    assert "dynamo compiled again at batch 3, batch 5: 3 artefacts for 3 sizes" in result.notes


def test_a_model_with_graph_breaks_is_not_compared_with_its_own_dynamic_code(results):
    result = results["remembers"]
    assert result.capture["graph_breaks"]
    assert set(result.sizes["failed"]) == {"static", "automatic"}
    assert all("cost" not in figures for figures in result.sizes["by_size"].values())
    assert result.sizes["automatic"] is None
    assert any(
        note.startswith("the cost beside an artefact of one size is not known: the model has graph breaks")
        for note in result.notes
    )
    assert "failed" not in results["plain"].sizes


def test_a_file_that_defines_an_operator_is_executed_once(tmp_path):
    (tmp_path / "own.py").write_text(OWN_OPERATOR)
    arguments = ["--scenario", "sizes", "--sizes", "2,3", "--backend", "aot-eager", "--processes", "1"]
    ran = perfdash("run", "--model", "own.py:make", *arguments, cwd=tmp_path, quickly=True)
    assert ran.code == 0, ran.err
    (result,) = ran.every
    assert result.status is Status.PASS, result.skip_reason or result.error


def test_a_model_without_such_a_size_is_skipped(results):
    result = results["same_at_every_size"]
    assert result.status is Status.SKIPPED
    assert result.skip_reason == "the model's inputs do not grow with the batch size"
