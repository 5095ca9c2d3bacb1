"""Starts the servers of commands and of warm workers for several runs of pytest, and ends them on SIGTERM.

Prints what the variable SHARED of tests/command_server.py has to be. Stands beside ci/test.sh.
"""

from __future__ import annotations

import os
import signal
import sys

from tests.command_server import SHARED, CommandServer

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = CommandServer()
    try:
        server.share()
        print(os.environ[SHARED], flush=True)
        signal.pause()
    finally:
        server.close()
