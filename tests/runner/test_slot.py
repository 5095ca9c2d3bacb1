"""A slot makes the headers that inductor's cases share before the first of them, whenever that comes."""

from dataclasses import replace

import pytest

from perfdash.records import Case
from perfdash.runner import slot as slots
from perfdash.runner.core_locks import Locks, core_names
from perfdash.runner.messages import Options, Order
from perfdash.runner.slot import Slot
from perfdash.runner.watch import Outcome
from tests.runner.planned import PLANNED


@pytest.fixture
def slot(monkeypatch):
    """A slot without a worker; `asked` are the roles of its probes, `lent` what its jobs were lent."""
    slot = Slot((0,), Options("python", 1))
    slot.asked, slot.lent = [], []

    def probe(like, each, role="probe"):
        slot.asked.append(role)
        return {"vector_isa": "avx512", "whole": True}

    def main(planned, job, log, on_event=None):
        slot.lent.append(job.headers)
        return Outcome([], status=0)

    monkeypatch.setattr(slot, "_probe", probe)
    monkeypatch.setattr(slot, "_main", main)
    yield slot
    slot.__exit__()


def planned(backend="inductor", device="cpu", **change):
    return replace(PLANNED, case=Case("s", "m", device=device, backend=backend), skip_reason=None, **change)


def test_headers_come_with_the_first_case_that_needs_them(slot, tmp_path):
    for case in (planned("eager"), planned("aot-eager"), planned(device="cuda")):
        slot.measure(Order(case), tmp_path / "log", print)
    slot.measure(Order(planned(), role="check"), tmp_path / "log", print)
    assert slot.asked == []
    for _ in range(2):
        slot.measure(Order(planned()), tmp_path / "log", print)
    assert slot.asked == ["isa"]
    assert slot.lent[:4] == [None] * 4
    assert slot.lent[4] is not None
    assert slot.lent[4] == slot.lent[5]


def test_other_instructions_have_headers_of_their_own(slot, tmp_path):
    slot.measure(Order(planned()), tmp_path / "log", print)
    slot.measure(Order(planned(env={"ATEN_CPU_CAPABILITY": "avx2"})), tmp_path / "log", print)
    assert slot.asked == ["isa", "isa"]


def test_what_cannot_fit_is_not_started(slot, tmp_path):
    answer = slot.measure(Order(planned("eager", parameters=10**13)), tmp_path / "log", print)
    assert slot.lent == []
    assert answer.outcomes[0].find("failed")["status"] == "eager_oom"


def test_a_core_that_is_measured_on_is_not_free(monkeypatch):
    monkeypatch.setattr(slots, "every_slot", lambda threads: [(1_000_001,), (1_000_002,)])
    held = Locks.take(core_names([1_000_001]))
    assert slots.free_slots(1) == [(1_000_002,)]
    held.close()
    assert slots.free_slots(1) == [(1_000_001,), (1_000_002,)]
