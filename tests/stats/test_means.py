import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.stats.means import arithmetic_mean, clipped_geometric_mean, geometric_mean


def test_means():
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert clipped_geometric_mean([0.5, 2.0]) == pytest.approx(math.sqrt(2))
    assert arithmetic_mean([0.5, 2.0]) == 1.25
    assert math.isnan(geometric_mean([]))
    assert math.isnan(arithmetic_mean([]))


@given(st.lists(st.floats(0.01, 100), min_size=1))
def test_order_of_the_means(values):
    tight = 1 + 1e-9
    assert geometric_mean(values) <= arithmetic_mean(values) * tight
    assert geometric_mean(values) <= clipped_geometric_mean(values) * tight
