"""Calibration at a small size; benchmarks/coverage.py is the same at a large one."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.records import Case, Result, Status
from perfdash.stats.intervals import Spread
from perfdash.stats.speedup import Pairs, estimate, log_ratios_of, pooled_spread, set_speedups, verdict


def process(rng, ratio, between, pairs=60, within=0.03):
    """One simulated process: its own log ratio, drift that hits both sides, skewed noise."""
    shift = rng.normal(0, between)
    drift = np.exp(rng.normal(0, 0.05, pairs).cumsum() / 20)
    noise = np.exp(np.abs(rng.normal(0, within, (2, pairs))))
    return Pairs(10 * drift * noise[0] * ratio * np.exp(shift), 10 * drift * noise[1])


def test_value_is_the_ratio_of_medians():
    pairs = Pairs(np.array([3.0, 4.0, 5.0]), np.array([2.0, 2.0, 8.0]))
    found = estimate(log_ratios_of([pairs]), Spread())
    assert found.value == pytest.approx(2.0)
    assert found.basis == "within"


@pytest.mark.parametrize("count", [2, 3, 6])
def test_interval_over_processes_covers_the_truth(count):
    rng = np.random.default_rng(count)
    hits = 0
    for repeat in range(300):
        found = estimate(
            log_ratios_of([process(rng, 1.4, 0.015) for _ in range(count)], seed=repeat), Spread()
        )
        hits += found.ci_low <= 1.4 <= found.ci_high
    assert hits >= 0.93 * 300


def test_pooled_interval_covers_the_truth():
    rng = np.random.default_rng(9)
    hits = 0
    for repeat in range(300):
        pooled = Spread()
        for _ in range(2):
            own = estimate(log_ratios_of([process(rng, 1.2, 0.015) for _ in range(3)]), Spread()).own
            pooled = pooled.plus(own.variance, own.df)
        found = estimate(log_ratios_of([process(rng, 1.4, 0.015)], seed=repeat), pooled)
        assert found.basis == "pooled"
        hits += found.ci_low <= 1.4 <= found.ci_high
    assert hits >= 0.93 * 300


def test_one_process_alone_is_too_narrow_and_gives_no_verdict():
    rng = np.random.default_rng(5)
    found = [estimate(log_ratios_of([process(rng, 1.4, 0.015)], seed=k), Spread()) for k in range(200)]
    assert sum(f.ci_low <= 1.4 <= f.ci_high for f in found) < 0.85 * 200
    assert {verdict(f.basis, f.ci_low, f.ci_high) for f in found} == {"inconclusive"}


@pytest.mark.parametrize("between", [0.002, 0.015])
def test_a_model_against_itself_is_not_called_faster_or_slower(between):
    rng = np.random.default_rng(6)
    wrong = 0
    for repeat in range(500):
        found = estimate(log_ratios_of([process(rng, 1.0, between) for _ in range(3)], seed=repeat), Spread())
        wrong += verdict(found.basis, found.ci_low, found.ci_high) in ("faster", "slower")
    assert wrong <= 0.02 * 500 + 5, "2 % and the luck of 500 draws"


@pytest.mark.parametrize("count", [3, 6])
def test_the_interval_holds_what_another_run_reports(count):
    rng = np.random.default_rng(7)
    held = 0
    for repeat in range(400):
        one, other = (
            estimate(log_ratios_of([process(rng, 1.4, 0.015) for _ in range(count)], seed=repeat), Spread())
            for _ in range(2)
        )
        held += one.ci_low <= other.value <= one.ci_high
    assert held >= 0.93 * 400


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.99, 1.01, "equivalent"),
        (1.005, 1.015, "equivalent"),
        (1.01, 1.05, "faster"),
        (0.9, 0.97, "slower"),
        (0.95, 1.01, "inconclusive"),
        (0.5, 2.0, "inconclusive"),
    ],
)
def test_verdicts(low, high, word):
    assert verdict("processes", low, high) == word
    assert verdict("within", low, high) == "inconclusive"


@given(st.floats(0.1, 10), st.floats(0, 2))
def test_verdict_mirrors(low, width):
    high = low + width
    mirror = {"faster": "slower", "slower": "faster"}
    word, inverse = verdict("pooled", low, high), verdict("pooled", 1 / high, 1 / low)
    if all(abs(edge - m) > 1e-6 for edge in (low, high) for m in (1 / 1.02, 1.02, 1.0)):
        assert inverse == mirror.get(word, word)


def test_no_process():
    with pytest.raises(ValueError, match="no process"):
        log_ratios_of([])


def result(name, *ratios, within=1e-6, **conditions):
    made = Result(Case("s", name), "t", 1.0, Status.PASS)
    made.conditions = {"process_ratios": list(ratios), "within_variance": within, **conditions}
    return made


def test_the_spread_of_the_replicated_reaches_all():
    results = [result("a", 1.5), result("b", 2.0, 2.02, 1.98), result("c", 1.0)]
    spread = set_speedups(results)
    assert spread.df == 2
    assert [r.speedup.basis for r in results] == ["pooled", "processes", "pooled"]
    assert results[0].speedup.ci_low < 1.5 < results[0].speedup.ci_high
    assert results[0].speedup.verdict == "faster"


def test_the_order_of_measuring_leaves_no_trace():
    def make():
        return [
            result("a", 1.5),
            result("b", 2.0, 2.02, 1.98),
            result("c", 1.0, 1.01, 1.02),
            result("d", 0.9, cpu_ratio=0.5),
        ]

    first, other = make(), make()
    random.Random(3).shuffle(other)
    set_speedups(first)
    set_speedups(other)
    set_speedups(other)
    assert {r.case.model: r.speedup for r in first} == {r.case.model: r.speedup for r in other}


def test_nothing_known_of_the_spread():
    results = [result("a", 1.5)]
    assert set_speedups(results).df == 0
    assert (results[0].speedup.basis, results[0].speedup.verdict) == ("within", "inconclusive")


def test_the_ratio_of_cpu_times_is_taken_in():
    results = [result("a", 1.5, cpu_ratio=1.2), result("b", 1.0, 1.01, 1.02)]
    set_speedups(results)
    assert results[0].speedup.ci_low == pytest.approx(1.2)


def test_what_threads_had_no_core_for_widens_the_interval():
    plain, disturbed = result("a", 1.5, 1.51, 1.49), result("a", 1.5, 1.51, 1.49, widened_by=0.1)
    for one in (plain, disturbed):
        set_speedups([one])
    assert disturbed.speedup.ci_low == pytest.approx(plain.speedup.ci_low / 1.1, rel=1e-5)
    assert disturbed.speedup.ci_high == pytest.approx(plain.speedup.ci_high * 1.1, rel=1e-5)
    assert disturbed.speedup.value == plain.speedup.value


def test_records_without_samples_stay_as_they_are():
    failed = Result(Case("s", "f"), "t", 1.0, Status.CRASH)
    old = Result(Case("s", "o"), "t", 1.0, Status.PASS, conditions={"process_ratios": [1.5]})
    unknown = result("u", 1.2, within=None)
    assert pooled_spread([failed, old]).df == 0
    set_speedups([failed, old, unknown])
    assert failed.speedup is None
    assert old.speedup is None
    assert unknown.speedup.verdict == "inconclusive"
