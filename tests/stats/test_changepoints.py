"""Calibration at a small size; benchmarks/changepoints.py is the same at a large one."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfdash.stats.changepoints import (
    change_points,
    is_ratio,
    noise,
    pooled_rho,
    weak_changes,
    winsorized,
)

NIGHTS = 365
HISTORY = Path(__file__).parents[1] / "fixtures" / "history_tigerbeetle.json"


def autocorrelated(rng, rho, deviation, count=NIGHTS):
    shocks = rng.normal(0, deviation * math.sqrt(1 - rho**2), count + 100)
    for k in range(1, len(shocks)):
        shocks[k] += rho * shocks[k - 1]
    return shocks[100:]


def with_outliers(rng):
    return rng.normal(0, 0.03, NIGHTS) + np.log(1.3) * (rng.random(NIGHTS) < 0.02)


KINDS = {
    "gaussian": lambda rng: rng.normal(0, 0.03, NIGHTS),
    "heavy tails": lambda rng: 0.03 / math.sqrt(3) * rng.standard_t(3, NIGHTS),
    "autocorrelated": lambda rng: autocorrelated(rng, 0.5, 0.03),
    "outliers": with_outliers,
}


def stepped(logs, *steps):
    """A series near 10 with steps (first night, ratio) in it."""
    logs = logs.copy()
    for night, ratio in steps:
        logs[night:] += math.log(ratio)
    return 10 * np.exp(logs)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_no_change(kind):
    rng = np.random.default_rng(1)
    counts = [len(change_points(stepped(KINDS[kind](rng)))) for _ in range(400)]
    assert sum(counts) <= 0.02 * 400 + 8, "20 in 1,000 series, and the luck of 400 draws"


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_found_and_dated(kind):
    rng = np.random.default_rng(2)
    dated = near = held = 0
    for _ in range(200):
        night = int(rng.integers(30, NIGHTS - 30))
        changes = change_points(stepped(KINDS[kind](rng), (night, 1.1)))
        close = [change for change in changes if abs(change.index - night) <= 8]
        dated += bool(close)
        near += any(abs(change.index - night) <= 1 for change in close)
        held += any(change.low <= night <= change.high for change in close)
    assert dated >= 0.97 * 200
    assert near >= 0.86 * 200
    assert held >= 0.92 * 200


@pytest.mark.parametrize(("age", "power"), [(2, 0.85), (3, 0.95), (5, 0.97)])
def test_a_young_step_is_dated_to_the_night(age, power):
    """5 % at 1 % noise, at the end of the series."""
    rng = np.random.default_rng(age)
    exact = 0
    for _ in range(200):
        changes = change_points(stepped(rng.normal(0, 0.01, NIGHTS), (NIGHTS - age, 1.05)))
        exact += [change.index for change in changes] == [NIGHTS - age]
    assert exact >= power * 0.93 * 200


def test_the_last_night_alone_is_no_change():
    rng = np.random.default_rng(4)
    assert not change_points(stepped(rng.normal(0, 0.01, NIGHTS), (NIGHTS - 1, 1.5)))


def test_levels_sizes_and_order():
    rng = np.random.default_rng(5)
    first, second = change_points(stepped(rng.normal(0, 0.01, NIGHTS), (100, 1.1), (250, 0.8)))
    assert (first.index, second.index) == (100, 250)
    assert first.before == pytest.approx(10, rel=0.01)
    assert first.after == second.before == pytest.approx(11, rel=0.01)
    assert first.change == pytest.approx(0.1, abs=0.01)
    assert second.change == pytest.approx(-0.2, abs=0.01)
    assert first.ratio
    assert first.confidence > 0.999
    assert first.low <= 100 <= first.high


def test_values_below_zero_give_differences():
    rng = np.random.default_rng(6)
    values = rng.normal(0, 1, 200)
    values[80:] += 5
    (change,) = change_points(values)
    assert not change.ratio
    assert not is_ratio(values)
    assert abs(change.index - 80) <= 1
    assert change.change == change.after - change.before == pytest.approx(5, abs=0.5)
    assert noise(values).deviation == pytest.approx(1, rel=0.25)
    (alike,) = change_points(1e200 * values)
    assert alike.index == change.index
    (linear,) = change_points(values + 100, ratio=False)
    assert linear.change == pytest.approx(5, abs=0.5)


def test_missing_values_keep_the_indices_and_widen_the_range():
    rng = np.random.default_rng(7)
    values = stepped(rng.normal(0, 0.01, 60), (30, 1.3))
    values[[3, 27, 28, 29, 30]] = np.nan
    values[50] = np.inf
    (change,) = change_points(values)
    assert (change.index, change.low, change.high) == (31, 27, 31)


@pytest.mark.parametrize(
    "values", [[], [1.0], [1, 2, 3, 4, 5], [7] * 300, [0] * 50, [math.nan] * 40, [1, 9] * 100, range(1, 7)]
)
def test_series_without_change(values):
    assert change_points(list(values)) == []


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ([1] * 6 + [2] * 6, [(6, 1.0)]),
        ([50e6] * 20 + [100e6] * 2, [(20, 1.0)]),  # seen on the second night
        ([50e6] * 20 + [100e6], []),
        ([100] * 30 + [103] * 3, [(30, 0.03)]),
        ([1] * 10 + [2] * 10 + [1] * 10, [(10, 1.0), (20, -0.5)]),
        ([5] * 9 + [6] * 2 + [5] * 9, []),  # two nights are an outlier
    ],
)
def test_the_step_of_a_constant_series_is_not_its_noise(values, steps):
    changes = change_points(np.array(values, dtype=float))
    assert [(change.index, pytest.approx(change.change)) for change in changes] == steps


def test_whole_numbers_with_ties():
    (change,) = change_points([5] * 10 + [6] * 10)
    assert (change.index, change.before, change.after) == (10, pytest.approx(5), pytest.approx(6))
    rng = np.random.default_rng(8)
    assert not change_points(rng.integers(30, 33, NIGHTS))
    assert not change_points(30 + (rng.random(NIGHTS) < 0.05))
    values = 30 + rng.integers(0, 2, NIGHTS)
    values[200:] += 3
    (change,) = change_points(values)
    assert abs(change.index - 200) <= 1


def test_an_outlier_next_to_a_change_does_not_move_it():
    values = [725, 730, 726, 726, 724, 727, 723, 731, 726, 725, 1331, 57, 56, 57, 58, 57, 57, 56, 58, 57]
    (change,) = change_points(values)
    assert change.index in (10, 11)
    assert change.low <= 11 <= change.high
    assert change.after == pytest.approx(57, rel=0.02)


def test_small_changes_are_left_out_and_a_stair_of_them_is_not():
    rng = np.random.default_rng(9)
    values = stepped(rng.normal(0, 0.002, NIGHTS), (100, 1.015), (200, 1.015), (300, 1.2))
    assert [change.index for change in change_points(values)] == [100, 200, 300]
    large = change_points(values, min_change=0.02)
    assert large[-1].index == 300
    assert len(large) == 2
    assert not change_points(values, min_change=0.5)


def test_a_small_change_beside_a_large_one_of_the_other_direction_mixes_no_levels():
    """+1.5 % and -4 %: without the first the level before the second would be between the two."""
    noise = np.random.default_rng(4).normal(0, 0.003, 120)
    values = np.repeat([100.0, 101.5, 97.5], 40) * np.exp(noise)
    (change,) = change_points(values, min_change=0.02)
    assert change.index == 80
    assert (change.before, change.after) == pytest.approx((101.5, 97.5), rel=0.002)
    assert change_points(values, min_change=0.035), "the large one is larger than that"


def test_persistence():
    rng = np.random.default_rng(10)
    values = stepped(rng.normal(0, 0.01, NIGHTS), (NIGHTS - 4, 1.2))
    assert change_points(values, persistence=4)
    assert not change_points(values, persistence=5)
    with pytest.raises(ValueError, match="at least 2"):
        change_points(values, persistence=1)


@pytest.mark.parametrize("total", [0.1, 0.3, 1.0])
def test_a_slow_drift_is_not_a_stair(total):
    rng = np.random.default_rng(11)
    counts = [
        len(change_points(10 * np.exp(np.linspace(0, total, NIGHTS) + rng.normal(0, 0.01, NIGHTS))))
        for _ in range(50)
    ]
    assert np.mean(counts) <= 0.5


def test_a_step_within_a_drift_has_its_own_size():
    rng = np.random.default_rng(12)
    sizes = []
    for _ in range(50):
        logs = np.linspace(0, 0.2, NIGHTS) + rng.normal(0, 0.01, NIGHTS)
        sizes += [c.change for c in change_points(stepped(logs, (180, 1.1))) if abs(c.index - 180) <= 1]
    assert len(sizes) >= 48
    assert np.mean(sizes) == pytest.approx(0.1, abs=0.01)


def test_a_noisy_month_is_not_many_changes():
    rng = np.random.default_rng(13)
    deviation = np.full(NIGHTS, 0.01)
    deviation[300:] = 0.05
    counts = [len(change_points(np.exp(rng.normal(0, deviation)))) for _ in range(50)]
    assert np.mean(counts) <= 1


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_noise_is_estimated_in_spite_of_steps(rho):
    rng = np.random.default_rng(14)
    steps = ((70, 1.3), (150, 0.7), (300, 1.2))
    deviations = [noise(stepped(autocorrelated(rng, rho, 0.02), *steps)) for _ in range(50)]
    assert np.mean([n.deviation for n in deviations]) == pytest.approx(0.02, rel=0.15)
    assert np.mean([n.rho for n in deviations]) == pytest.approx(rho, abs=0.1)
    assert deviations[0].inflation(1) == pytest.approx(1)
    assert deviations[0].inflation(10_000) == pytest.approx(
        (1 + deviations[0].rho) / (1 - deviations[0].rho), rel=0.02
    )


def test_no_noise_is_given_for_too_few_values():
    assert noise([1.0, 2.0]).deviation == 0
    assert noise([3.0] * 20).deviation == 0


finite = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.one_of(
        st.lists(finite, max_size=80),
        st.lists(st.integers(-3, 3), max_size=80),
        st.lists(st.sampled_from([1.0, 1.1, 5e-324, 1e-300, 1e300, math.nan]), max_size=80),
        st.lists(st.floats(1, 1.1), max_size=80),
    ),
    st.floats(0, 1),
)
def test_any_values_give_changes_in_order_and_in_range(values, min_change):
    changes = change_points(values, min_change=min_change)
    indices = [change.index for change in changes]
    assert indices == sorted(set(indices))
    for change in changes:
        assert 0 < change.low <= change.index <= change.high < len(values)
        assert math.isfinite(values[change.index])
        assert 0.99 < change.confidence <= 1
        assert not math.isnan(change.before + change.after)
        assert (change.before > 0) is True or not change.ratio


@given(st.integers(0, 2**32), st.floats(1e-6, 1e6))
@example(2798412009, 1.0)
@example(2798412009, 0.1)  # near 1, where logs are near 0: its noise is as calm as near 10
def test_the_unit_does_not_matter(seed, unit):
    rng = np.random.default_rng(seed)
    values = stepped(rng.normal(0, 0.02, 60), (int(rng.integers(10, 50)), 1.2))
    ours, theirs = change_points(values), change_points(unit * values)
    assert [c.index for c in ours] == [c.index for c in theirs]


def test_what_is_no_outlier_stays_as_it_is_also_near_1():
    """Logs are near 0 there: one that changed in its last bit counted as winsorized."""
    for unit in (0.1, 1.0):
        y = np.log(unit * stepped(np.random.default_rng(9).normal(0, 0.03, NIGHTS)))
        assert np.mean(winsorized(y)[0] != y) <= 0.01


def test_a_real_history():
    """TigerBeetle's: the changes that the eye sees at once (results/changepoints.md)."""
    points = sorted(json.loads(HISTORY.read_text()), key=lambda point: point["timestamp"])
    values = [m["value"] for point in points for m in point["metrics"] if m["name"] == "load_accepted"]
    places = [change.index for change in change_points(values, min_change=0.02)]
    assert places[:4] == [15, 61, 71, 95]
    assert 148 in places
    assert len(places) <= 8


@pytest.mark.parametrize(("age", "power"), [(2, 0.45), (3, 0.80)])
def test_steps_of_three_deviations_are_found_early_in_gaussian_noise(age, power):
    """10 % at 3 % noise, at the end of the series."""
    rng = np.random.default_rng(20 + age)
    found = 0
    for _ in range(200):
        changes = change_points(stepped(rng.normal(0, 0.03, NIGHTS), (NIGHTS - age, 1.1)))
        found += any(abs(change.index - (NIGHTS - age)) <= 5 for change in changes)
    assert found >= power * 200 - 6, "less the luck of 200 draws"


def test_a_step_that_only_a_window_shows_is_weak():
    """A level that wanders over weeks makes the whole series look noisier than any month of it."""
    rng = np.random.default_rng(8)
    seen = strong = 0
    for _ in range(30):
        logs = autocorrelated(rng, 0.97, 0.05) + rng.normal(0, 0.004, NIGHTS)
        logs[170:220] = logs[169] + rng.normal(0, 0.004, 50)  # some quiet weeks
        logs[195:] += 0.03
        values = 10 * np.exp(logs)
        strong += any(abs(change.index - 195) <= 1 for change in change_points(values))
        weak = weak_changes(values)
        assert all(change.weak for change in weak)
        assert [change.index for change in weak] == sorted(change.index for change in weak)
        places = {change.index for change in change_points(values)}
        assert not places & {change.index for change in weak}
        seen += any(abs(change.index - 195) <= 1 for change in weak)
    assert seen >= 20
    assert strong <= 8


def test_weak_changes_are_on_the_scale_of_the_whole_series():
    """A single 0 makes the changes of the series differences, also those of windows without it."""
    rng = np.random.default_rng(0)
    weak = []
    for _ in range(10):
        values = 100 + 2 * rng.normal(size=300) + np.where((np.arange(300) // 40) % 2, 3.0, 0.0)
        values[10] = 0.0
        weak += weak_changes(values)
    assert weak
    for change in weak:
        assert not change.ratio
        assert change.change == pytest.approx(change.after - change.before)


def test_weak_changes_in_noise_are_few_and_short_series_have_none():
    rng = np.random.default_rng(9)
    assert sum(len(weak_changes(stepped(rng.normal(0, 0.03, NIGHTS)))) for _ in range(100)) <= 10
    assert weak_changes(stepped(rng.normal(0, 0.03, 50), (25, 1.5))) == []
    assert weak_changes(stepped(rng.normal(0, 0.03, NIGHTS), (100, 1.5))) == []


def test_weak_indices_count_missing_values():
    rng = np.random.default_rng(3)
    logs = autocorrelated(rng, 0.97, 0.05) + rng.normal(0, 0.004, NIGHTS)
    values = 10 * np.exp(logs)
    values[5:40] = np.nan
    for change in weak_changes(values):
        assert np.isfinite(values[change.index])
        assert 0 < change.low <= change.index <= change.high < NIGHTS


def test_the_usual_autocorrelation_of_a_host_spares_short_series():
    rng = np.random.default_rng(10)
    rows = [stepped(autocorrelated(rng, 0.5, 0.03, 60)) for _ in range(300)]
    rho = pooled_rho(rows)
    assert rho == pytest.approx(0.5, abs=0.12)
    alone = sum(len(change_points(row)) for row in rows)
    pooled = sum(len(change_points(row, rho=rho)) for row in rows)
    assert pooled < alone
    assert pooled <= 4
    assert pooled_rho(rows[:2]) is None
