"""Memory nodes and whole sockets on made-up trees; binding with the kernel's answer made up, too."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
import threading

import pytest

from perfdash.worker import numa
from tests.sys_trees import tree


@pytest.fixture
def two_sockets(tmp_path) -> str:
    return str(tree(tmp_path, 2, 56) / "devices/system")


def test_the_nodes_of_cores(two_sockets):
    assert set(numa.nodes(two_sockets)) == {0, 1}
    assert numa.nodes_of(range(56), two_sockets) == (0,)
    assert numa.nodes_of([55, 56], two_sockets) == (0, 1)
    assert numa.nodes_of([112], two_sockets) == (0,), "the second hardware thread of core 0"


def test_a_whole_socket(two_sockets, tmp_path):
    assert numa.is_whole_socket(range(56, 112), two_sockets) is True
    assert numa.is_whole_socket(range(56, 111), two_sockets) is False
    assert numa.is_whole_socket(range(112), two_sockets) is False, "two sockets"
    assert numa.is_whole_socket([0], str(tmp_path / "none")) is None


class Kernel:
    """Stands in for the C library: keeps the arguments of system calls."""

    def __init__(self, code: int = 0) -> None:
        self.calls: list[tuple] = []
        self._code = code

    def syscall(self, number, mode, mask, size) -> int:
        self.calls.append((number, mode, [int(word) for word in mask], size.value))
        if self._code:
            ctypes.set_errno(self._code)
        return -1 if self._code else 0


def test_memory_is_bound_to_the_nodes_of_the_cores(two_sockets, monkeypatch):
    kernel = Kernel()
    monkeypatch.setattr(numa.ctypes, "CDLL", lambda *_, **__: kernel)
    monkeypatch.setattr(numa.platform, "machine", lambda: "x86_64")
    assert numa.bind_memory(range(56, 112), two_sockets) == (1,)
    assert kernel.calls == [(238, 2, [0b10], 65)]


def test_with_one_node_there_is_nothing_to_bind(tmp_path, monkeypatch):
    kernel = Kernel(errno.EPERM)
    monkeypatch.setattr(numa.ctypes, "CDLL", lambda *_, **__: kernel)
    root = str(tree(tmp_path, 1, 4) / "devices/system")
    assert numa.bind_memory([0, 1], root) == (0,)
    assert numa.bind_memory([0, 1], str(tmp_path / "none")) == ()
    assert kernel.calls == []


def test_a_kernel_that_refuses_is_an_error_with_the_nodes(two_sockets, monkeypatch):
    monkeypatch.setattr(numa.ctypes, "CDLL", lambda *_, **__: Kernel(errno.EPERM))
    with pytest.raises(OSError, match=r"cannot bind memory to node 0: Operation not permitted"):
        numa.bind_memory([0], two_sockets)


def test_threads_that_an_action_starts_are_found_and_pinned():
    done, ready = threading.Event(), threading.Event()
    started = threading.Thread(target=lambda: (ready.set(), done.wait()))

    def start() -> None:
        started.start()
        ready.wait()

    core = min(os.sched_getaffinity(0))
    try:
        (thread,) = numa.new_threads(start)
        assert numa.pin([thread], [core]) is True
        assert os.sched_getaffinity(thread) == {core}
        assert numa.pin([thread], [core, core]) is False
    finally:
        done.set()
        started.join()


def test_a_machine_that_cannot_bind_is_refused_before_anything_is_measured(monkeypatch):
    from perfdash.errors import MachineError
    from perfdash.runner import compatibility
    from perfdash.settings import RunSettings

    def refuse(cores) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(compatibility.numa, "bind_memory", refuse)
    with pytest.raises(MachineError, match=r"--bind-memory: Operation not permitted.*cap-add SYS_NICE"):
        compatibility.check_machine(RunSettings(bind_memory=True), [])
    compatibility.check_machine(RunSettings(), [])


def test_a_machine_that_cannot_bind_what_a_configuration_binds_is_refused(monkeypatch):
    from perfdash.errors import MachineError
    from perfdash.records import Case
    from perfdash.runner import compatibility
    from perfdash.settings import RunSettings
    from perfdash.suites.case_selection import Planned

    def refuse(cores) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(compatibility.numa, "bind_memory", refuse)
    monkeypatch.setattr(compatibility.host, "compiler", lambda: "g++")
    case = Case("timm", "m", configuration="socket", settings='{"bind_memory":true}')
    bound = Planned(case, "timm", "m")
    skipped = dataclasses.replace(bound, skip_reason="not here")
    compatibility.check_machine(RunSettings(), [skipped])
    with pytest.raises(MachineError, match="--configuration socket: Operation not permitted"):
        compatibility.check_machine(RunSettings(), [skipped, bound])


def test_this_thread_is_pinned_while_it_is_timed_and_free_afterwards():
    before = os.sched_getaffinity(0)
    with numa.pinned([], 1) as is_pinned:
        assert is_pinned
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
