"""Where the culprit may be and what to try: sums, sets against brute force, information, quantiles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from perfdash.bisection.posterior import Belief, belief, culprits
from perfdash.bisection.search import information, next_builds, unbroken
from tests.effort import trials

weights = st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda drawn: sum(drawn) > 0.01)


def even(n):
    return Belief(np.full(n, 1 / n), 0.0)


@given(weights, st.data())
def test_belief_sums_to_one(prior, data):
    n = len(prior)
    inner = data.draw(st.sets(st.integers(1, n - 1))) if n > 1 else set()
    tested = [0, *sorted(inner), n]
    cut = np.array([data.draw(st.floats(-50, 50)) for _ in tested[1:]])
    with np.errstate(divide="ignore"):
        now = belief(np.log(prior), tested, cut, data.draw(st.floats(-50, 50)), 0.3)
    assert now.places.sum() + now.none == pytest.approx(1)
    assert now.bad[0] == 0
    assert np.all(np.diff(now.bad) >= 0)
    assert all(now.places[k] == 0 for k, weight in enumerate(prior) if weight == 0)


def test_belief_is_bayes():
    now = belief(np.zeros(4), [0, 2, 4], np.log([3.0, 1.0]), np.log(2.0), 0.5)
    assert now.places == pytest.approx(np.array([0.1875, 0.1875, 0.0625, 0.0625]))
    assert now.none == pytest.approx(0.5)


@given(weights, st.data(), st.sampled_from([0.5, 0.8, 0.95]))
def test_culprits_are_the_smallest_run(mass, data, confidence):
    n = len(mass)
    places = np.array(mass) / sum(mass)
    measurable = np.array([data.draw(st.booleans()) for _ in range(n + 1)])
    sets = culprits(Belief(places, 0.0), measurable, confidence)
    ends = [place for place in range(1, n + 1) if measurable[place] or place == n]
    starts = [0, *ends[:-1]]
    runs = [
        (end - start, start + 1, end)
        for start in starts
        for end in ends
        if end > start and places[start:end].sum() >= confidence - 1e-9
    ]
    # A set that need not be split comes before one that is as short but can be.
    assert sets.last - sets.first + 1 >= min(runs)[0]
    assert any((first, last) == (sets.first, sets.last) for _, first, last in runs)
    within = [place for place in ends if sets.first <= place < sets.last]
    assert sets.splittable == bool(within)
    assert sets.probability == pytest.approx(places[sets.first - 1 : sets.last].sum())
    if sets.splittable:
        assert not any(len([p for p in ends if a <= p < b]) == 0 for _, a, b in runs)


def test_what_no_build_tells_apart_is_one_set():
    measurable = np.array([True, True, True, False, False, True, True])
    places = np.array([0.0, 0.01, 0.3, 0.3, 0.38, 0.01])
    sets = culprits(Belief(places, 0.0), measurable, 0.95)
    assert (sets.first, sets.last, sets.splittable) == (3, 5, False)
    assert sets.probability == pytest.approx(0.98)


@pytest.mark.parametrize("p", [0.5, 0.2, 0.01, 1e-4])
@pytest.mark.parametrize("strength", [0.3, 1.1, 2.6, 5.3])
def test_information_is_that_of_a_gaussian_channel(p, strength):
    def information_at(y):
        good, bad = stats.norm.pdf(y), stats.norm.pdf(y, strength)
        mixed = (1 - p) * good + p * bad
        return (1 - p) * good * np.log(good / mixed) + p * bad * np.log(bad / mixed)

    exact, _ = integrate.quad(information_at, -8, 8 + strength, limit=200)
    assert information(np.array([p]), strength)[0] == pytest.approx(exact, rel=0.03, abs=1e-6)
    assert information(np.array([1 - p]), strength)[0] == pytest.approx(exact, rel=0.03, abs=1e-6)


def test_information_at_its_ends():
    assert information(np.array([0.0, 1.0]), 3.0) == pytest.approx(0, abs=1e-6)
    assert information(np.array([0.5]), 0.0)[0] == 0
    assert information(np.array([0.5]), 99.0)[0] == pytest.approx(np.log(2), rel=1e-3)


def test_one_build_halves_and_three_quarter():
    cost, chance = np.full(129, 10.0), np.ones(129)
    single, gains = next_builds(even(128), cost, chance, 9.0, 1)
    assert single == [64]
    assert gains == pytest.approx(np.log(2), rel=0.01)
    three, gains = next_builds(even(128), cost, chance, 9.0, 3)
    assert three == [32, 64, 96]
    assert gains == pytest.approx(np.log(4), rel=0.01)


def test_cheap_builds_before_dear_ones_and_impossible_ones_never():
    cost, chance = np.full(129, 10.0), np.ones(129)
    cost[64] = np.inf
    assert next_builds(even(128), cost, chance, 9.0, 1)[0][0] in (63, 65)
    cost[40] = 1.0
    assert next_builds(even(128), cost, chance, 9.0, 1)[0] == [40]
    assert next_builds(even(128), np.full(129, np.inf), chance, 9.0, 2) == ([], 0.0)


@given(st.integers(2, 40), st.integers(1, 6), st.data())
@settings(max_examples=trials(60))
def test_builds_are_distinct_and_possible(n, count, data):
    mass = np.array([data.draw(st.floats(0, 1)) for _ in range(n)]) + 1e-6
    cost = np.array([data.draw(st.sampled_from([1.0, 10.0, np.inf])) for _ in range(n + 1)])
    chosen, gains = next_builds(Belief(mass / mass.sum(), 0.0), cost, np.ones(n + 1), 4.0, count)
    assert chosen == sorted(set(chosen))
    assert len(chosen) <= count
    assert all(0 < place < n and np.isfinite(cost[place]) for place in chosen)
    assert gains >= 0


def test_failures_come_in_runs():
    chance = unbroken([0, 10, 20], [5, 12], 20)
    assert chance[6] < chance[8] < chance[17]
    assert chance[4] < chance[1]
    assert chance[9] > 0.6  # near to what failed at 12, but 10 was built between
    assert unbroken([], [], 5) == pytest.approx(np.full(6, 0.9))
    assert unbroken([], list(range(9)), 9)[9] < unbroken([], [], 9)[9]


def test_ten_thousand_places_are_planned_by_arrays():
    n = 10_000
    now = belief(np.zeros(n), [0, 5000, n], np.array([0.0, 3.0]), -9.0, 0.5)
    chosen, _ = next_builds(now, np.full(n + 1, 10.0), np.ones(n + 1), 4.0, 3)
    assert len(chosen) == 3
    assert chosen[0] > 4000
