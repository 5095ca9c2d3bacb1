from dataclasses import replace

from perfdash.records import Sampling
from perfdash.runner.messages import (
    Answer,
    Options,
    Order,
    ProcessOutcome,
    answer_from_text,
    options_from_text,
    order_from_text,
    to_text,
)
from tests.runner.planned import PLANNED, events


def test_they_are_read_back():
    options = Options(python="python", threads=2, allocator="default", sampling=Sampling(budget_s=3))
    assert options_from_text(to_text(options)) == options
    order = Order(
        replace(PLANNED, env={"A": "b"}, phase_timeouts={"load": 1.0}, inductor_config={"freezing": True}),
        3,
        "check",
    )
    assert order_from_text(to_text(order)) == order
    limit = {"what": "time", "scope": "case", "limit": 1, "unit": "s"}
    answer = Answer(
        [ProcessOutcome(events(), 0), ProcessOutcome([], None, limit)], "t", 1.0, 0.5, {"slot": 1}, "log"
    )
    assert answer_from_text(to_text(answer)) == answer
