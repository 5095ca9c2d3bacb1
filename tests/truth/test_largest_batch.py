"""The largest batch size of a model whose samples need a known memory, for real through the command."""

from __future__ import annotations

import json

import pytest

from tests.conftest import HERE, perfdash

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SAMPLE_MIB = 8


def largest(home, gib, backend="eager"):
    ran = perfdash(
        "run", "--model", f"{HERE / 'truth' / 'training_models.py'}:grows", "--scenario", "training",
        "--backend", backend, "--batch-size", "32", "--memory-limit", str(gib), "--find-batch-size", "--json",
        cwd=home, warm=True,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert not (home / "runs").exists(), "nothing is kept"
    return {row["side"]: row for row in json.loads(ran.out)}


def test_half_a_gibibyte_more_is_so_many_samples_more(tmp_path):
    less = largest(tmp_path, 1)
    more = largest(tmp_path, 1.5, backend="aot_eager")
    assert set(less) == {"eager"}
    assert set(more) == {"eager", "backend"}
    # Told to one part in 32, on both ends.
    step = more["eager"]["fits"] // 32 + less["eager"]["fits"] // 32 + 2
    assert more["eager"]["fits"] - less["eager"]["fits"] == pytest.approx(512 / SAMPLE_MIB, abs=step)
    for sizes in (*less.values(), *more.values()):
        assert sizes["fits"] < sizes["fails"] <= sizes["fits"] + max(1, sizes["fits"] // 32)
        assert sizes["status"] is None


@pytest.mark.parametrize(
    "other",
    [["--dry-run"], ["--resume", "last"], ["--retry", "oom"], ["--shard", "1/2", "--fail-on", "failure"]],
)
def test_it_goes_with_no_other_kind_of_run(tmp_path, other):
    ran = perfdash("run", "--suite", "timm", "--find-batch-size", *other, cwd=tmp_path)
    assert ran.code == 2
    assert "--find-batch-size cannot be combined with" in ran.err
    assert all(word in ran.err for word in other if word.startswith("--"))


def test_a_step_over_several_batch_sizes_has_none_to_find(tmp_path):
    own = f"{HERE / 'truth' / 'shape_models.py'}:plain"
    ran = perfdash("run", "--model", own, "--scenario", "sizes", "--find-batch-size", cwd=tmp_path)
    assert ran.code == 2
    assert "a step of scenario sizes runs the batch sizes of --sizes" in ran.err
