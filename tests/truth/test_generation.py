"""Generations whose costs and memory are known, for real through the command."""

from __future__ import annotations

import pytest

from perfdash.records import Status
from tests.conftest import HERE, perfdash

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PREFILL_MS, STEP_MS, NEW_TOKENS = 20, 10, 9  # generation_models.py and generation.toml


def run(home, *models):
    suite = HERE / "truth" / "generation.toml"
    ran = perfdash(
        "run", "--suite", str(suite), "--models", ",".join(models), "--backend", "aot_eager",
        "--processes", "1", cwd=home, quickly=True,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return {(result.case.model, result.case.batch_size): result for result in ran.every}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    home = tmp_path_factory.mktemp("generation")
    return run(home, "grows", "no_cache", "too_long")


def test_prefill_and_decode_are_timed_apart(tmp_path):
    result = run(tmp_path, "waits")["waits", 2]
    assert result.status is Status.PASS, result.accuracy
    for side in ("eager", "backend"):
        parts = result.parts_ms[side]
        # A sleep is never shorter; how much longer is the machine's, but the order is the model's.
        assert PREFILL_MS <= parts["prefill"]["median"] < parts["decode"]["median"]
        decode = STEP_MS * (NEW_TOKENS - 1)
        assert decode <= parts["decode"]["median"] < decode * 4
        steps = parts["decode"]["steps"]
        assert steps["n"] == NEW_TOKENS - 1
        assert steps["first"] >= STEP_MS
        assert STEP_MS <= steps["median"] < parts["prefill"]["median"]
        assert steps["median"] <= steps["slowest"]


def test_batches_grow_until_memory_ends(results):
    sizes = {size: result for (model, size), result in results.items() if model == "grows"}
    statuses = [str(sizes[size].status) for size in (2, 32, 4096, 8192)]
    assert statuses == ["pass", "eager_oom", "oom", "oom"]
    assert sizes[2].speedup is not None
    alone = sizes[32]
    assert alone.eager_ms is None, "eager needs 2 GiB, and there are 1.5"
    assert alone.speedup is None
    assert alone.backend_ms is not None, "the compiled one needs a sixty-fourth"
    assert set(alone.parts_ms) == {"backend"}
    assert "eager ran out of memory" in alone.accuracy["detail"]
    assert sizes[4096].backend_ms is None
    assert sizes[8192].error.message == "not run: batch size 4096 was out of memory"


def test_what_cannot_generate_says_why(results):
    assert results["no_cache", 1].status is Status.SKIPPED
    assert results["too_long", 1].status is Status.SKIPPED
    assert "has 64 positions" in results["too_long", 1].skip_reason
