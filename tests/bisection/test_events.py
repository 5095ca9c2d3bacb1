"""What a question cannot be, and what cannot be an answer to it."""

import math

import pytest

from perfdash.bisection.events import Answered, Build, Marked, Measured, Question
from perfdash.bisection.search import RangeSearch


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (Measured(65, 1.0), "0..64"),
        (Measured(0, math.nan), "finite"),
        (Answered(0, True), "about numbers"),
    ],
)
def test_observations_that_do_not_belong(seen, words):
    with pytest.raises(ValueError, match=words):
        RangeSearch(Question(64)).observe(seen)


@pytest.mark.parametrize(
    "wrong",
    [
        {"last": 0},
        {"last": 3, "build_cost": (1.0,)},
        {"last": 2, "prior": (0.0, 0.0)},
        {"last": 2, "prior": (1.0, -1.0)},
        {"last": 2, "confidence": 1.0},
        {"last": 2, "jobs": 0},
    ],
)
def test_questions_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match=r"\w+"):
        Question(**wrong)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Marked(10, "bad"), Marked(20, "good")),
        (Marked(20, "good"), Marked(10, "bad")),
        (Marked(20, "good"), Marked(0, "bad")),
    ],
)
def test_marks_that_contradict_each_other_are_refused_at_once(first, second):
    """Also before anything was measured: later it would be a measurement that is refused."""
    bisection = RangeSearch(Question(64), [first])
    with pytest.raises(ValueError, match="contradict"):
        bisection.observe(second)
    assert bisection.action == Build((0, 64))
    bisection.observe(Marked(first.place, "skip"))
    if second.place:
        bisection.observe(second)
    assert bisection.state.marks[first.place] == "skip"


def test_a_mark_outweighs_what_was_expected():
    bisection = RangeSearch(Question(2, prior=(1.0, 0.0)), [Marked(1, "good")])
    for _ in range(4):
        bisection.observe(Measured(0, 1.0))
        bisection.observe(Measured(2, 2.0))
    assert bisection.state.marks == {1: "good"}
