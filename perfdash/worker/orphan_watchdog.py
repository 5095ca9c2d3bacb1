"""The watchdog: a small process above the fork parent that notices when its parent or its child ends.

Then it ends everything below: the case, and the compilers that the case has started, which would get no
signal of their own. It holds the locks of the cores until that is done, so that nobody measures there
meanwhile.
"""

from __future__ import annotations

import os
import select
import signal

from perfdash.worker import linux


def fork_under_watchdog(control: int, keep: list[int]) -> None:
    """Fork and return in the child; the parent process stays as its watchdog and never returns.

    `control` is the descriptor of the socket to the process that started us: its other end closes when that
    process ends. `keep` are the descriptors (locks) that only the watchdog keeps open.
    """
    linux.adopt_orphans()
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(awake, False)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    watchdog = os.getpid()
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, before)
        for fd in (awake, wake, *keep):
            os.close(fd)
        linux.die_with_parent(watchdog)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    poller = select.poll()
    poller.register(control, 0)  # poll reports a hang-up without being asked
    poller.register(awake, select.POLLIN)
    while not (_hung_up(poller.poll(), control, awake) or _reap(child)):
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
    """Reap processes that have ended; return whether `child` is among them."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == child:
            return True
        if pid == 0:
            return False
