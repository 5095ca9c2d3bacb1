import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.errors import UsageError
from perfdash.runner import cores


@given(st.sets(st.integers(0, 300), min_size=1))
def test_spelling_is_read_back(some):
    assert cores.parse_cores(cores.spell(sorted(some))) == tuple(sorted(some))


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,1", "1-", "-2", "0..3"])
def test_nonsense(text):
    with pytest.raises(UsageError, match="--cores"):
        cores.parse_cores(text)


def test_last_cores_one_thread_a_core_first(monkeypatch):
    monkeypatch.setattr(cores, "available_cores", lambda: list(range(8)))
    monkeypatch.setattr(cores, "sibling_groups", lambda some: [[0, 4], [1, 5], [2, 6], [3, 7]])
    assert cores.choose_cores(1, None) == (3,)
    assert cores.choose_cores(4, None) == (0, 1, 2, 3)
    assert cores.choose_cores(5, None) == (0, 1, 2, 3, 7)
    assert cores.choose_cores(2, "1,5,6") == (1, 5)


def test_too_many(monkeypatch):
    monkeypatch.setattr(cores, "available_cores", lambda: [0, 1])
    with pytest.raises(UsageError, match="--threads 2 or fewer"):
        cores.choose_cores(3, None)
    with pytest.raises(UsageError, match="core 7 is not available"):
        cores.choose_cores(1, "7")
    with pytest.raises(UsageError, match="needs 2 cores"):
        cores.choose_cores(2, "1")


def test_here():
    assert set(cores.choose_cores(1, None)) <= os.sched_getaffinity(0)
