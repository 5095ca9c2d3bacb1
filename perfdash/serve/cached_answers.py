"""Answers made from the history, cached with an ETag until what they show changes."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Depends, Request, Response

from perfdash import __version__
from perfdash.files import dumps
from perfdash.history.results import digest
from perfdash.history.store import Store
from perfdash.redaction import redact
from perfdash.serve.read_only_store import state_of

HTML, JSON = "text/html; charset=utf-8", "application/json"
KEPT = 64  # answers that are cached until they change


@dataclass(frozen=True)
class CachedResponse:
    body: bytes
    status: int
    tag: str


class AnswerCache:
    """The last answers of a store, by address; for several threads."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, CachedResponse] = OrderedDict()
        self._making: dict[str, tuple[threading.Lock, int]] = {}  # by address, with how many hold or want it

    @contextlib.contextmanager
    def alone(self, address: str) -> Iterator[None]:
        """One at a time for each address."""
        with self._lock:
            lock, users = self._making.get(address, (threading.Lock(), 0))
            self._making[address] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._making.pop(address)
                if users > 1:
                    self._making[address] = lock, users - 1

    def get(self, address: str, tag: str) -> CachedResponse | None:
        with self._lock:
            answer = self._answers.get(address)
            if answer is None or answer.tag != tag:
                return None
            self._answers.move_to_end(address)
            return answer

    def put(self, address: str, answer: CachedResponse) -> None:
        with self._lock:
            self._answers[address] = answer
            self._answers.move_to_end(address)
            while len(self._answers) > KEPT:
                self._answers.popitem(last=False)


@dataclass(frozen=True)
class Answering:
    """Makes the answer to one request, or takes it from the cache."""

    cache: AnswerCache = field(repr=False)
    request: Request = field(repr=False)

    def json(self, make: Callable[[sa.Connection], dict[str, Any]]) -> Response:
        return self._answer(lambda connection: (to_json(make(connection)), 200), JSON)

    def page(self, make: Callable[[sa.Connection], tuple[str, int]]) -> Response:
        """`make` gives the page's HTML and its HTTP status."""
        return self._answer(make, HTML)

    def _answer(self, make: Callable[[sa.Connection], tuple[str, int]], kind: str) -> Response:
        address = f"{path_of(self.request)}?{self.request.scope['query_string'].decode('latin-1')}"
        with self.cache.store.read() as connection:
            state = state_of(connection, datetime.now(UTC))
            tag = f'"{digest([__version__, state, address])[:32]}"'
            if tag in self.request.headers.get("if-none-match", ""):
                return Response(status_code=304, headers=headers(tag))
            answer = self.cache.get(address, tag)
            if answer is None:
                with self.cache.alone(
                    address
                ):  # whoever asks the same meanwhile waits, and gets the same answer
                    answer = self.cache.get(address, tag)
                    if answer is None:
                        text, status = make(connection)
                        answer = CachedResponse(redact(text).encode("utf-8", "replace"), status, tag)
                        self.cache.put(address, answer)
        return Response(
            answer.body, answer.status, headers(tag if answer.status == 200 else None), media_type=kind
        )


async def _answering(request: Request) -> Answering:
    return Answering(request.app.state.cache, request)


Answer = Annotated[Answering, Depends(_answering)]


def to_json(value: Any) -> str:
    return dumps(value, separators=(",", ":"))


def path_of(request: Request) -> str:
    # request.url.path would end at a %3F within the path.
    return str(request.scope["path"])


def headers(tag: str | None) -> dict[str, str]:
    """Browsers revalidate each time; the tag shows whether anything changed."""
    return {"cache-control": "no-cache", **({"etag": tag} if tag else {})}
