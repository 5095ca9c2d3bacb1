"""Sockets, cores and memory nodes on made-up /sys trees."""

from __future__ import annotations

import pytest

from perfdash import topology
from perfdash.errors import UsageError
from perfdash.runner.cores import slots_of
from perfdash.runner.messages import instance_cores
from perfdash.settings import resolve
from perfdash.topology import one_socket, parse_instances, place_instances, read_cores
from tests.sys_trees import tree


def test_a_socket_is_its_physical_cores_and_the_last_one_is_taken(tmp_path):
    cores = read_cores(range(224), tree(tmp_path, 2, 56))
    assert len(cores) == 112
    assert one_socket(cores) == tuple(range(56, 112))
    assert {core.node for core in cores if core.first >= 56} == {1}


def test_sockets_whose_numbers_take_turns(tmp_path):
    cores = read_cores(range(224), tree(tmp_path, 2, 56, interleaved=True))
    assert one_socket(cores) == tuple(range(1, 112, 2))


def test_a_container_with_some_cores_takes_the_socket_with_most(tmp_path):
    root = tree(tmp_path, 2, 56)
    assert one_socket(read_cores([*range(40), *range(100, 112)], root)) == tuple(range(40))
    # Both hardware threads of a core are one physical core; of one thread alone that one is taken.
    assert one_socket(read_cores([3, 115, 116], root)) == (3, 116)


def test_a_machine_without_nodes_or_topology_is_one_socket(tmp_path):
    assert one_socket(read_cores([0, 1], tmp_path)) == (0, 1)
    assert read_cores([0], tmp_path)[0].node is None
    with pytest.raises(UsageError, match="no core is available"):
        one_socket([])


def test_instances_share_no_core_and_cross_no_node(tmp_path):
    cores = read_cores(range(224), tree(tmp_path, 2, 56))
    places = place_instances(cores, 4, 14)
    assert places == [tuple(range(start, start + 14)) for start in (56, 70, 84, 98)]
    node_of = {core.first: core.node for core in cores}
    for count, threads in ((8, 14), (2, 56), (2, 40), (112, 1)):
        places = place_instances(cores, count, threads)
        assert [len(place) for place in places] == [threads] * count
        assert len({core for place in places for core in place}) == count * threads
        assert all(len({node_of[core] for core in place}) == 1 for place in places)


def test_instances_on_sockets_with_several_memory_nodes(tmp_path):
    cores = read_cores(range(224), tree(tmp_path, 2, 56, nodes=4))
    assert place_instances(cores, 4, 14) == [tuple(range(s, s + 14)) for s in (98, 84, 70, 56)]
    with pytest.raises(UsageError, match=r"4x20: there is room for 0 of 20 physical cores.*14, 14, 14"):
        place_instances(cores, 4, 20)


def test_too_many_instances_say_how_many_have_room(tmp_path):
    cores = read_cores(range(224), tree(tmp_path, 2, 56))
    with pytest.raises(UsageError, match=r"--instances 3x40: there is room for 2 of 40 physical cores"):
        place_instances(cores, 3, 40)


@pytest.mark.parametrize("text", ["4", "4x", "x14", "0x14", "4x0", "4x14x2", "four", ""])
def test_instances_that_cannot_be_read(text):
    with pytest.raises(UsageError, match="give it as INSTANCESxTHREADS"):
        parse_instances(text)


def test_instances_that_can_be_read():
    assert parse_instances("4x14") == (4, 14)


@pytest.fixture
def two_sockets(tmp_path, monkeypatch):
    root = tree(tmp_path, 2, 56)
    monkeypatch.setattr(topology, "SYS", root)
    monkeypatch.setattr(topology.os, "sched_getaffinity", lambda _: set(range(224)))


def test_threads_socket_takes_its_cores_and_binds_memory(two_sockets):
    settings = resolve({"threads": "socket"}, environ={})[0]
    assert (settings.threads, settings.cores, settings.bind_memory) == (56, "56-111", True)
    narrower = resolve({"threads": "socket", "cores": "0-31,56-60"}, environ={})[0]
    assert (narrower.threads, narrower.cores) == (32, "0-31")
    plain = resolve({"threads": 4}, environ={})[0]
    assert (plain.threads, plain.cores, plain.bind_memory) == (4, None, False)


def test_instances_name_the_cores_of_each(two_sockets):
    settings = resolve({"instances": "4x14"}, environ={})[0]
    assert (settings.threads, settings.bind_memory) == (14, True)
    assert instance_cores(settings) == tuple(tuple(range(s, s + 14)) for s in (56, 70, 84, 98))
    assert slots_of(settings) == [tuple(range(56, 112))]
    of_socket = resolve({"instances": "2x28", "threads": "socket"}, environ={})[0]
    assert instance_cores(of_socket) == (tuple(range(56, 84)), tuple(range(84, 112)))
    assert instance_cores(resolve({}, environ={})[0]) == ()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"threads": "socket", "executor": "dask"}, "--threads socket is for the CPU of this machine"),
        ({"instances": "2x4", "device": "cuda"}, "--instances is for the CPU .* not for --device cuda"),
        ({"instances": "2x4", "jobs": "2"}, "measures one case at a time: leave --jobs 2 out"),
        ({"instances": "2x4", "allocator": "jemalloc"}, "leave --allocator out"),
        ({"instances": "2x4", "threads": 8}, "runs 4 threads each, --threads says 8"),
        ({"instances": "4x14", "threads": "socket", "cores": "0-9"}, "room for 0 of 14"),
        ({"threads": "sockets"}, "--threads: 'sockets'"),
    ],
)
def test_contradictions_are_refused_before_anything_is_measured(two_sockets, flags, message):
    with pytest.raises(UsageError, match=message):
        resolve(flags, environ={})


def test_the_fastest_kind_of_cores(tmp_path):
    """P-cores of a hybrid Intel processor, and big ones of an Arm; where all are alike, all."""
    cores = list(range(6))
    assert topology.fastest_kind(cores, tmp_path) == cores
    for core, capacity in enumerate((400, 400, 400, 400, 1024, 1009)):
        folder = tmp_path / f"devices/system/cpu/cpu{core}"
        folder.mkdir(parents=True)
        (folder / "cpu_capacity").write_text(f"{capacity}\n")
    assert topology.fastest_kind(cores, tmp_path) == [4, 5]
    (tmp_path / "devices/cpu_core").mkdir()
    (tmp_path / "devices/cpu_core/cpus").write_text("0-3\n")
    assert topology.fastest_kind(cores, tmp_path) == [0, 1, 2, 3]
    assert topology.fastest_kind([4, 5], tmp_path) == [4, 5], "a container may have only the others"
