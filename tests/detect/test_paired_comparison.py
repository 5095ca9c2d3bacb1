"""What pairs of runs of two builds decide: a change, none, or neither yet."""

import math

import numpy as np
import pytest

from perfdash.detect.comparison import COMPARED, ComparedRuns, compare
from perfdash.detect.confirmation import PairedResult
from perfdash.detect.paired_comparison import FALSE_CHANGE, false_alarm_of, is_enough, paired_deltas
from perfdash.errors import UsageError
from perfdash.report.gates import comparison_gate
from tests.history.made import row, run

ALPHA = false_alarm_of(10)


def runs(rng, count, change=0.0, sd=0.01, metric="backend_ms", status="pass", clean=True):
    def side(level):
        values = {metric: level * math.exp(rng.normal(0, sd)), "calls_captured": 3.0}
        return PairedResult(status, values, clean)

    return [(side(10.0), side(10.0 * (1 + change))) for _ in range(count)]


@pytest.mark.parametrize("change", [0.1, -0.1])
def test_a_large_change_is_significant_in_its_direction(change):
    delta = paired_deltas(runs(np.random.default_rng(1), 8, change), ALPHA)["backend_ms"]
    assert (delta.significant, delta.undecided, delta.pairs, delta.p) == (True, False, 8, None)
    assert math.expm1(delta.change) == pytest.approx(change, abs=0.02)
    assert abs(delta.change - math.log1p(change)) <= delta.reach
    assert delta.new / delta.old == pytest.approx(1 + change, abs=0.03)


def test_two_equal_builds_are_the_same_after_few_pairs():
    pairs = runs(np.random.default_rng(2), 5, sd=0.002)
    delta = paired_deltas(pairs, ALPHA)["backend_ms"]
    assert not delta.significant
    assert not delta.undecided
    assert is_enough(pairs, ALPHA)


def test_noise_that_allows_a_change_is_undecided_and_more_pairs_are_wanted():
    pairs = runs(np.random.default_rng(3), 5, sd=0.05)
    assert paired_deltas(pairs, ALPHA)["backend_ms"].undecided
    assert not is_enough(pairs, ALPHA)
    assert is_enough(pairs, ALPHA, most=5), "no more are allowed"


def test_a_change_below_what_counts_is_none():
    pairs = runs(np.random.default_rng(4), 8, change=0.004, sd=0.001)
    delta = paired_deltas(pairs, ALPHA)["backend_ms"]
    assert not delta.significant
    assert not delta.undecided


def test_disturbed_latencies_and_failed_runs_are_no_pairs():
    rng = np.random.default_rng(5)
    disturbed = runs(rng, 4, change=0.5, clean=False)
    delta = paired_deltas(disturbed, ALPHA)["backend_ms"]
    assert (delta.significant, delta.undecided, delta.pairs, delta.reach) == (False, True, 0, None)
    assert not is_enough(disturbed, ALPHA), "a quiet pair may still come"
    assert "backend_peak_bytes" in paired_deltas(
        runs(rng, 4, metric="backend_peak_bytes", clean=False), ALPHA
    )
    failed = runs(rng, 2, status="crash")
    assert paired_deltas(failed, ALPHA) == {}
    assert is_enough(failed, ALPHA), "it would fail again"
    assert not is_enough(failed[:1], ALPHA)


@pytest.mark.parametrize("cases", [1, 20])
def test_any_false_change_of_a_comparison_is_as_rare_as_promised(cases):
    rng = np.random.default_rng(6)
    alpha = false_alarm_of(cases)
    assert alpha * 2 * cases * len(COMPARED) == pytest.approx(FALSE_CHANGE)
    comparisons = 400 // cases
    false = 0
    for _ in range(comparisons):
        some = [runs(rng, 8, sd=float(rng.uniform(0.005, 0.03))) for _ in range(cases)]
        # Looked at after each pair, as the runner does.
        false += any(
            paired_deltas(pairs[:n], alpha)["backend_ms"].significant for pairs in some for n in range(1, 9)
        )
    # One metric of several is drawn here, so much fewer than 5 % are expected.
    assert false <= max(1, 0.05 * comparisons)


def test_pairs_that_decide_nothing_are_not_called_unchanged(capsys):
    """Either other programs disturbed every pair, or the pairs are too noisy."""
    nights = [run(f"2026-11-0{day}", [row("a")]) for day in (1, 2)]
    rng = np.random.default_rng(7)

    def compared(pairs):
        sides = (ComparedRuns("x", (night,)) for night in nights)
        return compare(*sides, paired={nights[0].rows[0].case: paired_deltas(pairs, ALPHA)})

    disturbed = compared(runs(rng, 4, change=1.0, clean=False))
    assert disturbed.nothing_to_compare == (
        "numbers of 1 of 1 cases could not be tested, as other programs disturbed every pair of runs"
    )
    with pytest.raises(UsageError, match="disturbed every pair"):
        comparison_gate(disturbed, print)
    noisy = compared(runs(rng, 5, sd=0.05))
    assert noisy.nothing_to_compare is None
    assert comparison_gate(noisy, print) == 0
    assert "not checked: numbers of 1 of 1 cases are not decided yet" in capsys.readouterr().out


def test_the_means_are_of_all_quiet_pairs_not_of_the_last_alone():
    """The rows are those of the last pair: with one model, its mean would differ from its own change."""
    old, new = (run(f"2026-11-0{day}", [row("a", backend_ms=10.0 - day)]) for day in (1, 2))

    def compared(pairs):
        sides = (ComparedRuns("x", (night,)) for night in (old, new))
        return compare(*sides, paired={old.rows[0].case: paired_deltas(pairs, ALPHA)})

    rng = np.random.default_rng(8)
    pairs = [*runs(rng, 1, change=0.1, sd=0.0), *runs(rng, 1, change=-0.1, sd=0.0)]
    both = compared(pairs)
    delta, (mean,) = both.both[0].deltas["backend_ms"], both.means
    assert (mean.metric, mean.cases) == ("backend_ms", 1)
    assert (mean.old[0], mean.new[0]) == pytest.approx((delta.old, delta.new))
    assert mean.ratio[0] == pytest.approx(math.sqrt(1.1 * 0.9))
    assert compared(runs(rng, 2, change=0.1, clean=False)).means == []
