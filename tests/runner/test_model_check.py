"""What a check says of models, from what workers told; cases are played back."""

import signal
from dataclasses import replace

import pytest

from perfdash.errors import UsageError
from perfdash.records import Case, Status
from perfdash.runner.executors import Message
from perfdash.runner.messages import Answer, ProcessOutcome
from perfdash.runner.model_check import check, planned_checks
from perfdash.settings import RunSettings
from tests.runner.planned import PLANNED

OK = [
    {"event": "phase", "name": "load"},
    {"event": "loaded", "parameters": 10, "weights_bytes": 40, "held_bytes": 44},
    {"event": "phase_end", "name": "load", "seconds": 0.5},
    {"event": "phase", "name": "eager"},
    {"event": "phase_end", "name": "eager", "seconds": 0.25},
    {"event": "done"},
]


def failed(status, phase="load", message="why"):
    before = OK[:3] if phase == "eager" else []
    event = {"event": "failed", "status": status, "phase": phase, "type": "E", "message": message}
    return ProcessOutcome([*before, event], 0)


class Played:
    """Slots that answer at once with the outcome of a model; a list gives them in turn."""

    def __init__(self, slots, outcomes):
        self.slots = slots
        self.outcomes = outcomes
        self.messages = []
        self.busy = 0
        self.most = 0
        self.orders = []

    def start(self, slot, order, log):
        self.orders.append(order)
        self.busy += 1
        self.most = max(self.most, self.busy)
        outcome = self.outcomes.get(order.planned.case.model, ProcessOutcome(OK, 0))
        if isinstance(outcome, list):
            outcome = outcome.pop(0)
        self.messages += [
            Message(slot, "phase", "load"),
            Message(slot, "answer", Answer([outcome], "t", 1.0, 0.0, {"slot": slot})),
        ]

    def wait(self, timeout_s):
        message = self.messages.pop(0)
        self.busy -= message.kind == "answer"
        return message


def planned(name, **settings):
    return replace(PLANNED, **{"case": Case("s", name), "skip_reason": None, **settings})


def run(tmp_path, cases, outcomes=(), slots=2):
    executor = Played(slots, dict(outcomes))
    seen = []
    outcome = check(cases, executor, tmp_path, seen.append)
    assert sorted(c.case.model for c in seen) == sorted(c.case.model for c in outcome)
    assert [c.case for c in outcome] == [c.case for c in cases], "in the order of the plan"
    return executor, {c.case.model: c for c in outcome}


def test_all_slots_and_what_is_reported(tmp_path):
    executor, outcomes = run(tmp_path, [planned("a"), planned("b"), planned("c")])
    assert executor.most == 2
    assert {order.role for order in executor.orders} == {"check"}
    outcome = outcomes["a"]
    assert (outcome.status, outcome.reason, outcome.faulty) == (None, "", False)
    assert (outcome.parameters, outcome.weights_bytes, outcome.load_s, outcome.eager_s) == (10, 40, 0.5, 0.25)


@pytest.mark.parametrize(
    ("status", "faulty"),
    [("model_fail_to_load", True), ("missing_data", True), ("skipped", False), ("eager_oom", False)],
)
def test_what_has_to_be_mended(tmp_path, status, faulty):
    _, outcomes = run(tmp_path, [planned("a")], {"a": failed(status)}, slots=1)
    assert (outcomes["a"].status, outcomes["a"].phase, outcomes["a"].reason) == (
        Status(status),
        "load",
        "why",
    )
    assert outcomes["a"].faulty is faulty


def test_skipped_by_the_suite(tmp_path):
    executor, outcomes = run(tmp_path, [planned("a", skip_reason="too large"), planned("b")])
    assert outcomes["a"].status is Status.SKIPPED
    assert len(executor.orders) == 1


def test_another_number_of_parameters_than_stated(tmp_path):
    _, outcomes = run(tmp_path, [planned("a", parameters=11), planned("b", parameters=10)])
    assert outcomes["a"].reason == "it has 10 parameters, and its suite states 11"
    assert (outcomes["a"].status, outcomes["a"].faulty) == (None, True)
    assert not outcomes["b"].reason


def test_what_its_neighbours_may_have_done_is_tried_alone(tmp_path):
    outcomes = {
        "a": [failed("eager_oom", "eager"), ProcessOutcome(OK, 0)],
        "b": [failed("eager_fail_to_run", "eager")],
        "c": [failed("eager_oom", "eager"), failed("eager_oom", "eager")],
    }
    cases = [planned(name) for name in "abcdefg"]
    outcomes["e"] = [ProcessOutcome(OK[:1], signal.SIGKILL, oom_killed="machine"), ProcessOutcome(OK, 0)]
    large = {"event": "failed", "status": "eager_oom", "phase": "load", "type": "TooLarge", "message": "why"}
    outcomes["f"] = ProcessOutcome([large], 0)
    executor, checked = run(tmp_path, cases, outcomes)
    names = [order.planned.case.model for order in executor.orders]
    assert names == [*"abcdefg", *"ace"]
    assert checked["a"].status is None
    assert checked["c"].status is Status.EAGER_OOM
    assert checked["e"].status is None
    assert checked["f"].kind == "TooLarge"


def test_alone_nothing_is_tried_again(tmp_path):
    executor, _ = run(tmp_path, [planned("a"), planned("b")], {"a": failed("eager_oom")}, slots=1)
    assert len(executor.orders) == 2


def test_a_crash_comes_with_what_it_last_printed(tmp_path):
    crash = ProcessOutcome(OK[:1], signal.SIGSEGV, tail=["first", "free(): invalid pointer"])
    _, outcomes = run(tmp_path, [planned("a")], {"a": crash}, slots=1)
    assert outcomes["a"].reason.endswith("it last printed: free(): invalid pointer")


def planned_suite(tmp_path, text, **settings):
    path = tmp_path / "mine.toml"
    path.write_text(f'name = "mine"\nloader = "timm"\n{text}\n[[models]]\nname = "resnet18"\n')
    return planned_checks(RunSettings(suite=(str(path),), backend=("eager",), **settings))


@pytest.mark.parametrize(
    ("text", "settings"),
    [('scenario = "sizes"\n[defaults]\nsizes = [2, 4]', {}), ("", {"scenario": "sizes", "sizes": (2, 4)})],
)
def test_a_model_that_is_measured_in_several_sizes_is_checked_in_inference(tmp_path, text, settings):
    (case,) = planned_suite(tmp_path, text, **settings)
    assert (case.case.scenario, case.skip_reason) == ("inference", None)


def test_a_model_is_checked_in_its_smallest_batch_size(tmp_path):
    text = "[defaults]\nbatch_sizes = [64, 2, 4096]\ntraining = { batch_sizes = [8, 16] }"
    sizes = [
        [case.case.batch_size for case in planned_suite(tmp_path, text, **settings)]
        for settings in ({}, {"scenario": "training"}, {"batch_size": (32, 64)})
    ]
    assert sizes == [[2], [8], [32, 64]]


def test_nothing_to_check_says_why(tmp_path):
    with pytest.raises(UsageError, match="every model is skipped: too large"):
        planned_suite(tmp_path, '[defaults]\nskip = { reason = "too large" }')
