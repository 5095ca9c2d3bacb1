"""Error rates at a small size; benchmarks/alarm.py has them together with the alarm."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.stats import confirmation_test
from perfdash.stats.confirmation_test import PAIRS, decide, pairs_needed, plan

ratios = st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=PAIRS)


def measure(rng, true, sd, *, suspected=0.05, spread_known=True, kind="gaussian", pairs=PAIRS, **options):
    """Runs pairs until decided; the last word and how many it took."""

    def run():
        if kind == "t3":
            return rng.standard_t(3) * sd / math.sqrt(3)
        return rng.normal(0, sd) + (math.log(1.3) if kind == "outliers" and rng.random() < 0.02 else 0.0)

    seen = []
    while True:
        seen.append(true + run() - run())
        # The alarm's robust deviation of such noise is three quarters of its standard deviation.
        given_sd = sd * (0.74 if kind == "t3" else 1.0) if spread_known else None
        decision = decide(
            seen, suspected=suspected, sd=given_sd, df=200.0 if spread_known else None, pairs=pairs, **options
        )
        if decision.decision != "more":
            assert len(seen) <= (options.get("most_pairs") or pairs)
            return decision


def test_nothing_measured_yet():
    decision = decide([], suspected=0.1, sd=0.01)
    assert (decision.decision, decision.pairs) == ("more", 0)
    assert math.isnan(decision.estimate)


@pytest.mark.parametrize("wrong", [0.0, math.nan])
def test_a_suspicion_without_direction(wrong):
    with pytest.raises(ValueError, match="direction"):
        decide([0.1], suspected=wrong)


def test_one_pair_is_no_plan():
    with pytest.raises(ValueError, match="at least 2"):
        plan(1)


def test_clear_cases():
    assert decide([0.1, 0.11, 0.1, 0.09], suspected=0.1, sd=0.01).decision == "stands"
    assert decide([0.0, -0.005, 0.0], suspected=0.1, sd=0.01).decision == "dismissed"
    assert decide([0.1, 0.11, 0.1, 0.09], suspected=-0.1, sd=0.01).decision == "dismissed"
    assert decide([0.1], suspected=0.1, sd=0.01).decision == "more"


def test_one_outlier_neither_makes_nor_breaks_a_change():
    assert decide([0.3, 0.0, 0.01, -0.01, 0.0], suspected=0.1, sd=0.01).decision == "dismissed"
    assert decide([-0.5], suspected=0.1, sd=0.01).decision == "more"
    assert decide([-0.5, 0.1], suspected=0.1, sd=0.01).decision == "more"
    decision = decide([0.1, -0.2, 0.1, 0.11, 0.1, 0.09, 0.1, 0.11], suspected=0.1, sd=0.01)
    assert decision.decision == "stands"
    assert decision.estimate == pytest.approx(0.1, abs=0.02)


def test_what_is_certain_but_too_small_does_not_stand():
    decisions = decide([0.01] * PAIRS, suspected=0.01, sd=0.001)
    assert decisions.decision == "dismissed"
    assert decisions.low > 0


@given(ratios, st.one_of(st.none(), st.floats(0.001, 0.1)))
def test_the_last_pair_decides_and_directions_mirror(values, sd):
    up = decide(values, suspected=1.0, sd=sd, pairs=PAIRS)
    down = decide([-v for v in values], suspected=-1.0, sd=sd, pairs=PAIRS)
    assert up.decision == down.decision
    assert up.estimate == pytest.approx(-down.estimate)
    assert (up.low, up.high) == pytest.approx((-down.high, -down.low))
    assert up.low <= up.estimate <= up.high
    if len(values) == PAIRS:
        assert up.decision != "more"


@given(ratios)
def test_values_that_are_no_numbers_are_left_out(values):
    assert decide([*values, math.nan], suspected=1.0, sd=0.02) == decide(values, suspected=1.0, sd=0.02)


@given(st.integers(2, 12))
def test_boundaries_fall_from_pair_to_pair(pairs):
    made = plan(pairs)
    assert (made.interval < made.stands).all()
    assert (np.diff(made.stands) < 0).all()


def drawn_scores(pairs, effect, draws=40_000):
    """(draws, pairs): standardised scores after each pair, as the plan assumes them."""
    rng = np.random.default_rng(0)
    scores = np.clip(rng.normal(effect, 1, (draws, pairs)), -confirmation_test.CLIP, confirmation_test.CLIP)
    wild = rng.random(scores.shape) < confirmation_test.OUTLIERS
    scores = np.where(wild, rng.choice([-1, 1], scores.shape) * confirmation_test.CLIP, scores)
    return np.cumsum(scores, axis=1) / np.sqrt(np.arange(1, pairs + 1))


@pytest.mark.parametrize("pairs", [PAIRS, 30])
def test_the_plan_keeps_its_two_errors(pairs):
    """By drawing scores, where the plan integrates."""
    made = plan(pairs, 0.02)
    null, moved = drawn_scores(pairs, 0.0), drawn_scores(pairs, made.detects)
    assert (null >= made.stands).any(axis=1).mean() == pytest.approx(0.02, abs=0.003)
    assert (np.abs(null) >= made.interval).any(axis=1).mean() == pytest.approx(0.05, abs=0.005)
    # The ordinary quantile at every look would be wrong far too often.
    assert (null >= 2.054).any(axis=1).mean() > 0.05
    missed = 1 - (moved >= made.stands).any(axis=1).mean()
    assert missed == pytest.approx(confirmation_test.MISS, abs=0.005)


def test_few_pairs_with_an_outlier_detect_nothing_surely():
    assert plan(3).detects == math.inf
    assert plan(PAIRS).detects < 2.5


@pytest.mark.parametrize("kind", ["gaussian", "t3", "outliers"])
def test_suspects_without_a_change(kind):
    rng = np.random.default_rng(1)
    decisions = [measure(rng, 0.0, 0.03, suspected=0.12, kind=kind) for _ in range(1500)]
    # One in a thousand is promised; 99.9 % of a Poisson count of 1.5 is at most 6.
    assert sum(f.decision == "stands" for f in decisions) <= 6
    assert np.mean([f.pairs for f in decisions]) < 3.7


def test_a_lenient_boundary_would_let_them_stand():
    rng = np.random.default_rng(1)
    decisions = [measure(rng, 0.0, 0.03, false_alarm=0.1) for _ in range(300)]
    assert sum(f.decision == "stands" for f in decisions) >= 7


@pytest.mark.parametrize(("step", "sd"), [(0.10, 0.03), (0.05, 0.01)])
def test_changes_stand(step, sd):
    rng = np.random.default_rng(2)
    decisions = [measure(rng, math.log1p(step), sd) for _ in range(500)]
    assert sum(f.decision == "stands" for f in decisions) >= 0.95 * 500


def test_an_unknown_spread_costs_power_not_honesty():
    rng = np.random.default_rng(3)
    null = [measure(rng, 0.0, 0.01, spread_known=False) for _ in range(500)]
    assert sum(f.decision == "stands" for f in null) <= 3
    moved = [measure(rng, 0.10, 0.01, spread_known=False) for _ in range(200)]
    assert sum(f.decision == "stands" for f in moved) >= 180


@pytest.mark.parametrize("true", [0.0, 0.05, 0.1])
def test_the_interval_covers_wherever_one_stops(true):
    rng = np.random.default_rng(4)
    decisions = [measure(rng, true, 0.03) for _ in range(500)]
    assert np.mean([f.low <= true <= f.high for f in decisions]) >= 0.94


def test_a_night_noisier_than_known_widens_the_scale():
    calm = decide([0.05, 0.06, 0.05, 0.04], suspected=0.1, sd=0.01)
    wild = decide([0.15, -0.05, 0.12, -0.02], suspected=0.1, sd=0.01)
    assert wild.high - wild.low > 1.15 * (calm.high - calm.low)


def test_two_pairs_of_unknown_spread_decide_nothing_but_end():
    assert decide([0.1], suspected=0.1, pairs=2).decision == "more"
    decision = decide([0.1, 0.1], suspected=0.1, pairs=2)
    assert (decision.decision, decision.wanted) == ("undecided", None)


def test_a_change_between_nothing_and_what_was_suspected_is_undecided():
    ratios = [0.005, 0.035]
    judge = partial(decide, suspected=0.05, sd=0.02, at_least=0.02, minimum_change=0.0)
    decision = judge(ratios * 4)
    assert decision.decision == "undecided"
    assert decision.wanted is not None
    assert PAIRS < decision.wanted < 90
    assert judge(ratios * 4, most_pairs=40).decision == "more"
    assert judge(ratios * 20, most_pairs=40).decision == "stands"


def test_a_suspicion_below_what_the_pairs_detect_ends_early_and_undecided():
    decision = decide([0.001, -0.012, 0.004, -0.01], suspected=0.02, sd=0.02)
    assert decision.decision == "undecided"
    assert decision.high > 0.02, "it may be there"
    assert decide([0.001, -0.012], suspected=0.02, sd=0.02).decision == "more"


def test_few_planned_pairs_that_detect_nothing_surely_still_say_what_it_takes():
    decision = decide([0.005, 0.035, 0.005, 0.035], suspected=0.05, sd=0.02, pairs=4)
    assert decision.decision == "undecided"
    assert decision.wanted is not None
    assert 8 < decision.wanted < 10_000


def test_further_pairs_keep_the_error_of_all_looks():
    rng = np.random.default_rng(7)
    decisions = [
        measure(rng, 0.0, 0.03, pairs=6, most_pairs=20, at_least=0.03, false_alarm=0.05) for _ in range(1000)
    ]
    # 5 % is promised; 99.9 % of a binomial count of 50 in 1,000 is at most 72.
    assert sum(f.decision == "stands" for f in decisions) <= 72


def test_planned_and_further_pairs_share_the_error():
    """A change that is just confirmed by 6 pairs needs more of them where up to 20 are allowed."""
    judge = partial(decide, suspected=0.05, sd=0.02, at_least=0.01, pairs=6, false_alarm=0.05)
    alone, with_more = judge([0.025] * 6), judge([0.025] * 6, most_pairs=20)
    assert (alone.decision, with_more.decision) == ("stands", "more")
    assert with_more.high - with_more.low > 1.1 * (alone.high - alone.low)


def test_a_change_of_half_the_suspected_size_stands():
    """A night's largest values are mostly larger than the change behind them."""
    rng = np.random.default_rng(8)
    decisions = [measure(rng, 0.07, 0.02, suspected=0.14) for _ in range(300)]
    assert sum(f.decision == "stands" for f in decisions) >= 0.95 * 300


def test_pairs_needed():
    counts = [pairs_needed(change, 0.03) for change in (0.3, 0.15, 0.1, 0.01)]
    assert counts == sorted(counts)
    assert counts[0] == confirmation_test.LEAST
    assert counts[-1] == PAIRS
    assert pairs_needed(-0.05, 0.01) == pairs_needed(0.05, 0.01)
