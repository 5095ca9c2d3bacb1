import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.stats.intervals import log_ratio, log_ratio_deviation, median_interval
from tests.effort import trials

positive = st.floats(min_value=1e-3, max_value=1e6)


@given(st.lists(positive, min_size=1, max_size=200))
def test_median_interval_holds_the_median_and_stays_in_range(values):
    low, high = median_interval(values)
    assert min(values) <= low <= np.median(values) <= high <= max(values)


def test_median_interval_known_ranks():
    # n = 10: the 2nd and 9th values have coverage 97.9 % (Conover, table A3).
    assert median_interval(list(range(1, 11))) == (2, 9)
    # n = 6 is the first for which the range itself reaches 95 %.
    assert median_interval([3, 1, 2, 6, 5, 4]) == (1, 6)


def test_median_interval_covers():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        low, high = median_interval(rng.exponential(size=40).tolist())
        hits += low <= math.log(2) <= high
    assert hits >= 940


def test_median_of_nothing():
    with pytest.raises(ValueError, match="no values"):
        median_interval([])


def simulated(rng, pairs, deviation=0.05):
    """Pairs whose true ratio is 2, half of them within a slow spell of the machine."""
    spells = np.where(np.arange(pairs) // 3 % 2, 1.3, 1.0)
    noise = np.exp(rng.normal(0, deviation, (2, pairs)))
    return 2 * spells * noise[0], spells * noise[1]


@pytest.mark.parametrize("pairs", [3, 7, 8, 14, 40, 300])
def test_the_deviation_is_that_of_the_log_ratio_over_many_processes(pairs):
    rng = np.random.default_rng(pairs)
    processes = [simulated(rng, pairs) for _ in range(trials(400))]
    deviation = np.std([log_ratio(*sides) for sides in processes])
    stated = math.sqrt(np.mean([log_ratio_deviation(*sides) ** 2 for sides in processes]))
    assert stated == pytest.approx(deviation, rel=0.2)


def test_the_log_ratio_has_no_bias_where_one_side_is_noisier():
    rng = np.random.default_rng(4)
    pairs = np.exp(rng.normal(0, 0.2, 2000)) * 2, np.exp(rng.normal(0, 0.01, 2000))
    assert math.exp(log_ratio(*pairs)) == pytest.approx(2, rel=0.02)


def test_the_log_ratio_withstands_a_fifth_of_outliers():
    rng = np.random.default_rng(6)
    eager, backend = simulated(rng, 200)
    assert math.exp(log_ratio(np.where(np.arange(200) % 5, eager, 10 * eager), backend)) == pytest.approx(
        2, rel=0.05
    )


def test_the_log_ratio_lies_between_two_states_of_a_model():
    """Three calls of five are 40 % slower for the model's own reasons: they are no disturbance."""
    rng = np.random.default_rng(7)
    own = np.where(np.arange(300) % 5 < 3, 1.4, 1.0)
    eager = 2 * np.exp(rng.normal(0, 0.01, 300))
    assert math.exp(log_ratio(eager, own)) == pytest.approx(2 / math.sqrt(1.4), rel=0.02)


def test_one_pair_has_no_deviation():
    single = np.array([2.0])
    assert log_ratio_deviation(single, single) == math.inf
    assert log_ratio(single, single) == 0.0
