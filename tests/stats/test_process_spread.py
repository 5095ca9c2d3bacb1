"""Calibration at a small size; benchmarks/coverage.py is the same at a large one."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.stats.process_spread import (
    ProcessRatios,
    disagree,
    spread_of_run,
    widened_for_few,
)

MODELS = 40


def simulated(rng, between, within=0.003, count=2):
    """Each model's processes; the truth of every one is 0."""
    deviations = np.sqrt(np.asarray(between) ** 2 + within**2)
    return [ProcessRatios(tuple(rng.normal(0, sd, count)), within**2) for sd in deviations]


def spreads(rng, median=0.012, sigma=0.6):
    return median * np.exp(sigma * rng.normal(size=MODELS))


def held(cases, spread, confidence=0.95):
    return [abs(case.mean) <= spread.reach(place, case, confidence) for place, case in enumerate(cases)]


@pytest.mark.parametrize("median", [0.003, 0.012, 0.03])
def test_the_interval_of_two_processes_covers_the_truth(median):
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(15):
        cases = simulated(rng, spreads(rng, median))
        covered += held(cases, spread_of_run(cases))
    assert np.mean(covered) > 0.925


def test_earlier_nights_help_the_noisiest_most():
    rng = np.random.default_rng(2)
    alone, with_history = [], []
    for _ in range(15):
        between = spreads(rng)
        noisy = between >= np.quantile(between, 0.75)
        cases = simulated(rng, between)
        nights = [simulated(rng, between) for _ in range(6)]
        earlier = [[night[place] for night in nights] for place in range(MODELS)]
        alone += list(np.array(held(cases, spread_of_run(cases)))[noisy])
        with_history += list(np.array(held(cases, spread_of_run(cases, earlier)))[noisy])
    assert np.mean(with_history) > np.mean(alone) + 0.02
    assert np.mean(with_history) > 0.88


def test_changes_between_nights_are_not_noise():
    rng = np.random.default_rng(3)
    cases = simulated(rng, np.full(MODELS, 0.005))
    shifted = [
        [ProcessRatios(tuple(ratio + night for ratio in case.ratios), case.within) for night in (0.2, 0.4)]
        for case in cases
    ]
    assert spread_of_run(cases, shifted).median < 0.01


def test_a_model_against_itself_is_surely_one_in_98_of_100():
    rng = np.random.default_rng(4)
    called = []
    for _ in range(20):
        cases = simulated(rng, spreads(rng))
        spread = spread_of_run(cases)
        called += [not equal for equal in held(cases, spread, 0.985)]
    assert np.mean(called) < 0.03


def test_a_few_very_variable_models_do_not_widen_the_others():
    rng = np.random.default_rng(5)
    between = np.full(MODELS, 0.004)
    quiet = simulated(rng, between)
    odd = [ProcessRatios((-0.2, 0.2), 1e-5), ProcessRatios((-0.1, 0.12), 1e-5)]
    before = spread_of_run(quiet)
    after = spread_of_run([*quiet, *odd])
    widths = [s.reach(0, quiet[0], 0.95) for s in (before, after)]
    assert widths[1] < 1.25 * widths[0]
    assert after.reach(MODELS, odd[0], 0.95) > 0.15


def test_without_spread_only_sampling_counts():
    cases = [ProcessRatios((0.3, 0.3), 0.01**2) for _ in range(30)]
    reach = spread_of_run(cases).reach(0, cases[0], 0.95)
    assert reach == pytest.approx(1.96 * 0.01 / math.sqrt(2), rel=0.1)


def test_one_case_is_judged_by_the_prior_and_its_own_processes():
    close, apart = ProcessRatios((0.0, 0.001), 1e-6), ProcessRatios((0.0, 0.1), 1e-6)
    narrow = spread_of_run([close]).reach(0, close, 0.95)
    wide = spread_of_run([apart]).reach(0, apart, 0.95)
    assert 0.005 < narrow < 0.03
    assert wide > 0.08


def test_the_order_leaves_no_trace():
    rng = np.random.default_rng(6)
    cases = simulated(rng, spreads(rng))
    shuffled = list(range(MODELS))
    random.Random(3).shuffle(shuffled)
    first, other = spread_of_run(cases), spread_of_run([cases[place] for place in shuffled])
    assert first.median == other.median
    for place, before in enumerate(shuffled):
        assert other.reach(place, cases[before], 0.95) == first.reach(before, cases[before], 0.95)


def test_nothing_is_known_without_pairs():
    unknown = ProcessRatios((0.2, 0.3), math.inf)
    spread = spread_of_run([unknown, ProcessRatios((0.1, 0.1), 1e-6)])
    assert spread.reach(0, unknown, 0.95) == math.inf
    assert np.isfinite(spread.weights).all()


def test_an_empty_run():
    assert spread_of_run([]).cases == 0


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [((0.0, 0.01), False), ((0.0, 0.08), True), ((0.5, 0.51), False), ((0.0,), False), ((3.0, 3.08), True)],
)
def test_processes_that_disagree(ratios, expected):
    assert disagree(ProcessRatios(ratios, 1e-5)) is expected
    assert disagree(None) is False


@given(st.floats(1e-8, 1e-2), st.lists(st.integers(2, 40), min_size=1, max_size=4))
def test_few_pairs_widen(variance, pairs):
    widened = widened_for_few(variance, pairs)
    assert (widened > variance) == (min(pairs) < 10)


def test_a_pair_alone_says_nothing():
    assert widened_for_few(1e-4, [1]) == math.inf
