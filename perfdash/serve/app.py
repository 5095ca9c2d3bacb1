"""The ASGI application: routes, cached answers and error messages."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mimetypes
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perfdash import __version__
from perfdash.errors import MachineError, UsageError
from perfdash.files import dumps
from perfdash.history.results import digest
from perfdash.history.store import Store
from perfdash.redaction import redact
from perfdash.report import site_links
from perfdash.serve import live_pages
from perfdash.serve.http_policy import Guard
from perfdash.serve.openapi import DESCRIPTION, ENDPOINTS, Endpoint, description
from perfdash.serve.parameters import NotFound, read_all
from perfdash.serve.read_only_store import state_of

HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
KEPT = 64  # answers that are cached until the store changes
_LOG = logging.getLogger("perfdash.serve")
# Of a request: the answer and its status.
Make = Callable[[sa.Connection, Request], tuple[str, int]]


@dataclass(frozen=True)
class CachedResponse:
    body: bytes
    kind: str
    status: int
    tag: str


def application(store: Store, assets: dict[str, bytes], *, local: bool) -> Guard:
    """Answers from `store`. `assets` by name; `local`: bound to loopback, see Guard."""
    answers = _Kept()

    def page(make: Make, kind: str = HTML) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:  # not async: Starlette runs it in a thread
            return _answered(store, answers, request, make, kind)

        return endpoint

    routes = [
        Route("/", page(_plain(live_pages.overview))),
        *(Route(f"/{path}", page(_plain(make))) for path, make in live_pages.PAGES.items()),
        Route(f"/{site_links.COMPARE}", page(_compare_any)),
        Route(f"/beds/{{bed}}/{site_links.COMPARE}", page(_below(live_pages.nights))),
        Route(f"/beds/{{bed}}/{site_links.CONFIGURATIONS}", page(_below(live_pages.configurations))),
        Route("/beds/{bed}/suites/{name}", page(_below(live_pages.suite))),
        Route("/beds/{bed}/models/{name}", page(_below(live_pages.model))),
        Route("/causes/{name}", page(_below(live_pages.cause))),
        *(Route(endpoint.path, page(_api(endpoint), JSON)) for endpoint in ENDPOINTS),
        Route(DESCRIPTION, _description),
        Route("/assets/{name}", _asset_of(assets)),
        Route("/healthz", lambda _: _healthy(store)),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            NotFound: _failed(404),
            UsageError: _failed(400),
            MachineError: _unreadable,
            HTTPException: _http,
        },
    )
    app.router.redirect_slashes = False  # it would redirect to whatever host was asked for
    return Guard(app, local=local)


def _plain(make: Callable[[sa.Connection], str]) -> Make:
    def answer(connection: sa.Connection, request: Request) -> tuple[str, int]:
        read_all((), request.query_params.multi_items())
        return make(connection), 200

    return answer


def _below(make: Callable[[sa.Connection, str], str]) -> Make:
    def answer(connection: sa.Connection, request: Request) -> tuple[str, int]:
        read_all((), request.query_params.multi_items())
        return make(connection, _path(request).lstrip("/")), 200

    return answer


def _path(request: Request) -> str:
    # request.url.path would end at a %3F within the path.
    return str(request.scope["path"])


def _compare_any(connection: sa.Connection, request: Request) -> tuple[str, int]:
    return live_pages.compare_any(
        connection, read_all(live_pages.COMPARED, request.query_params.multi_items())
    )


def _api(endpoint: Endpoint) -> Make:
    def answer(connection: sa.Connection, request: Request) -> tuple[str, int]:
        values = read_all(endpoint.parameters, request.query_params.multi_items())
        return _json(endpoint.answer(connection, values)), 200

    return answer


def _json(value: Any) -> str:
    return dumps(value, separators=(",", ":"))


def _answered(store: Store, answers: _Kept, request: Request, make: Make, kind: str) -> Response:
    address = f"{_path(request)}?{request.scope['query_string'].decode('latin-1')}"
    with store.read() as connection:
        tag = f'"{digest([__version__, state_of(connection), address])[:32]}"'
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=_headers(tag))
        answer = answers.get(address, tag)
        if answer is None:
            with answers.alone(address):  # whoever asks the same meanwhile waits, and gets the same answer
                answer = answers.get(address, tag)
                if answer is None:
                    text, status = make(connection, request)
                    answer = CachedResponse(redact(text).encode("utf-8", "replace"), kind, status, tag)
                    answers.put(address, answer)
    return Response(
        answer.body, answer.status, _headers(tag if answer.status == 200 else None), media_type=answer.kind
    )


def _headers(tag: str | None) -> dict[str, str]:
    """Browsers revalidate each time; the tag shows whether anything changed."""
    return {"cache-control": "no-cache", **({"etag": tag} if tag else {})}


class _Kept:
    """The last answers, by address; for several threads."""

    def __init__(self) -> None:
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


def _description(_: Request) -> Response:
    return Response(_json(description()), media_type=JSON, headers=_headers(None))


def _asset_of(assets: dict[str, bytes]) -> Callable[[Request], Response]:
    """Serve the files in `assets` only: a request never becomes a file-system path."""
    tags = {name: f'"{hashlib.sha256(content).hexdigest()[:32]}"' for name, content in assets.items()}

    def endpoint(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in assets:
            raise NotFound("there is no such file")
        if tags[name] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=_headers(tags[name]))
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(assets[name], media_type=kind, headers=_headers(tags[name]))

    return endpoint


def _healthy(store: Store) -> Response:
    """For a monitor: whether the history can be read."""
    with store.read() as connection:
        connection.execute(sa.text("select 1 from runs limit 1"))
    return Response("ok\n", media_type=TEXT, headers={"cache-control": "no-store"})


def _failed(status: int) -> Callable[[Request, Exception], Response]:
    def handler(request: Request, error: Exception) -> Response:
        return _message(request, status, str(error))

    return handler


def _unreadable(request: Request, error: Exception) -> Response:
    """Log the database's error, which may name the store; readers must not see it."""
    _LOG.error("%s", error)
    return _message(
        request, 503, "The history cannot be read at the moment; the server's log says why.", retry="30"
    )


def _http(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    return _message(request, status, "There is no such page." if status == 404 else str(error))


def _message(request: Request, status: int, text: str, retry: str | None = None) -> Response:
    text = redact(text)
    headers = {"cache-control": "no-store"} | ({"retry-after": retry} if retry else {})
    if _path(request).startswith("/api/"):
        return Response(_json({"error": text}), status, headers, media_type=JSON)
    return Response(f"{text}\n".encode("utf-8", "replace"), status, headers, media_type=TEXT)
