"""Starts the servers of commands and of warm workers for several runs of pytest.

Prints what the variable SHARED of tests/command_server.py has to be. They end on SIGTERM, and with the shell
that started them, however that ends. Stands beside ci/test.sh.
"""

from __future__ import annotations

import os
import signal
import sys

from perfdash.worker import linux
from tests.command_server import SHARED, CommandServer

if __name__ == "__main__":
    linux.die_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = CommandServer()
    try:
        server.share()
        print(os.environ[SHARED], flush=True)
        signal.pause()
    finally:
        server.close()
