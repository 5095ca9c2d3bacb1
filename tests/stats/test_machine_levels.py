"""Levels of machines of one class, by simulation with known offsets."""

from __future__ import annotations

import numpy as np
import pytest

from perfdash.stats.machine_levels import machine_levels
from perfdash.stats.nightly_test import judge
from tests.effort import trials

SD, COMMON, OWN = 0.01, 0.04, 0.01
OLD, SERIES = 40, 200


def fleet(seed, new_nights, series=SERIES):
    """Nights of one machine, then of another: 4 % slower, and 1 % one way or the other in each series."""
    draw = np.random.default_rng(seed)
    values = draw.uniform(0, 5, (series, 1)) + SD * draw.normal(size=(series, OLD + new_nights))
    offsets = COMMON + OWN * draw.normal(size=series)
    values[:, OLD:] += offsets[:, None]
    return values, ["old"] * OLD + ["new"] * new_nights, offsets


def test_one_machine_has_no_offset():
    values, _, _ = fleet(0, 3)
    levels = machine_levels(values, ["old"] * values.shape[1])
    assert not levels.offset.any()
    assert not levels.variance.any()


def test_the_first_night_of_a_machine_is_not_comparable():
    values, machines, _ = fleet(0, 1)
    offset = machine_levels(values, machines).offset
    assert np.isnan(offset[:, -1]).all()
    assert not offset[:, :OLD].any()


@pytest.mark.parametrize("nights", [2, 3, 6, 21])
def test_offsets_are_as_far_from_the_truth_as_their_variance_says(nights):
    errors, promised = [], []
    for seed in range(trials(10)):
        values, machines, truth = fleet(seed, nights)
        levels = machine_levels(values, machines)
        errors.append(levels.offset[:, -1] - truth)
        promised.append(levels.variance)
    # The level of the old machine is that of 40 nights, and the offset is against its median.
    assert np.mean(np.square(errors)) == pytest.approx(np.mean(promised), rel=0.35)
    assert np.sqrt(np.mean(np.square(errors))) < OWN, "better than what the machines have in common alone"


def test_few_series_need_two_nights_of_a_machine():
    values, machines, truth = fleet(1, 2, series=4)
    assert np.isnan(machine_levels(values, machines).offset[:, -1]).all()
    values, machines, truth = fleet(1, 3, series=4)
    assert machine_levels(values, machines).offset[:, -1] == pytest.approx(truth, abs=5 * SD)


def test_names_that_change_every_night_are_no_machines():
    values, _, _ = fleet(2, 6)
    machines = ["old"] * OLD + [f"container{night}" for night in range(6)]
    assert not machine_levels(values, machines).offset.any()


def test_a_night_before_the_start_does_not_count():
    values, machines, truth = fleet(3, 6)
    values[:, : OLD // 2] += 1.0
    start = np.full(SERIES, OLD // 2)
    assert np.mean(machine_levels(values, machines, start).offset[:, -1] - truth) == pytest.approx(0, abs=SD)


def test_a_slower_series_is_not_taken_for_the_machine():
    values, machines, _ = fleet(4, 4)
    values[0, OLD:] += 0.3
    assert machine_levels(values, machines).offset[1:, -1] == pytest.approx(COMMON, abs=5 * OWN)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("new_nights", [2, 3])
def test_series_of_another_reference_machine_are_drawn_towards_their_own_offset(seed, new_nights):
    """Two machines in turn, b 5 % slower, and b the reference of two series; c, as fast as a, joins."""
    draw = np.random.default_rng(seed)
    machines = ["a", "b"] * 20 + ["c"] * new_nights
    values = draw.uniform(0, 5, (40, 1)) + SD * draw.normal(size=(40, len(machines)))
    of_night = np.array(machines)
    values[:, of_night == "b"] += 0.05
    values[:2, np.flatnonzero(of_night == "a")[:5]] = np.nan
    levels = machine_levels(values, machines)
    c = levels.machines.index("c")
    assert [levels.reference_of(row) for row in range(4)] == ["b", "b", "a", "a"]
    assert levels.levels[:2, c] == pytest.approx(-0.05, abs=0.015)
    assert levels.levels[2:, c] == pytest.approx(0, abs=0.02)
    assert not judge(values - levels.offset, machines=levels.variance).alarm.any()


def test_series_whose_reference_machines_share_no_series_are_drawn_by_themselves():
    draw = np.random.default_rng(5)
    machines = ["a", "b"] * 20 + ["c"] * 2
    values = draw.uniform(0, 5, (60, 1)) + SD * draw.normal(size=(60, len(machines)))
    of_night = np.array(machines)
    values[:, of_night == "b"] += 0.05
    values[:30, of_night == "b"] = np.nan
    values[30:, of_night == "a"] = np.nan
    levels = machine_levels(values, machines)
    c = levels.machines.index("c")
    assert levels.levels[:30, c] == pytest.approx(0, abs=0.02)
    assert levels.levels[30:, c] == pytest.approx(-0.05, abs=0.02)
    assert np.isnan(levels.levels[:30, levels.machines.index("b")]).all()


@pytest.mark.parametrize("seed", range(4))
def test_what_one_series_does_on_one_machine_is_kept_once_it_is_known_well(seed):
    draw = np.random.default_rng(seed)
    machines = ["a", "b"] * 41 + ["a"]
    values = SD * draw.normal(size=(40, len(machines)))
    values[0, np.array(machines) == "b"] += 0.10
    levels = machine_levels(values, machines)
    assert levels.levels[0, 1] == pytest.approx(0.10, abs=0.02)
    assert levels.levels[1:, 1] == pytest.approx(0, abs=0.01)
    calm = judge((values - levels.offset)[:, -70:], machines=levels.variance)
    assert calm.sd[0] < 0.015
    assert not calm.alarm.any()
    values[0, -3:] += 0.08
    levels = machine_levels(values, machines)
    assert judge((values - levels.offset)[:, -70:], machines=levels.variance).alarm[0]


def test_what_a_series_does_since_another_machine_took_over_may_be_its_own():
    values = 0.01 * np.random.default_rng(6).normal(size=(40, 80))
    values[0, 40:] += 0.1
    levels = machine_levels(values, ["old"] * 40 + ["new"] * 40)
    assert levels.levels[0, 1] == pytest.approx(0, abs=0.03)


def test_a_constant_series_keeps_what_another_machine_does_to_it():
    machines = ["a", "b"] * 30
    values = np.zeros((30, 60))
    values[0, 1::2] = 0.05
    levels = machine_levels(values, machines)
    assert levels.levels[:, 1] == pytest.approx(np.where(np.arange(30) == 0, 0.05, 0.0), abs=1e-9)
    assert levels.variance == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("nights", [3, 4, 8])
def test_a_new_machine_raises_no_false_alarm_and_what_is_to_be_measured_again(nights):
    false, found, steps = 0, 0, 0
    for seed in range(trials(10)):
        values, machines, _ = fleet(100 + seed, nights)
        values[:5, -1] += np.log(1.2)
        levels = machine_levels(values, machines)
        test = judge(values - levels.offset, machines=levels.variance)
        false += int(test.alarm[5:].sum())
        found += int(test.candidate[:5].sum())
        steps += 5
    assert found >= 0.9 * steps
    assert false <= 1


def test_without_levels_the_first_nights_of_a_new_machine_are_full_of_alarms():
    """What the correction is for: the machine's differences in single series look like changes."""
    raised = {True: 0, False: 0}
    for seed in range(trials(10)):
        values, machines, _ = fleet(200 + seed, 6)
        levels = machine_levels(values, machines)
        for corrected in raised:
            test = judge(values - levels.offset * corrected, machines=levels.variance if corrected else None)
            raised[corrected] += int(test.alarm.sum())
    assert raised[True] <= 1 < 10 * raised[True] + 10 < raised[False]


@pytest.mark.parametrize("seed", range(2))
def test_a_night_may_be_of_several_machines(seed):
    """Each value has its own: of a cluster, or of merged shards."""
    draw = np.random.default_rng(seed)
    values = draw.uniform(0, 5, (SERIES, 1)) + SD * draw.normal(size=(SERIES, OLD))
    on_second = draw.random((SERIES, OLD)) < 0.4
    values += np.where(on_second, COMMON + OWN * draw.normal(size=(SERIES, 1)), 0.0)
    machines = np.where(on_second, "n2", "n1").astype(object)
    levels = machine_levels(values, machines)
    first, second = (levels.levels[:, levels.machines.index(name)] for name in ("n1", "n2"))
    assert np.median(second - first) == pytest.approx(COMMON, abs=OWN / 2)
    assert levels.offset == pytest.approx(np.where(on_second, second[:, None], first[:, None]))
