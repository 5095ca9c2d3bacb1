"""The Dask executor against a scheduler that is played: no cluster is started here."""

from __future__ import annotations

import contextlib
import json
import sys
from types import SimpleNamespace

import pytest

from perfdash import __version__
from perfdash.errors import MachineError
from perfdash.runner import dask_executor, dask_worker
from perfdash.runner.cores import Locks
from perfdash.runner.dask_executor import DaskExecutor
from perfdash.runner.messages import Options, to_text
from perfdash.runner.slot import InterpreterChanged, Slot
from perfdash.runner.worker_limits import Stop, ready_of
from tests.runner.planned import PLANNED

OPTIONS = Options(python="python", threads=1, device="cpu", allocator="steady", weights="random")
NO_CORE = json.dumps({"no_core": "no core is free for another slot on farm", "worker": "tcp://farm:2"})


class Future:
    def __init__(self, text):
        self.text = text
        self.status = "finished"

    def result(self, timeout=None):
        return self.text

    def cancelled(self):
        return False

    def exception(self):
        return None


class Client:
    """A client of a cluster whose workers answer with these texts, by address."""

    status = "running"

    def __init__(self, texts):
        self.texts = texts
        self.asked = []
        self.ran = []

    def scheduler_info(self, n_workers):
        return {"workers": {address: {"resources": {"slot": 1}} for address in self.texts}}

    def submit(self, function, *arguments, workers, **options):
        self.asked.append(workers[0])
        return Future(self.texts[workers[0]])

    def run(self, function, workers=None):
        self.ran.append((function.__name__, workers))
        return dict.fromkeys(workers or self.texts, True)

    def cancel(self, futures, force):
        pass

    def close(self, timeout=None):
        pass


def introduced(number):
    answer = {"environment": {"host_class": "h x 2", "worker": {}}, "where": {"slot": number}}
    return json.dumps({"ok": answer, "version": __version__})


@pytest.fixture
def executor(tmp_path):
    def make(texts):
        made = DaskExecutor("tcp://farm:8786", OPTIONS, tmp_path)
        made._client = Client(texts)
        made._workers()
        return made

    return make


def test_a_scheduler_that_does_not_answer(monkeypatch, tmp_path):
    monkeypatch.setattr(dask_executor, "CONNECT_S", 0.2)
    with pytest.raises(MachineError, match=r"--scheduler tcp://127\.0\.0\.1:1: no Dask scheduler answers"):
        DaskExecutor("tcp://127.0.0.1:1", OPTIONS, tmp_path).__enter__()


GONE = r"^the Dask scheduler at tcp://farm:8786 is gone: start it and its workers, then resume$"


class FailingFuture(Future):
    """Its result cannot be had: the call has failed, or the result is lost on its way."""

    def __init__(self, error, status):
        super().__init__("")
        self.error, self.status = error, status

    def result(self, timeout=None):
        raise self.error

    def exception(self):
        return self.error


@pytest.mark.parametrize("ask", ["everywhere", "answer"])
@pytest.mark.parametrize("status", ["finished", "lost", "cancelled"])
def test_a_scheduler_that_is_lost_while_it_passes_a_result_on(executor, monkeypatch, tmp_path, ask, status):
    run = executor({"tcp://farm:1": introduced(0)})
    future = FailingFuture(ConnectionResetError("[Errno 104] Connection reset by peer"), status)
    monkeypatch.setattr(run._client, "submit", lambda *words, **options: future)
    with pytest.raises(MachineError, match=GONE):
        run.introduce([]) if ask == "everywhere" else run._answer(future, tmp_path / "log")


def test_a_scheduler_that_is_lost_before_the_next_order(executor, monkeypatch):
    run = executor({"tcp://farm:1": introduced(0)})

    def submit(*words, **options):
        raise RuntimeError("Client is closed. Can't send update-graph message.")

    monkeypatch.setattr(run._client, "submit", submit)
    monkeypatch.setattr(run._client, "status", "closed", raising=False)
    with pytest.raises(MachineError, match=GONE):
        run.introduce([])


@pytest.mark.parametrize("error", [TimeoutError("no hello"), ImportError("no module named perfdash")])
def test_a_call_that_fails_on_the_worker_is_named(executor, monkeypatch, error):
    run = executor({"tcp://farm:1": introduced(0)})
    monkeypatch.setattr(run._client, "submit", lambda *words, **options: FailingFuture(error, "error"))
    with pytest.raises(MachineError, match=rf"a Dask worker cannot run perfdash \({type(error).__name__}"):
        run.introduce([])


class KilledWorker(Exception):
    """What Dask raises once it has given a task up: too many workers were lost with it."""


@pytest.mark.parametrize("given_up", [False, True])
def test_a_case_whose_worker_was_lost_is_an_attempt_and_the_run_goes_on(executor, tmp_path, given_up):
    run = executor({"tcp://farm:1": introduced(0)})
    future = Future(json.dumps({"lost": True}))
    if given_up:
        future = FailingFuture(KilledWorker("measure failed on 4 different workers"), "error")
    failed = run._answer(future, tmp_path / "log").outcomes[0].find("failed")
    assert (failed["status"], failed["type"]) == ("infra_error", "WorkerLost")
    assert failed["message"] == "the Dask worker that measured it was lost"


def test_a_case_is_begun_once_however_often_dask_gives_it_to_a_worker(monkeypatch):
    begun = set()

    class Event:
        def __init__(self, name):
            self.name = name

        def is_set(self):
            return self.name in begun

        def set(self):
            begun.add(self.name)

    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Event=Event))
    monkeypatch.setattr(dask_worker, "_serve", lambda options, work: "measured")
    assert dask_worker.measure("", "", "", "order 1") == "measured"
    assert json.loads(dask_worker.measure("", "", "", "order 1")) == {"lost": True}
    assert dask_worker.measure("", "", "", "order 2") == "measured"


@pytest.mark.parametrize("end", ["cancelled", "gone"])
def test_an_order_that_is_cancelled_ends_its_case(monkeypatch, end):
    tasks = {"measure": SimpleNamespace(state="executing")}
    here = SimpleNamespace(get_current_task=lambda: "measure", state=SimpleNamespace(tasks=tasks))
    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(get_worker=lambda: here))
    monkeypatch.setattr(dask_worker, "LOOK_S", 0.01)
    stop = Stop()
    with dask_worker._ended_when_cancelled(stop):
        assert not ready_of([stop.fd], 0.05)
        if end == "gone":
            tasks.clear()
        else:
            tasks["measure"].state = "cancelled"
        assert ready_of([stop.fd], 120)
    stop.close()


def test_a_worker_without_a_core_is_left_out_and_reported(executor):
    run = executor({"tcp://farm:1": introduced(0), "tcp://farm:2": NO_CORE})
    answers = run.introduce([])
    assert [answer["where"] for answer in answers] == [{"slot": 0}]
    assert answers[0]["notes"] == [
        "no core is free for another slot on farm: the Dask worker tcp://farm:2 is left out of this run; "
        "stop one worker there, or what else measures on its cores"
    ]
    assert run.slots == 1
    run.introduce([])
    assert run._client.asked == ["tcp://farm:1", "tcp://farm:2", "tcp://farm:1"]
    run.close()
    assert ("offer_slot", ["tcp://farm:2"]) in run._client.ran, "other runs may use it"


def test_without_a_core_for_any_worker_nothing_can_be_measured(executor):
    run = executor({"tcp://farm:1": NO_CORE})
    with pytest.raises(MachineError, match="no core is free for another slot on farm"):
        run.introduce([])


def test_a_worker_that_joins_late_and_has_no_core_is_no_fault_of_the_case(executor, tmp_path):
    run = executor({"tcp://farm:1": introduced(0), "tcp://farm:2": NO_CORE})
    answer = run._answer(Future(NO_CORE), tmp_path / "log")
    assert run._workers() == ["tcp://farm:1"]
    failed = answer.outcomes[0].find("failed")
    assert (failed["status"], failed["type"]) == ("infra_error", "NoFreeCore")


@pytest.fixture
def worker(monkeypatch):
    """This process as a Dask worker on a machine where no core is free: the slots that it offers, in turn."""
    offered = []
    monkeypatch.setattr(dask_worker, "_ended_when_cancelled", lambda stop: contextlib.nullcontext())
    here = SimpleNamespace(get_worker=lambda: SimpleNamespace(address="tcp://farm:2"))
    monkeypatch.setitem(sys.modules, "distributed", here)
    monkeypatch.setattr(dask_worker, "_set_slots", lambda worker, count: offered.append(count))
    monkeypatch.setattr(dask_worker, "_without_nannys_variables", lambda: None)
    monkeypatch.setattr(dask_worker, "LOCK_S", 0.0)
    monkeypatch.setattr(dask_worker.orphans, "end_strays", lambda: None)
    monkeypatch.setattr(dask_worker, "remove_abandoned_folders", lambda: None)
    monkeypatch.setattr(Locks, "try_take", classmethod(lambda cls, names: None))
    yield offered
    dask_worker._Open.idle.cancel()
    dask_worker._Open.withdrawn = None


def test_a_worker_without_a_core_withdraws_its_slot_until_one_is_free(worker, monkeypatch):
    reply = json.loads(dask_worker._serve(to_text(OPTIONS), lambda slot, log: None))
    assert reply["no_core"].startswith("no core is free for another slot on ")
    assert reply["worker"] == "tcp://farm:2"
    assert worker == [0]
    for _ in range(2):  # its idle timer, whatever became of the runner
        dask_worker._Open.idle.cancel()
        dask_worker._idle()
    assert worker == [0]
    assert dask_worker._Open.idle.function is dask_worker._idle
    dask_worker._Open.idle.cancel()
    monkeypatch.setattr(Locks, "try_take", classmethod(lambda cls, names: Locks()))
    dask_worker._idle()
    assert worker == [0, 1]
    assert dask_worker.is_released()
    dask_worker._idle()
    assert worker == [0, 1], "once"


def test_a_worker_whose_interpreter_changes_ends_the_run_and_its_slot(worker, monkeypatch):
    """The slot would refuse the interpreter of the next run, too."""

    def changed(slot, log):
        raise InterpreterChanged("python changed", ["torch: 2.15 | 2.16"])

    slot = SimpleNamespace(stop=None, ended=[])
    slot.__exit__ = lambda: slot.ended.append(True)
    monkeypatch.setattr(dask_worker._Open, "slot", slot)
    assert json.loads(dask_worker._serve("", changed)) == {"unlike": ["torch: 2.15 | 2.16"]}
    assert slot.ended == [True]
    assert dask_worker.is_released()


def test_a_further_run_may_measure_another_interpreter_in_the_slot_of_the_last(worker, monkeypatch):
    slot = Slot((0,), OPTIONS)
    slot._first_hellos[()] = {(): {"torch": "2.15"}}
    monkeypatch.setattr(
        slot, "introduce", lambda planned: {"environment": {"known": list(slot._first_hellos)}}
    )
    monkeypatch.setattr(dask_worker, "_slot", lambda options: slot)
    monkeypatch.setattr(dask_worker._Open, "environment", None)
    assert json.loads(dask_worker.introduce("", "[]"))["ok"] == {"environment": {"known": []}}


@pytest.mark.parametrize("ask", [lambda run: run.introduce([]), lambda run: run.null(PLANNED, 1)])
def test_an_interpreter_that_changed_before_the_first_case_is_named(executor, ask):
    run = executor({"tcp://farm:1": json.dumps({"unlike": ["torch: 2.15 | 2.16"]})})
    with pytest.raises(MachineError, match=r"\(run \| worker\):\n  torch: 2\.15 \| 2\.16"):
        ask(run)


def test_a_worker_whose_scheduler_does_not_answer_tries_again(worker, monkeypatch):
    def lost(worker, count):
        raise OSError("no answer")

    dask_worker._serve(to_text(OPTIONS), lambda slot, log: None)
    monkeypatch.setattr(Locks, "try_take", classmethod(lambda cls, names: Locks()))
    first = dask_worker._Open.idle
    first.cancel()
    monkeypatch.setattr(dask_worker, "_set_slots", lost)
    dask_worker._idle()
    assert dask_worker._Open.withdrawn
    assert dask_worker._Open.idle is not first


@pytest.mark.parametrize("fails", ["cancel", "release", "offer_slot", "is_released"])
def test_no_step_of_closing_keeps_the_others_from_being_done(executor, monkeypatch, fails):
    run = executor({"tcp://farm:1": introduced(0), "tcp://farm:2": NO_CORE, "tcp://farm:3": NO_CORE})
    run.introduce([])
    client, ran = run._client, run._client.ran

    def cancel(futures, force):
        ran.append(("cancel", None))
        if fails == "cancel":
            raise OSError

    def run_once(function, workers=None):
        ran.append((function.__name__, workers))
        if function.__name__ == fails:
            raise OSError
        return {}

    monkeypatch.setattr(client, "cancel", cancel)
    monkeypatch.setattr(client, "run", run_once)
    run.close()
    assert [name for name, _ in ran] == ["cancel", "release", "offer_slot", "offer_slot", "is_released"]
