"""Which pairs count where other programs were at work on the core."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from perfdash.stats.disturbance import ProcessSamples, counted_pairs, enough_clean
from perfdash.stats.speedup import Pairs, ratios_of

TRUTH = 0.238


def disturbed(clean=121, pairs=445, seed=0, **more):
    """A neighbour takes turns: short calls of eager meet it seldom, the compiled side's long ones often."""
    rng = np.random.default_rng(seed)
    cpu = Pairs(
        TRUTH * 4 * (1 + 0.002 * rng.standard_normal(pairs)), 4 * (1 + 0.002 * rng.standard_normal(pairs))
    )
    is_clean = np.zeros(pairs, dtype=bool)
    is_clean[rng.permutation(pairs)[:clean]] = True
    lost = np.where(is_clean, 1.0, 1.0 + rng.uniform(0.1, 0.4, pairs))
    wall = Pairs(cpu.eager * 1.001, cpu.backend * lost)
    return ProcessSamples(wall, cpu, is_clean, **{"steal": 0.0, **more})


def value(chosen):
    return math.exp(ratios_of(chosen.processes).mean)


def test_enough_clean_pairs_count_whatever_their_share():
    chosen = counted_pairs([disturbed()])
    assert (chosen.clock, chosen.pairs) == ("wall", "clean")
    assert len(chosen.processes[0].eager) == 121
    assert value(chosen) == pytest.approx(TRUTH, rel=0.003)
    assert value(replace(chosen, processes=[disturbed().wall])) < 0.95 * TRUTH, "of all pairs it is another"


def test_with_too_few_of_them_cpu_time_counts():
    chosen = counted_pairs([disturbed(clean=9)])
    assert (chosen.clock, chosen.pairs, chosen.why_not_cpu) == ("cpu", "all", None)
    assert len(chosen.processes[0].eager) == 445
    assert value(chosen) == pytest.approx(TRUTH, rel=0.003)


@pytest.mark.parametrize("clean", [0, 9])
def test_five_disturbed_runs_agree_by_cpu_time(clean):
    values = [value(counted_pairs([disturbed(clean=clean, seed=seed)])) for seed in range(5)]
    assert max(values) / min(values) < 1.01


@pytest.mark.parametrize(("change", "why"), [
    ({"steal": 0.01}, "the hypervisor took 1.0%"), ({"steal": None}, "does not say"),
    ({"cpu": None}, "several threads"),
])  # fmt: skip
def test_where_cpu_time_does_not_do_all_pairs_count(change, why):
    chosen = counted_pairs([replace(disturbed(clean=9), **change)])
    assert (chosen.clock, chosen.pairs) == ("wall", "all")
    assert why in chosen.why_not_cpu
    assert len(chosen.processes[0].eager) == 445


def test_a_model_that_waits_is_not_timed_by_cpu_time():
    sampled = disturbed(clean=9)
    slept = replace(sampled, cpu=Pairs(sampled.cpu.eager / 2, sampled.cpu.backend / 2))
    assert "waits" in counted_pairs([slept]).why_not_cpu
    none_clean = replace(sampled, clean=np.zeros(445, dtype=bool))
    assert counted_pairs([replace(none_clean, waiting=0.02)]).clock == "cpu"
    assert "waits" in counted_pairs([replace(none_clean, waiting=0.9)]).why_not_cpu


def test_one_process_in_which_the_hypervisor_was_at_work_is_enough():
    assert counted_pairs([disturbed(clean=9), disturbed(clean=9, seed=1)]).clock == "cpu"
    assert counted_pairs([disturbed(clean=9), disturbed(clean=9, seed=1, steal=0.05)]).clock == "wall"


@pytest.mark.parametrize(("clean", "pairs", "enough"), [
    ([30], [2000], True), ([29], [2000], False), ([30], [31], True),
    ([6], [12], True), ([5], [12], False), ([3], [6], True), ([2], [3], False),  # of a slow model
    ([15, 15], [400, 400], True), ([28, 2], [400, 400], False), ([0], [6], False),
    ([2], [2], True), ([1, 2], [1, 3], False),
])  # fmt: skip
def test_how_many_are_enough(clean, pairs, enough):
    assert enough_clean(clean, pairs) == enough
