"""Run one command of a build so that none of its processes outlives the bisection.

build_command.py runs this file under its own interpreter: `watched_command.py ORDERS`, with JSON {control,
locks, cores, command, cwd}. The watchdog (worker/orphan_watchdog.py) keeps the locks until all processes
have ended.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Run the command, and send its exit code or the error to the control socket."""
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    from perfdash.worker.orphan_watchdog import fork_under_watchdog

    orders = json.loads(sys.argv[1])
    control = socket.socket(fileno=orders["control"])
    control.set_inheritable(False)
    for lock in orders["locks"]:
        os.set_inheritable(lock, False)
    if orders["cores"]:
        os.sched_setaffinity(0, orders["cores"])
    fork_under_watchdog(control, orders["locks"])
    try:
        code = subprocess.run(orders["command"], cwd=orders["cwd"], stdin=subprocess.DEVNULL).returncode
        answer: dict[str, int | str] = {"code": code}
    except OSError as error:
        answer = {"error": f"{error.filename}: {error.strerror}"}
    control.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
