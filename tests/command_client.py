"""`perfdash` for shell scripts under test: lets the command server run it (tests/command_server.py).

    python -IS command_client.py SERVER WORKERS ARGUMENTS...

The command gets this process's arguments, folder, environment, umask and standard streams, and the signals
that this process gets; this process ends as the command does.
"""

import json
import os
import signal
import socket
import sys

MEASURING = (["run"], ["check"], ["confirm"], ["bisect"], ["compare-builds"], ["explain"])


def main() -> int:
    address, workers, *arguments = sys.argv[1:]
    umask = os.umask(0o077)
    os.umask(umask)
    call = {
        "arguments": arguments,
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "umask": umask,
        "workers": workers if arguments[:1] in MEASURING else None,
        "quickly": True,
        "cores": sorted(os.sched_getaffinity(0)),
    }
    forwarded = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        socket.send_fds(server, [json.dumps(call).encode()], [0, 1, 2])
        pid = int(server.recv(1 << 20))
        for number in forwarded:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, _: os.kill(pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
        status = int(server.recv(1 << 20))
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
