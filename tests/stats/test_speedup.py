"""Calibration at a small size; benchmarks/coverage.py is the same at a large one."""

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.history.results import from_result
from perfdash.records import Case, Result, Speedup, Status
from perfdash.report.terminal_tables import one_line
from perfdash.stats.process_spread import ProcessRatios
from perfdash.stats.speedup import Pairs, keep_earlier, ratios_of, set_speedups, verdict


def process(rng, ratio, between, pairs=60, within=0.03):
    """One simulated process: its own log ratio, drift that hits both sides, skewed noise."""
    shift = rng.normal(0, between)
    drift = np.exp(rng.normal(0, 0.05, pairs).cumsum() / 20)
    noise = np.exp(np.abs(rng.normal(0, within, (2, pairs))))
    return Pairs(10 * drift * noise[0] * ratio * np.exp(shift), 10 * drift * noise[1])


def measured(rng, truth, between, count, models=1):
    """Results of some models of that true speedup, each in so many processes, as one run has them."""
    results = []
    for number in range(models):
        ratios = ratios_of([process(rng, truth, between) for _ in range(count)])
        exponentials = [math.exp(ratio) for ratio in ratios.ratios]
        results.append(result(f"m{number}", *exponentials, within=ratios.within))
    set_speedups(results)
    return [made.speedup for made in results]


def test_value_is_the_typical_ratio_of_a_pair():
    pairs = Pairs(np.array([2.0, 4.0, 40.0, 9.0, 1.0]), np.array([1.0, 2.0, 20.0, 1.0, 2.0]))
    # Three pairs say 2, one 9 and one 1/2: the median of the 15 means of two of their logs is that of 2.
    assert math.exp(ratios_of([pairs]).mean) == pytest.approx(2.0)


def test_a_slow_spell_that_both_samples_of_a_pair_share_cancels():
    rng = np.random.default_rng(5)
    spells = np.where(np.arange(40) % 8 < 4, 1.0, rng.uniform(1.1, 1.6, 40))
    pairs = Pairs(2.0 * spells, 1.0 * spells)
    assert math.exp(ratios_of([pairs]).mean) == pytest.approx(2.0)
    assert ratios_of([pairs]).within == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("count", "models"), [(2, 20), (3, 5), (6, 1)])
def test_interval_over_processes_covers_the_truth(count, models):
    rng = np.random.default_rng(count)
    speedups = [speedup for _ in range(300 // models) for speedup in measured(rng, 1.4, 0.015, count, models)]
    assert {speedup.basis for speedup in speedups} == {"processes"}
    assert np.mean([speedup.ci_low <= 1.4 <= speedup.ci_high for speedup in speedups]) >= 0.92


def test_pooled_interval_covers_the_truth():
    rng = np.random.default_rng(9)
    hits = 0
    for _ in range(150):
        ratios = [ratios_of([process(rng, 1.4, 0.015) for _ in range(n)]) for n in (1, 3, 3)]
        results = [
            result(f"m{place}", *map(math.exp, case_ratios.ratios), within=case_ratios.within)
            for place, case_ratios in enumerate(ratios)
        ]
        set_speedups(results)
        assert results[0].speedup.basis == "pooled"
        hits += results[0].speedup.ci_low <= 1.4 <= results[0].speedup.ci_high
    assert hits >= 0.92 * 150


def test_one_process_alone_is_too_narrow_and_gives_no_verdict():
    rng = np.random.default_rng(5)
    speedups = [speedup for _ in range(200) for speedup in measured(rng, 1.4, 0.015, 1)]
    assert sum(speedup.ci_low <= 1.4 <= speedup.ci_high for speedup in speedups) < 0.85 * 200
    assert {speedup.verdict for speedup in speedups} == {"inconclusive"}


@pytest.mark.parametrize("between", [0.002, 0.015])
def test_a_model_against_itself_is_not_called_faster_or_slower(between):
    rng = np.random.default_rng(6)
    speedups = [speedup for _ in range(25) for speedup in measured(rng, 1.0, between, 2, 20)]
    wrong = sum(speedup.verdict in ("faster", "slower") for speedup in speedups)
    assert wrong <= 0.02 * 500 + 5, "2 % and the luck of 500 draws"


def test_the_interval_of_another_run_is_wider_by_the_root_of_two():
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(20):
        for speedup, other in zip(*(measured(rng, 1.4, 0.015, 2, 20) for _ in range(2)), strict=True):
            reach = math.sqrt(2) * math.log(speedup.ci_high / speedup.ci_low) / 2
            held += abs(math.log(speedup.value / other.value)) <= reach
    assert held >= 0.925 * 400


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.99, 1.01, "equivalent"),
        (0.98, 1.025, "equivalent"),
        (1.005, 1.015, "equivalent"),
        (1.01, 1.05, "faster"),
        (0.9, 0.97, "slower"),
        (0.95, 1.01, "inconclusive"),
        (0.5, 2.0, "inconclusive"),
    ],
)
def test_verdicts(low, high, word):
    assert verdict(low, high) == word


def test_a_verdict_takes_the_interval_that_makes_sure():
    assert verdict(1.01, 1.05, sure=(0.999, 1.06)) == "inconclusive"
    assert verdict(1.01, 1.05, sure=(1.001, 1.06)) == "faster"
    assert verdict(0.985, 1.01, margin=0.01) == "inconclusive"


@given(st.floats(0.1, 10), st.floats(0, 2))
def test_verdict_mirrors(low, width):
    high = low + width
    mirror = {"faster": "slower", "slower": "faster"}
    word, inverse = verdict(low, high), verdict(1 / high, 1 / low)
    if all(abs(edge - m) > 1e-6 for edge in (low, high) for m in (1 / 1.03, 1.03, 1.0)):
        assert inverse == mirror.get(word, word)


def test_a_process_with_one_pair_is_as_variable_as_the_others():
    rng = np.random.default_rng(3)
    many, single = process(rng, 1.4, 0.0), process(rng, 1.4, 0.0, pairs=1)
    ratios = ratios_of([many, single])
    assert ratios_of([many]).within < ratios.within < 0.01
    results = [result("a", *map(math.exp, ratios.ratios), within=ratios.within)]
    set_speedups(results)
    assert 1 < results[0].speedup.ci_low < 1.4 < results[0].speedup.ci_high < 2


@pytest.mark.parametrize("processes", [1, 2])
def test_a_single_pair_has_no_interval_and_no_verdict(processes):
    rng = np.random.default_rng(4)
    ratios = ratios_of([process(rng, 1.4, 0.0, pairs=1) for _ in range(processes)])
    lone = result("a", *map(math.exp, ratios.ratios), within=None)
    set_speedups([lone, *(result(f"m{k}", 1.0, 1.01) for k in range(5))])
    assert (lone.speedup.ci_low, lone.speedup.ci_high) == (None, None)
    assert lone.speedup.verdict == "inconclusive"
    assert f", {lone.speedup.value:.3f}x inconclusive" in one_line(lone)
    assert "speedup_low" not in from_result(lone).values


def test_disturbed_cases_say_nothing_of_how_processes_differ():
    def width(*disturbed):
        quiet = [result(f"m{k}", 1.0, 1.01) for k in range(20)]
        set_speedups([*quiet, *disturbed])
        return quiet[0].speedup.ci_high / quiet[0].speedup.ci_low

    odd = [result(f"odd{k}", 1.0, 1.4, disturbed=True) for k in range(3)]
    assert width(*odd) == pytest.approx(width())
    assert {case.speedup.verdict for case in odd} == {"disturbed"}


def test_no_process():
    with pytest.raises(ValueError, match="no process"):
        ratios_of([])


def result(name, *ratios, within=1e-6, **conditions):
    made = Result(Case("s", name), "t", 1.0, Status.PASS)
    made.conditions = {"process_ratios": list(ratios), "within_variance": within, **conditions}
    return made


def test_the_spread_of_the_replicated_reaches_all():
    results = [result("a", 1.5), result("b", 2.0, 2.02, 1.98), result("c", 1.0)]
    spread = set_speedups(results)
    assert spread.cases == 1
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
    assert set_speedups(results).cases == 0
    assert (results[0].speedup.basis, results[0].speedup.verdict) == ("within", "inconclusive")


def test_the_ratio_of_cpu_times_is_taken_in():
    results = [result("a", 1.5, cpu_ratio=1.2), result("b", 1.0, 1.01, 1.02)]
    set_speedups(results)
    assert results[0].speedup.ci_low == pytest.approx(1.2)


def test_what_threads_had_no_core_for_widens_the_interval():
    plain, disturbed = result("a", 1.5, 1.51, 1.49), result("a", 1.5, 1.51, 1.49, widened_by=0.1)
    for speedup in (plain, disturbed):
        set_speedups([speedup])
    assert disturbed.speedup.ci_low == pytest.approx(plain.speedup.ci_low / 1.1, rel=1e-5)
    assert disturbed.speedup.ci_high == pytest.approx(plain.speedup.ci_high * 1.1, rel=1e-5)
    assert disturbed.speedup.value == plain.speedup.value


def test_records_without_samples_stay_as_they_are():
    failed = Result(Case("s", "f"), "t", 1.0, Status.CRASH)
    old = Result(Case("s", "o"), "t", 1.0, Status.PASS, conditions={"process_ratios": [1.5]})
    unknown = result("u", 1.2, within=None)
    assert set_speedups([failed, old]).cases == 0
    set_speedups([failed, old, unknown])
    assert failed.speedup is None
    assert old.speedup is None
    assert unknown.speedup.verdict == "inconclusive"


def test_what_earlier_nights_tell_is_kept_and_counts():
    nights = [ProcessRatios((0.0, 0.05), 1e-6)] * 8
    plain, informed = result("a", 1.5, 1.51), result("a", 1.5, 1.51)
    keep_earlier(informed, nights)
    for speedup in (plain, informed):
        set_speedups([speedup])
    assert informed.speedup.ci_high - informed.speedup.ci_low > 1.5 * (
        plain.speedup.ci_high - plain.speedup.ci_low
    )
    assert json.loads(json.dumps(informed.conditions))["earlier_processes"] == [[[0.0, 0.05], 1e-6]] * 8
    unsampled = Result(Case("s", "f"), "t", 1.0, Status.CRASH)
    keep_earlier(unsampled, nights)
    assert unsampled.conditions == {}


def test_one_process_gets_its_spread_from_earlier_nights():
    one = result("a", 1.5)
    keep_earlier(one, [ProcessRatios((0.0, 0.05), 1e-6)] * 8)
    set_speedups([one])
    assert (one.speedup.basis, one.speedup.verdict) == ("pooled", "faster")
    assert one.speedup.ci_high > 1.5 * 1.03


def test_results_of_an_earlier_method_keep_their_intervals():
    """Merged or resumed by a newer perfdash; their record says by which method their interval was made."""
    old = result("a", 1.5, 1.51)
    old.method = {**old.method, "speedup": 2}
    old.speedup = Speedup(1.505, 1.4, 1.6, "faster", "processes")
    set_speedups([old, result("b", 1.0, 1.2)])
    assert old.speedup == Speedup(1.505, 1.4, 1.6, "faster", "processes")
