"""AOTInductor and torch.export on models whose weights are known, and on one that cannot be exported."""

from __future__ import annotations

import pytest

from perfdash.records import Status
from tests.conftest import HERE, perfdash

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MIB = 1 << 20
MODELS = HERE / "truth" / "shape_models.py"


# What a package holds is the point. Its header takes longer than a package gains by it.
NO_HEADER = ("--inductor-config", "aot_inductor.precompile_headers=False")


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    models = ("--model", f"{MODELS}:product", "--model", f"{MODELS}:branches")
    arguments = [*models, "--processes", "1", *NO_HEADER]
    home = tmp_path_factory.mktemp("exported")
    ran = perfdash("run", *arguments, "--backend", "aot-inductor,export", cwd=home, quickly=True)
    assert ran.code == 0, ran.err
    return {(result.case.model.rpartition(".")[2], result.case.backend): result for result in ran.every}


def test_a_package_holds_the_weights_and_runs_without_the_models_code(results):
    result = results["product", "aot-inductor"]
    assert result.status is Status.PASS, result.error
    assert result.speedup is not None
    assert 16 * MIB < result.artifact["package_bytes"] < 18 * MIB
    assert result.artifact["export_s"] + result.artifact["compile_s"] < result.compilation_s
    trial = result.artifact["standalone"]
    assert trial["runs"]
    assert trial["equal"]
    assert trial["largest_difference"] == 0.0
    assert trial["load_s"] > 0
    assert trial["import_s"] > 0
    assert (result.capture, result.structure) == ({}, {}), "dynamo was not asked"


def test_the_memory_of_a_package_counts_its_own_weights(results):
    """A copy in memory, and the pages of the file that it was copied from."""
    memory = results["product", "aot-inductor"].memory["backend"]
    assert memory["file_bytes"] == pytest.approx(16 * MIB, abs=3 * MIB)
    assert memory["held_bytes"] == pytest.approx(32 * MIB, abs=5 * MIB)
    assert any("pages of its file" in note for note in results["product", "aot-inductor"].notes)


def test_an_exported_program_shares_the_weights_and_is_not_compiled(results):
    result = results["product", "export"]
    assert result.status is Status.PASS, result.error
    assert result.accuracy["value"] == 0.0 or result.accuracy["distance"]["relative_rmse"] < 1e-6
    assert result.artifact["operators"] == 2
    assert result.artifact["package_bytes"] > 16 * MIB
    assert result.artifact["standalone"]["runs"]
    assert result.artifact["standalone"]["equal"]
    assert result.memory["backend"]["held_bytes"] == result.memory["held_bytes"]


@pytest.mark.parametrize("backend", ["aot-inductor", "export"])
def test_a_model_that_cannot_be_exported_says_so_in_one_line(results, backend):
    result = results["branches", backend]
    assert result.status is Status.FAIL_TO_RUN
    assert result.failed_phase == "compile"
    assert result.error.type == "ExportRefused"
    message = result.error.message
    plain = "a branch depends on the values of a tensor in shape_models.py:"
    assert message.startswith(f"torch.export cannot capture this model: {plain}")
    assert "(forward)" in message
    assert "\n" not in message
    assert result.eager_peak_bytes is not None, "what was measured before is kept"


def test_training_is_refused_before_anything_is_measured(tmp_path):
    arguments = ["--model", f"{MODELS}:product", "--backend", "aot-inductor", "--scenario", "training"]
    (result,) = perfdash("run", *arguments, cwd=tmp_path, quickly=True).every
    assert result.status is Status.SKIPPED
    assert result.skip_reason == "back end aot-inductor is for scenarios inference, sizes, not for training"
