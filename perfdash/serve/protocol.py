"""HTTP connections that cannot be held for nothing: idle ones, half-sent requests, answers nobody reads."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_S = 10.0  # for the rest of a request, or until a client reads on


class Connection(H11Protocol):
    """uvicorn's, which closes a connection between two requests, but waits for ever for the end of one.

    It waits for ever for a client that does not read, too. A file of its own, since uvicorn is an extra: it
    is imported only when a server starts.
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
        """Count the patience from the end of an answer: it may have begun and ended between two looks."""
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
