import random

import pytest

from perfdash.records import Case, Result, Status
from perfdash.stats.settle import pooled_spread, settle


def result(name, *ratios, within=1e-6, **conditions):
    made = Result(Case("s", name), "t", 1.0, Status.PASS)
    made.conditions = {"process_ratios": list(ratios), "within_variance": within, **conditions}
    return made


def test_the_spread_of_the_replicated_reaches_all():
    results = [result("a", 1.5), result("b", 2.0, 2.02, 1.98), result("c", 1.0)]
    spread = settle(results)
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
    settle(first)
    settle(other)
    settle(other)
    assert {r.case.model: r.speedup for r in first} == {r.case.model: r.speedup for r in other}


def test_nothing_known_of_the_spread():
    results = [result("a", 1.5)]
    assert settle(results).df == 0
    assert (results[0].speedup.basis, results[0].speedup.verdict) == ("within", "inconclusive")


def test_the_ratio_of_cpu_times_is_taken_in():
    results = [result("a", 1.5, cpu_ratio=1.2), result("b", 1.0, 1.01, 1.02)]
    settle(results)
    assert results[0].speedup.ci_low == pytest.approx(1.2)


def test_what_threads_had_no_core_for_widens_the_interval():
    plain, disturbed = result("a", 1.5, 1.51, 1.49), result("a", 1.5, 1.51, 1.49, widened_by=0.1)
    for one in (plain, disturbed):
        settle([one])
    assert disturbed.speedup.ci_low == pytest.approx(plain.speedup.ci_low / 1.1, rel=1e-5)
    assert disturbed.speedup.ci_high == pytest.approx(plain.speedup.ci_high * 1.1, rel=1e-5)
    assert disturbed.speedup.value == plain.speedup.value


def test_records_without_samples_stay_as_they_are():
    failed = Result(Case("s", "f"), "t", 1.0, Status.CRASH)
    old = Result(Case("s", "o"), "t", 1.0, Status.PASS, conditions={"process_ratios": [1.5]})
    unknown = result("u", 1.2, within=None)
    assert pooled_spread([failed, old]).df == 0
    settle([failed, old, unknown])
    assert failed.speedup is None
    assert old.speedup is None
    assert unknown.speedup.verdict == "inconclusive"
