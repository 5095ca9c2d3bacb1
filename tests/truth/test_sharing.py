"""Configurations of a model that share what is measured of eager: the same verdicts and values as without."""

from __future__ import annotations

import pytest

from perfdash.records import Status
from tests.conftest import HERE, perfdash

pytestmark = [pytest.mark.slow, pytest.mark.timeout(580)]

MODELS = HERE / "truth" / "shape_models.py"
MIB = 1 << 20


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    """By sharing or not, model and configuration."""
    models = [word for name in ("product", "of_the_process") for word in ("--model", f"{MODELS}:{name}")]
    arguments = [*models, "--configuration", "fixed.toml,free.toml", "--processes", "1"]
    results = {}
    for shares, more in ((True, []), (False, ["--no-share"])):
        home = tmp_path_factory.mktemp("sharing")
        (home / "fixed.toml").write_text('backend = "aot-eager"\n')
        (home / "free.toml").write_text('backend = "aot-eager"\ndynamic = true\n')
        ran = perfdash("run", *arguments, *more, cwd=home, quickly=True)
        assert ran.code == 0, ran.err
        for result in ran.every:
            name = result.case.model.rpartition(".")[2]
            results[shares, name, result.case.configuration] = result
    return results


def test_verdicts_and_values_are_those_of_a_run_without_sharing(results):
    for configuration in ("fixed", "free"):
        result, alone = (results[shares, "product", configuration] for shares in (True, False))
        assert result.status is alone.status is Status.PASS, result.error
        source = result.accuracy.get("shared_from")
        assert {
            key: value for key, value in result.accuracy.items() if key != "shared_from"
        } == alone.accuracy
        assert "shared_from" not in alone.memory["eager"]
        assert result.memory["eager"].get("shared_from") == source
        assert result.eager_peak_bytes == pytest.approx(alone.eager_peak_bytes, abs=MIB)
        assert result.backend_peak_bytes == pytest.approx(alone.backend_peak_bytes, abs=MIB)


def test_the_record_names_the_case_that_measured(results):
    first = results[True, "product", "fixed"]
    assert "shared_from" not in first.memory["eager"]
    result = results[True, "product", "free"]
    assert result.memory["eager"] == {**first.memory["eager"], "shared_from": first.case.name}
    assert result.accuracy["shared_from"] == first.case.name
    assert result.eager_ms.samples != first.eager_ms.samples, "eager is timed in each case"


def test_weights_that_differ_from_process_to_process_are_not_shared(results):
    for configuration in ("fixed", "free"):
        assert "shared_from" not in results[True, "of_the_process", configuration].memory["eager"]
