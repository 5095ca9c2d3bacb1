"""When the server closes a connection, by a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from uvicorn.server import ServerState

from perfdash.serve.http_policy import Connection
from perfdash.serve.server import configuration


class Clock:
    """An event loop's, which goes on when it is told to."""

    def __init__(self):
        self.now, self.waiting = 0.0, []

    def time(self):
        return self.now

    def call_later(self, delay, act):
        timer = SimpleNamespace(at=self.now + delay, act=act, cancelled=False)
        timer.cancel = lambda: setattr(timer, "cancelled", True)
        self.waiting.append(timer)
        return timer

    def go_on(self, seconds):
        end = self.now + seconds
        while due := [timer for timer in self.waiting if timer.at <= end]:
            timer = min(due, key=lambda timer_due: timer_due.at)
            self.waiting.remove(timer)
            self.now = timer.at
            if not timer.cancelled:
                timer.act()
        self.now = end


class Transport:
    """Takes `unsent` bytes that the client has not read."""

    def __init__(self):
        self.unsent, self.ended = 0, None

    def is_closing(self):
        return self.ended is not None

    def close(self):
        self.ended = "closed"

    def abort(self):
        self.ended, self.unsent = "aborted", 0

    def get_write_buffer_size(self):
        return self.unsent

    def get_extra_info(self, name, default=None):
        return default


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def connection(clock):
    made = Connection(configuration(None), ServerState(), {}, _loop=clock)
    made.connection_made(Transport())
    return made


def test_one_that_is_in_use_stays_open(connection, clock):
    for _ in range(20):
        clock.go_on(3)
        connection.on_response_complete()
    assert connection.transport.ended is None
    clock.go_on(30)
    assert connection.transport.ended == "closed"


def test_an_answer_may_take_its_time(connection, clock):
    connection.cycle = SimpleNamespace(response_complete=False)
    clock.go_on(600)
    assert connection.transport.ended is None


@pytest.mark.parametrize("complete", [False, True])
def test_a_client_that_does_not_read_is_cut_off(connection, clock, complete):
    connection.cycle = SimpleNamespace(response_complete=complete)
    connection.pause_writing()
    connection.transport.unsent = 10**6
    clock.go_on(30)
    assert connection.transport.ended == "aborted"


def test_one_that_does_not_read_the_end_is_cut_off(connection, clock):
    connection.transport.unsent = 10**6
    connection.transport.close()
    clock.go_on(30)
    assert connection.transport.ended == "aborted"


def test_a_client_that_reads_slowly_gets_it_all(connection, clock):
    connection.cycle = SimpleNamespace(response_complete=False)
    connection.pause_writing()
    connection.transport.unsent = 10**6
    for _ in range(100):
        clock.go_on(5)
        connection.transport.unsent -= 1000
    assert connection.transport.ended is None
