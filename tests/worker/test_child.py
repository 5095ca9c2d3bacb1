"""A function in a forked child: its answer, its end, and the processes that it leaves behind."""

from __future__ import annotations

import os
import signal
import time

import pytest

from perfdash.worker.child import ChildDied, in_child

SLEEP_S = 60.0


def leave_a_process() -> int:
    """Fork a process that sleeps with all that this one has open, as a pool of multiprocessing does."""
    pid = os.fork()
    if pid == 0:
        time.sleep(SLEEP_S)
        os._exit(0)
    return pid


def answer_and_leave(size):
    return {"left": leave_a_process(), "text": "x" * size}


def die_and_leave(path):
    path.write_text(str(leave_a_process()))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_an_answer_is_there_although_a_process_was_left(size):
    start = time.monotonic()
    answer = in_child("eager", lambda: answer_and_leave(size))
    os.kill(answer["left"], signal.SIGKILL)
    assert len(answer["text"]) == size
    assert time.monotonic() - start < SLEEP_S / 2


def test_an_end_is_seen_although_a_process_was_left(tmp_path):
    start = time.monotonic()
    with pytest.raises(ChildDied, match=f"signal {signal.SIGKILL:d}"):
        in_child("eager", lambda: die_and_leave(tmp_path / "left"))
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    assert time.monotonic() - start < SLEEP_S / 2
