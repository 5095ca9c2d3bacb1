"""The ASGI application: its pages and files, and its error messages."""

from __future__ import annotations

import hashlib
import logging
import mimetypes
from collections.abc import Callable
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from perfdash import __version__
from perfdash.errors import MachineError, UsageError
from perfdash.history.store import Store
from perfdash.redaction import redact
from perfdash.report import site_links
from perfdash.serve import api, live_pages
from perfdash.serve.cached_answers import JSON, Answer, AnswerCache, headers, path_of, to_json
from perfdash.serve.http_policy import Guard
from perfdash.serve.parameters import NotFound, complaint, refuse_unknown, text

TEXT = "text/plain; charset=utf-8"
DESCRIPTION = "/api/openapi.json"
_LOG = logging.getLogger("perfdash.serve")


def application(store: Store, assets: dict[str, bytes], *, local: bool) -> Guard:
    """Answers from `store`. `assets` by name; `local`: bound to loopback, see Guard."""
    app = FastAPI(
        title="perfdash",
        version=__version__,
        summary="The history of what torch.compile does to models",
        description="Read only. Times are UTC; latencies in ms, *_s in seconds, *_bytes in bytes; "
        "speedup is eager latency / compiled latency. null: not known or not measured.",
        servers=[{"url": "../"}],
        openapi_url=None,  # below, with our headers; the pages of FastAPI load scripts from elsewhere
        redirect_slashes=False,  # it would redirect to whatever host was asked for
        generate_unique_id_function=lambda route: route.name,
    )
    app.add_exception_handler(NotFound, _failed(404))
    app.add_exception_handler(UsageError, _failed(400))
    app.add_exception_handler(RequestValidationError, _wrong_parameter)
    app.add_exception_handler(MachineError, _unreadable)
    app.add_exception_handler(HTTPException, _http)
    app.state.cache = AnswerCache(store)
    app.include_router(_pages())
    app.include_router(api.ROUTER)
    app.add_route(
        DESCRIPTION, lambda _: Response(to_json(app.openapi()), media_type=JSON, headers=headers(None))
    )
    app.add_route("/assets/{name}", _asset_of(assets))
    app.add_route("/healthz", lambda _: _healthy(store))
    return Guard(app, local=local)


def _pages() -> APIRouter:
    """The pages; a page below a testbed, or of a cause, is made by its path."""
    router = APIRouter(dependencies=[Depends(refuse_unknown)], include_in_schema=False)
    router.add_api_route("/", _page(live_pages.overview))
    for path, make in live_pages.PAGES.items():
        router.add_api_route(f"/{path}", _page(make))
    router.add_api_route(f"/{site_links.COMPARE}", _compare_any)
    router.add_api_route(f"/beds/{{bed}}/{site_links.COMPARE}", _page_below(live_pages.nights))
    router.add_api_route(f"/beds/{{bed}}/{site_links.CONFIGURATIONS}", _page_below(live_pages.configurations))
    router.add_api_route("/beds/{bed}/suites/{name}", _page_below(live_pages.suite))
    router.add_api_route("/beds/{bed}/models/{name}", _page_below(live_pages.model))
    router.add_api_route("/causes/{name}", _page_below(live_pages.cause))
    return router


def _page(make: Callable[[sa.Connection], str]) -> Callable[..., Response]:
    def endpoint(answer: Answer) -> Response:  # not async: it is run in a thread
        return answer.page(lambda connection: (make(connection), 200))

    return endpoint


def _page_below(make: Callable[[sa.Connection, str], str]) -> Callable[..., Response]:
    def endpoint(answer: Answer) -> Response:
        return answer.page(lambda connection: (make(connection, path_of(answer.request).lstrip("/")), 200))

    return endpoint


def _compare_any(
    answer: Answer,
    old: Annotated[
        str | None, text("a run's name or id:N, last, a date, a window, a version or commit of torch")
    ] = None,
    new: Annotated[str | None, text("the same of what it is compared with")] = None,
    host_class: Annotated[str | None, text("of runs on several classes of hosts, those on this one")] = None,
) -> Response:
    words = {"old": old, "new": new, "host_class": host_class}
    return answer.page(lambda connection: live_pages.compare_any(connection, words))


def _asset_of(assets: dict[str, bytes]) -> Callable[[Request], Response]:
    """Serve the files in `assets` only: a request never becomes a file-system path."""
    tags = {name: f'"{hashlib.sha256(content).hexdigest()[:32]}"' for name, content in assets.items()}

    def endpoint(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in assets:
            raise NotFound("there is no such file")
        if tags[name] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers(tags[name]))
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(assets[name], media_type=kind, headers=headers(tags[name]))

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


def _wrong_parameter(request: Request, error: Any) -> Response:
    return _message(request, 400, complaint(request, error))


def _unreadable(request: Request, error: Exception) -> Response:
    """Log the database's error, which may name the store; readers must not see it."""
    _LOG.error("%s", error)
    return _message(
        request, 503, "The history cannot be read at the moment; the server's log says why.", retry="30"
    )


def _http(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    return _message(request, status, "There is no such page." if status == 404 else str(error))


def _message(request: Request, status: int, message: str, retry: str | None = None) -> Response:
    message = redact(message)
    more = {"cache-control": "no-store"} | ({"retry-after": retry} if retry else {})
    if path_of(request).startswith("/api/"):
        return Response(to_json({"error": message}), status, more, media_type=JSON)
    return Response(f"{message}\n".encode("utf-8", "replace"), status, more, media_type=TEXT)
