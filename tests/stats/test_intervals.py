import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.stats.intervals import (
    log_ratio_deviation,
    median_interval,
)

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


def test_deviation_is_that_of_the_median():
    rng = np.random.default_rng(2)
    eager, backend = rng.normal(10, 0.1, 400), rng.normal(5, 0.05, 400)
    # Asymptotic standard error of a median: sqrt(pi / 2) * sigma / sqrt(n), here on each side.
    expected = math.sqrt(math.pi / 2) * 0.01 / math.sqrt(400) * math.sqrt(2)
    assert log_ratio_deviation(eager, backend, seed=3) == pytest.approx(expected, rel=0.25)
