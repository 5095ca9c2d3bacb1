"""What the watch of a case makes of what it hears. No process is started here."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import replace

import pytest

from perfdash.records import Case, Job, Status
from perfdash.runner import worker_limits
from perfdash.runner.case_status import status_of
from perfdash.runner.worker_limits import CaseMonitor


@pytest.fixture
def watch(tmp_path):
    """A watch, and the writing end of its events."""
    ours, theirs = socket.socketpair()
    events, writer = os.pipe()
    output, output_writer = os.pipe()
    job = Job(case=Case("s", "m"), loader="python", target="m.py:m", scratch=str(tmp_path))
    made = CaseMonitor(
        ours, job, events=events, output=output, log=tmp_path / "log", group=None,
        on_event=lambda event: None, stop=None,
    )  # fmt: skip
    yield made, writer
    made._log.close()
    for fd in (events, writer, output, output_writer):
        os.close(fd)
    ours.close()
    theirs.close()


def test_what_a_worker_says_can_be_printed(watch):
    made, writer = watch
    os.write(writer, b'{"event": "failed", "message": "no file \\udcff \\ud83d\\ude00"}\n')
    made._read(made._events)
    assert made.outcome.events[0]["message"] == "no file \ufffd \U0001f600"


@pytest.fixture
def stopped(watch, monkeypatch):
    """run(states): the watch of a case that says nothing, and is stopped or not at each look."""
    made, _ = watch
    clock = [0.0]
    killed = []

    def run(states):
        looks = iter(states)
        monkeypatch.setattr(worker_limits.orphans, "is_frozen", lambda pid: next(looks, False))
        monkeypatch.setattr(worker_limits.orphans, "kill_session", killed.append)
        monkeypatch.setattr(worker_limits.time, "monotonic", lambda: clock[0])

        def wait(fds, seconds):
            clock[0] += seconds
            return []

        monkeypatch.setattr(worker_limits, "ready_of", wait)
        made.case_pid = 4242
        made._events, made._output = os.dup(made._events), os.dup(made._output)
        return made.run(), clock[0], killed

    return run


def test_a_case_that_is_stopped_is_ended_at_the_second_look(stopped):
    outcome, seconds, killed = stopped([False, True, True])
    assert outcome.frozen
    assert outcome.limit is None
    assert seconds < 3600 / 100
    assert killed == [4242]
    status, _, failure = status_of(outcome)
    assert (status, failure.type) == (Status.INFRA_ERROR, "Frozen")
    assert failure.message == "a process of it had been stopped (SIGSTOP) in phase start; it was ended"


def test_one_look_is_not_enough(stopped):
    """As where somebody has a debugger look at it."""
    outcome, seconds, _ = stopped([True, False] * 360)
    assert not outcome.frozen
    assert outcome.limit["what"] == "time"
    assert seconds >= 3600


def test_a_case_is_ended_at_the_limit_of_its_phase_and_not_after_its_end(watch, monkeypatch):
    made, _ = watch
    clock = [0.0]
    monkeypatch.setattr(worker_limits.time, "monotonic", lambda: clock[0])
    made._job = replace(made._job, phase_timeouts={"load": 40.0, "compile": 20.0})
    made._case_deadline = made._end_deadline = math.inf

    def limit_at(seconds):
        clock[0] = seconds
        made._check_time()
        return made.outcome.limit

    made._take({"event": "phase", "name": "load"})
    assert limit_at(39.9) is None
    made._take({"event": "phase_end", "name": "load", "seconds": 39.9})
    assert limit_at(100.0) is None
    made._take({"event": "phase", "name": "compile"})
    assert limit_at(119.9) is None
    assert limit_at(120.0) == {"what": "time", "scope": "phase", "limit": 20.0, "unit": "s"}
