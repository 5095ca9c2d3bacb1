"""The course of a bisection on scripted builds: what is asked for, when it ends and with which word."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfdash.bisection.events import (
    Answered,
    Broken,
    Build,
    Built,
    Done,
    Marked,
    Measure,
    Measured,
    Question,
    Resumed,
)
from perfdash.bisection.search import RangeSearch, after
from tests.effort import trials


class World:
    """Builds with levels, of which some are broken; keeps what it was asked."""

    def __init__(self, levels, sd=0.01, broken=(), seed=0, fails=None):
        self.levels, self.sd, self.broken, self.fails = levels, sd, set(broken), fails
        self.random = random.Random(seed)
        self.builds, self.seen = [], []

    def answers(self, action):
        if isinstance(action, Build):
            self.builds += action.places
            return [Broken(p, "no compiler") if p in self.broken else Built(p) for p in action.places]
        place = action.place
        if self.fails is not None:
            return [Answered(place, self.random.random() < self.fails(place))]
        noise = self.random.gauss(0, self.sd) if self.sd else 0.0
        return [Measured(place, self.levels[place] + noise)]

    def run(self, search, most=600):
        for _ in range(most):
            if isinstance(search.action, Done):
                return search.action
            for answer in self.answers(search.action):
                search.observe(answer)
                self.seen.append(answer)
        raise AssertionError("it does not end")

    @property
    def measured(self):
        return sum(isinstance(event, Measured | Answered) for event in self.seen)


def stepped(n, *steps):
    return [sum(size for at, size in steps if place >= at) for place in range(n + 1)]


def search(world, last, **options):
    bisection = RangeSearch(Question(last, **options))
    return bisection, world.run(bisection)


def test_it_begins_with_both_ends_in_turn():
    world = World(stepped(64, (23, 0.1)))
    bisection = RangeSearch(Question(64))
    assert bisection.action == Build((0, 64))
    bisection.observe(Built(0))
    assert bisection.action == Build((64,))
    bisection.observe(Built(64))
    places = []
    for _ in range(8):
        places.append(bisection.action.place)
        bisection.observe(world.answers(bisection.action)[0])
    assert sorted(places[:2]) == sorted(places[2:4]) == [0, 64]
    assert places[1] == places[2]  # good, bad, bad, good


@pytest.mark.parametrize("culprit", [1, 2, 40, 63, 64])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_clear_step(culprit, sign):
    world = World(stepped(64, (culprit, sign * 0.1)))
    _, done = search(world, 64)
    (blamed,) = done.culprits
    assert (blamed.first, blamed.last) == (culprit, culprit)
    assert blamed.probability > 0.98
    assert blamed.none < 0.01
    assert blamed.step_low < blamed.step < blamed.step_high
    assert blamed.step == pytest.approx(sign * 0.1, abs=0.015)
    assert blamed.sd == pytest.approx(0.01, rel=0.6)
    assert len(world.builds) == len(set(world.builds)) <= 10
    assert [build.place for build in done.builds] == sorted(world.builds)
    assert all((build.bad > 0.5) == (build.place >= culprit) for build in done.builds)
    assert sum(build.count for build in done.builds) == world.measured


def test_neighbours():
    world = World([0.0, 0.2])
    _, done = search(world, 1)
    (culprit,) = done.culprits
    assert (culprit.first, culprit.last) == (1, 1)
    assert world.builds == [0, 1]


def test_exact_values_need_no_repeats():
    world = World(stepped(128, (77, 1.0)), sd=0)
    _, done = search(world, 128)
    assert [(culprit.first, culprit.last) for culprit in done.culprits] == [(77, 77)]
    assert world.measured == 4 + 4 + 7 + 2  # the two beside the culprit twice
    assert len(world.builds) == 9


def test_nothing_changed():
    for sd, most in ((0, 8), (0.01, 48)):
        world = World(stepped(64), sd=sd)
        _, done = search(world, 64)
        assert [outcome.verdict for outcome in done.outcomes] == ["not reproduced"]
        assert world.builds == [0, 64]
        assert world.measured <= most
        assert not done.culprits


def test_a_change_too_small_to_count():
    world = World(stepped(64, (30, 0.01)), sd=0.001)
    _, done = search(world, 64, minimum_change=0.02)
    assert [outcome.verdict for outcome in done.outcomes] == ["not reproduced"]
    assert done.outcomes[0].step == pytest.approx(0.01, abs=0.002)
    _, done = search(World(stepped(64, (30, 0.01)), sd=0.001), 64, minimum_change=0.005)
    assert [culprit.first for culprit in done.culprits] == [30]


def test_a_culprit_among_broken_builds_is_a_set():
    broken = {38, 39, 40, 42}
    world = World(stepped(64, (40, 0.1)), broken=broken)
    _, done = search(world, 64)
    (culprit,) = done.culprits
    assert (culprit.first, culprit.last) == (38, 41)
    assert culprit.probability > 0.98
    assert broken & set(world.builds) >= {38, 39, 40}


def test_what_must_not_be_built_is_not():
    costs = [10.0] * 65
    costs[31:34] = [math.inf] * 3
    world = World(stepped(64, (32, 0.1)))
    _, done = search(world, 64, build_cost=tuple(costs))
    (culprit,) = done.culprits
    assert (culprit.first, culprit.last) == (31, 34)
    assert not {31, 32, 33} & set(world.builds)


def test_cheap_builds_are_preferred():
    cheap = set(range(0, 129, 8))
    costs = tuple(1.0 if place in cheap else 200.0 for place in range(129))
    world = World(stepped(128, (50, 0.1)))
    _, done = search(world, 128, build_cost=costs)
    assert [culprit.first for culprit in done.culprits] == [50]
    assert len(set(world.builds) - cheap) <= 3


def test_an_end_that_is_broken():
    for broken in (0, 8):
        _, done = search(World(stepped(8), broken=[broken]), 8)
        assert [outcome.verdict for outcome in done.outcomes] == ["end not measured"]
        assert done.builds == ()


def test_two_steps_are_found_one_after_the_other():
    world = World(stepped(128, (30, 0.06), (90, 0.10)), seed=2)
    _, done = search(world, 128)
    assert {(culprit.first, culprit.last) for culprit in done.culprits} == {(30, 30), (90, 90)}
    sizes = {culprit.first: culprit for culprit in done.culprits}
    assert sizes[30].step == pytest.approx(0.06, abs=0.015)
    assert sizes[90].step == pytest.approx(0.10, abs=0.015)


def test_a_step_there_and_half_back():
    world = World(stepped(128, (30, 0.10), (90, -0.05)), seed=1)
    _, done = search(world, 128)
    assert {culprit.first for culprit in done.culprits} == {30, 90}


def test_a_smaller_step_beside_a_large_one():
    """+50 % beside x10: a fifth of the first, in logs, would be +58 %."""
    world = World(stepped(32, (5, math.log(1.5)), (20, math.log(10))), sd=0.02, seed=3)
    _, done = search(world, 32)
    sizes = {(culprit.first, culprit.last): culprit for culprit in done.culprits}
    assert set(sizes) == {(5, 5), (20, 20)}
    assert sizes[20, 20].step_low <= math.log(10) <= sizes[20, 20].step_high
    assert sizes[20, 20].step == pytest.approx(math.log(10), abs=0.05)


def test_an_outlier_beside_a_large_step_hides_no_smaller_one():
    class Outlier(World):
        def answers(self, action):
            answers = super().answers(action)
            seen = [event.place for event in self.seen if isinstance(event, Measured)]
            if isinstance(action, Measure) and action.place == 19 and 19 not in seen:
                return [Measured(19, answers[0].value - 0.47)]
            return answers

    world = Outlier(stepped(32, (5, 0.307), (20, 1.842)), sd=0.0307, seed=5)
    _, done = search(world, 32)
    assert {(culprit.first, culprit.last) for culprit in done.culprits} == {(5, 5), (20, 20)}


def test_a_count_of_one_beside_a_count_of_ten():
    _, done = search(World(stepped(32, (5, 1.0), (20, 10.0)), sd=0.0), 32)
    assert {(culprit.first, culprit.last) for culprit in done.culprits} == {(5, 5), (20, 20)}


def test_two_modes_of_memory_are_no_second_change():
    """The peak of a small model has two modes that are 1.7 % apart; the step is 26 %."""

    class TwoModes(World):
        def answers(self, action):
            answers = super().answers(action)
            if isinstance(action, Build):
                return answers
            (measured,) = answers
            # The first values of each build agree, as they did when this was found.
            first = sum(isinstance(e, Measured) and e.place == measured.place for e in self.seen) < 4
            mode = measured.place % 2 if first else self.random.random() < 0.3
            return [Measured(measured.place, measured.value + 0.017 * mode)]

    world = TwoModes(stepped(32, (20, 0.24)), sd=0.0)
    _, done = search(world, 32)
    assert [(culprit.first, culprit.last) for culprit in done.culprits] == [(20, 20)]
    assert world.measured < 60


def test_three_builders_take_five_rounds():
    for culprit in (1, 37, 64, 65, 100, 128):
        world = World(stepped(128, (culprit, 0.1)))
        bisection, rounds = RangeSearch(Question(128, jobs=3)), 0
        while not isinstance(bisection.action, Done):
            rounds += isinstance(bisection.action, Build)
            for answer in world.answers(bisection.action):
                bisection.observe(answer)
        assert [culprit.first for culprit in bisection.action.culprits] == [culprit]
        assert rounds <= 5


@pytest.mark.parametrize("options", [{}, {"jobs": 3}])
def test_played_back_it_asks_for_the_same(options):
    world = World(stepped(128, (45, 0.03)), broken={44, 60}, seed=4)
    bisection, actions = RangeSearch(Question(128, **options)), []
    while not isinstance(bisection.action, Done):
        for event in world.answers(bisection.action):
            bisection.observe(event)
            world.seen.append(event)
            actions.append(bisection.action)
    again = RangeSearch(Question(128, **options))
    for k, event in enumerate(world.seen):
        again.observe(event)
        assert again.action == actions[k]
    half = len(world.seen) // 2
    assert RangeSearch(Question(128, **options), world.seen[:half]).action == actions[half - 1]


def test_answers():
    world = World(None, fails=lambda place: 1.0 if place >= 23 else 0.0)
    _, done = search(world, 64, answers=True)
    (culprit,) = done.culprits
    assert (culprit.first, culprit.last) == (23, 23)
    assert math.isnan(culprit.step)
    assert world.measured <= 2 * len(world.builds) + 4
    assert all(build.count >= 2 for build in done.builds)
    assert {build.fails for build in done.builds} == {0.0, 1.0}


def test_a_fault_that_shows_at_times():
    world = World(None, fails=lambda place: 0.5 if place >= 23 else 0.0, seed=3)
    _, done = search(world, 64, answers=True)
    assert [culprit.first for culprit in done.culprits] == [23]
    _, done = search(World(None, fails=lambda place: 0.0), 64, answers=True)
    assert [outcome.verdict for outcome in done.outcomes] == ["not reproduced"]


def test_a_person_overrules():
    world = World(stepped(64, (20, 0.1)))
    bisection, _ = search(world, 64)
    bisection.observe(Marked(30, "good"))
    assert not isinstance(bisection.action, Done)
    done = world.run(bisection)
    assert all(culprit.first > 30 for culprit in done.culprits)
    bisection.observe(Marked(30, "skip"))
    bisection.observe(Marked(20, "skip"))
    done = world.run(bisection)
    assert [(culprit.first, culprit.last) for culprit in done.culprits] == [(20, 21)]


@pytest.mark.slow
def test_what_was_measured_may_fail_later():
    world = World(stepped(128, (30, 0.06), (90, 0.10)), seed=2)
    bisection, late = RangeSearch(Question(128)), 0
    while not isinstance(bisection.action, Done):
        world.seen += (seen := world.answers(bisection.action))
        for event in seen:
            bisection.observe(event)
        if len(bisection.state.outcomes) > 1:
            for place in (0, 29, 30, 89, 90, 128):
                state, action = bisection.state, bisection.action
                for _ in range(2):
                    state, action = after(state, action, Broken(place))
                late += 1
    assert late > 20


def test_exact_but_for_one_value():
    world = World(stepped(64, (50, 1.0)), sd=0)
    bisection, seen = RangeSearch(Question(64)), set()
    while not isinstance(bisection.action, Done):
        for answer in world.answers(bisection.action):
            flaw = isinstance(answer, Measured) and answer.place == 32 and 32 not in seen
            seen.add(answer.place if isinstance(answer, Measured) else None)
            bisection.observe(Measured(32, 1.0) if flaw else answer)
    assert [culprit.first for culprit in bisection.action.culprits] == [50]


def test_weights_save_builds_but_its_neighbour_is_seen():
    prior = tuple(100.0 if place == 40 else 1.0 for place in range(1, 129))
    world = World(stepped(128, (40, 0.1)))
    _, done = search(world, 128, prior=prior)
    assert [culprit.first for culprit in done.culprits] == [40]
    assert {39, 40} <= set(world.builds)
    assert len(world.builds) <= 7


def test_a_host_that_moves_while_it_was_interrupted():
    world = World(stepped(64, (20, 0.05)))
    bisection = RangeSearch(Question(64))
    for number in itertools.count():
        if isinstance(bisection.action, Done):
            break
        if number == 16:
            bisection.observe(Resumed())
            world.levels = [level + 0.1 for level in world.levels]
        for answer in world.answers(bisection.action):
            bisection.observe(answer)
    assert [culprit.first for culprit in bisection.action.culprits] == [20]


@given(
    st.integers(1, 20),
    st.lists(st.sampled_from([0.0, 1e-9, 0.01, 0.011, 0.5, 0.5, -3.0, 1e6]), min_size=1, max_size=9),
    st.sets(st.integers(0, 20)),
    st.integers(1, 4),
)
@settings(max_examples=trials(25))
def test_whatever_is_measured_it_ends(last, values, broken, jobs):
    bisection = RangeSearch(Question(last, jobs=jobs, most_pairs=6, most_repeats=6))
    questions, turn = 0, itertools.cycle(values)
    while not isinstance(bisection.action, Done):
        questions += 1
        assert questions < 500
        if isinstance(bisection.action, Measure):
            bisection.observe(Measured(bisection.action.place, next(turn)))
            continue
        for place in bisection.action.places:
            bisection.observe(Broken(place) if place in broken else Built(place))
    assert bisection.action.outcomes
    for culprit in bisection.action.culprits:
        assert 1 <= culprit.first <= culprit.last <= last
