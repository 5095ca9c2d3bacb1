from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.stats.common_dates import IMPOSSIBLE, date_logs, date_range, group


def steps(rng, night, size, series, nights=40, sd=0.01):
    values = rng.normal(0, sd, (series, nights))
    values[:, night:] += size
    return values


def logs_of(values, first, sd=0.01):
    return np.stack([date_logs(row, first, sd) for row in values])


def test_a_large_step_has_one_date():
    values = steps(np.random.default_rng(0), 25, 0.2, 1)[0]
    assert date_range(date_logs(values, 27, 0.01)) == (25, 25, 25)


def test_a_small_step_has_a_range_that_holds_its_date():
    rng = np.random.default_rng(1)
    inside, width = 0, 0
    for values in steps(rng, 25, 0.015, 200):
        low, _, high = date_range(date_logs(values, 26, 0.01))
        inside += low <= 25 <= high
        width += high - low
    assert inside >= 180
    assert width / 200 > 2


def test_an_outlier_before_the_step_does_not_date_it():
    values = steps(np.random.default_rng(2), 25, 0.1, 1)[0]
    values[21] += 0.1
    assert date_range(date_logs(values, 25, 0.01))[1] == 25


def test_only_nights_near_the_alert_are_possible():
    logs = date_logs(np.zeros(60), 30, 0.01)
    assert np.flatnonzero(logs > IMPOSSIBLE).tolist() == list(range(20, 41))
    assert not len(np.flatnonzero(date_logs(np.zeros(1), 0, 0.01) > IMPOSSIBLE))


def test_two_dates_a_night_apart_are_two_groups():
    rng = np.random.default_rng(3)
    logs = np.vstack([logs_of(steps(rng, 25, 0.1, 12), 25), logs_of(steps(rng, 26, 0.1, 5), 26)])
    groups = group(logs)
    assert groups.label.tolist() == [0] * 12 + [1] * 5
    assert [date_range(dates)[1] for dates in groups.dates] == [25, 26]


def test_series_that_are_uncertain_alone_are_one_group():
    """A chain of ranges that overlap would join anything; one date that fits all is needed."""
    logs = logs_of(steps(np.random.default_rng(4), 25, 0.015, 40), 25)
    groups = group(logs)
    assert len(groups.dates) == 1
    assert date_range(groups.dates[0]) == (25, 25, 25)


def test_a_series_that_fits_two_dates_goes_to_the_larger_group():
    logs = np.full((6, 10), IMPOSSIBLE)
    logs[:4, 3] = 0
    logs[4, 7] = 0
    logs[5, [3, 7]] = 0
    assert group(logs).label.tolist() == [0, 0, 0, 0, 1, 0]


@given(st.integers(1, 8), st.integers(1, 12), st.randoms(use_true_random=False))
def test_every_item_has_a_group_and_the_order_of_items_changes_nothing(items, dates, random):
    logs = np.array([[-random.random() * 60 for _ in range(dates)] for _ in range(items)])
    logs -= logs.max(axis=1, keepdims=True)
    groups = group(logs)
    assert sorted(set(groups.label.tolist())) == list(range(len(groups.dates)))
    order = list(range(items))
    random.shuffle(order)
    shuffled = group(logs[order]).label
    pairs = {(int(groups.label[item]), int(shuffled[place])) for place, item in enumerate(order)}
    assert len(pairs) == len(groups.dates), "the same items are together"


def test_nothing_to_group():
    assert len(group(np.zeros((0, 5))).label) == 0


@pytest.mark.parametrize("nights", [2, 3, 5])
def test_a_step_on_the_last_night(nights):
    values = np.append(np.random.default_rng(5).normal(0, 0.01, nights), 0.2)
    assert date_range(date_logs(values, nights, 0.01)) == (nights, nights, nights)
