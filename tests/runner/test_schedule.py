from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.records import Case
from perfdash.runner.schedule import TYPICAL_S, assign, costs, duration, makespan, order, queue, seconds_left
from tests.runner.planned import PLANNED

COSTS = st.lists(st.floats(0, 1e4), max_size=60)


@given(COSTS, st.integers(1, 20))
def test_every_job_once_and_never_worse_than_the_bound(some, slots):
    assigned = assign(some, slots)
    assert len(assigned) == slots
    assert sorted(index for indices in assigned for index in indices) == list(range(len(some)))
    # Any list schedule is within 2 - 1/m of this bound (Graham 1966).
    least = max([sum(some) / slots, *some], default=0)
    assert makespan(some, assigned) <= (2 - 1 / slots) * least + 1e-6
    assert assign(some, slots) == assigned


def test_better_than_longest_first():
    # Graham's worst case for longest first: 11 instead of 9.
    assert makespan([5, 5, 4, 4, 3, 3, 3], assign([5, 5, 4, 4, 3, 3, 3], 3)) == 9


def run(actual, waiting, slots):
    """When the last slot is done, each taking the next job when it is free."""
    ends = [0.0] * slots
    for index in waiting:
        slot = ends.index(min(ends))
        ends[slot] += actual[index]
    return max(ends)


@given(COSTS, st.integers(1, 6))
def test_in_order_every_job_once(some, slots):
    assert sorted(order(some, slots)) == list(range(len(some)))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 6))
def test_in_order_and_as_expected_it_ends_when_planned(some, slots):
    planned = makespan(some, assign(some, slots))
    assert run(some, order(some, slots), slots) <= planned


def case(name, **change):
    return replace(PLANNED, case=Case("s", name), skip_reason=None, **change)


def test_costs():
    planned = [case("a"), case("b", cost_s=30.0), case("c"), replace(case("d"), skip_reason="no")]
    assert costs(planned, {}) == [30.0, 30.0, 30.0, 0.0]
    assert costs(planned, {planned[0].case.name: 10.0}) == [10.0, 30.0, 20.0, 0.0]
    assert costs(planned[:1], {}) == [TYPICAL_S]
    assert costs([], {}) == []


@pytest.mark.parametrize("slots", [1, 3])
def test_nothing_to_do(slots):
    assert assign([], slots) == [[]] * slots
    assert makespan([], assign([], slots)) == 0


def test_one_slot_goes_by_loader_and_several_by_cost():
    loaders = ["timm", "models", "timm", "models", "timm"]
    cases = [case(f"m{number}", loader=loader) for number, loader in enumerate(loaders)]
    cases.append(replace(PLANNED, skip_reason="why"))
    seconds = [1.0, 9.0, 5.0, 7.0, 3.0, 100.0]
    assert queue(cases, seconds, 1) == [0, 2, 4, 1, 3]
    assert queue(cases, seconds, 2)[:2] == [1, 3]
    assert sorted(queue(cases, seconds, 2)) == [0, 1, 2, 3, 4]


def test_seconds_left_before_anything_is_finished_are_the_costs():
    assert seconds_left([], [60.0, 30.0], [], 1) == 90.0
    assert seconds_left([], [60.0, 30.0], [(40.0, 10.0)], 2) == 60.0


def test_seconds_left_follow_how_long_the_finished_cases_took():
    # The longest come first: an average over cases would say 4 x 200 s.
    assert seconds_left([(100.0, 200.0)], [10.0, 10.0, 10.0, 10.0], [], 1) == 80.0


def test_seconds_left_are_those_of_the_longest_case_where_slots_are_many():
    assert seconds_left([], [10.0, 100.0], [], 8) == 100.0
    assert seconds_left([], [], [(100.0, 130.0)], 8) == 0.0
    assert seconds_left([], [], [], 0) == 0.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59.6, "60 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (9000, "2.5 h")],
)
def test_duration(seconds, words):
    assert duration(seconds) == words


def configured(model, configuration, **change):
    return replace(case(model, **change), case=Case("s", model, configuration=configuration))


@pytest.mark.parametrize("slots", [1, 2])
def test_configurations_of_a_model_follow_one_another(slots):
    planned = [configured(model, name) for name in ("default", "dynamic") for model in ("a", "b", "c")]
    models = [planned[index].case.model for index in queue(planned, [1.0, 5.0, 2.0] * 2, slots)]
    assert models[::2] == models[1::2]
    assert sorted(models) == ["a", "a", "b", "b", "c", "c"]
