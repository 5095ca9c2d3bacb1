"""A GitHub of the tests' own, and a clock that never waits."""

import pytest

from perfdash.publish.github import GitHubClient
from tests.publish.server import TOKEN, GitHub


@pytest.fixture
def hub():
    made = GitHub()
    yield made
    made.close()


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self):
        self.time, self.slept = 1_800_000_000.0, []

    def sleep(self, seconds):
        assert seconds >= 0
        self.slept.append(seconds)
        self.time += seconds

    def now(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def messages():
    return []


@pytest.fixture
def talk(hub, clock, messages):
    return make(hub, clock, messages)


def make(hub, clock, messages, **more):
    options = {"token": TOKEN, "base_url": hub.url, "timeout_s": 60, **more}
    return GitHubClient(**options, sleep=clock.sleep, now=clock.now, log=messages.append)


@pytest.fixture
def another(hub, clock, messages):
    """Another command against the same GitHub."""
    return lambda **more: make(hub, clock, messages, **more)
