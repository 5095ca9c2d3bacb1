"""`pytest -n auto --own-core`: a physical core for each process, as perfdash locks physical cores."""

from __future__ import annotations

import os

import pytest

from perfdash.runner.cores import available_cores, choose_cores
from tests import conftest


@pytest.mark.parametrize(
    ("groups", "cores", "processes"),
    [([[0], [1]], [0, 1], 2), ([[0, 1]], [0], 1), ([[0, 2], [1, 3], [4]], [0, 1, 4], 2), ([[7]], [7], 1)],
)
def test_each_process_gets_a_physical_core(monkeypatch, pytestconfig, groups, cores, processes):
    monkeypatch.setattr(conftest, "sibling_groups", lambda available: groups)
    monkeypatch.setattr(pytestconfig.option, "own_core", True)
    assert conftest.physical_cores() == cores
    assert conftest.pytest_xdist_auto_num_workers(pytestconfig) == processes


def test_without_the_option_the_number_is_xdists(monkeypatch, pytestconfig):
    monkeypatch.setattr(pytestconfig.option, "own_core", False)
    assert conftest.pytest_xdist_auto_num_workers(pytestconfig) is None


def test_a_test_chooses_the_core_of_its_process():
    """Such a process took the other one's core where it measured without starting a command."""
    before = os.sched_getaffinity(0)
    first = conftest.physical_cores()[0]
    try:
        conftest.stay_on(first)
        assert choose_cores(1, None) == (first,)
    finally:
        os.sched_setaffinity(0, before)
        available_cores.cache_clear()
