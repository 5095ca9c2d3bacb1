"""What values and answers say: against plain integration, symmetries, outliers, exact values."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from perfdash.stats.step_likelihood import (
    BIAS_WEIGHTS,
    BIASES,
    REACH,
    TAILS,
    KnownNoise,
    log_sum,
    lumped,
    robust_level,
    weigh,
    weigh_answers,
    without_host,
)
from tests.effort import trials

rows = st.lists(
    st.lists(st.floats(-1, 1), min_size=1, max_size=4).map(lambda v: [round(x, 3) for x in v]),
    min_size=2,
    max_size=5,
)


def noisy(rng, levels, counts, sd=0.01):
    return [rng.normal(level, sd, size=count) for level, count in zip(levels, counts, strict=True)]


def by_plain_integration(builds):
    """Log likelihoods of each cut and of none, by sums over fine grids written out one by one."""
    everything = np.concatenate(builds)
    levels = np.arange(everything.min() - 0.06, everything.max() + 0.06, 5e-4)
    cuts, none = [[] for _ in builds[1:]], []
    scales = 0.01 * np.exp(np.linspace(-1.5, 1.5, 31))
    for scale in scales:
        for bias, weight in zip(BIASES, BIAS_WEIGHTS, strict=True):
            nodes, shares = np.polynomial.hermite_e.hermegauss(15)
            shares = shares / shares.sum()
            by_build = []
            for values in builds:
                own = levels[:, None] + bias * scale * nodes[None, :]
                density = np.prod(stats.t.pdf((values[:, None, None] - own) / scale, TAILS) / scale, axis=0)
                by_build.append(density @ shares)
            for k in range(len(cuts)):
                good = np.prod(by_build[: k + 1], axis=0).sum() * 5e-4
                bad = np.prod(by_build[k + 1 :], axis=0).sum() * 5e-4
                cuts[k].append(weight * good * bad / (REACH * scale))
            none.append(weight * np.prod(by_build, axis=0).sum() * 5e-4)
    return np.log([sum(cut) for cut in cuts]), math.log(sum(none))


@pytest.mark.parametrize("step", [0.0, 0.015, 0.03])
def test_evidence_is_the_integral_it_says(step):
    builds = noisy(np.random.default_rng(3), [0, 0, step, step], [5, 2, 3, 5])
    weighed = weigh(builds)
    cuts, none = by_plain_integration(builds)
    assert weighed.cut - weighed.cut[0] == pytest.approx(cuts - cuts[0], abs=0.15)
    assert weighed.none - weighed.cut[0] == pytest.approx(none - cuts[0], abs=0.25)


def test_a_step_its_size_and_its_interval():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(40):
        weighed = weigh(noisy(rng, [1, 1, 1.04, 1.04], [8, 4, 4, 8]))
        assert int(np.argmax(weighed.cut)) == 1
        held += weighed.low <= 0.04 <= weighed.high
    assert held >= 32  # 95 % are wanted; 31 or fewer of 40 would be one in 100,000


@given(rows)
@settings(max_examples=trials(40))
def test_shifted_and_mirrored_values(builds):
    weighed = weigh(builds)
    shifted = weigh([[value + 0.5 for value in build] for build in builds])
    mirrored = weigh([[-value for value in build] for build in builds])
    backwards = weigh([build[::-1] for build in builds])
    for other, sign in ((shifted, 1), (mirrored, -1), (backwards, 1)):
        assert other.cut - other.none == pytest.approx(weighed.cut - weighed.none, abs=0.03)
        assert other.sd == pytest.approx(weighed.sd, rel=0.01)
        if np.sum(weighed.cut > weighed.cut.max() - 1e-3) == 1:
            # The grids of levels and deviations begin elsewhere: 0.0025 was seen of a step of 0.76.
            assert other.step == pytest.approx(sign * weighed.step, abs=1e-3, rel=1e-2)
    assert weighed.low <= weighed.step <= weighed.high


def test_one_outlier_says_little():
    rng = np.random.default_rng(1)
    builds = noisy(rng, [0, 0, 0.05, 0.05], [6, 3, 3, 6])
    builds[1][0] = 0.3
    weighed = weigh(builds)
    assert int(np.argmax(weighed.cut)) == 1
    assert weighed.cut[1] - np.delete(weighed.cut, 1).max() > 3
    assert weighed.step == pytest.approx(0.05, abs=0.01)


def test_repeats_of_one_build_never_outweigh_its_bias():
    """A build between the levels stays open however often it is measured."""
    rng = np.random.default_rng(2)
    levels = [0, 0.003, -0.004, 0.005, 0.015, 0.03, 0.026, 0.034, 0.03]
    odds = [
        weigh(noisy(rng, levels, [20, 4, 4, 4, count, 4, 4, 4, 20], sd=0.005)).cut[[3, 4]]
        for count in (4, 40)
    ]
    assert all(abs(float(np.diff(odd)[0])) < 3 for odd in odds)


def test_exact_values():
    same = weigh([[1.0] * 3, [1.0] * 3])
    assert same.none > same.cut[0]
    assert same.step == 0
    other = weigh([[1.0] * 2, [1.0], [1.1], [1.1] * 2])
    assert int(np.argmax(other.cut)) == 1
    assert other.cut[1] - other.none > 5


def test_values_that_lump():
    assert lumped([[1.0, 1.1, 1.3], [2.0, 2.2]]) == 0
    assert lumped([[1.0] * 4, [2.0] * 4]) == 0
    coin = [[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 1.0]]
    assert 0.4 < lumped(coin) < 0.8
    assert lumped([*coin, [500.0] * 3 + [0.0]]) < 500
    outlier = [[0.0] * 9 + [1e6], [0.0, 1e-9], [0.02] * 9]
    assert 0 < lumped(outlier) < 0.02


def test_what_is_known_of_the_noise_counts_where_little_was_measured():
    builds = [[0.0, 0.001], [0.02, 0.021]]
    free, informed = weigh(builds), weigh(builds, known=KnownNoise(0.02))
    assert free.cut[0] - free.none > informed.cut[0] - informed.none
    assert informed.sd > 3 * free.sd
    assert informed.high - informed.low > free.high - free.low


@pytest.mark.parametrize("wrong", [[[1.0]], [[1.0], []], [[1.0], [math.nan]], [[1.0], [math.inf]]])
def test_builds_without_values(wrong):
    with pytest.raises(ValueError, match="finite values"):
        weigh(wrong)


def test_values_far_apart_and_of_any_size():
    for size in (1e-9, 1.0, 1e6, 1e12):
        weighed = weigh([[0.0, size * 1e-3, 0.0], [0.0], [size, size * 1.001, size]])
        assert int(np.argmax(weighed.cut)) == (1 if size > 1e-3 else int(np.argmax(weighed.cut)))
        assert np.all(np.isfinite(weighed.cut))
        assert math.isfinite(weighed.none)


def test_levels():
    assert robust_level(np.array([1.0, 2.0])) == 1.5
    assert robust_level(np.array([1.0, 1.01, 0.99, 1.0, 5.0])) == pytest.approx(1.0, abs=0.02)


def test_log_sum():
    logs = np.log(np.arange(1.0, 13).reshape(3, 4))
    assert np.exp(log_sum(logs, axis=0)) == pytest.approx(np.array([15.0, 18, 21, 24]))
    assert math.exp(float(log_sum(logs))) == pytest.approx(78)


def test_answers():
    clear = weigh_answers([[False, False], [False, False], [True, True], [True, True]])
    assert int(np.argmax(clear.cut)) == 1
    assert clear.cut[1] - clear.none > 4
    assert clear.fails_good < 0.1 < 0.9 < clear.fails_bad
    none = weigh_answers([[False] * 4, [False] * 4])
    assert none.none > none.cut[0] + 2
    at_times = weigh_answers([[False] * 8, [True, False] * 4])
    assert 0.4 < at_times.fails_bad < 0.8
    with pytest.raises(ValueError, match="answer"):
        weigh_answers([[True], []])


def test_one_wrong_answer_is_not_believed():
    weighed = weigh_answers(
        [[False] * 2, [False] * 2, [True, False, False], [False] * 3, [True] * 2, [True] * 2]
    )
    assert int(np.argmax(weighed.cut)) == 3


def test_a_drift_is_taken_out_and_a_steady_host_left_alone():
    rng = np.random.default_rng(5)
    places = [0, 1, 1, 9] * 15
    levels = np.array([{0: 0.0, 1: 0.02, 9: 0.05}[place] for place in places])
    noise = rng.normal(0, 0.01, size=60)
    noise[7] += 0.2
    drift = 0.08 * np.sin(np.arange(60) / 12)
    times = np.arange(60.0)
    steady = without_host(places, times, levels + noise)
    assert np.sqrt(np.mean((steady - levels - noise) ** 2)) < 0.004
    moved = without_host(places, times, levels + noise + drift)
    rest = moved - levels - noise
    assert np.std(np.delete(rest, 7)) < 0.25 * np.std(drift)


def test_too_little_to_say_anything_of_the_host():
    assert without_host([0, 1, 0, 1], [0, 1, 2, 3], [1.0, 2, 3, 4]).tolist() == [1, 2, 3, 4]
    assert without_host([0] * 9, range(9), [2.0] * 9).tolist() == [2.0] * 9
