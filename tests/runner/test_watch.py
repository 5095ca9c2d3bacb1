"""What the watch of a case makes of what it hears. No process is started here."""

from __future__ import annotations

import os
import socket

import pytest

from perfdash.records import Case, Job
from perfdash.runner.watch import Watch


@pytest.fixture
def watch(tmp_path):
    """A watch, and the writing end of its events."""
    ours, theirs = socket.socketpair()
    events, writer = os.pipe()
    output, output_writer = os.pipe()
    job = Job(case=Case("s", "m"), loader="python", target="m.py:m", scratch=str(tmp_path))
    made = Watch(
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
