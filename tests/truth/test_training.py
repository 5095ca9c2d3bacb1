"""Training steps whose parts, memory and faults are known, for real through the command."""

from __future__ import annotations

import pytest

from perfdash.records import Status
from tests.conftest import HERE, perfdash

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(home, *models, backend, more=()):
    options = [
        part for model in models for part in ("--model", f"{HERE / 'truth' / 'training_models.py'}:{model}")
    ]
    how = ("--scenario", "training", "--backend", backend, "--batch-size", "8", "--processes", "1")
    ran = perfdash("run", *options, *how, *more, cwd=home, quickly=True)
    assert ran.code == 0, ran.err
    return {name.rpartition(".")[2]: result for name, result in ran.results.items()}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    models = ("waits", "wrong_gradient", "wrong_statistics", "dropout", "integers", "one_row")
    return run(tmp_path_factory.mktemp("compiled"), *models, backend="aot_eager")


@pytest.fixture(scope="module")
def eager(tmp_path_factory):
    return run(tmp_path_factory.mktemp("eager"), "saves", backend="eager")


def test_forward_and_backward_are_timed_apart(compiled):
    from tests.truth.training_models import BACKWARD_S, FORWARD_S

    result = compiled["waits"]
    assert result.status is Status.PASS, result.accuracy
    for side in ("eager", "backend"):
        parts = result.parts_ms[side]
        # A sleep is never shorter; how much longer is the machine's, but the order is the model's.
        assert FORWARD_S * 1e3 <= parts["forward"]["median"] < parts["backward"]["median"]
        assert BACKWARD_S * 1e3 <= parts["backward"]["median"] < BACKWARD_S * 1e3 * 4
        assert parts["optimizer"]["median"] < parts["forward"]["median"]
    whole = sum(part["mean"] for part in result.parts_ms["eager"].values())
    assert whole == pytest.approx(result.eager_ms.mean, rel=0.1)


def test_the_memory_of_a_step_holds_what_backward_needs(eager):
    from tests.truth.training_models import MIB

    result = eager["saves"]
    assert result.status is Status.PASS
    assert result.eager_peak_bytes == pytest.approx(96 * MIB, rel=0.03)
    assert result.backend_peak_bytes == pytest.approx(96 * MIB, rel=0.03)


def test_the_state_of_an_optimizer_is_held_on_both_sides(tmp_path):
    from tests.truth.training_models import MIB

    result = run(tmp_path, "layer", backend="eager", more=("--optimizer", "adam"))["layer"]
    assert result.status is Status.PASS
    assert result.backend_peak_bytes == pytest.approx(result.eager_peak_bytes, rel=0.03)
    # Parameters, adam's two averages, gradients, and for a moment adam's copy of the parameters.
    assert result.eager_peak_bytes == pytest.approx(5 * 9 * MIB, rel=0.05)


def test_a_wrong_gradient_is_found(compiled):
    result = compiled["wrong_gradient"]
    assert result.status is Status.FAIL_ACCURACY
    assert "gradients" in result.accuracy["detail"]


def test_wrong_running_statistics_are_found(compiled):
    result = compiled["wrong_statistics"]
    assert result.status is Status.FAIL_ACCURACY
    assert "buffers" in result.accuracy["detail"]


def test_dropout_is_checked_with_the_random_numbers_of_eager(compiled):
    assert compiled["dropout"].status is Status.PASS, compiled["dropout"].accuracy


def test_what_cannot_be_trained_says_why(compiled):
    assert compiled["integers"].status is Status.SKIPPED
    assert "no floating output" in compiled["integers"].skip_reason
    assert compiled["one_row"].status is Status.EAGER_FAIL_TO_RUN
    assert "more than 1 value per channel" in compiled["one_row"].error.message
