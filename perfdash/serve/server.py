"""The server as a process: bind a socket, run uvicorn, stop on a signal."""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from perfdash.errors import MachineError
from perfdash.history.store import Store
from perfdash.serve.http_policy import Connection, is_loopback

_CONNECTIONS = 256  # at once; further ones get status 503
_LEFT_S = 3  # for answers under way when a signal arrives


def bound(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes a free one. Raises MachineError if that fails."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0  # of a name that is not known it is negative
        why = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or str(error)
        raise MachineError(
            f"cannot listen on {host} port {port}: {why}; --port gives another (0: any that is free)"
        ) from error


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


@contextlib.contextmanager
def until_signal() -> Iterator[None]:
    """End its block quietly on SIGINT and SIGTERM."""
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def is_local(listening: socket.socket) -> bool:
    """Whether only this machine can connect; decided by the address, not the name."""
    return is_loopback(str(listening.getsockname()[0]))


def configuration(app: Any) -> uvicorn.Config:
    """uvicorn's configuration, with limits so that one client cannot starve the others."""
    return uvicorn.Config(
        app,
        http=Connection,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        h11_max_incomplete_event_size=32 << 10,
        limit_concurrency=_CONNECTIONS,
    )


def serve(store: Store, listening: socket.socket) -> None:
    """Answer until SIGINT or SIGTERM, then raise the signal again for until_signal."""
    from perfdash.serve.app import application

    config = configuration(application(store, assets(), local=is_local(listening)))

    class StoppableServer(uvicorn.Server):
        """Exit within _LEFT_S: nothing can stop the thread that computes an answer."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            last = threading.Timer(_LEFT_S, os._exit, (0,))  # nothing is being written: nothing is lost
            last.daemon = True
            last.start()
            super().handle_exit(sig, frame)

    StoppableServer(config).run(sockets=[listening])


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def assets() -> dict[str, bytes]:
    """The files beside the pages, by name: style, scripts, icon."""
    folder = importlib.resources.files("perfdash.site").joinpath("assets")
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name.endswith((".css", ".js", ".svg"))
    }
