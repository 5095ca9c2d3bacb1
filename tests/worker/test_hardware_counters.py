"""Hardware counters: whether they exist here, why not, and what is counted with a stand-in of the kernel."""

from __future__ import annotations

import errno
import os

import pytest

from perfdash.runner.doctor import judge_counters
from perfdash.worker import hardware_counters


def refuses(hardware, software=None):
    """perf_event_open that fails with these error numbers; None: it works."""

    def opened(kind, config):
        code = software if kind else hardware
        if code is not None:
            raise OSError(code, os.strerror(code))
        return os.open(os.devnull, os.O_RDONLY)

    return opened


@pytest.mark.parametrize(("hardware", "software", "level", "words", "has_advice"), [
    (None, None, "ok", "instructions per call are recorded", False),
    (errno.ENOENT, None, "note", "as in most virtual machines (ENOENT); software events exist", False),
    (errno.EACCES, errno.EACCES, "note", "this user may not open them (EACCES; perf_event_paranoid is", True),
    (errno.EPERM, errno.EPERM, "note", "this user may not open them (EPERM", True),
    (errno.ENOSYS, errno.ENOSYS, "note", "has no perf_event_open (ENOSYS); software events neither", False),
    (errno.E2BIG, None, "note", "perf_event_open fails (E2BIG)", False),
])  # fmt: skip
def test_doctor_says_whether_there_are_counters_and_why_not(hardware, software, level, words, has_advice):
    found = hardware_counters.availability(refuses(hardware, software))
    finding = judge_counters(found)
    assert (finding.level, bool(finding.do)) == (level, has_advice)
    assert words in finding.what


def test_the_kernel_of_this_machine_answers():
    """Either it opens a counter or the answer has a reason; and no descriptor is left open."""
    before = len(os.listdir("/proc/self/fd"))
    found = hardware_counters.availability()
    assert found["hardware"] == (found["why"] is None)
    assert len(os.listdir("/proc/self/fd")) == before


def test_instructions_of_each_side_are_counted_in_turn():
    order = []
    calls = {"eager": lambda: order.append("eager"), "backend": lambda: order.append("backend")}
    number = iter([100, 10, 102, 11, 98, 12, 100, 10, 100, 10, 100, 10, 100, 10])

    def count(call, descriptor):
        os.fstat(descriptor)  # it is open
        call()
        return next(number)

    found = hardware_counters.of_calls(calls, refuses(None), count)
    assert order == ["eager", "backend"] * hardware_counters.SAMPLES
    assert found == {
        "eager": {"median": 100, "low": 98, "high": 102, "n": 7},
        "backend": {"median": 10, "low": 10, "high": 12, "n": 7},
    }


def test_a_machine_without_counters_records_nothing():
    assert hardware_counters.of_calls({"eager": lambda: None}, refuses(errno.ENOENT)) is None
