"""Back ends whose faults are known: wrong by a known amount, needing a known memory, not to be had."""

from __future__ import annotations

import pytest

from perfdash.records import Status
from tests.conftest import HERE, Ran, perfdash

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FOLDER = HERE / "truth" / "backends"
MIB = 1 << 20


def by_backend(ran: Ran) -> dict:
    assert ran.code == 0, ran.err
    return {result.case.backend: result for result in ran.every}


@pytest.fixture(scope="module")
def on_digits(tmp_path_factory) -> dict:
    home = tmp_path_factory.mktemp("digits")
    names = ("off_by_three_percent", "wrong_first", "needs_a_package", "of_a_gpu")
    files = ",".join(str(FOLDER / f"{name}.py") for name in names)
    arguments = ["--models", "digits_fcn", "--batch-size", "16", "--backend", files, "--processes", "1"]
    return by_backend(perfdash("run", "--suite", "techniques", *arguments, cwd=home, quickly=True))


@pytest.fixture(scope="module")
def on_zeros(tmp_path_factory) -> dict:
    home = tmp_path_factory.mktemp("zeros")
    files = ",".join(str(FOLDER / f"{name}.py") for name in ("holds_64", "holds_64_unseen"))
    model = f"{HERE / 'truth' / 'models.py'}:itself"
    return by_backend(
        perfdash("run", "--model", model, "--backend", files, "--processes", "1", cwd=home, quickly=True)
    )


def test_a_back_end_that_is_wrong_by_three_percent_is_that_far_away(on_digits):
    result = on_digits["off-by-three-percent"]
    assert result.accuracy["distance"]["relative_rmse"] == pytest.approx(0.03, rel=1e-4)
    assert result.accuracy["distance"]["cosine"] == pytest.approx(1.0)
    assert result.status is Status.PASS, "the suite allows int8 so much"
    assert result.quality["agreement"] == 1.0, "larger scores have the same order"
    assert result.quality["value"] == result.quality["eager_value"] > 0.95


def test_a_back_end_that_is_wrong_on_known_samples_loses_these(on_digits):
    result = on_digits["wrong-first"]
    batches = -(-result.quality["samples"] // 16)
    assert result.quality["agreement"] == pytest.approx(1 - batches / result.quality["samples"])
    lost = result.quality["eager_top1"] - result.quality["top1"]
    assert lost == pytest.approx(batches / result.quality["samples"], abs=0.01)
    assert result.quality["value"] < result.quality["eager_value"] - 0.03
    assert result.status is Status.FAIL_ACCURACY
    assert result.notes[0] == "the first of each batch is wrong"
    assert result.backend_ms is not None, "a wrong one is measured all the same"


def test_a_back_end_that_cannot_be_had_says_why(on_digits):
    missing, elsewhere = on_digits["needs-a-package"], on_digits["of-a-gpu"]
    assert missing.status is Status.MISSING_DEPENDENCY
    assert "needs no_such_package_of_perfdash: install them beside torch" in missing.error.message
    assert elsewhere.status is Status.SKIPPED
    assert elsewhere.skip_reason == "back end of-a-gpu is for devices cuda, not for cpu"


@pytest.mark.parametrize("name", ["holds-64", "holds-64-unseen"])
def test_a_back_end_needs_the_memory_that_it_takes(on_zeros, name):
    result = on_zeros[name]
    assert result.memory["backend"]["held_bytes"] == pytest.approx(64 * MIB, rel=0.03)
    assert result.backend_peak_bytes == pytest.approx(96 * MIB, rel=0.03)
    assert result.status is Status.PASS
    assert not result.capture, "dynamo was not asked"
