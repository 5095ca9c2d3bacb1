import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.errors import UsageError
from perfdash.records import Case
from perfdash.runner import cores
from perfdash.settings import RunSettings
from perfdash.topology import format_cores, parse_cores
from tests.runner.planned import case
from tests.sys_trees import tree


@given(st.sets(st.integers(0, 300), min_size=1))
def test_spelling_is_read_back(some):
    assert parse_cores(format_cores(sorted(some))) == tuple(sorted(some))


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,1", "1-", "-2", "0..3"])
def test_nonsense(text):
    with pytest.raises(UsageError, match="--cores"):
        parse_cores(text)


def test_last_cores_one_thread_a_core_first(monkeypatch):
    monkeypatch.setattr(cores, "available_cores", lambda: list(range(8)))
    monkeypatch.setattr(cores, "sibling_groups", lambda some: [[0, 4], [1, 5], [2, 6], [3, 7]])
    monkeypatch.setattr(cores, "numa_nodes", lambda some: [list(some)])
    assert cores.choose_cores(1, None) == (3,)
    assert cores.choose_cores(4, None) == (0, 1, 2, 3)
    assert cores.choose_cores(5, None) == (0, 1, 2, 3, 7)
    assert cores.choose_cores(2, "1,5,6") == (1, 5)


@pytest.fixture
def hybrid(monkeypatch):
    """Four fast cores of two hardware threads each (0 to 7), and eight slow cores of one (8 to 15)."""
    monkeypatch.setattr(cores, "cpu_limit", lambda: None)
    monkeypatch.setattr(cores, "available_cores", lambda: list(range(16)))
    monkeypatch.setattr(cores.topology, "fastest_kind", lambda some: [core for core in some if core < 8])
    pairs = [[0, 1], [2, 3], [4, 5], [6, 7], *([core] for core in range(8, 16))]
    monkeypatch.setattr(cores, "sibling_groups", lambda some: [pair for pair in pairs if pair[0] in some])
    monkeypatch.setattr(cores, "numa_nodes", lambda some: [list(some)])


def test_slots_are_of_the_fastest_kind_of_cores(hybrid):
    assert cores.choose_cores(1, None) == (6,)
    assert cores.choose_slots(1, 2, None) == [(4, 6)]
    assert cores.choose_slots("auto", 1, None) == [(6,), (4,), (2,)]
    assert cores.every_slot(1) == [(6,), (4,), (2,), (0,)]
    assert cores.choose_slots(4, 1, None) == [(6,), (4,), (2,), (0,)]
    assert cores.choose_slots(2, 1, "6,15") == [(15,), (6,)], "what is asked for is taken"


def test_where_the_fastest_kind_has_no_room_for_one_slot_all_cores_are_taken(hybrid):
    """Room for a thread is a physical core: hardware threads of one core share its units."""
    assert cores.choose_cores(4, None) == (0, 2, 4, 6)
    assert cores.choose_cores(5, None) == (11, 12, 13, 14, 15)
    assert cores.choose_cores(9, None) == (6, *range(8, 16))
    for threads in (5, 6):
        assert cores.choose_slots("auto", threads, None) == [cores.choose_cores(threads, None)]
        assert cores.every_slot(threads) == [cores.choose_cores(threads, None)]


def test_slots_of_one_run_are_alike(hybrid):
    """A case is measured on whichever is free."""
    assert cores.choose_slots("auto", 3, None) == [(2, 4, 6)]
    assert cores.choose_slots("auto", 4, None) == [(0, 2, 4, 6)]
    with pytest.raises(UsageError, match=r"0-7 has room for 4 at a time .* or cores of any kind by --cores"):
        cores.choose_slots(5, 1, None)
    assert len(cores.choose_slots(5, 1, "0-15")) == 5


def test_auto_takes_a_fast_core_that_is_the_only_one(hybrid, monkeypatch):
    monkeypatch.setattr(cores.topology, "fastest_kind", lambda some: [core for core in some if core < 2])
    assert cores.choose_slots("auto", 1, None) == [(0,)]


@pytest.fixture(autouse=True)
def all_alike(monkeypatch):
    """The cores of this machine count as one kind."""
    monkeypatch.setattr(cores.topology, "fastest_kind", list)


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


@pytest.fixture
def two_sockets(monkeypatch):
    """Two nodes of four physical cores with two hardware threads each."""
    monkeypatch.setattr(cores, "cpu_limit", lambda: None)
    monkeypatch.setattr(cores, "available_cores", lambda: list(range(16)))
    monkeypatch.setattr(cores, "sibling_groups", lambda some: [[c, c + 8] for c in some if c < 8])
    monkeypatch.setattr(cores, "physical_core", lambda core: core % 8)
    monkeypatch.setattr(
        cores,
        "numa_nodes",
        lambda some: [[c for c in some if c % 8 < 4], [c for c in some if c % 8 >= 4]],
    )


def test_slots_are_spread_over_the_nodes_and_never_across(two_sockets):
    assert cores.choose_slots(2, 1, None) == [(7,), (3,)]
    assert cores.choose_slots(4, 2, None) == [(6, 7), (2, 3), (4, 5), (0, 1)]
    assert cores.choose_slots(2, 4, None) == [(4, 5, 6, 7), (0, 1, 2, 3)]
    assert cores.choose_slots(1, 2, None) == [cores.choose_cores(2, None)] == [(6, 7)]
    assert cores.choose_cores(5, None) == (3, 4, 5, 6, 7)
    assert cores.choose_cores(2, "0-7") == (0, 1)


@pytest.fixture
def turns(monkeypatch, tmp_path):
    """Two sockets of eight cores, numbered in turns: 0, 2, 4 ... and 1, 3, 5 ..."""
    root = tree(tmp_path, 2, 8, smt=1, interleaved=True)
    monkeypatch.setattr(cores, "available_cores", lambda: list(range(16)))
    monkeypatch.setattr(
        cores, "Path", lambda path, *more: Path(str(path).replace("/sys", str(root), 1), *more)
    )


def test_one_slot_lies_within_a_node_as_several_do(turns):
    """--threads 4 --jobs 2 and its re-measurement, which has one slot, must not differ in this."""
    first, second = cores.choose_slots(2, 4, None)
    assert (first, second) == ((9, 11, 13, 15), (8, 10, 12, 14))
    assert cores.choose_slots(1, 4, None) == [first]
    assert cores.every_slot(8)[0] == cores.choose_cores(8, None) == (1, 3, 5, 7, 9, 11, 13, 15)
    assert cores.choose_cores(9, None) == tuple(range(7, 16))  # no node has so many
    assert cores.choose_cores(2, "0-6") == (0, 2)
    assert cores.choose_cores(4, "1-7") == (1, 3, 5, 7)
    assert cores.choose_cores(2, "14,15") == (14, 15)


def test_auto_leaves_a_core_for_the_rest(two_sockets):
    assert sorted(cores.choose_slots("auto", 1, None)) == [(c,) for c in range(1, 8)]
    assert cores.choose_slots("auto", 2, None) == [(6, 7), (2, 3), (4, 5)]
    assert len(cores.choose_slots("auto", 1, "0-7")) == 8


@pytest.mark.parametrize(("limit", "threads", "slots"), [(4.0, 1, 4), (4.0, 3, 1), (0.5, 1, 1), (99.0, 1, 7)])
def test_auto_takes_no_more_slots_than_a_quota_keeps_busy(two_sockets, monkeypatch, limit, threads, slots):
    monkeypatch.setattr(cores, "cpu_limit", lambda: limit)
    assert len(cores.choose_slots("auto", threads, None)) == slots
    assert len(cores.choose_slots(2, threads, None)) == 2, "a number is taken as it is"


def test_only_a_slot_too_wide_for_a_node_goes_across(two_sockets):
    assert cores.choose_slots("auto", 6, None) == [(2, 3, 4, 5, 6, 7)]


def test_more_jobs_than_room(two_sockets):
    with pytest.raises(UsageError, match=r"room for 8 at a time.*--jobs 8 or fewer"):
        cores.choose_slots(9, 1, None)
    with pytest.raises(UsageError, match="room for 2 at a time"):
        cores.choose_slots(3, 3, None)
    with pytest.raises(UsageError, match="core 77 is not available"):
        cores.choose_slots(2, 1, "0,77")


def test_nodes_hold_every_core_once():
    here = cores.available_cores()
    assert sorted(core for node in cores.numa_nodes(here) for core in node) == here
    assert cores.physical_core(here[0]) <= here[0]


def test_only_a_gpu_is_compiled_for_on_more_cores(two_sockets):
    slots = [(7,), (3,)]
    assert cores.compile_cores(slots, RunSettings(device="cpu")) == [(), ()]
    assert cores.compile_cores(slots, RunSettings(device="cuda", cores="0-7")) == [(0, 2, 5, 7), (1, 3, 4, 6)]
    assert cores.compile_cores(slots, RunSettings(device="cuda", cores="3,6,7")) == [(6, 7), ()]


def test_no_slot_compiles_on_a_sibling_of_another_slot_s_core(two_sockets):
    """A slot times while another one compiles, and siblings share the units of their core."""
    settings, few = RunSettings(device="cuda"), RunSettings(device="cuda", cores="3,7,11,15")
    first, second = cores.compile_cores([(7,), (3,)], settings)
    assert first == (0, 2, 5, 7, 8, 10, 13, 15)
    assert second == (1, 3, 4, 6, 9, 11, 12, 14)
    assert cores.compile_cores([(7,), (3,)], few) == [(7, 15), (3, 11)]
    assert cores.compile_cores([(7,), (15,)], few) == [(3, 7, 11), ()]
    assert cores.compile_cores([(6, 7)], settings) == [tuple(range(16))]
    assert cores.compile_cores([], settings) == []


def test_the_gpus_of_a_cluster_are_selected_by_its_workers():
    """They would measure on any of theirs, whatever the run selects."""
    cluster = RunSettings(executor="dask", scheduler="tcp://farm:8786", env={"CUDA_VISIBLE_DEVICES": "0,1"})
    with pytest.raises(UsageError, match="set the variable where each Dask worker is started"):
        cores.slots_of(cluster.model_copy(update={"device": "cuda"}))
    assert cores.slots_of(cluster.model_copy(update={"device": "cpu"})) == []
    assert cores.slots_of(cluster.model_copy(update={"device": "cuda", "env": {}})) == []


def test_what_is_skipped_needs_no_slots_of_its_own():
    bound = Case("s", "m", threads=2, settings='{"bind_memory":true}')
    own, skipped = case("own"), replace(case("m"), case=bound, skip_reason="not tonight: no time")
    settings = RunSettings()
    assert cores.by_slots(settings, [skipped, own, skipped]) == [(settings, [0, 1, 2])]
    assert cores.by_slots(settings, [skipped]) == [(settings, [0])]
    assert cores.by_slots(settings, []) == [(settings, [])]
    real = replace(skipped, skip_reason=None)
    unmeasured = replace(own, skip_reason="not tonight: no time")
    ((group, places),) = cores.by_slots(settings, [unmeasured, real])
    assert (group.threads, group.bind_memory, places) == (2, True, [0, 1])
