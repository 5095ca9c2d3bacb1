"""Slots that fail by themselves: who measures their cases, and when they are out of service."""

from functools import partial

import pytest

from perfdash.records import Status
from perfdash.runner.messages import ProcessOutcome
from tests.runner.planned import Played, case, events
from tests.runner.sessions import INFRA, configured, session

KILLED = ProcessOutcome([], status=9)
OUT_OF_MEMORY = ProcessOutcome([], status=9, oom_killed="kernel")


@pytest.fixture
def start(tmp_path):
    return partial(session, tmp_path)


class Broken(Played):
    """An executor some of whose slots fail every case at once; the others answer after these."""

    def __init__(self, slots, broken, **more):
        super().__init__(slots, **more)
        self.broken = broken

    def start(self, slot, order, log):
        super().start(slot, order, log)
        if slot in self.broken:
            self.answers.insert(0, self.answers.pop())
            self.answers[0].value.outcomes[:] = [INFRA]


class Constant(Played):
    """An executor each of whose slots has one outcome for every case; they answer in turn."""

    def __init__(self, *outcomes):
        super().__init__(len(outcomes))
        self.outcomes = outcomes

    def start(self, slot, order, log):
        super().start(slot, order, log)
        self.answers[-1].value.outcomes[:] = [self.outcomes[slot]]


def slots_of(run, model):
    return [slot for slot, order in run.executor.orders if order.planned.case.model == model]


def test_a_slot_whose_gpu_is_lost_costs_no_case(start):
    run = start([case(name) for name in "abcdef"], Broken(2, {1}))
    run.run()
    assert [result.status for result in run.results] == [Status.PASS] * 6
    assert [slot for slot, _ in run.executor.orders].count(1) == 3, "the third time another slot had measured"
    (out,) = run.info.sessions[-1]["out_of_service"]
    assert (out["slot"], out["cores"], out["error"]) == (1, [1], "No space left on device")
    (warning,) = [line for line in run.watcher if line.startswith("WARNING: the slot on ")]
    assert warning.startswith("WARNING: the slot on cores 1 is out of service for the rest of this run: two")


def test_a_case_is_retried_on_another_slot(start):
    run = start([case("a"), case("b")], Played(slots=2, script={"a": [INFRA, INFRA, INFRA]}))
    run.run()
    slots = slots_of(run, "a")
    assert (len(slots), set(slots[:2])) == (3, {0, 1}), "where it failed everywhere, any slot will do"
    (a,) = [result for result in run.results if result.case.model == "a"]
    assert [attempt["where"]["slot"] for attempt in a.attempts] == slots[:2]


def test_one_models_failures_put_no_slot_out_of_service(start):
    """All configurations of a model are measured by one slot."""
    names = ["default", "dynamic", "cpp"]
    run = start([*configured("a", *names), case("b"), case("c")], Played(2, script={"a": [INFRA] * 9}))
    run.run()
    assert {result.case.model for result in run.results if result.status is Status.INFRA_ERROR} == {"a"}
    assert "out_of_service" not in run.info.sessions[-1]


def test_where_all_slots_fail_all_go_on(start):
    run = start([case(name) for name in "abcdef"], Broken(2, {0, 1}), retries=1)
    run.run()
    assert {result.status for result in run.results} == {Status.INFRA_ERROR}
    assert "out_of_service" not in run.info.sessions[-1]
    assert {len(slots_of(run, name)) for name in "abcdef"} == {2}


def test_a_trouble_of_the_machine_that_passes_puts_no_slot_out_of_service(start):
    executor = Broken(3, {0, 1, 2})
    run = start([case(name) for name in "abcdefghi"], executor)
    measured = run._take

    def take(*arguments):
        measured(*arguments)
        if len(executor.orders) >= 7:
            executor.broken = set()

    run._take = take
    run.run()
    assert {result.status for result in run.results} == {Status.PASS}
    assert "out_of_service" not in run.info.sessions[-1]


def edited(digest):
    script = events()
    next(event for event in script if event["event"] == "loaded")["own_files"] = {"f.py": digest}
    return ProcessOutcome(script, status=0)


def test_an_edited_model_puts_no_slot_out_of_service(start):
    run = start([case(name) for name in "abcdef"], Constant(edited("old"), edited("new")))
    run.run()
    assert [result.error and result.error.type for result in run.results] == [None, "EditedModel"] * 3
    assert "out_of_service" not in run.info.sessions[-1]


@pytest.mark.parametrize("killed", [KILLED, OUT_OF_MEMORY])
def test_a_slot_whose_processes_are_killed_has_not_measured(start, killed):
    """All slots fail: the machine is to blame, and none of them."""
    run = start([case(name) for name in "abcdef"], Constant(INFRA, killed))
    run.run()
    assert {result.status for result in run.results} <= {Status.INFRA_ERROR, Status.CRASH, Status.EAGER_OOM}
    assert "out_of_service" not in run.info.sessions[-1]


@pytest.mark.parametrize("killed", [KILLED, OUT_OF_MEMORY])
def test_a_case_whose_process_was_killed_is_retried_on_another_slot(start, killed):
    run = start([case("a"), case("b")], Played(slots=2, script={"a": [killed, killed]}))
    run.run()
    assert set(slots_of(run, "a")[:2]) == {0, 1}
    assert {result.status for result in run.results} == {Status.PASS}


def test_slots_of_a_cluster_stay_in_service(start):
    """Any worker gets the next order: the number of a slot says nothing of it."""
    executor = Broken(2, {1})
    executor.has_fixed_slots = False
    run = start([case(name) for name in "abcdef"], executor, retries=0)
    run.run()
    assert {result.status for result in run.results} == {Status.PASS, Status.INFRA_ERROR}
    assert "out_of_service" not in run.info.sessions[-1]


def test_a_retry_that_waits_for_a_busy_slot_keeps_no_core_busy(start):
    """The runner shares the machine with what is measured: it never looks again at once."""
    run = start([case("a"), case("b")], Played(slots=2, script={"a": [INFRA]}))
    waits = []

    def wait(timeout_s):
        waits.append(timeout_s)
        of_a = [message for message in run.executor.answers if message.slot == 0]
        if len(waits) < 5 and not of_a:
            return None
        return run.executor.answers.pop(0)

    run.executor.wait = wait
    run.run()
    assert slots_of(run, "a") == [0, 1]
    assert all(wait is None or wait > 0.1 for wait in waits)
