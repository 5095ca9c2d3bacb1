"""Where memory ends within a case whose batch grows."""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace

import pytest

from perfdash.worker.child import ChildFailed
from tests.lazy import lazy

worker_case = lazy("perfdash.worker.case")
peak_memory = lazy("perfdash.worker.peak_memory")

NO_ROOM = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")


WORK = {"eager": "eager_facts", "accuracy": "check_accuracy", "latency": "time_sides",
        "memory": "measure_memory", "differs": "two_runs_differ"}  # fmt: skip


def played(*, until_oom=True, role="full", **raising):
    """A case on a GPU whose phases raise what they are told to, each once; and its events."""
    case = object.__new__(worker_case.CaseProcess)
    case.job = SimpleNamespace(until_oom=until_oom, role=role, shared="")
    case.backend = None
    case.device = SimpleNamespace(kind="cuda")
    case.eager_lost, case.unrepeated, case.eager_differs = False, None, None
    case.eager_side = case.compiled_side = case.eager_step = None
    events = []
    case.emit = lambda event, **more: events.append((event, more))

    def work(phase):
        error = raising.pop(phase, None)
        if error:
            raise error
        if phase == "eager":
            return {"differ": None}
        if phase != "differs":
            case.emit(phase, alone=case.eager_lost)
        return None

    for phase, method in WORK.items():
        setattr(case, method, functools.partial(work, phase))
    return case, events


@pytest.fixture(autouse=True)
def dropped(monkeypatch):
    calls = []
    monkeypatch.setattr(peak_memory, "release_eager", lambda *sides: calls.append(sides))
    return calls


def test_eager_without_room_beside_the_back_end_leaves_it_alone(dropped):
    case, events = played(latency=NO_ROOM)
    case.latency()
    (lost, message), measured = events
    assert lost == "eager_lost"
    assert message["status"] == "eager_oom"
    assert measured == ("latency", {"alone": True})
    assert len(dropped) == 1


def test_a_back_end_without_room_is_out_of_memory():
    case, _ = played(latency=NO_ROOM)
    case.eager_lost = True
    with pytest.raises(RuntimeError):
        case.latency()


def test_a_replica_is_of_both_sides_or_fails():
    case, events = played(role="replica", latency=NO_ROOM)
    with pytest.raises(RuntimeError):
        case.latency()
    assert events == []


def test_a_check_without_room_is_skipped_and_says_so():
    case, events = played(accuracy=MemoryError())
    case.accuracy()
    ((event, message),) = events
    assert (event, message["status"]) == ("accuracy", "skipped")
    assert "no memory was left for the check" in message["detail"]
    assert not case.eager_lost


class Fail(Exception):
    """onnxruntime's exceptions are no RuntimeErrors."""

    __module__ = "onnxruntime.capi.onnxruntime_pybind11_state"


@pytest.mark.parametrize(("error", "text"), [
    (NO_ROOM, "can't allocate memory"), (Fail("FAIL : Failed to allocate memory"), "Failed to allocate"),
])  # fmt: skip
def test_what_was_timed_is_not_lost_for_its_memory(error, text):
    case, events = played(memory=error)
    case.memory()
    ((event, message),) = events
    assert (event, message["transient_bytes"]) == ("memory", None)
    assert text in message["lost"]


def test_eager_may_have_room_for_one_run_and_not_for_two():
    assert played()[0].eager_repeats() == {"differ": None}
    repeats = played(differs=MemoryError())[0].eager_repeats()
    assert repeats["differ"] is None
    assert "no memory was left to see" in repeats["unrepeated"]


def test_eager_without_room_by_itself():
    failed = {"status": "eager_oom", "traceback": "", "phase": "eager", "type": "M", "message": "m"}
    case, events = played(eager=ChildFailed(failed))
    case.eager()
    assert case.eager_lost
    assert [event for event, _ in events] == ["eager_lost"]


@pytest.mark.parametrize("phase", ["eager", "accuracy", "latency", "memory"])
@pytest.mark.parametrize(("error", "until_oom"), [(NO_ROOM, False), (RuntimeError("a shape"), True)])
def test_anything_else_is_what_it_is(phase, error, until_oom):
    case, events = played(until_oom=until_oom, **{phase: error})
    with pytest.raises(RuntimeError):
        getattr(case, phase)()
    assert events == []


@pytest.mark.parametrize(("plain", "deterministic", "facts"), [
    (None, None, {"differ": None}),
    ("out differs", None, {"differ": None, "atomics": "out differs"}),
    ("out differs", "still", {"differ": "out differs; with deterministic algorithms: still"}),
])  # fmt: skip
def test_two_runs_that_differ_by_atomics_alone_are_no_fault(plain, deterministic, facts):
    """On a GPU additions come in any order; on the CPU a difference stays one."""
    case, _ = played()
    on = []

    @contextlib.contextmanager
    def block():
        on.append(1)
        yield
        on.clear()

    case.device = SimpleNamespace(kind="cuda", has_atomics=True, deterministic=block)
    case.two_runs_differ = lambda: deterministic if on else plain
    assert case.how_runs_differ() == facts
    case.device = SimpleNamespace(kind="cpu", has_atomics=False)
    assert case.how_runs_differ() == {"differ": plain}
