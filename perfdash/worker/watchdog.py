"""The guard: a small process above the fork parent that outlives it by the time it takes to clean up.

When the fork parent ends, or whoever started it is gone, the guard ends everything below: the case,
and the compilers that the case has started, which no signal of their own would reach. It holds the
locks of the cores meanwhile, so that nobody measures there before that is done.
"""

from __future__ import annotations

import os
import select
import signal
import socket

from perfdash.worker import linux


def fork_under_watchdog(control: socket.socket, keep: list[int]) -> None:
    """Forks and returns in the child; the parent stays behind as its guard and never returns.

    `control` is the socket to whoever started us: its other end closes when they are gone. `keep`
    are the descriptors (locks) that only the guard keeps open.
    """
    linux.adopt_orphans()
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(awake, False)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, before)
        for fd in (awake, wake, *keep):
            os.close(fd)
        linux.die_with_parent(guard)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    poller = select.poll()
    poller.register(control.fileno(), 0)  # a hang-up is told without being asked for
    poller.register(awake, select.POLLIN)
    while not (_hung_up(poller.poll(), control.fileno(), awake) or _reap(child)):
        pass
    linux.end_children()
    os._exit(0)


def _hung_up(events: list[tuple[int, int]], control: int, awake: int) -> bool:
    """Whether the other end of the control socket is closed; empties the wake-up pipe."""
    for fd, event in events:
        if fd == control and event & (select.POLLHUP | select.POLLERR):
            return True
        if fd == awake:
            os.read(awake, 1024)
    return False


def _reap(child: int) -> bool:
    """Reaps what has ended; whether `child` was among it."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == child:
            return True
        if pid == 0:
            return False
