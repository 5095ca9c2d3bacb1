"""HTTP connections that cannot be held for nothing: an idle one or a half-sent request is closed."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_S = 10.0  # for the rest of a request


class Connection(H11Protocol):
    """uvicorn's, which closes a connection between two requests, but waits for ever for the end of one.

    A file of its own, since uvicorn is an extra: it is imported only when a server starts.
    """

    patience_s = PATIENCE_S
    _asked = 0.0  # when the last answer was under way, or the connection was made

    # uvicorn narrows the type of asyncio's BaseProtocol in the same way.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._asked = self.loop.time()
        self._look()

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        now = self.loop.time()
        if self.cycle is not None and not self.cycle.response_complete:
            self._asked = now
        elif now - self._asked >= self.patience_s:
            self.transport.close()
            return
        self.loop.call_later(self.patience_s / 4, self._look)
