import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.stats.means import (
    SHARED_SD,
    arithmetic_mean,
    clipped_geometric_mean,
    geometric_mean,
    geometric_mean_interval,
)


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


def test_the_interval_of_the_mean_is_of_the_measurement():
    """Models that differ by a factor of ten, each known within 2 %: the mean is known far better."""
    models = [(ratio, ratio / 1.02, ratio * 1.02) for ratio in (0.5, 1.0, 2.0, 5.0)]
    low, high = geometric_mean_interval(models)
    mean = geometric_mean([ratio for ratio, _, _ in models])
    assert low < mean < high
    own = math.log(1.02) / math.sqrt(4)
    assert math.log(high / low) / 2 == pytest.approx(
        math.hypot(own, 1.96 * SHARED_SD / math.sqrt(2)), rel=1e-3
    )


def test_of_one_model_it_is_the_models_own():
    assert geometric_mean_interval([(2.0, 1.9, 2.0**2 / 1.9)]) == pytest.approx((1.9, 4 / 1.9))


def test_what_models_of_one_parent_share_is_averaged_over_the_parents():
    def reach(count):
        low, high = geometric_mean_interval([(1.0, 1 - 1e-9, 1 + 1e-9)] * count)
        return math.log(high / low) / 2

    assert reach(40) == pytest.approx(1.96 * SHARED_SD / math.sqrt(2), rel=1e-3)
    assert reach(160) == pytest.approx(reach(40) / 2, rel=1e-3)


def test_cases_of_one_process_share_the_whole_error_of_its_parent():
    def reach(**options):
        low, high = geometric_mean_interval([(1.0, 1 - 1e-9, 1 + 1e-9)] * 40, **options)
        return math.log(high / low) / 2

    assert reach(one_parent=40) == pytest.approx(1.96 * SHARED_SD, rel=1e-3)
    assert reach(one_parent=40) == pytest.approx(reach() * math.sqrt(2), rel=1e-3)
    assert reach() < reach(one_parent=1) < 1.01 * reach()


def test_no_models():
    with pytest.raises(ValueError, match="no models"):
        geometric_mean_interval([])
