"""Run commands of a build so that none of their processes outlives the bisection.

build_command.py runs this file under its own interpreter, without the packages and variables of Python:

    watched_command.py CONTROL LOCKS CORES CWD [LINE COUNT WORD...]...

CONTROL is a socket, LOCKS descriptors and CORES numbers, separated by commas. Each command is its line
for the log, the number of its words and the words; the first that fails is the last. The socket gets the
last exit code, negative for a signal, or `error: ...`. A bisection starts hundreds of these, so it imports
next to nothing. The watchdog (worker/orphan_watchdog.py) keeps the locks until all processes have ended.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the commands, and send the last exit code or the error to the control socket."""
    sys.path.insert(0, os.path.abspath(__file__).rsplit(os.sep, 4)[0])
    from perfdash.worker.orphan_watchdog import fork_under_watchdog

    control, (locks, cores), cwd = int(sys.argv[1]), map(_numbers, sys.argv[2:4]), sys.argv[4]
    for fd in (control, *locks):
        os.set_inheritable(fd, False)
    if cores:
        os.sched_setaffinity(0, cores)
    fork_under_watchdog(control, locks)
    os.write(control, _outcome(cwd, sys.argv[5:]).encode(errors="replace"))


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def _outcome(cwd: str, rest: list[str]) -> str:
    code = 0
    try:
        os.chdir(cwd)
        while rest and not code:
            line, count, words = rest[0], int(rest[1]), rest[2:]
            words, rest = words[:count], words[count:]
            os.write(1, line.encode(errors="replace"))
            # Python ignores these two; a command must not.
            pid = os.posix_spawnp(words[0], words, os.environ, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ])
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except OSError as error:
        return f"error: {error.filename}: {error.strerror}"
    return str(code)


if __name__ == "__main__":
    main()
