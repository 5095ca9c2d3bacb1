"""The HTTP policy: reads only, known hosts only, security headers, no connection held idle.

It imports uvicorn, which is an extra: the command checks that it is there before it imports this."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from uvicorn.protocols.http.h11_impl import H11Protocol

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Scripts, styles and images come from this server only, so that no script in a model's
# name can run.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::\d{1,5})?|([0-9A-Fa-f:]+)")
_HEADERS = 100  # of a request; browsers send some twenty
_HEADER_BYTES = 16 << 10


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine (loopback)."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The host of a Host header, without port and brackets; empty if malformed.

    `127.0.0.1:80@evil.example` is malformed: a browser would take what follows the @ for the host.
    """
    match = _HOST.fullmatch(header)
    return (match[1] or match[2] or match[3]) if match else ""


class Guard:
    """An ASGI application around another.

    `local`: bound to loopback. A foreign page whose name was made to point here (DNS rebinding) shows in the
    Host header and is refused.
    """

    def __init__(self, app: App, *, local: bool) -> None:
        self.app, self.local = app, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _refuse(send, 405, "Only GET and HEAD: nothing is changed here.", (b"allow", b"GET, HEAD"))
            return
        sizes = [len(name) + len(value) for name, value in scope["headers"]]
        if len(sizes) > _HEADERS or sum(sizes) > _HEADER_BYTES:
            await _refuse(send, 431, "Too many or too large headers.")
            return
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if self.local and not (len(hosts) == 1 and is_loopback(host_of(hosts[0]))):
            await _refuse(send, 421, "This server answers to localhost only.")
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        # HEAD is answered as GET; uvicorn leaves out the body. An empty value counts as not given.
        query = urlencode(parse_qsl(scope["query_string"].decode("latin-1"))).encode()
        await self.app({**scope, "method": "GET", "query_string": query}, receive, guarded)


async def _refuse(send: Send, status: int, text: str, *more: tuple[bytes, bytes]) -> None:
    body = f"{text}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *more, *HEADERS]})
    await send({"type": "http.response.body", "body": body})


PATIENCE_S = 10.0  # until a client sends the rest of a request or reads on


class Connection(H11Protocol):
    """A connection that closes when idle, half-sent or unread.

    uvicorn closes an idle connection between two requests, but waits forever for the rest of a request, and
    for a client that does not read.
    """

    patience_s = PATIENCE_S
    _moved = 0.0  # when the connection was made, an answer was under way, or the client read of one
    _unsent = 0  # bytes at the last look

    # uvicorn narrows the type of asyncio's BaseProtocol in the same way.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._moved = self.loop.time()
        self._look()

    def on_response_complete(self) -> None:
        """Restart the timer at the end of an answer, which may fall between two looks."""
        self._moved = self.loop.time()
        super().on_response_complete()

    def _look(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if self.transport.is_closing() and not unsent:
            return
        now = self.loop.time()
        making = self.cycle is not None and not self.cycle.response_complete and not self.flow.write_paused
        if making or unsent != self._unsent:
            self._moved = now
        elif now - self._moved >= self.patience_s:
            if unsent:
                self.transport.abort()  # closing would wait until the client has read it all
            else:
                self.transport.close()
            return
        self._unsent = unsent
        self.loop.call_later(self.patience_s / 4, self._look)
