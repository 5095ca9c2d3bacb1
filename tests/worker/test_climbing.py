"""Where memory ends within a case whose batch grows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perfdash.worker.child import ChildFailed
from tests.lazy import lazy

climbing = lazy("perfdash.worker.climbing")
footprint = lazy("perfdash.worker.footprint")


NO_ROOM = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")


class Played:
    """A case whose phases raise what they are told to, each once."""

    def __init__(self, *, until_oom=True, role="full", **raising):
        self.job = SimpleNamespace(until_oom=until_oom, role=role)
        self.eager_lost, self.events, self.raising = False, [], raising
        self.device = self.baseline = self.own = self.eager_step = None

    def emit(self, event, **more):
        self.events.append((event, more))

    def _phase(self, name):
        error = self.raising.pop(name, None)
        if error:
            raise error
        self.emit(name, alone=self.eager_lost)

    def eager(self):
        self._phase("eager")

    def accuracy(self):
        self._phase("accuracy")

    def latency(self):
        self._phase("latency")

    def memory(self):
        self._phase("memory")

    def differs(self):
        self._phase("differs")


@pytest.fixture(autouse=True)
def dropped(monkeypatch):
    calls = []
    monkeypatch.setattr(footprint, "drop_eager", lambda *sides: calls.append(sides))
    return calls


def test_eager_without_room_beside_the_back_end_leaves_it_alone(dropped):
    case = Played(latency=NO_ROOM)
    climbing.latency(case)
    (lost, told), measured = case.events
    assert lost == "eager_lost"
    assert told["status"] == "eager_oom"
    assert measured == ("latency", {"alone": True})
    assert len(dropped) == 1


def test_a_back_end_without_room_is_out_of_memory():
    case = Played(latency=NO_ROOM)
    case.eager_lost = True
    with pytest.raises(RuntimeError):
        climbing.latency(case)


def test_a_replica_is_of_both_sides_or_fails():
    case = Played(role="replica", latency=NO_ROOM)
    with pytest.raises(RuntimeError):
        climbing.latency(case)
    assert case.events == []


def test_a_check_without_room_is_skipped_and_says_so():
    case = Played(accuracy=MemoryError())
    climbing.accuracy(case)
    ((event, told),) = case.events
    assert (event, told["status"]) == ("accuracy", "skipped")
    assert "no memory was left for the check" in told["detail"]
    assert not case.eager_lost


def test_what_was_timed_is_not_lost_for_its_memory():
    case = Played(memory=NO_ROOM)
    climbing.memory(case)
    ((event, told),) = case.events
    assert (event, told["transient_bytes"]) == ("memory", None)
    assert "can't allocate memory" in told["lost"]


def test_eager_may_have_room_for_one_run_and_not_for_two():
    assert climbing.repeated(Played()) == {"differ": None}
    found = climbing.repeated(Played(differs=MemoryError()))
    assert found["differ"] is None
    assert "no memory was left to see" in found["unrepeated"]


def test_eager_without_room_by_itself():
    failed = {"status": "eager_oom", "traceback": "", "phase": "eager", "type": "M", "message": "m"}
    case = Played(eager=ChildFailed(failed))
    climbing.eager(case)
    assert case.eager_lost
    assert [event for event, _ in case.events] == ["eager_lost"]


@pytest.mark.parametrize("phase", ["eager", "accuracy", "latency", "memory"])
@pytest.mark.parametrize(("error", "until_oom"), [(NO_ROOM, False), (RuntimeError("a shape"), True)])
def test_anything_else_is_what_it_is(phase, error, until_oom):
    case = Played(until_oom=until_oom, **{phase: error})
    with pytest.raises(RuntimeError):
        getattr(climbing, phase)(case)
    assert case.events == []
