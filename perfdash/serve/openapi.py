"""The addresses of the API, each with its parameters and the shape of its answer; OpenAPI says the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from perfdash import __version__
from perfdash.serve import api
from perfdash.serve.parameters import Parameter
from perfdash.serve.shapes import SHAPES, named

DESCRIPTION = "/api/openapi.json"
_ERRORS = {
    "400": "a parameter is wrong: the message says which",
    "404": "there is no such thing",
    "503": "the history cannot be read at the moment",
}


@dataclass(frozen=True)
class Endpoint:
    """`answer` makes plain values of `shape` from a connection and the parameters."""

    name: str
    parameters: Sequence[Parameter]
    answer: Callable[[sa.Connection, dict[str, Any]], dict[str, Any]]
    shape: str

    @property
    def path(self) -> str:
        return f"/api/{self.name}"


ENDPOINTS = (
    Endpoint("runs", api.RUNS, api.runs, "Runs"),
    Endpoint("run", api.RUN, api.run, "RunResults"),
    Endpoint("cases", api.CASES, api.cases, "Cases"),
    Endpoint("series", api.SERIES, api.series, "Series"),
    Endpoint("compare", api.COMPARE, api.compare, "Comparison"),
    Endpoint("alerts", api.ALERTS, api.alerts, "Alerts"),
    Endpoint("trend", api.TREND, api.trend, "Trend"),
)


def description() -> dict[str, Any]:
    """OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "perfdash",
            "version": __version__,
            "summary": "The history of what torch.compile does to models",
            "description": "Read only. Times are UTC; latencies in ms, *_s in seconds, *_bytes in bytes; "
            "speedup is eager latency / compiled latency. null: not known or not measured.",
        },
        "servers": [{"url": "../"}],
        "paths": {each.path: {"get": _operation(each)} for each in ENDPOINTS},
        "components": {"schemas": SHAPES},
    }


def _operation(each: Endpoint) -> dict[str, Any]:
    return {
        "operationId": each.name,
        "summary": (each.answer.__doc__ or "").strip(),
        "parameters": [
            {
                "name": one.name,
                "in": "query",
                "description": one.about,
                "required": one.required,
                "schema": one.schema(),
            }
            for one in each.parameters
        ],
        "responses": {
            "200": {"description": "the answer", "content": _json(each.shape)},
            **{code: {"description": text, "content": _json("Error")} for code, text in _ERRORS.items()},
        },
    }


def _json(shape: str) -> dict[str, Any]:
    return {"application/json": {"schema": named(shape)}}
